//! What a script needs to know of a policy: which algorithm it has, and its numbers.
//!
//! The numbers are those of the policy's public methods; the rounding was done when it was made.

use tollbar::algorithm::{
    calendar_window, fixed_window, leaky_bucket, sliding_strict, sliding_window, staggered_window,
    token_bucket,
};
use tollbar::{Policy, Timestamp};

use crate::blob::Blob;
use crate::error::RedisStoreError;

/// The algorithms that have a twin in Lua, by the number the scripts know them by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Bucket = 1,
    FixedWindow = 2,
    CalendarWindow = 3,
    SlidingWindow = 4,
    SlidingStrict = 5,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [
        Self::Bucket,
        Self::FixedWindow,
        Self::CalendarWindow,
        Self::SlidingWindow,
        Self::SlidingStrict,
    ];

    /// Of `policy`; an error where it has no twin.
    pub(crate) fn of(policy: &Policy) -> Result<Self, RedisStoreError> {
        let name = policy.algorithm().name();
        let kind = match name {
            _ if policy.is_custom() => None,
            token_bucket::NAME | leaky_bucket::NAME => Some(Self::Bucket),
            fixed_window::NAME | staggered_window::NAME => Some(Self::FixedWindow),
            calendar_window::NAME => Some(Self::CalendarWindow),
            sliding_window::NAME => Some(Self::SlidingWindow),
            sliding_strict::NAME => Some(Self::SlidingStrict),
            _ => None,
        };
        kind.ok_or(RedisStoreError::Unsupported { algorithm: name })
    }

    /// Appends the numbers of `policy`, which is of this kind, as they are for `key`.
    pub(crate) fn write_numbers(
        self,
        policy: &Policy,
        key: &[u8],
        now: Timestamp,
        blob: &mut Blob,
    ) {
        let window_us = policy.algorithm().window_us();
        match self {
            Self::Bucket => {
                let interval =
                    policy.interval().map_or((1, 1), |it| (it.numerator_us, it.denominator));
                let burst = policy.capacity();
                // Below 2^53, as `Policy` has seen to.
                blob.numbers([
                    interval.0,
                    interval.1,
                    burst * interval.0,
                    (burst + policy.overdraft()) * interval.0,
                    burst,
                ]);
            }
            Self::FixedWindow => {
                blob.numbers([policy.limit(), window_us, policy.stagger_us(key).unwrap_or(0)]);
            }
            Self::CalendarWindow => {
                blob.number(policy.limit());
                blob.numbers(boundaries_us(policy, now));
            }
            Self::SlidingWindow => {
                let tick_us = policy.sliding_granularity_us().unwrap_or(1);
                // Whole: the granularity divides the window.
                blob.numbers([policy.limit(), window_us, tick_us, window_us / tick_us]);
            }
            Self::SlidingStrict => {
                let parts = policy.algorithm().variant();
                blob.numbers([policy.limit(), window_us.div_ceil(parts), parts]);
            }
        }
    }
}

/// The days of a window as they are reported, and hours that are more than its longest has and less
/// than its longest and its shortest: so long before an end is in the window before.
const HOURS_BACK: [(u64, u64); 3] = [(1, 36), (7, 180), (30, 756)];

/// The boundaries of a calendar around `now`: where the window before the present one begins, where
/// the present one begins and ends, and where the next one ends.
fn boundaries_us(policy: &Policy, now: Timestamp) -> [u64; 4] {
    const HOUR_US: u64 = 3_600 * 1_000_000;
    let end_us = |at_us: u64| {
        // A peek at a fresh counter says when the window ends that the instant is in.
        let mut fresh = [0; 2];
        let at = Timestamp::from_micros(at_us);
        policy.algorithm().transition(&mut fresh, at, 0).reset_at().as_micros()
    };
    let days = policy.algorithm().window_us() / (24 * HOUR_US);
    let hours = HOURS_BACK.iter().find(|(known, _)| *known >= days);
    let back_us = hours.map_or(0, |(_, hours)| hours * HOUR_US);
    let third = end_us(now.as_micros());
    // At the beginning of time there is nothing before.
    let start_us = |ends_at_us: u64| {
        Some(end_us(ends_at_us.saturating_sub(back_us))).filter(|it| *it < ends_at_us).unwrap_or(0)
    };
    let second = start_us(third);
    [start_us(second), second, third, end_us(third)]
}

#[cfg(test)]
mod tests {
    use tollbar::Period;

    use super::*;

    const DAY_US: u64 = 86_400_000_000;

    fn boundaries(period: Period, now_us: u64) -> [u64; 4] {
        let policy = Policy::calendar_window(1, period).unwrap();
        boundaries_us(&policy, Timestamp::from_micros(now_us))
    }

    /// The seconds are those of `date --utc --date=... +%s`.
    #[test]
    fn boundaries_are_those_of_the_windows_around_now() {
        // 2024-02-29T20:00Z, a Thursday.
        let now_s = 1_709_236_800;
        let months_s = [1_704_067_200, 1_706_745_600, 1_709_251_200, 1_711_929_600];
        let weeks_s = [1_708_300_800, 1_708_905_600, 1_709_510_400, 1_710_115_200];
        let days_s = [1_709_078_400, 1_709_164_800, 1_709_251_200, 1_709_337_600];
        for (period, expected_s) in
            [(Period::Month, months_s), (Period::Week, weeks_s), (Period::Day, days_s)]
        {
            let expected_us = expected_s.map(|at_s: u64| at_s * 1_000_000);
            assert_eq!(boundaries(period, now_s * 1_000_000), expected_us, "{period:?}");
        }
    }

    #[test]
    fn boundaries_follow_each_other_at_every_hour_of_two_leap_cycles() {
        for period in [Period::Day, Period::Week, Period::Month] {
            let policy = Policy::calendar_window(1, period).unwrap().with_utc_offset(-570).unwrap();
            for hour in (0..8 * 366 * 24).step_by(7) {
                let now_us = 1_700_000_000_000_000 + hour * DAY_US / 24;
                let [first, second, third, last] =
                    boundaries_us(&policy, Timestamp::from_micros(now_us));
                assert!(second <= now_us && now_us < third);
                for (start, end) in [(first, second), (second, third), (third, last)] {
                    let around = boundaries_us(&policy, Timestamp::from_micros(start));
                    assert_eq!(around[1..3], [start, end], "{period:?} at {now_us}");
                }
            }
        }
    }

    #[test]
    fn at_the_beginning_of_time_there_is_nothing_before() {
        assert_eq!(boundaries(Period::Day, 0), [0, 0, DAY_US, 2 * DAY_US]);
        // An hour to the west, the first day ends after an hour.
        let policy = Policy::calendar_window(1, Period::Day).unwrap().with_utc_offset(-60).unwrap();
        let hour_us = DAY_US / 24;
        let boundaries = boundaries_us(&policy, Timestamp::from_micros(2 * hour_us));
        assert_eq!(boundaries, [0, hour_us, hour_us + DAY_US, hour_us + 2 * DAY_US]);
    }
}
