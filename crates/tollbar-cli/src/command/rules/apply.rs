//! `tollbar rules apply` and `diff`: a file of rules, and the rules of a daemon's database.

use std::path::PathBuf;

use clap::Args;
use hyper::Method;
use serde_json::{Value, json};

use super::changes::{Change, Changes};
use super::remote::{path_of, version_to_change};
use super::{RULES, read, remote};
use crate::command::client::{Call, CallError, Client, Query, ServerFlags};
use crate::command::table::columns;
use crate::command::{Ending, say};

#[derive(Debug, Args)]
pub(crate) struct Apply {
    #[command(flatten)]
    wanted: Wanted,

    /// Changes nothing: says what would change, and who of those who were denied lately would newly be
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    #[command(flatten)]
    wanted: Wanted,
}

/// What the rules are to be.
#[derive(Debug, Args)]
struct Wanted {
    /// The file of rules
    file: PathBuf,

    /// Deletes the rules of the database that are not in the file
    #[arg(long)]
    prune: bool,

    #[command(flatten)]
    server: ServerFlags,
}

impl Wanted {
    fn run(&self, what: impl AsyncFnOnce(&Client, Changes) -> Result<Ending, CallError>) -> Ending {
        let file = match read(&self.file) {
            Ok(file) => file,
            Err(ending) => return ending,
        };
        self.server.run(async |client| {
            let known = remote::all(client, &Query::default()).await?;
            let changes = Changes::between(&known, &file.rules, self.prune);
            what(client, changes.map_err(CallError::Misused)?).await
        })
    }
}

impl Diff {
    pub(crate) fn run(self) -> Ending {
        self.wanted.run(async |client, changes| {
            client.show(&changes.json(), || changes.text());
            Ok(if changes.is_empty() { Ending::Well } else { Ending::Found })
        })
    }
}

impl Apply {
    pub(crate) fn run(self) -> Ending {
        self.wanted.run(async |client, changes| {
            if !client.json {
                say(&changes.text());
            }
            let mut answers = Vec::new();
            for (at, change) in changes.list.iter().enumerate() {
                let answer = client.send(call(change, self.dry_run)?).await;
                answers.push(answer.inspect_err(|_| {
                    if !self.dry_run && at > 0 {
                        let all = changes.list.len();
                        eprintln!(
                            "{at} of {all} changes were made: apply the file again for the rest"
                        );
                    }
                })?);
            }
            let newly_denied: Vec<Value> = answers
                .iter_mut()
                .filter_map(|it| it["newlyDenied"].as_array_mut().map(std::mem::take))
                .flatten()
                .collect();
            if client.json {
                let mut json = changes.json();
                json["applied"] = json!(!self.dry_run);
                if self.dry_run {
                    json["newlyDenied"] = json!(newly_denied);
                }
                say(&format!("{json:#}\n"));
            } else if self.dry_run {
                say(&denied(&newly_denied));
                say("nothing was changed: this was a dry run\n");
            } else if !changes.is_empty() {
                say("done\n");
            }
            Ok(Ending::Well)
        })
    }
}

fn call(change: &Change, is_dry: bool) -> Result<Call, CallError> {
    let query = Query::default().and("dryRun", is_dry.then_some("true"));
    Ok(match change {
        Change::Add { rule } => Call::post(query.target(RULES), json!(rule)),
        Change::Update { before, rule, .. } => {
            Call::new(Method::PUT, query.target(&path_of(before)))
                .if_version(version_to_change(before)?)
                .with_body(json!(rule))
        }
        Change::Delete { before } => Call::new(Method::DELETE, query.target(&path_of(before)))
            .if_version(version_to_change(before)?),
    })
}

/// Who would newly be denied, of those whom the daemon knows.
fn denied(keys: &[Value]) -> String {
    let fields = [("WOULD BE DENIED", "subject"), ("RULE", "rule"), ("LIMIT", "limitText")];
    columns(&fields, keys, "nobody of those who were denied lately would newly be denied")
}
