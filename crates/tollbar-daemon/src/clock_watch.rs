//! Whether somebody has set the machine's clock while the daemon runs.
//!
//! Limits go by monotonic time, and follow the wall clock by 0.05%: see `SystemClock`. What is left of the difference
//! is reported here.

use std::time::Duration;

use tracing::warn;

use crate::health::{Health, HealthPart};

/// The clock, as a part of the daemon.
pub(crate) const CLOCK: HealthPart = HealthPart {
    name: "clock",
    degraded: "the machine's clock was set: limits go by the time before, and follow by 0.05%",
    recovered: "limits go by the machine's clock again",
};

/// A wall clock that is set by less is followed without a word.
const LOGGED_US_MIN: u64 = 100_000;

/// From here on the part is degraded.
const DEGRADED_US_MIN: u64 = 1_000_000;

/// Following takes so many times the difference.
const FOLLOW_FACTOR: u64 = 2_048;

/// Logs when the wall clock is set.
#[derive(Debug, Default)]
pub struct ClockWatch {
    last_us: i64,
}

impl ClockWatch {
    /// Logs a step of the wall clock since the last look. `difference_us` is how far the wall clock is ahead.
    pub fn look(&mut self, difference_us: i64) {
        if let Some(step_us) = self.step_us(difference_us) {
            let by_ms = step_us / 1_000;
            let takes = follow_time(difference_us);
            warn!(by_ms, "the machine's clock was set; limits follow it within {takes}");
        }
    }

    fn step_us(&mut self, difference_us: i64) -> Option<i64> {
        let step_us = difference_us - std::mem::replace(&mut self.last_us, difference_us);
        (step_us.unsigned_abs() >= LOGGED_US_MIN).then_some(step_us)
    }
}

/// Returns the health of the clock, where the wall clock is ahead by `difference_us`.
pub(crate) fn health(difference_us: i64) -> Health {
    if difference_us.unsigned_abs() < DEGRADED_US_MIN {
        return Health::Ok;
    }
    let direction = if difference_us > 0 { "ahead of" } else { "behind" };
    let difference = format_roughly(Duration::from_micros(difference_us.unsigned_abs()));
    let takes = follow_time(difference_us);
    Health::degraded(format!(
        "the machine's clock is {difference} {direction} the daemon's, which follows within {takes}; a restart takes \
         it over at once"
    ))
}

fn follow_time(difference_us: i64) -> String {
    format_roughly(Duration::from_micros(
        difference_us.unsigned_abs().saturating_mul(FOLLOW_FACTOR),
    ))
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

    #[test]
    fn a_step_of_the_wall_clock_is_logged_once_and_what_is_left_of_a_large_one_is_degraded() {
        let mut watch = ClockWatch::default();
        assert_eq!(watch.step_us(0), None);
        assert_eq!(watch.step_us(99_999), None, "too little to speak of");
        assert_eq!(watch.step_us(90_000), None);
        assert_eq!(watch.step_us(-5_000_000), Some(-5_090_000));
        assert_eq!(watch.step_us(-4_999_000), None, "it is being followed");
        assert_eq!(health(999_999), Health::Ok);
        let Health::Degraded { why } = health(-5_000_000) else { panic!("it is well") };
        assert!(why.contains("5 s behind the daemon's, which follows within 2 h"), "{why}");
        let Health::Degraded { why } = health(3_600_000_000) else { panic!("it is well") };
        assert!(
            why.contains("60 min ahead of the daemon's, which follows within 85 days"),
            "{why}"
        );
    }
}
