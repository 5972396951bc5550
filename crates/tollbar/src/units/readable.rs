//! Times for people.

use std::time::Duration;

/// Returns a time in the unit that people would use, rounded up: `250 ms`, `90 s`, `5 min`, `23 h`, `15 days`.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(tollbar::readable_duration(Duration::from_millis(1_226_565_907)), "15 days");
/// ```
#[must_use]
pub fn readable_duration(time: Duration) -> String {
    let (unit, unit_us) = match time.as_secs() {
        0 if !time.is_zero() => ("ms", 1_000),
        ..120 => ("s", 1_000_000),
        120..7_200 => ("min", 60_000_000),
        7_200..172_800 => ("h", 3_600_000_000),
        _ => ("days", 86_400_000_000),
    };
    // 3,601 s are 61 min: a client that waits so long does not come too early.
    format!("{} {unit}", time.as_micros().div_ceil(unit_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_unit_that_people_would_use_and_never_too_short() {
        for (us, text) in [
            (0, "0 s"),
            (1, "1 ms"),
            (250_000, "250 ms"),
            (1_000_000, "1 s"),
            (1_500_000, "2 s"),
            (119_000_001, "120 s"),
            (120_000_000, "2 min"),
            (120_000_001, "3 min"),
            (7_200_000_000, "2 h"),
            (86_400_000_000, "24 h"),
            (172_800_000_000, "2 days"),
            (1_226_565_907_000, "15 days"),
        ] {
            assert_eq!(readable_duration(Duration::from_micros(us)), text);
        }
        let _ = readable_duration(Duration::MAX);
    }
}
