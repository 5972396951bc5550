//! `tollbar rules list` and `get`: what a daemon enforces.

use clap::Args;
use serde_json::{Value, json};
use tollbar_rules::admin::RuleView;

use super::remote::limits_of;
use crate::command::ExitStatus;
use crate::command::client::{Query, ServerFlags};
use crate::command::rules::remote::{self};
use crate::command::table::{Table, cell, visible};
use tollbar_admin::operations::rule_json::RuleJson;

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only those of this tenant
    #[arg(long)]
    tenant: Option<String>,

    /// Only those of this scope: global, tenant or endpoint
    #[arg(long, value_parser = ["global", "tenant", "endpoint"])]
    scope: Option<String>,

    /// Only those that are enabled, or those that are not
    #[arg(long, value_name = "BOOL")]
    enabled: Option<bool>,

    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Its name, or its id
    rule: String,

    #[command(flatten)]
    server: ServerFlags,
}

impl ListArgs {
    pub(crate) fn run(self) -> ExitStatus {
        let enabled = self.enabled.map(|it| it.to_string());
        let query = Query::default()
            .and("tenant", self.tenant.as_deref())
            .and("scope", self.scope.as_deref())
            .and("enabled", enabled.as_deref());
        self.server.run(async |client| {
            let rules = remote::all(client, &query).await?;
            Ok(client.show(&json!(rules), || table(&rules)))
        })
    }
}

fn table(rules: &[RuleJson]) -> String {
    let mut table = Table::new(&["NAME", "LIMIT", "SCOPE", "TENANT", "ENABLED", "VERSION", "ID"]);
    for rule in rules {
        let version = match rule.version {
            Some(version) => version.to_string(),
            None => "file".to_owned(),
        };
        let view = RuleView::of(&rule.rule);
        table.row(vec![
            rule.rule.name.to_string(),
            limits_of(&rule.rule),
            view.scope.name().to_owned(),
            cell(&json!(view.tenant_id)),
            if rule.rule.enabled { "yes" } else { "no" }.to_owned(),
            version,
            rule.id().to_owned(),
        ]);
    }
    table.text("there are no rules")
}

impl GetArgs {
    pub(crate) fn run(self) -> ExitStatus {
        self.server.run(async |client| {
            let rule = json!(remote::find(client, &self.rule).await?);
            Ok(client.show(&rule, || fields(&rule)))
        })
    }
}

/// A field a line, those that say something.
fn fields(rule: &Value) -> String {
    let fields = rule.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let line =
        |(name, value): (&String, &Value)| format!("{}: {}", visible(name), visible(&cell(value)));
    fields.map(line).collect::<Vec<_>>().join("\n") + "\n"
}
