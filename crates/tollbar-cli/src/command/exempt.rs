//! `tollbar exempt`: who is not counted by a rule.

use clap::Subcommand;
use hyper::Method;
use serde_json::{Value, json};

use super::ExitStatus;
use super::client::{ApiError, ApiRequest, Client, Query, segment};
use super::rules::{find_rule, path_of, with_rule_names};
use super::table::columns;
use crate::command::expiry::Expiry;

/// Where exemptions are.
const EXEMPTIONS: &str = "/v1/rate-limit/exemptions";

#[derive(Debug, Subcommand)]
pub(crate) enum ExemptCommand {
    /// Exempts a subject from a rule
    Add {
        /// The name or the id of the rule
        rule: String,

        /// What kind of subject it is
        #[arg(value_name = "TYPE", value_parser = ["api_key", "user", "ip_cidr", "service_account"])]
        subject_type: String,

        /// Which one: its value, or a block of addresses such as 10.0.0.0/8
        #[arg(value_name = "VALUE")]
        subject_value: String,

        /// Why, for people
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,

        /// Until when: a time from now such as 30d, a day or an instant; for good without it
        #[arg(long, value_name = "WHEN")]
        until: Option<Expiry>,
    },
    /// Lists exemptions
    List {
        /// Only those from this rule, by its name or id
        rule: Option<String>,
    },
    /// Ends an exemption
    Delete {
        /// Its id, as `list` has it
        id: String,
    },
}

impl ExemptCommand {
    pub(crate) async fn run(self, client: &Client) -> Result<ExitStatus, ApiError> {
        match self {
            Self::Add { rule, subject_type, subject_value, reason, until } => {
                let path = path_of(&find_rule(client, &rule).await?);
                let body = json!({
                    "subjectType": subject_type,
                    "subjectValue": subject_value,
                    "reason": reason,
                    "expiresAt": until.map(|expiry| expiry.0),
                });
                let created =
                    client.send(ApiRequest::post(format!("{path}/exemptions"), body)).await?;
                let named = with_rule_names(client, vec![created.clone()]).await?;
                Ok(client.show(&created, || table(&named)))
            }
            Self::List { rule } => {
                let path = match rule {
                    Some(rule) => {
                        format!("{}/exemptions", path_of(&find_rule(client, &rule).await?))
                    }
                    None => EXEMPTIONS.to_owned(),
                };
                let exemptions = client.items(&path, &Query::default()).await?;
                let named = with_rule_names(client, exemptions.clone()).await?;
                Ok(client.show(&json!(exemptions), || table(&named)))
            }
            Self::Delete { id } => {
                let target = format!("{EXEMPTIONS}/{}", segment(&id));
                let response = client.send(ApiRequest::new(Method::DELETE, target)).await?;
                Ok(client.show(&response, || format!("exemption {id} is deleted\n")))
            }
        }
    }
}

fn table(exemptions: &[Value]) -> String {
    let fields = [
        ("ID", "exemptionId"),
        ("TYPE", "subjectType"),
        ("SUBJECT", "subjectValue"),
        ("UNTIL", "expiresAt"),
        ("REASON", "reason"),
        ("BY", "createdBy"),
        ("RULE", "rule"),
    ];
    columns(&fields, exemptions, "there are no exemptions")
}
