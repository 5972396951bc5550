//! Limits that climb, worked out by hand.

use std::time::Duration;

use tollbar::{Concurrency, Period, Policy, PolicyError, Role, WarmUp};

use super::Expected::{Allow, Busy, Deny, Never, Wait};
use super::{MS_US, SECOND_US, at, passing, table};
use crate::oracle::OracleEntry;
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

pub(super) fn a_log_that_is_new_again_has_counted(factory: &Factory<'_>) {
    let rows = [
        (0, 3, Allow(1)),
        (9 * SECOND_US, 1, Allow(0)),
        // Ten seconds old.
        (9 * SECOND_US, 1, Deny(SECOND_US)),
        (10 * SECOND_US, 6, Allow(0)),
        // New. Of ten that count seven have to leave, the last of them at 70 s.
        (20 * SECOND_US, 0, Allow(0)),
        (20 * SECOND_US, 1, Deny(50 * SECOND_US)),
        (60 * SECOND_US, 1, Deny(10 * SECOND_US)),
        (70 * SECOND_US - 1, 1, Deny(1)),
        (70 * SECOND_US, 4, Allow(0)),
        (70 * SECOND_US, 5, Busy),
        (70 * SECOND_US, 11, Never(0)),
    ];
    table(factory, warm(Policy::sliding_window_log("10/min"), 4, 10 * SECOND_US, 1), &rows);
}

/// From 5 to 10 a second within 2 s: turns are 200 ms apart at first, and four wait; then 100 ms, and
/// nine wait.
pub(super) fn a_queue_leaves_at_the_rate_of_its_step(factory: &Factory<'_>) {
    let rows = [
        (0, 1, Allow(4)),
        (0, 3, Wait(200 * MS_US, 1)),
        (0, 1, Wait(800 * MS_US, 0)),
        (0, 1, Deny(200 * MS_US)),
        (0, 6, Busy),
        (0, 11, Never(0)),
        (1_500 * MS_US, 2, Allow(3)),
        // 400 ms are owed from 1.5 s on, less than half a second since; its places are 100 ms now.
        (1_700 * MS_US, 2, Wait(200 * MS_US, 2)),
        (2_000 * MS_US, 2, Wait(300 * MS_US, 5)),
        (2_000 * MS_US, 5, Wait(500 * MS_US, 0)),
        (2_000 * MS_US, 1, Deny(100 * MS_US)),
        // New again after 2 s, with an empty queue.
        (4_000 * MS_US, 1, Allow(4)),
        (4_000 * MS_US, 1, Wait(200 * MS_US, 3)),
    ];
    table(factory, warm(Policy::leaky_queue("10/s", 9), 5, 2 * SECOND_US, 1), &rows);
    let short = Policy::leaky_queue("10/s", 9)
        .and_then(|queue| queue.with_max_wait(Duration::from_millis(200)));
    let rows = [
        (0, 1, Allow(4)),
        (0, 1, Wait(200 * MS_US, 0)),
        // Two places of 200 ms are further away than 200 ms.
        (0, 1, Deny(200 * MS_US)),
    ];
    table(factory, warm(short, 5, 2 * SECOND_US, 1), &rows);
}

/// A place of 200 ms that is given back after the key has climbed moves the queue by 200 ms, and one of
/// 100 ms by 100 ms after the key is new again.
pub(super) fn a_place_comes_back_at_its_rate(factory: &Factory<'_>) {
    let policy = warm(Policy::leaky_queue("10/s", 9), 5, 300 * MS_US, 1);
    let policy = policy.expect("the queue is accepted");
    let subject = factory(at(0));
    let charge = |at_us| {
        let request = OracleEntry {
            key: b"key",
            policy: &policy,
            cost: 1,
            role: Role::Enforce,
            alternative: None,
        };
        let charged = subject.check_marked(at(at_us), &[request], None, None);
        let charged = &charged.expect("a request without an id is decided")[0];
        (charged.answer.delay_us, charged.stamp)
    };
    let refund = |at_us, stamp| subject.release_lease(at(at_us), b"key", &policy, stamp, 1);
    assert_eq!(charge(0).0, 0);
    assert_eq!(charge(0).0, 200 * MS_US);
    let (delay_us, dear) = charge(0);
    assert_eq!(delay_us, 400 * MS_US);
    assert_eq!(refund(299 * MS_US, dear), 1);
    assert_eq!(refund(299 * MS_US, dear), 0, "it has come back");
    // 400 ms were owed from the beginning, so 101 ms are left.
    let (delay_us, again) = charge(299 * MS_US);
    assert_eq!(delay_us, 101 * MS_US);
    // The key has climbed since, and the place is still one of 200 ms.
    assert_eq!(refund(301 * MS_US, again), 1);
    let (delay_us, cheap) = charge(301 * MS_US);
    assert_eq!(delay_us, 99 * MS_US);
    assert_eq!(passing(&*subject, &policy, 301 * MS_US, 6), 6);
    assert_eq!(refund(302 * MS_US, cheap), 0, "others have queued behind it");
    let (delay_us, last) = charge(302 * MS_US);
    assert_eq!(delay_us, 798 * MS_US);
    // New again since 602 ms, and 100 ms are what the last place takes.
    assert_eq!(refund(700 * MS_US, last), 1);
    assert_eq!(charge(700 * MS_US).0, 400 * MS_US);
    // 2, 4, 6 and 8 a second: a place of the second step is 250 ms.
    let policy = warm(Policy::leaky_queue("8/s", 9), 2, 300 * MS_US, 3);
    let policy = policy.expect("the queue is accepted");
    let request = || OracleEntry {
        key: b"stairs",
        policy: &policy,
        cost: 1,
        role: Role::Enforce,
        alternative: None,
    };
    let charge = |at_us| {
        let charged = subject.check_marked(at(at_us), &[request()], None, None);
        let charged = &charged.expect("a request without an id is decided")[0];
        (charged.answer.delay_us, charged.stamp)
    };
    assert_eq!(charge(SECOND_US).0, 0);
    let (delay_us, second) = charge(1_100 * MS_US);
    assert_eq!(delay_us, 400 * MS_US);
    assert_eq!(subject.release_lease(at(1_101 * MS_US), b"stairs", &policy, second, 1), 1);
    assert_eq!(charge(1_101 * MS_US).0, 399 * MS_US);
}

/// 2, 6 and 10 in flight, from 0, 2 and 4 s on.
pub(super) fn permits_climb_and_stay_in_flight(factory: &Factory<'_>) {
    let permits = Concurrency::new(10).map(Concurrency::into_policy);
    let policy = warm(permits, 2, 4 * SECOND_US, 2).expect("the permits are accepted");
    let rows = [
        (0, 2, Allow(0)),
        (0, 1, Busy),
        (0, 11, Never(0)),
        (2 * SECOND_US - 1, 1, Busy),
        (2 * SECOND_US, 1, Allow(3)),
        (2 * SECOND_US, 4, Busy),
        (4 * SECOND_US, 0, Allow(7)),
        // None was taken for 4 s: the key is new, and three stay in flight.
        (6 * SECOND_US - 1, 0, Allow(7)),
        (6 * SECOND_US, 0, Allow(0)),
        (6 * SECOND_US, 1, Busy),
    ];
    table(factory, Ok(policy.clone()), &rows);
    let subject = factory(at(0));
    assert_eq!(passing(&*subject, &policy, 0, 9), 2);
    assert_eq!(subject.release(at(SECOND_US), b"key", &policy, 1), 1);
    assert_eq!(passing(&*subject, &policy, SECOND_US, 9), 1);
    assert_eq!(passing(&*subject, &policy, 4 * SECOND_US, 20), 8);
    // None is in flight, and the key is as warm as before.
    assert_eq!(subject.release(at(5 * SECOND_US), b"key", &policy, 99), 10);
    assert_eq!(subject.peek(at(8 * SECOND_US - 1), b"key", &policy).remaining, 10);
    assert_eq!(subject.peek(at(8 * SECOND_US), b"key", &policy).remaining, 2);
}

/// Leases of 5 s: 2, 6 and 10, from 0, 2 and 4 s on.
pub(super) fn leases_climb_and_end(factory: &Factory<'_>) {
    let leased = Concurrency::new(10)
        .and_then(|permits| permits.with_lease(Duration::from_secs(5)))
        .map(Concurrency::into_policy);
    let rows = [
        (0, 2, Allow(0)),
        (0, 1, Busy),
        (2 * SECOND_US, 5, Busy),
        (2 * SECOND_US, 4, Allow(0)),
        (4 * SECOND_US, 5, Busy),
        (4 * SECOND_US, 4, Allow(0)),
        (5 * SECOND_US, 0, Allow(2)),
        (7 * SECOND_US, 0, Allow(6)),
        // New, and four are held.
        (8 * SECOND_US, 0, Allow(0)),
        (8 * SECOND_US, 1, Busy),
        (9 * SECOND_US - 1, 1, Busy),
        (9 * SECOND_US, 2, Allow(0)),
    ];
    table(factory, warm(leased, 2, 4 * SECOND_US, 2), &rows);
}
