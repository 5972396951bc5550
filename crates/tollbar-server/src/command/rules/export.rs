//! `tollbar rules export`: the rules of a daemon's database as a file, which `apply` takes back.

use clap::Args;
use serde_json::{Map, Value, json};

use super::known::{self, Known};
use crate::command::client::{CallError, Query, ServerFlags};
use crate::command::{EXIT_CODES, Ending};

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Export {
    #[command(flatten)]
    server: ServerFlags,
}

/// What is said first of a rule, in this order; the rest follows by name.
const FIRST: [&str; 6] = ["name", "description", "match", "per", "limit", "algorithm"];

impl Export {
    pub(crate) fn run(self) -> Ending {
        self.server.run(async |client| {
            let mut rules = known::all(client, &Query::default()).await?;
            // Those of the daemon's own file are in a file already.
            rules.retain(|it| it.version.is_some());
            let texts: Result<Vec<String>, CallError> = rules.iter().map(text).collect();
            let text = match texts?.concat() {
                text if text.is_empty() => "rules: []\n".to_owned(),
                text => format!("rules:\n{text}"),
            };
            let json: Vec<&Value> = rules.iter().map(|it| &it.json).collect();
            Ok(client.show(&json!(json), || text))
        })
    }
}

/// A rule of a file. What stands behind a name is JSON, which YAML takes as it is.
fn text(rule: &Known) -> Result<String, CallError> {
    let fields = rule.form.as_ref().and_then(|it| it.file_fields().ok());
    let mut fields: Map<String, Value> = fields.ok_or_else(|| {
        let name = &rule.name;
        CallError::Misused(format!("rule `{name}` says something that this version does not know"))
    })?;
    // As they are where nothing is said.
    for (name, default) in [("priority", json!(0)), ("enabled", json!(true))] {
        if fields.get(name) == Some(&default) {
            fields.remove(name);
        }
    }
    let mut lines = Vec::new();
    for name in FIRST {
        lines.extend(fields.remove(name).map(|value| format!("{name}: {value}")));
    }
    lines.extend(fields.into_iter().map(|(name, value)| format!("{name}: {value}")));
    Ok(format!("  - {}\n", lines.join("\n    ")))
}
