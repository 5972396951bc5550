//! Limits that climb, worked out by hand.

use std::time::Duration;

use tollbar::{Period, Policy, PolicyError, WarmUp};

use super::Expected::{Allow, Busy, Deny, Never};
use super::{MS_US, SECOND_US, table};
use crate::subject::Factory;

fn warm(
    policy: Result<Policy, PolicyError>,
    start: u64,
    over_us: u64,
    steps: u32,
) -> Result<Policy, PolicyError> {
    policy?.with_warm_up(WarmUp { start, over: Duration::from_micros(over_us), steps })
}

/// 2, 6 and 10 a second, from 0, 1.5 and 3 s on: a token is earned in 500, 166.7 and 100 ms, and a
/// full debt is 1 s at each.
pub(super) fn ten_a_second_from_two_in_two_steps(factory: &Factory<'_>) {
    let rows = [
        (0, 0, Allow(2)),
        // A new key that only waits stays new.
        (0, 3, Busy),
        (0, 11, Never(2)),
        (0, 2, Allow(0)),
        (0, 1, Deny(500 * MS_US)),
        // The second step holds 3, and 6. The third, which holds 7, begins when the key is new.
        (0, 3, Deny(1_500 * MS_US)),
        (0, 6, Deny(1_500 * MS_US)),
        (0, 7, Busy),
        (1_500 * MS_US - 1, 3, Deny(1)),
        (1_500 * MS_US, 6, Allow(0)),
        // 1 s is owed until 2.5 s, so 7 have to wait for the third step alone.
        (1_500 * MS_US, 7, Deny(1_500 * MS_US)),
        (3_000 * MS_US - 1, 7, Deny(1)),
        (3_000 * MS_US, 10, Allow(0)),
        (3_000 * MS_US, 1, Deny(100 * MS_US)),
        // Idle for 3 s.
        (6_000 * MS_US - 1, 0, Allow(10)),
        (6_000 * MS_US, 0, Allow(2)),
        (6_000 * MS_US, 2, Allow(0)),
        (7_500 * MS_US, 0, Allow(6)),
    ];
    for policy in [Policy::token_bucket("10/s"), Policy::leaky_bucket("10/s")] {
        table(factory, warm(policy, 2, 3 * SECOND_US, 2), &rows);
    }
}

/// From 5 to 10 a second within 100 ms, after which a key is new again, but in debt for 1 s.
pub(super) fn a_bucket_that_is_new_again_still_owes(factory: &Factory<'_>) {
    let rows = [
        (0, 1, Allow(4)),
        (50 * MS_US, 1, Allow(3)),
        // 200 + 200 ms less 100 ms are owed; of 1 s, 7 tokens of 100 ms are left.
        (100 * MS_US, 0, Allow(7)),
        (100 * MS_US, 7, Allow(0)),
        // A microsecond later a token of 100 ms would fit, but then the key is new: a token is
        // 200 ms, and 900 ms are owed.
        (200 * MS_US - 1, 1, Deny(100 * MS_US + 1)),
        (200 * MS_US, 0, Allow(0)),
        (200 * MS_US, 1, Deny(100 * MS_US)),
        (300 * MS_US - 1, 1, Deny(1)),
        (300 * MS_US, 1, Allow(0)),
    ];
    table(factory, warm(Policy::token_bucket("10/s"), 5, 100 * MS_US, 1), &rows);
}

pub(super) fn a_window_that_is_new_again_has_counted(factory: &Factory<'_>) {
    let rows = [
        (0, 3, Allow(1)),
        (9 * SECOND_US, 1, Allow(0)),
        // Ten seconds old.
        (9 * SECOND_US, 1, Deny(SECOND_US)),
        (10 * SECOND_US, 6, Allow(0)),
        // New, and ten of four are spent until the minute is over.
        (20 * SECOND_US, 0, Allow(0)),
        (20 * SECOND_US, 1, Deny(40 * SECOND_US)),
        (60 * SECOND_US, 4, Allow(0)),
        (60 * SECOND_US, 5, Busy),
        (60 * SECOND_US, 11, Never(0)),
    ];
    table(factory, warm(Policy::fixed_window("10/min"), 4, 10 * SECOND_US, 1), &rows);
}

pub(super) fn a_staggered_window_warms_up(factory: &Factory<'_>) {
    // Of the key `key`, as in the table of staggered windows.
    const STAGGER_US: u64 = 42_135_032;
    let rows = [
        (0, 1, Allow(0)),
        (0, 1, Deny(STAGGER_US)),
        (STAGGER_US, 1, Allow(0)),
        (60 * SECOND_US, 2, Allow(0)),
        (60 * SECOND_US, 1, Deny(STAGGER_US)),
        (60 * SECOND_US + STAGGER_US, 3, Allow(0)),
    ];
    let staggered = Policy::fixed_window("3/min").and_then(Policy::with_stagger);
    table(factory, warm(staggered, 1, 60 * SECOND_US, 1), &rows);
    // Whichever is said first.
    let warmed = warm(Policy::fixed_window("3/min"), 1, 60 * SECOND_US, 1);
    table(factory, warmed.and_then(Policy::with_stagger), &rows);
}

/// 1, 2, 3 a window, each after another hour, in windows that end in the meantime or do not.
pub(super) fn windows_climb_by_the_hour(factory: &Factory<'_>) {
    const HOUR_US: u64 = 3_600 * SECOND_US;
    let rows = [
        (0, 1, Allow(0)),
        (0, 1, Deny(HOUR_US)),
        (HOUR_US, 1, Allow(0)),
        // The third hour, and before the key is new.
        (HOUR_US, 1, Deny(HOUR_US)),
        (2 * HOUR_US - 1, 1, Deny(1)),
        (2 * HOUR_US, 1, Allow(0)),
    ];
    // The start is 22:13: the day is over in 107 minutes, so within it only the week is left.
    for policy in [
        Policy::calendar_window(3, Period::Week),
        Policy::fixed_window("3/30d"),
        Policy::sliding_window_strict("3/30d", 10),
    ] {
        table(factory, warm(policy, 1, 2 * HOUR_US, 2), &rows);
    }
}
