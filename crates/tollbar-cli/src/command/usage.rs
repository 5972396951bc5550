//! `tollbar usage`: who has used how much, day by day.

use std::io;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::ExitStatus;
use super::client::{ApiError, Client, Query, ServerFlags};
use super::print_text;
use super::rules::id_of;
use super::table::{Table, cell, columns};
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
    /// Add usage up by this: requests, and tokens rule by rule, with the totals of all at the end
    #[arg(long, value_enum)]
    by: Option<Group>,

    /// A table, CSV with a first line of names, or an object of JSON a line. A table by default with --by, else CSV
    #[arg(long, value_enum)]
    format: Option<Format>,

    #[command(flatten)]
    filter: UsageFilterArgs,

    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Table,
    Csv,
    Jsonl,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Group {
    Tenant,
    Client,
    Rule,
    Tier,
}

impl Group {
    /// Its name, and the heading of its column.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Tenant => ("tenant", "TENANT"),
            Self::Client => ("client", "CLIENT"),
            Self::Rule => ("rule", "RULE"),
            Self::Tier => ("tier", "TIER"),
        }
    }
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
        let default = if self.by.is_some() { Format::Table } else { Format::Csv };
        let format = self.format.unwrap_or(default);
        let sent = match format {
            Format::Csv => "csv",
            Format::Table | Format::Jsonl => "jsonl",
        };
        let by = self.by.map(|by| by.names().0);
        let query = self.filter.query().and("by", by).and("format", Some(sent));
        self.server.run(async |client| {
            let target = query.target("/v1/rate-limit/usage/export");
            match format {
                Format::Table => {
                    let mut lines = Vec::new();
                    client.copy(&target, &mut lines).await?;
                    let lines = serde_json::Deserializer::from_slice(&lines).into_iter();
                    let lines: Result<Vec<Value>, _> = lines.collect();
                    let lines =
                        lines.map_err(|error| client.unexpected_response(error.to_string()))?;
                    print_text(&self.by.map_or_else(|| table(&lines), |by| totals(by, &lines)));
                }
                Format::Csv | Format::Jsonl => client.copy(&target, io::stdout().lock()).await?,
            }
            Ok(ExitStatus::Success)
        })
    }
}

/// The requests of each group and the tokens of each rule.
fn totals(by: Group, lines: &[Value]) -> String {
    let (name, heading) = by.names();
    let mut headings = vec![heading];
    if !matches!(by, Group::Rule) {
        headings.push("RULE");
    }
    headings.extend(["UNIT", "ADMITTED", "DENIED"]);
    let mut table = Table::new(&headings);
    for line in lines {
        let group = match line["line"].as_str() {
            Some("total") => "(total)".to_owned(),
            _ => cell(&line[name]),
        };
        let rule = (!matches!(by, Group::Rule)).then(|| cell(&line["rule"]));
        let rest = ["unit", "admitted", "denied"].map(|field| cell(&line[field]));
        table.row([group].into_iter().chain(rule).chain(rest));
    }
    table.text("no usage has been written")
}

fn table(days: &[Value]) -> String {
    let fields = [
        ("DAY", "day"),
        ("TENANT", "tenant"),
        ("CLIENT", "client"),
        ("TIER", "tier"),
        ("SUBJECT", "subject"),
        ("ADMITTED", "admitted"),
        ("DENIED", "denied"),
        ("REQUESTS", "admittedRequests"),
        ("RULE", "rule"),
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
