//! What the daemon says of counters that owe more than their policy can: as JSON for its health, and in the
//! log. They are found, counted and cleared by the engine.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use tollbar_rules::{AheadDenial, AheadNews, AsyncEngine};
use tracing::warn;

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
    pub fn of(engine: &AsyncEngine) -> Option<Self> {
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

/// For people: `90 s`, `5 min`, `23 h`, `12 days`, rounded down.
pub fn format_roughly(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7_200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_in_the_unit_that_people_would_use() {
        for (seconds, expected) in [
            (2, "2 s"),
            (119, "119 s"),
            (120, "2 min"),
            (7_199, "119 min"),
            (7_200, "2 h"),
            (86_399, "23 h"),
            (172_799, "47 h"),
            (172_800, "2 days"),
        ] {
            assert_eq!(format_roughly(Duration::from_secs(seconds)), expected);
        }
    }
}
