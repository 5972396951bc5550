//! `tollbar rules apply` and `diff`: a file of rules, and the rules of a daemon's database.

use std::path::PathBuf;

use clap::Args;
use hyper::Method;
use serde_json::{Value, json};

use super::changes::{Change, Changes};
use super::remote::{path_of, version_to_change};
use super::{RULES, read, remote};
use crate::command::client::{ApiError, ApiRequest, Client, Query, ServerFlags};
use crate::command::table::columns;
use crate::command::{ExitStatus, print_text};

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// Changes nothing: says what would change, and who of those who were denied lately would newly be
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    target: TargetArgs,
}

/// What the rules are to be.
#[derive(Debug, Args)]
struct TargetArgs {
    /// The file of rules
    file: PathBuf,

    /// Deletes the rules of the database that are not in the file
    #[arg(long)]
    prune: bool,

    #[command(flatten)]
    server: ServerFlags,
}

impl TargetArgs {
    fn run(
        &self,
        what: impl AsyncFnOnce(&Client, Changes) -> Result<ExitStatus, ApiError>,
    ) -> ExitStatus {
        let file = match read(&self.file) {
            Ok(file) => file,
            Err(exit_status) => return exit_status,
        };
        self.server.run(async |client| {
            let known = remote::all(client, &Query::default()).await?;
            let changes = Changes::between(&known, &file.rules, self.prune);
            what(client, changes.map_err(ApiError::InvalidInput)?).await
        })
    }
}

impl DiffArgs {
    pub(crate) fn run(self) -> ExitStatus {
        self.target.run(async |client, changes| {
            client.show(&changes.json(), || changes.text());
            Ok(if changes.is_empty() { ExitStatus::Success } else { ExitStatus::Findings })
        })
    }
}

impl ApplyArgs {
    pub(crate) fn run(self) -> ExitStatus {
        self.target.run(async |client, changes| {
            if !client.json {
                print_text(&changes.text());
            }
            let mut responses = Vec::new();
            for (at, change) in changes.list.iter().enumerate() {
                let response = client.send(change_request(change, self.dry_run)?).await;
                responses.push(response.inspect_err(|_| {
                    if !self.dry_run && at > 0 {
                        let all = changes.list.len();
                        eprintln!(
                            "{at} of {all} changes were made: apply the file again for the rest"
                        );
                    }
                })?);
            }
            // Of the file itself, warnings were given when it was read.
            let not_in_force = responses.iter().filter_map(|response| {
                let mut rule = remote::read(client, response.clone()).ok()?;
                rule.warnings.clear();
                Some(rule)
            });
            remote::warn_of(&not_in_force.collect::<Vec<_>>());
            let newly_denied: Vec<Value> = responses
                .iter_mut()
                .filter_map(|response| response["newlyDenied"].as_array_mut().map(std::mem::take))
                .flatten()
                .collect();
            if client.json {
                let mut json = changes.json();
                json["applied"] = json!(!self.dry_run);
                if self.dry_run {
                    json["newlyDenied"] = json!(newly_denied);
                }
                print_text(&format!("{json:#}\n"));
            } else if self.dry_run {
                print_text(&denied_table(&newly_denied));
                print_text("nothing was changed: this was a dry run\n");
            } else if !changes.is_empty() {
                print_text("done\n");
            }
            Ok(ExitStatus::Success)
        })
    }
}

fn change_request(change: &Change, is_dry: bool) -> Result<ApiRequest, ApiError> {
    let query = Query::default().and("dryRun", is_dry.then_some("true"));
    Ok(match change {
        Change::Add { rule } => ApiRequest::post(query.target(RULES), json!(rule)),
        Change::Update { before, rule, .. } => {
            ApiRequest::new(Method::PUT, query.target(&path_of(before)))
                .if_version(version_to_change(before)?)
                .with_body(json!(rule))
        }
        Change::Delete { before } => {
            ApiRequest::new(Method::DELETE, query.target(&path_of(before)))
                .if_version(version_to_change(before)?)
        }
    })
}

/// Who would newly be denied, of those whom the daemon knows.
fn denied_table(keys: &[Value]) -> String {
    let fields = [("WOULD BE DENIED", "subject"), ("RULE", "rule"), ("LIMIT", "limitText")];
    columns(&fields, keys, "nobody of those who were denied lately would newly be denied")
}
