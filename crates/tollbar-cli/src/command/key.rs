//! `tollbar key`: one subject, and what a rule has counted of it.

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Map, Value, json};
use tollbar_daemon::count_flag::count;

use super::ExitStatus;
use super::client::{ApiError, ApiRequest, Client, Query, segment};
use super::rules::{attribute, find_rule, id_of, with_rule_names};
use super::table::{Table, cell, columns, visible};
use crate::command::expiry::Expiry;

/// Where bans, boosts and counters are.
const KEYS: &str = "/v1/rate-limit/keys";

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Shows what a subject has left under a rule
    Peek(CounterArgs),
    /// Makes the counters of a subject under a rule fresh
    Reset(CounterArgs),
    /// Multiplies the limits of a subject
    Boost {
        #[command(flatten)]
        record: KeyRecordArgs,

        /// By how much limits are multiplied, such as 2 or 1.5
        #[arg(long, value_name = "NUMBER", value_parser = percent)]
        factor: u64,

        /// Until when: a time from now such as 2h, a day or an instant
        #[arg(long, value_name = "WHEN")]
        until: Expiry,
    },
    /// Denies a subject
    Ban {
        #[command(flatten)]
        record: KeyRecordArgs,

        /// Until when: a time from now such as 2h, a day or an instant; for good without it
        #[arg(long, value_name = "WHEN")]
        until: Option<Expiry>,
    },
    /// Ends bans of a subject
    Unban(LiftArgs),
    /// Ends boosts of a subject
    Unboost(LiftArgs),
    /// Lists bans and boosts
    List,
    /// Lists who was denied most often, since the daemon has started
    Top {
        /// Only under this rule, by its name or id
        rule: Option<String>,

        /// How many
        #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = count::<u32>(1..=1000))]
        limit: u32,
    },
}

/// A subject under a rule.
#[derive(Debug, Args)]
pub(crate) struct CounterArgs {
    /// The name or the id of the rule
    rule: String,

    /// Whom it counts: user:42, api:abc, ip:203.0.113.7, or the value of what it counts per; several values as '42 |
    /// /v1/users'
    subject: String,

    /// Another attribute of the subject, such as tier=premium; may be given several times
    #[arg(short, long = "attribute", value_name = "NAME=VALUE", value_parser = attribute)]
    attributes: Vec<(String, String)>,
}

/// Whom, under what and why.
#[derive(Debug, Args)]
pub(crate) struct KeyRecordArgs {
    /// Whom: user:42, api:abc, ip:203.0.113.7, or the value of what rules count per
    subject: String,

    /// Only under this rule, by its name or id; under all rules without it
    #[arg(long)]
    rule: Option<String>,

    /// Why, for people
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LiftArgs {
    /// Whom
    subject: String,

    /// Only under this rule, by its name or id; wherever it is without it
    #[arg(long)]
    rule: Option<String>,
}

impl KeyCommand {
    pub(crate) async fn run(self, client: &Client) -> Result<ExitStatus, ApiError> {
        match self {
            Self::Peek(counter) => {
                let usage = counter.send(client, "peek").await?;
                Ok(client.show(&usage, || super::usage::limits(&usage)))
            }
            Self::Reset(counter) => {
                let response = counter.send(client, "reset").await?;
                let (subject, rule) = (visible(&counter.subject), visible(&counter.rule));
                Ok(client.show(&response, || format!("{subject} is fresh under {rule}\n")))
            }
            Self::Boost { record, factor, until } => {
                record.put(client, "boost", json!({ "factorPercent": factor }), Some(until)).await
            }
            Self::Ban { record, until } => record.put(client, "ban", json!({}), until).await,
            Self::Unban(unban) => unban.run(client, "ban").await,
            Self::Unboost(unban) => unban.run(client, "boost").await,
            Self::List => {
                let records = client.items(KEYS, &Query::default()).await?;
                let named = with_rule_names(client, records.clone()).await?;
                Ok(client.show(&json!(records), || table(&named)))
            }
            Self::Top { rule, limit } => {
                let (rule, limit) = (id_of(client, rule.as_deref()).await?, limit.to_string());
                let query = Query::default().and("ruleId", rule.as_deref());
                let query = query.and("limit", Some(&limit));
                let top = client.get(&query.target(&format!("{KEYS}/top"))).await?;
                let fields = [
                    ("SUBJECT", "subject"),
                    ("RULE", "rule"),
                    ("DENIED", "count"),
                    ("AT MOST TOO HIGH BY", "error"),
                ];
                let items = top["items"].as_array().map_or(&[][..], Vec::as_slice);
                Ok(client.show(&top["items"], || columns(&fields, items, "nobody was denied")))
            }
        }
    }
}

impl CounterArgs {
    async fn send(&self, client: &Client, what: &str) -> Result<Value, ApiError> {
        let rule = find_rule(client, &self.rule).await?;
        let id = rule.id();
        let attributes: Map<String, Value> =
            self.attributes.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let body = json!({ "ruleId": id, "subject": self.subject, "attributes": attributes });
        client.send(ApiRequest::post(format!("{KEYS}/{what}"), body)).await
    }
}

impl KeyRecordArgs {
    async fn put(
        self,
        client: &Client,
        kind: &str,
        mut body: Value,
        until: Option<Expiry>,
    ) -> Result<ExitStatus, ApiError> {
        body["subject"] = json!(self.subject);
        body["ruleId"] = json!(id_of(client, self.rule.as_deref()).await?);
        body["reason"] = json!(self.reason);
        body["expiresAt"] = json!(until.map(|expiry| expiry.0));
        let record = client.send(ApiRequest::post(format!("{KEYS}/{kind}"), body)).await?;
        let named = with_rule_names(client, vec![record.clone()]).await?;
        Ok(client.show(&record, || table(&named)))
    }
}

impl LiftArgs {
    async fn run(self, client: &Client, kind: &str) -> Result<ExitStatus, ApiError> {
        let rule = id_of(client, self.rule.as_deref()).await?;
        let mut records = client.items(KEYS, &Query::default()).await?;
        records.retain(|record| {
            let is_of_rule = rule.as_ref().is_none_or(|rule| record["ruleId"] == **rule);
            record["kind"] == kind && record["subject"] == *self.subject && is_of_rule
        });
        for record in &records {
            let target = format!("{KEYS}/{}", segment(&cell(&record["keyId"])));
            client.send(ApiRequest::new(Method::DELETE, target)).await?;
        }
        let (subject, count) = (visible(&self.subject), records.len());
        client.show(&json!(records), || match count {
            0 => format!("there is no {kind} of {subject}\n"),
            1 => format!("the {kind} of {subject} is over\n"),
            _ => format!("{count} {kind}s of {subject} are over\n"),
        });
        Ok(if count == 0 { ExitStatus::Findings } else { ExitStatus::Success })
    }
}

fn table(records: &[Value]) -> String {
    let mut table = Table::new(&["ID", "WHAT", "SUBJECT", "RULE", "UNTIL", "REASON", "BY"]);
    for record in records {
        let what = match record["factorPercent"].as_u64() {
            None => cell(&record["kind"]),
            Some(percent) => format!("{} x{}", cell(&record["kind"]), factor_text(percent)),
        };
        let [id, subject, rule, until, reason, by] =
            ["keyId", "subject", "rule", "expiresAt", "reason", "createdBy"]
                .map(|name| cell(&record[name]));
        table.row(vec![id, what, subject, rule, until, reason, by]);
    }
    table.text("there are no bans and no boosts")
}

/// A factor with up to two decimals, in hundredths: `1.5` is 150.
fn percent(text: &str) -> Result<u64, String> {
    let wrong = || "write a number with at most two decimals, such as 2 or 1.5".to_owned();
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str, max| {
        (1..=max).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    if !is_number(whole, 7) || !is_number(decimals, 2) {
        return Err(wrong());
    }
    let hundredths: u64 = format!("{whole}{decimals:0<2}").parse().map_err(|_| wrong())?;
    Ok(hundredths)
}

/// The other way round: 150 is `1.5`.
fn factor_text(percent: u64) -> String {
    let text = format!("{}.{:02}", percent / 100, percent % 100);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_is_read_exactly_and_written_as_it_was() {
        for (text, hundredths) in [("2", 200), ("1.5", 150), ("0.25", 25), ("1000", 100_000)] {
            assert_eq!(percent(text), Ok(hundredths));
            assert_eq!(factor_text(hundredths), text);
        }
        assert_eq!(percent("1.50"), Ok(150));
        for text in ["", ".", "1.", ".5", "1.234", "-1", "1e3", "99999999", "1,5"] {
            assert!(percent(text).is_err(), "{text}");
        }
    }
}
