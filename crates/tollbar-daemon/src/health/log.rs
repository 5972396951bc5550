//! What the log says of the health of parts: when one is degraded, at growing intervals for as long as it is, when
//! the reason changes, and when it is over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::{Health, HealthPart, HealthReport};

/// The time from the first warning to the second. It doubles from warning to warning.
const REPEAT_FIRST: Duration = Duration::from_mins(1);

/// The longest time between two warnings.
const REPEAT_MAX: Duration = Duration::from_hours(1);

/// A reason that keeps changing is not logged more often than this.
const REASON_PAUSE: Duration = Duration::from_secs(10);

/// Knows which parts are degraded, and what was logged of them.
#[derive(Debug, Default)]
pub struct HealthLog(BTreeMap<&'static str, DegradedPart>);

#[derive(Debug)]
struct DegradedPart {
    since: Instant,
    logged_at: Instant,
    logged_why: Arc<str>,
    repeat_after: Duration,
}

/// A line of the log.
#[derive(Debug, PartialEq, Eq)]
struct LogLine {
    part: HealthPart,
    /// Why it is degraded; `None` where it is well again.
    why: Option<Arc<str>>,
    /// How long it has been degraded.
    lasted: Duration,
}

impl HealthLog {
    /// Logs what is new since the last report.
    pub fn log(&mut self, report: &HealthReport) {
        for LogLine { part, why, lasted } in self.next_lines(report, Instant::now()) {
            let HealthPart { name, degraded, recovered } = part;
            let seconds = lasted.as_secs();
            match why {
                Some(why) if seconds == 0 => warn!(part = name, %why, "{degraded}"),
                Some(why) => warn!(part = name, %why, seconds, "{degraded}"),
                None => info!(part = name, seconds, "{recovered}"),
            }
        }
    }

    fn next_lines(&mut self, report: &HealthReport, now: Instant) -> Vec<LogLine> {
        let next = report.parts.iter().filter_map(|(part, health)| {
            let (why, lasted) = match health {
                Health::Ok => (None, now - self.0.remove(part.name)?.since),
                Health::Degraded { why } => {
                    (Some(Arc::clone(why)), self.due_warning(part.name, why, now)?)
                }
            };
            Some(LogLine { part: *part, why, lasted })
        });
        next.collect()
    }

    /// Returns how long the part has been degraded, if that is to be logged now.
    fn due_warning(
        &mut self,
        name: &'static str,
        why: &Arc<str>,
        now: Instant,
    ) -> Option<Duration> {
        let Some(known) = self.0.get_mut(name) else {
            let (logged_why, repeat_after) = (Arc::clone(why), REPEAT_FIRST);
            let new = DegradedPart { since: now, logged_at: now, logged_why, repeat_after };
            self.0.insert(name, new);
            return Some(Duration::ZERO);
        };
        let pause = now - known.logged_at;
        if pause >= known.repeat_after {
            known.repeat_after = (known.repeat_after * 2).min(REPEAT_MAX);
        } else if *why == known.logged_why || pause < REASON_PAUSE {
            return None;
        }
        (known.logged_at, known.logged_why) = (now, Arc::clone(why));
        Some(now - known.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: HealthPart =
        HealthPart { name: "usage", degraded: "it is lost", recovered: "it is kept" };

    fn report(why: Option<&str>) -> HealthReport {
        let health = why.map_or(Health::Ok, Health::degraded);
        HealthReport { parts: vec![(PART, health)] }
    }

    /// Looks every second for so long; at which seconds something was logged, and which reason.
    fn logged(
        log: &mut HealthLog,
        start: Instant,
        seconds: std::ops::Range<u64>,
        why: impl Fn(u64) -> Option<&'static str>,
    ) -> Vec<(u64, Option<String>)> {
        let mut lines = Vec::new();
        for second in seconds {
            let now = start + Duration::from_secs(second);
            for line in log.next_lines(&report(why(second)), now) {
                lines.push((second, line.why.map(|why| why.to_string())));
            }
        }
        lines
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_stays_degraded_is_warned_of_at_growing_intervals_and_its_end_is_told() {
        let (mut log, start) = (HealthLog::default(), Instant::now());
        assert_eq!(logged(&mut log, start, 0..5, |_| None), []);
        let lines = logged(&mut log, start, 5..20_000, |_| Some("full"));
        let at: Vec<u64> = lines.iter().map(|(second, _)| second - 5).collect();
        let doubled = [0, 60, 180, 420, 900, 1_860, 3_780, 7_380, 10_980, 14_580, 18_180];
        assert_eq!(at, doubled, "doubled up to an hour");
        assert_eq!(logged(&mut log, start, 20_000..20_010, |_| None), [(20_000, None)]);
        let again = logged(&mut log, start, 20_010..20_070, |_| Some("full"));
        assert_eq!(again, [(20_010, Some("full".to_owned()))], "a new fault is a new warning");
    }

    #[tokio::test(start_paused = true)]
    async fn another_reason_is_logged_but_not_at_every_look() {
        let (mut log, start) = (HealthLog::default(), Instant::now());
        let why = |second| Some(if second < 3 { "refused" } else { "read-only" });
        let lines = logged(&mut log, start, 0..60, why);
        let texts: Vec<_> = lines.iter().map(|(at, why)| (*at, why.as_deref().unwrap())).collect();
        assert_eq!(texts, [(0, "refused"), (10, "read-only")]);
        // One that alternates is told six times a minute, and not sixty times.
        let why = |second: u64| Some(if second.is_multiple_of(2) { "a" } else { "b" });
        let lines = logged(&mut log, start, 60..120, why);
        assert!((3..=7).contains(&lines.len()), "{lines:?}");
    }
}
