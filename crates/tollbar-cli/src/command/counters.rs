//! `tollbar counters`: what is done to counters of one daemon, whosever they are.

use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};

use super::ExitStatus;
use super::client::{ApiError, ApiRequest, Client};
use super::table::cell;
use tollbar_daemon::clock_watch::format_roughly;
use tollbar_daemon::duration_flag::DurationFlag;

#[derive(Debug, Subcommand)]
pub(crate) enum CountersCommand {
    /// Clears counters that owe more than their policy can, each when its client is denied: after the clock
    /// ran ahead, a snapshot was restored or a limit was lowered
    ClearAhead {
        /// For how long
        #[arg(long = "for", value_name = "TIME", default_value = "10min")]
        time: DurationFlag,
    },
}

impl CountersCommand {
    pub(crate) async fn run(self, client: &Client) -> Result<ExitStatus, ApiError> {
        let Self::ClearAhead { time } = self;
        // Up: what is asked for in milliseconds takes a second.
        let seconds = time.0.as_millis().div_ceil(1_000) as u64;
        let path = "/v1/rate-limit/counters/clear-ahead";
        let response =
            client.send(ApiRequest::post(path, json!({ "forSeconds": seconds }))).await?;
        Ok(client.show(&response, || text(&response)))
    }
}

fn text(response: &Value) -> String {
    let [until, cleared, failed] =
        ["clearingUntil", "cleared", "failed"].map(|name| cell(&response[name]));
    let ahead = &response["aheadOfClock"];
    let denied = match ahead["denials"].as_u64() {
        None => "0 denied".to_owned(),
        Some(denials) => {
            let by = Duration::from_secs(ahead["aheadSeconds"].as_u64().unwrap_or_default());
            let (rule, by) = (cell(&ahead["rule"]), format_roughly(by));
            format!("{denials} denied (the last by rule `{rule}`, {by} ahead)")
        }
    };
    format!(
        "Until {until}, a counter that is ahead of the clock is cleared when its client is denied.\n\
         Since the daemon started: {denied}, {cleared} cleared, {failed} could not be cleared.\n"
    )
}
