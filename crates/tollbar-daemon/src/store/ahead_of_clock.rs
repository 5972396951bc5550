//! What the daemon says of counters that owe more than their policy can: as JSON for its health, and in the
//! log. They are found, counted and cleared by the engine.

use schemars::JsonSchema;
use serde::Serialize;
use tollbar_rules::{AheadDenial, AheadNews, AsyncEngine};
use tracing::warn;

use crate::clock_watch::format_roughly;
use crate::rfc3339::Rfc3339;

/// Denials by counters that owe more than their policy can: the clock ran ahead, a snapshot was restored or
/// a limit was lowered.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AheadOfClock {
    /// How many there were since the daemon started.
    denials: u64,
    /// The rule of the newest.
    rule: String,
    /// How many seconds more its counter owed than its policy can.
    ahead_seconds: u64,
    /// When it was.
    #[schemars(with = "String", extend("format" = "date-time"))]
    denied_at: Rfc3339,
}

impl AheadOfClock {
    /// `None` where there was none.
    pub fn from_engine(engine: &AsyncEngine) -> Option<Self> {
        let found = engine.ahead_of_clock();
        let AheadDenial { rule, by, at, .. } = found.newest?;
        let (rule, denied_at) = (rule.to_string(), Rfc3339(at));
        Some(Self { denials: found.denials, rule, ahead_seconds: by.as_secs(), denied_at })
    }
}

/// Logs what has been found since the last time: each rule once.
pub fn log_news(engine: &AsyncEngine) {
    let AheadNews { first, failure, .. } = engine.take_ahead_news();
    for AheadDenial { rule, by, .. } in first {
        let by = format_roughly(by);
        warn!(
            "rule `{rule}`: a counter owes {by} more than its policy can; the clock ran ahead, a snapshot \
             was restored or the limit was lowered; clients of that counter are denied until then. \
             `tollbar counters clear-ahead` clears such counters"
        );
    }
    if let Some(error) = failure {
        warn!(%error, "cannot clear a counter that is ahead of the clock");
    }
}
