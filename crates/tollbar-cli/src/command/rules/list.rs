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
        let enabled = self.enabled.map(|enabled| enabled.to_string());
        let query = Query::default()
            .and("tenant", self.tenant.as_deref())
            .and("scope", self.scope.as_deref())
            .and("enabled", enabled.as_deref());
        self.server.run(async |client| {
            let rules = remote::all(client, &query).await?;
            let exit_status = client.show(&json!(rules), || table(&rules));
            remote::warn_of(&rules);
            Ok(exit_status)
        })
    }
}

fn table(rules: &[RuleJson]) -> String {
    let mut table =
        Table::new(&["NAME", "LIMIT", "SCOPE", "TENANT", "OWNER", "ENABLED", "VERSION", "ID"]);
    for rule in rules {
        let version = match rule.version {
            Some(version) => version.to_string(),
            None => "file".to_owned(),
        };
        let view = RuleView::from_rule(&rule.rule);
        table.row(vec![
            rule.rule.name.to_string(),
            limits_of(&rule.rule),
            view.scope.name().to_owned(),
            cell(&json!(view.tenant_id)),
            rule.owner.to_string(),
            match (rule.rule.enabled, &rule.not_in_force) {
                (true, None) => "yes".to_owned(),
                (true, Some(_)) => "not in force".to_owned(),
                (false, _) => "no".to_owned(),
            },
            version,
            rule.id().to_owned(),
        ]);
    }
    table.text("there are no rules")
}

impl GetArgs {
    pub(crate) fn run(self) -> ExitStatus {
        self.server.run(async |client| {
            let rule = remote::find(client, &self.rule).await?;
            let mut json = json!(rule);
            let exit_status = client.show(&json.clone(), || {
                // They are lines of their own.
                if let Some(fields) = json.as_object_mut() {
                    fields.retain(|name, _| !["warnings", "notInForce"].contains(&name.as_str()));
                }
                fields(&json)
            });
            remote::warn_of(&[rule]);
            Ok(exit_status)
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
