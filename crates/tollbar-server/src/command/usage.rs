//! `tollbar usage`: who has used how much, day by day.

use std::io;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::client::{CallError, Client, Query, ServerFlags};
use super::rules::find_rule;
use super::table::{Table, cell};
use super::{EXIT_CODES, Ending};
use crate::rfc3339::Date;

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES, args_conflicts_with_subcommands = true)]
pub(crate) struct Usage {
    #[command(subcommand)]
    export: Option<What>,

    #[command(flatten)]
    which: Which,

    /// Only of this subject, such as user:42
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<String>,

    /// Only under this rule, by its name or id
    #[arg(long, value_name = "RULE")]
    rule: Option<String>,

    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Prints usage for other programs
    Export(Export),
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
struct Export {
    /// CSV with a first line of names, or an object of JSON a line
    #[arg(long, value_enum, default_value_t = Format::Csv)]
    format: Format,

    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Csv,
    Jsonl,
}

/// Which days, and whose.
#[derive(Debug, Args)]
struct Which {
    /// From this day on, in UTC, such as 2026-11-01
    #[arg(long, value_name = "DAY")]
    from: Option<Date>,

    /// Up to this day, which is included
    #[arg(long, value_name = "DAY")]
    to: Option<Date>,

    /// Only of this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
}

impl Which {
    fn query(&self) -> Query {
        let day = |day: Option<Date>| day.map(|it| it.to_string());
        Query::default()
            .and("from", day(self.from).as_deref())
            .and("to", day(self.to).as_deref())
            .and("tenant", self.tenant.as_deref())
    }
}

impl Usage {
    pub(crate) fn run(self) -> Ending {
        if let Some(What::Export(export)) = self.export {
            return export.run();
        }
        self.server.run(async |client| self.show(client).await)
    }

    async fn show(&self, client: &Client) -> Result<Ending, CallError> {
        let rule = match &self.rule {
            Some(rule) => Some(find_rule(client, rule).await?.id()),
            None => None,
        };
        let query = self.which.query();
        let query = query.and("subject", self.subject.as_deref()).and("ruleId", rule.as_deref());
        let days = client.items("/v1/rate-limit/usage/daily", &query).await?;
        Ok(client.show(&json!(days), || table(&days)))
    }
}

impl Export {
    fn run(self) -> Ending {
        let format = match self.format {
            Format::Csv => "csv",
            Format::Jsonl => "jsonl",
        };
        let query = self.which.query().and("format", Some(format));
        self.server.run(async |client| {
            let target = query.target("/v1/rate-limit/usage/export");
            client.copy(&target, io::stdout().lock()).await?;
            Ok(Ending::Well)
        })
    }
}

fn table(days: &[Value]) -> String {
    let mut table = Table::new(&["DAY", "TENANT", "SUBJECT", "ADMITTED", "DENIED", "RULE ID"]);
    for it in days {
        let fields = ["day", "tenant", "subject", "admitted", "denied", "ruleId"];
        table.row(fields.iter().map(|name| cell(&it[*name])));
    }
    table.text("no usage has been written")
}

/// What a subject has left, limit by limit.
pub(super) fn limits(usage: &Value) -> String {
    let mut table = Table::new(&["RULE", "LIMIT", "LEFT", "RESETS AT"]);
    for it in usage["limits"].as_array().into_iter().flatten() {
        let fields = ["rule", "limitText", "remaining", "resetAt"];
        table.row(fields.iter().map(|name| cell(&it[*name])));
    }
    table.text("nothing limits it")
}
