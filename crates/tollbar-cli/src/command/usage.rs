//! `tollbar usage`: who has used how much, day by day.

use std::io;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::ExitStatus;
use super::client::{ApiError, Client, Query, ServerFlags};
use super::rules::id_of;
use super::table::columns;
use tollbar_daemon::rfc3339::Date;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct UsageArgs {
    #[command(subcommand)]
    export: Option<UsageCommand>,

    #[command(flatten)]
    filter: UsageFilterArgs,

    /// Only of this subject, such as user:42
    #[arg(long)]
    subject: Option<String>,

    /// Only under this rule, by its name or id
    #[arg(long)]
    rule: Option<String>,

    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Debug, Subcommand)]
enum UsageCommand {
    /// Prints usage for other programs
    Export(UsageExportArgs),
}

#[derive(Debug, Args)]
struct UsageExportArgs {
    /// CSV with a first line of names, or an object of JSON a line
    #[arg(long, value_enum, default_value_t = Format::Csv)]
    format: Format,

    #[command(flatten)]
    filter: UsageFilterArgs,

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
struct UsageFilterArgs {
    /// From this day on, in UTC, such as 2026-11-01
    #[arg(long, value_name = "DAY")]
    from: Option<Date>,

    /// Up to this day, which is included
    #[arg(long, value_name = "DAY")]
    to: Option<Date>,

    /// Only of this tenant
    #[arg(long)]
    tenant: Option<String>,
}

impl UsageFilterArgs {
    fn query(&self) -> Query {
        let day = |day: Option<Date>| day.map(|date| date.to_string());
        Query::default()
            .and("from", day(self.from).as_deref())
            .and("to", day(self.to).as_deref())
            .and("tenant", self.tenant.as_deref())
    }
}

impl UsageArgs {
    pub(crate) fn run(self) -> ExitStatus {
        if let Some(UsageCommand::Export(export)) = self.export {
            return export.run();
        }
        self.server.run(async |client| self.show(client).await)
    }

    async fn show(&self, client: &Client) -> Result<ExitStatus, ApiError> {
        let rule = id_of(client, self.rule.as_deref()).await?;
        let query = self.filter.query();
        let query = query.and("subject", self.subject.as_deref()).and("ruleId", rule.as_deref());
        let days = client.items("/v1/rate-limit/usage/daily", &query).await?;
        Ok(client.show(&json!(days), || table(&days)))
    }
}

impl UsageExportArgs {
    fn run(self) -> ExitStatus {
        let format = match self.format {
            Format::Csv => "csv",
            Format::Jsonl => "jsonl",
        };
        let query = self.filter.query().and("format", Some(format));
        self.server.run(async |client| {
            let target = query.target("/v1/rate-limit/usage/export");
            client.copy(&target, io::stdout().lock()).await?;
            Ok(ExitStatus::Success)
        })
    }
}

fn table(days: &[Value]) -> String {
    let fields = [
        ("DAY", "day"),
        ("TENANT", "tenant"),
        ("SUBJECT", "subject"),
        ("ADMITTED", "admitted"),
        ("DENIED", "denied"),
        ("RULE ID", "ruleId"),
    ];
    columns(&fields, days, "no usage has been written")
}

/// What a subject has left, limit by limit.
pub(super) fn limits(usage: &Value) -> String {
    let limits = usage["limits"].as_array().map_or(&[][..], Vec::as_slice);
    let mut fields = vec![
        ("RULE", "rule"),
        ("TIER", "tier"),
        ("LIMIT", "limitText"),
        ("LEFT", "remaining"),
        ("RESETS AT", "resetAt"),
    ];
    if limits.iter().all(|limit| limit["tier"].is_null()) {
        fields.remove(1);
    }
    columns(&fields, limits, "nothing limits it")
}
