//! `tollbar rules export`: the rules of a daemon's database as a file, which `apply` takes back.

use clap::Args;
use serde_json::json;
use tollbar_rules::admin::to_yaml;

use super::remote;
use crate::command::ExitStatus;
use crate::command::client::{Query, ServerFlags};

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    server: ServerFlags,
}

impl ExportArgs {
    pub(crate) fn run(self) -> ExitStatus {
        self.server.run(async |client| {
            let mut rules = remote::all(client, &Query::default()).await?;
            // Those of the daemon's own file are in a file already.
            rules.retain(|rule| rule.version.is_some());
            Ok(client.show(&json!(rules), || {
                if rules.is_empty() {
                    return "rules: []\n".to_owned();
                }
                let item =
                    |yaml: String| format!("  - {}\n", yaml.trim_end().replace('\n', "\n    "));
                let items: Vec<String> =
                    rules.iter().map(|rule| item(to_yaml(&rule.rule))).collect();
                format!("rules:\n{}", items.concat())
            }))
        })
    }
}
