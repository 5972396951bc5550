//! `tollbar key`: one subject, and what a rule has counted of it.

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};

use super::client::{Call, CallError, Client, Query, ServerFlags, segment};
use super::rules::find_rule;
use super::table::{Table, cell, visible};
use super::until::Until;
use super::{EXIT_CODES, Ending};

/// Where bans, boosts and counters are.
const KEYS: &str = "/v1/rate-limit/keys";

#[derive(Debug, Subcommand)]
pub(crate) enum Key {
    /// Shows what a subject has left under a rule
    Peek(Counter),
    /// Makes the counters of a subject under a rule fresh
    Reset(Counter),
    /// Multiplies the limits of a subject
    Boost(Boost),
    /// Denies a subject
    Ban(Ban),
    /// Ends bans of a subject
    Unban(Unban),
    /// Ends boosts of a subject
    Unboost(Unban),
    /// Lists bans and boosts
    List(List),
    /// Lists who was denied most often, since the daemon has started
    Top(Top),
}

/// A subject under a rule.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Counter {
    /// The name or the id of the rule
    #[arg(value_name = "RULE")]
    rule: String,

    /// Whom it counts: user:42, api:abc, ip:203.0.113.7, or the value of what it counts per
    #[arg(value_name = "SUBJECT")]
    subject: String,

    #[command(flatten)]
    server: ServerFlags,
}

/// Whom, under what, for how long and why.
#[derive(Debug, Args)]
struct Record {
    /// Whom: user:42, api:abc, ip:203.0.113.7, or the value of what rules count per
    #[arg(value_name = "SUBJECT")]
    subject: String,

    /// Only under this rule, by its name or id; under all rules without it
    #[arg(long, value_name = "RULE")]
    rule: Option<String>,

    /// Why, for people
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Boost {
    #[command(flatten)]
    record: Record,

    /// By how much limits are multiplied, such as 2 or 1.5
    #[arg(long, value_name = "NUMBER", value_parser = percent)]
    factor: u64,

    /// Until when: a time from now such as 2h, a day or an instant
    #[arg(long, value_name = "WHEN")]
    until: Until,
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Ban {
    #[command(flatten)]
    record: Record,

    /// Until when: a time from now such as 2h, a day or an instant; for good without it
    #[arg(long, value_name = "WHEN")]
    until: Option<Until>,
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Unban {
    /// Whom
    #[arg(value_name = "SUBJECT")]
    subject: String,

    /// Only under this rule, by its name or id; wherever it is without it
    #[arg(long, value_name = "RULE")]
    rule: Option<String>,

    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct List {
    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Top {
    /// Only under this rule, by its name or id
    #[arg(value_name = "RULE")]
    rule: Option<String>,

    /// How many
    #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,

    #[command(flatten)]
    server: ServerFlags,
}

impl Key {
    pub(crate) fn run(self) -> Ending {
        match self {
            Self::Peek(counter) => counter.peek(),
            Self::Reset(counter) => counter.reset(),
            Self::Boost(Boost { record, factor, until }) => {
                record.put("boost", Some(factor), Some(&until))
            }
            Self::Ban(Ban { record, until }) => record.put("ban", None, until.as_ref()),
            Self::Unban(unban) => unban.run("ban"),
            Self::Unboost(unban) => unban.run("boost"),
            Self::List(list) => list.run(),
            Self::Top(top) => top.run(),
        }
    }
}

impl Counter {
    async fn ask(&self, client: &Client, what: &str) -> Result<Value, CallError> {
        let id = find_rule(client, &self.rule).await?.id();
        let body = json!({ "ruleId": id, "subject": self.subject });
        client.send(Call::post(format!("{KEYS}/{what}"), body)).await
    }

    fn peek(self) -> Ending {
        self.server.run(async |client| {
            let usage = self.ask(client, "peek").await?;
            Ok(client.show(&usage, || super::usage::limits(&usage)))
        })
    }

    fn reset(self) -> Ending {
        self.server.run(async |client| {
            let answer = self.ask(client, "reset").await?;
            Ok(client.show(&answer, || {
                format!("{} is fresh under {}\n", visible(&self.subject), visible(&self.rule))
            }))
        })
    }
}

impl Record {
    fn put(self, kind: &str, factor_percent: Option<u64>, until: Option<&Until>) -> Ending {
        self.server.run(async |client| {
            let mut body = json!({ "subject": self.subject });
            if let Some(rule) = &self.rule {
                body["ruleId"] = json!(find_rule(client, rule).await?.id());
            }
            for (name, value) in [
                ("reason", self.reason.as_ref().map(|it| json!(it))),
                ("expiresAt", until.map(|it| json!(it.0))),
                ("factorPercent", factor_percent.map(|it| json!(it))),
            ] {
                if let Some(value) = value {
                    body[name] = value;
                }
            }
            let record = client.send(Call::post(format!("{KEYS}/{kind}"), body)).await?;
            Ok(client.show(&record, || table(std::slice::from_ref(&record))))
        })
    }
}

impl Unban {
    fn run(self, kind: &str) -> Ending {
        self.server.run(async |client| {
            let rule = match &self.rule {
                Some(rule) => Some(find_rule(client, rule).await?.id()),
                None => None,
            };
            let mut records = client.items(KEYS, &Query::default()).await?;
            records.retain(|it| {
                let is_of_rule = rule.as_ref().is_none_or(|rule| it["ruleId"] == **rule);
                it["kind"] == kind && it["subject"] == *self.subject && is_of_rule
            });
            for record in &records {
                let target = format!("{KEYS}/{}", segment(&cell(&record["keyId"])));
                client.send(Call::new(Method::DELETE, target)).await?;
            }
            let (subject, count) = (visible(&self.subject), records.len());
            client.show(&json!(records), || match count {
                0 => format!("there is no {kind} of {subject}\n"),
                1 => format!("the {kind} of {subject} is over\n"),
                _ => format!("{count} {kind}s of {subject} are over\n"),
            });
            Ok(if count == 0 { Ending::Found } else { Ending::Well })
        })
    }
}

impl List {
    fn run(self) -> Ending {
        self.server.run(async |client| {
            let records = client.items(KEYS, &Query::default()).await?;
            Ok(client.show(&json!(records), || table(&records)))
        })
    }
}

impl Top {
    fn run(self) -> Ending {
        self.server.run(async |client| {
            let rule = match &self.rule {
                Some(rule) => Some(find_rule(client, rule).await?.id()),
                None => None,
            };
            let limit = self.limit.to_string();
            let query = Query::default().and("ruleId", rule.as_deref()).and("limit", Some(&limit));
            let top = client.get(&query.target(&format!("{KEYS}/top"))).await?;
            Ok(client.show(&top["items"], || {
                let mut table = Table::new(&["SUBJECT", "RULE", "DENIED", "AT MOST TOO HIGH BY"]);
                for it in top["items"].as_array().into_iter().flatten() {
                    let fields = ["subject", "rule", "count", "error"];
                    table.row(fields.iter().map(|name| cell(&it[*name])));
                }
                table.text("nobody was denied")
            }))
        })
    }
}

fn table(records: &[Value]) -> String {
    let mut table = Table::new(&["ID", "WHAT", "SUBJECT", "RULE ID", "UNTIL", "REASON", "BY"]);
    for it in records {
        let what = match it["factorPercent"].as_u64() {
            None => cell(&it["kind"]),
            Some(percent) => format!("{} x{}", cell(&it["kind"]), factor_text(percent)),
        };
        let rule = if it["ruleId"].is_null() { "(all)".to_owned() } else { cell(&it["ruleId"]) };
        let [id, subject, until, reason, by] =
            ["keyId", "subject", "expiresAt", "reason", "createdBy"].map(|name| cell(&it[name]));
        table.row(vec![id, what, subject, rule, until, reason, by]);
    }
    table.text("there are no bans and no boosts")
}

/// A factor with up to two decimals, in hundredths: `1.5` is 150.
fn percent(text: &str) -> Result<u64, String> {
    let wrong = || "write a number with at most two decimals, such as 2 or 1.5".to_owned();
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number =
        |it: &str, max| (1..=max).contains(&it.len()) && it.bytes().all(|it| it.is_ascii_digit());
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
