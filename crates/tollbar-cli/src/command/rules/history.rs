//! `tollbar rules history`: who has changed a rule, when and how.

use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};
use tollbar_rules::admin::changed_fields;

use super::changes::field_text;
use super::remote;
use crate::command::ExitStatus;
use crate::command::client::{Query, ServerFlags};
use crate::command::table::{Table, cell};
use tollbar_admin::database::AuditState;

#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// Its name, or its id; of a rule that was deleted, its id
    rule: String,

    #[command(flatten)]
    server: ServerFlags,
}

impl HistoryArgs {
    pub(crate) fn run(self) -> ExitStatus {
        self.server.run(async |client| {
            let path = remote::path_even_of_deleted(client, &self.rule).await?;
            let changes = client.items(&format!("{path}/history"), &Query::default()).await?;
            Ok(client.show(&json!(changes), || table(&changes)))
        })
    }
}

fn table(changes: &[Value]) -> String {
    let mut table = Table::new(&["VERSION", "ACTION", "AT", "BY", "CHANGED"]);
    for change in changes {
        table.row(vec![
            cell(&change["version"]),
            cell(&change["action"]),
            cell(&change["at"]),
            cell(&change["actor"]),
            changed_text(change),
        ]);
    }
    table.text("there are no changes")
}

/// The fields that a change has changed.
fn changed_text(change: &Value) -> String {
    let rule = |side: &str| match AuditState::deserialize(&change[side]) {
        Ok(AuditState::Rule(state)) => Some(state.rule),
        _ => None,
    };
    let (Some(before), Some(after)) = (rule("before"), rule("after")) else {
        return String::new();
    };
    changed_fields(&before, &after).iter().map(field_text).collect::<Vec<_>>().join(", ")
}
