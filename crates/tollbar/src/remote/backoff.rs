//! How long to wait before the next attempt to connect: twice as long each time, and never the same
//! for two processes, or a fleet would come back all at once.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(1);

/// Returns the pause after `failures` failures in a row: between half of the longest and all of it.
#[must_use]
pub fn delay(failures: u32) -> Duration {
    delay_with(failures, rand::random())
}

fn delay_with(failures: u32, random: u64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let longest = (FIRST * (1 << doublings)).min(LONGEST);
    let half_us = (longest / 2).as_micros() as u64;
    // Rounded down; a microsecond does not matter.
    Duration::from_micros(half_us + random % (half_us + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_second_and_are_spread_over_their_upper_half() {
        let between = |failures| [delay_with(failures, 0), delay_with(failures, 10_000)];
        assert_eq!(between(1), [10, 20].map(Duration::from_millis));
        assert_eq!(delay_with(2, 0), Duration::from_millis(20));
        for failures in [7, 100, u32::MAX] {
            assert_eq!(delay_with(failures, 0), LONGEST / 2);
            assert_eq!(delay_with(failures, 500_000), LONGEST);
        }
    }
}
