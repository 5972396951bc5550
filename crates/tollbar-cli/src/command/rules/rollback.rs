//! `tollbar rules rollback`: a rule as it was in an earlier version. What happened since stays in its
//! history.

use clap::Args;
use serde_json::json;

use super::remote::limits_of;
use crate::command::ExitStatus;
use crate::command::client::{ApiRequest, ServerFlags};
use crate::command::rules::remote::{self};
use crate::command::table::visible;

#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    /// Its name, or its id; of a rule that was deleted, its id
    rule: String,

    /// The version that says what it is to be; see `tollbar rules history`
    #[arg(long, value_name = "VERSION")]
    to: u64,

    #[command(flatten)]
    server: ServerFlags,
}

impl RollbackArgs {
    pub(crate) fn run(self) -> ExitStatus {
        self.server.run(async |client| {
            let path = remote::path_even_of_deleted(client, &self.rule).await?;
            // Whatever version it is now: who says which one it is to be has looked at all of them.
            let request =
                ApiRequest::post(format!("{path}/rollback"), json!({ "version": self.to }));
            let rule = remote::read(client, client.send(request.if_any_version()).await?)?;
            Ok(client.show(&json!(rule), || {
                let (name, to) = (visible(&rule.rule.name), self.to);
                let version = rule.version.unwrap_or_default();
                format!(
                    "{name}: version {version} says what version {to} said: {}\n",
                    limits_of(&rule.rule)
                )
            }))
        })
    }
}
