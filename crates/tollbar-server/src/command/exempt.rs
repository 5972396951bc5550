//! `tollbar exempt`: who is not counted by a rule.

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};

use super::client::{Call, Query, ServerFlags, segment};
use super::rules::find_rule;
use super::table::{Table, cell};
use super::until::Until;
use super::{EXIT_CODES, Ending};

/// Where exemptions are.
const EXEMPTIONS: &str = "/v1/rate-limit/exemptions";

#[derive(Debug, Subcommand)]
pub(crate) enum Exempt {
    /// Exempts a subject from a rule
    Add(Add),
    /// Lists exemptions
    List(List),
    /// Ends an exemption
    Delete(Delete),
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Add {
    /// The name or the id of the rule
    #[arg(value_name = "RULE")]
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
    until: Option<Until>,

    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct List {
    /// Only those from this rule, by its name or id
    #[arg(value_name = "RULE")]
    rule: Option<String>,

    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Delete {
    /// Its id, as `list` has it
    #[arg(value_name = "ID")]
    id: String,

    #[command(flatten)]
    server: ServerFlags,
}

impl Exempt {
    pub(crate) fn run(self) -> Ending {
        match self {
            Self::Add(add) => add.run(),
            Self::List(list) => list.run(),
            Self::Delete(delete) => delete.run(),
        }
    }
}

impl Add {
    fn run(self) -> Ending {
        self.server.run(async |client| {
            let path = find_rule(client, &self.rule).await?.path();
            let body = json!({
                "subjectType": self.subject_type,
                "subjectValue": self.subject_value,
                "reason": self.reason,
                "expiresAt": self.until.as_ref().map(|it| &it.0),
            });
            let call = Call::post(format!("{path}/exemptions"), body);
            let exemption = client.send(call).await?;
            Ok(client.show(&exemption, || table(std::slice::from_ref(&exemption))))
        })
    }
}

impl List {
    fn run(self) -> Ending {
        self.server.run(async |client| {
            let path = match &self.rule {
                Some(rule) => format!("{}/exemptions", find_rule(client, rule).await?.path()),
                None => EXEMPTIONS.to_owned(),
            };
            let exemptions = client.items(&path, &Query::default()).await?;
            Ok(client.show(&json!(exemptions), || table(&exemptions)))
        })
    }
}

impl Delete {
    fn run(self) -> Ending {
        self.server.run(async |client| {
            let target = format!("{EXEMPTIONS}/{}", segment(&self.id));
            let answer = client.send(Call::new(Method::DELETE, target)).await?;
            Ok(client.show(&answer, || format!("exemption {} is deleted\n", self.id)))
        })
    }
}

fn table(exemptions: &[Value]) -> String {
    let mut table = Table::new(&["ID", "TYPE", "SUBJECT", "UNTIL", "REASON", "BY", "RULE ID"]);
    for it in exemptions {
        let fields = [
            "exemptionId",
            "subjectType",
            "subjectValue",
            "expiresAt",
            "reason",
            "createdBy",
            "ruleId",
        ];
        table.row(fields.iter().map(|name| cell(&it[*name])));
    }
    table.text("there are no exemptions")
}
