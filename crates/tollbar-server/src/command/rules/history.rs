//! `tollbar rules history`: who has changed a rule, when and how.

use clap::Args;
use serde_json::{Value, json};

use super::remote;
use crate::command::client::{Query, ServerFlags};
use crate::command::table::{Table, cell};
use crate::command::{EXIT_CODES, Ending};

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct History {
    /// Its name, or its id; of a rule that was deleted, its id
    #[arg(value_name = "RULE")]
    rule: String,

    #[command(flatten)]
    server: ServerFlags,
}

impl History {
    pub(crate) fn run(self) -> Ending {
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
            changed(&change["before"], &change["after"]),
        ]);
    }
    table.text("there are no changes")
}

/// The fields that a change has changed.
fn changed(before: &Value, after: &Value) -> String {
    let (Some(before), Some(after)) = (before.as_object(), after.as_object()) else {
        return String::new();
    };
    let own = ["version", "updatedAt", "deletedAt"];
    let mut names: Vec<&str> = before.keys().chain(after.keys()).map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| !own.contains(name) && before.get(*name) != after.get(*name));
    let field = |name: &&str| {
        let value = |of: &serde_json::Map<String, Value>| {
            of.get(*name).map_or("null".to_owned(), Value::to_string)
        };
        format!("{name} {} -> {}", value(before), value(after))
    };
    names.iter().map(field).collect::<Vec<_>>().join(", ")
}
