//! Tables worked out by hand: what the algorithms mean, in numbers a reader can follow.
//!
//! The oracle has no part in them. It must pass them too.

mod permits;
mod warm_up;

use std::time::Duration;

use tollbar::{Concurrency, Outcome, Period, Policy, PolicyError, Timestamp};

use crate::subject::{Factory, Subject};
use crate::suite::Case;

/// The tables, by what they show.
pub const CASES: &[Case] = &[
    ("token_bucket_of_5_per_10_s", token_bucket_of_5_per_10_s),
    ("buckets_of_10_at_5_per_s_deny_the_11th_for_200_ms", buckets_of_10_at_5_per_s),
    ("cost_10_never_passes_a_capacity_of_5", cost_10_never_passes_a_capacity_of_5),
    ("half_a_token_per_second_is_one_every_two", half_a_token_per_second),
    ("fixed_window_of_100_per_min_passes_200_around_a_boundary", fixed_window_around_a_boundary),
    ("fixed_window_of_3_counts_down_and_denies", fixed_window_of_3_counts_down),
    ("a_staggered_minute_of_the_key_key_begins_42_s_late", a_staggered_minute),
    ("ten_thousand_a_month_begin_again_after_a_leap_day", ten_thousand_a_month),
    ("a_day_in_india_begins_at_18_30_utc", a_day_in_india_begins_at_18_30_utc),
    ("a_week_ends_on_sunday", a_week_ends_on_sunday),
    ("sliding_window_weighs_the_previous_window", sliding_window_weighs_the_previous),
    ("sliding_window_forgets_after_an_idle_window", sliding_window_forgets_after_idling),
    ("sliding_window_of_100_is_open_again_at_60_6_s", sliding_window_is_open_again_at_60_6_s),
    ("leaky_bucket_polled_every_100_ms_drains", leaky_bucket_polled_every_100_ms_drains),
    ("leaky_queue_of_2_per_s_tells_each_its_turn", leaky_queue_of_2_per_s),
    ("leaky_queue_of_3_per_10_us_rounds_turns_up", leaky_queue_of_3_per_10_us),
    ("leaky_queue_denies_who_would_wait_too_long", leaky_queue_with_max_wait),
    ("idling_59_s_earns_100_and_not_197", idling_59_s_earns_100_and_not_197),
    ("one_per_minute_with_burst_1_limits", one_per_minute_with_burst_1_limits),
    ("strict_window_counts_a_sub_window_longer", strict_window_counts_a_sub_window_longer),
    ("a_log_of_3_a_minute_lets_each_go_after_a_minute", a_log_of_3_a_minute),
    ("a_log_of_10_000_counts_costs_above_4_095", a_log_of_10_000),
    ("ten_a_second_from_two_in_two_steps", warm_up::ten_a_second_from_two_in_two_steps),
    ("a_bucket_that_is_new_again_still_owes", warm_up::a_bucket_that_is_new_again_still_owes),
    ("a_window_that_is_new_again_has_counted", warm_up::a_window_that_is_new_again_has_counted),
    ("a_staggered_window_warms_up", warm_up::a_staggered_window_warms_up),
    ("windows_climb_by_the_hour", warm_up::windows_climb_by_the_hour),
    ("a_log_that_is_new_again_has_counted", warm_up::a_log_that_is_new_again_has_counted),
    (
        "a_queue_that_is_new_leaves_at_its_first_rate",
        warm_up::a_queue_leaves_at_the_rate_of_its_step,
    ),
    ("a_place_comes_back_at_the_rate_it_was_taken", warm_up::a_place_comes_back_at_its_rate),
    ("permits_climb_and_stay_in_flight", warm_up::permits_climb_and_stay_in_flight),
    ("leases_climb_and_end", warm_up::leases_climb_and_end),
    (
        "two_permits_are_busy_until_one_comes_back",
        permits::two_permits_are_busy_until_one_comes_back,
    ),
    ("a_lowered_limit_refuses_until_enough_have_come_back", permits::a_lowered_limit_refuses),
    ("leases_of_10_s_end_one_by_one", permits::leases_of_10_s_end_one_by_one),
];

const SECOND_US: u64 = 1_000_000;
const MS_US: u64 = 1_000;

/// A time at which a minute begins; the tables count from here.
const START_US: u64 = 1_699_999_980 * SECOND_US;

/// What a row expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// Allowed, with so many left.
    Allow(u64),
    /// Allowed after so many microseconds, with so many left.
    Wait(u64, u64),
    /// Denied, for so many microseconds.
    Deny(u64),
    /// Denied, and nobody knows for how long.
    Busy,
    /// Never, with so many left.
    Never(u64),
}

use Expected::{Allow, Busy, Deny, Never, Wait};

/// When (microseconds after the start), for how many tokens, and the answer.
type Row = (u64, u64, Expected);

fn table(factory: &Factory<'_>, policy: Result<Policy, PolicyError>, rows: &[Row]) {
    let policy = policy.expect("the table's policy is accepted");
    let subject = factory(at(0));
    for (number, row) in rows.iter().enumerate() {
        let (after_us, cost, expected) = *row;
        let answer = subject.check(at(after_us), b"key", &policy, cost);
        let got = match answer.outcome {
            Outcome::Allow if answer.delay_us > 0 => Wait(answer.delay_us, answer.remaining),
            Outcome::Allow => Allow(answer.remaining),
            Outcome::Deny { retry_after_us } => Deny(retry_after_us),
            Outcome::Busy => Busy,
            Outcome::Never => Never(answer.remaining),
        };
        assert!(
            got == expected,
            "store `{}`, row {number} of {policy:?}, {after_us} us after the start:\n\
             got:      {got:?}\nexpected: {expected:?}",
            subject.name(),
        );
    }
}

fn at(after_us: u64) -> Timestamp {
    Timestamp::from_micros(START_US + after_us)
}

/// How many of `requests` pass at `after_us`, one token each.
fn passing(subject: &dyn Subject, policy: &Policy, after_us: u64, requests: u64) -> u64 {
    let passes = |_: &u64| subject.check(at(after_us), b"key", policy, 1).outcome == Outcome::Allow;
    (0..requests).filter(passes).count() as u64
}

fn token_bucket_of_5_per_10_s(factory: &Factory<'_>) {
    let policy = Policy::token_bucket("5/10s").and_then(|policy| policy.with_burst(5));
    table(
        factory,
        policy,
        &[
            (0, 1, Allow(4)),
            (0, 1, Allow(3)),
            (0, 1, Allow(2)),
            (0, 1, Allow(1)),
            (0, 1, Allow(0)),
            // A token is earned every 2 s: the first is due at 2.0 s.
            (100 * MS_US, 1, Deny(1_900 * MS_US)),
            (2_000 * MS_US - 1, 1, Deny(1)),
            (2_000 * MS_US, 1, Allow(0)),
            (2_000 * MS_US, 1, Deny(2_000 * MS_US)),
            (12_000 * MS_US - 1, 0, Allow(4)),
            (12_000 * MS_US, 0, Allow(5)),
            (12_000 * MS_US, 5, Allow(0)),
        ],
    );
}

fn buckets_of_10_at_5_per_s(factory: &Factory<'_>) {
    for policy in [Policy::token_bucket("5/s"), Policy::leaky_bucket("5/s")] {
        let mut rows: Vec<Row> = (0..10).rev().map(|left| (0, 1, Allow(left))).collect();
        rows.extend([
            (0, 1, Deny(200 * MS_US)),
            (200 * MS_US - 1, 1, Deny(1)),
            (200 * MS_US, 1, Allow(0)),
            (2_200 * MS_US, 10, Allow(0)),
        ]);
        table(factory, policy.and_then(|policy| policy.with_burst(10)), &rows);
    }
}

fn cost_10_never_passes_a_capacity_of_5(factory: &Factory<'_>) {
    let burst =
        |policy: Result<Policy, PolicyError>| policy.and_then(|policy| policy.with_burst(5));
    for policy in [
        burst(Policy::token_bucket("20/s")),
        burst(Policy::leaky_bucket("20/s")),
        Policy::leaky_queue("20/s", 4),
        Policy::fixed_window("5/s"),
        Policy::fixed_window("5/s").and_then(Policy::with_stagger),
        Policy::calendar_window(5, Period::Day),
        Policy::sliding_window("5/s"),
        Policy::sliding_window_strict("5/s", 10),
        Concurrency::new(5).map(Concurrency::into_policy),
    ] {
        let rows = [(0, 10, Never(5)), (0, 6, Never(5)), (0, 5, Allow(0)), (0, u64::MAX, Never(0))];
        table(factory, policy, &rows);
    }
}

fn half_a_token_per_second(factory: &Factory<'_>) {
    let rows = [
        (0, 1, Allow(0)),
        (0, 1, Deny(2 * SECOND_US)),
        (SECOND_US, 1, Deny(SECOND_US)),
        (2 * SECOND_US, 1, Allow(0)),
        (3 * SECOND_US, 2, Never(0)),
        (4 * SECOND_US, 1, Allow(0)),
    ];
    table(factory, Policy::token_bucket("0.5/s"), &rows);
    table(factory, Policy::leaky_bucket("0.5/s"), &rows);
}

fn fixed_window_around_a_boundary(factory: &Factory<'_>) {
    let policy = Policy::fixed_window("100/min").expect("100/min is a policy");
    let subject = factory(at(0));
    assert_eq!(passing(&*subject, &policy, 59 * SECOND_US, 101), 100);
    assert_eq!(passing(&*subject, &policy, 61 * SECOND_US, 101), 100);
}

fn fixed_window_of_3_counts_down(factory: &Factory<'_>) {
    let rows = [
        (20 * SECOND_US, 1, Allow(2)),
        (20 * SECOND_US, 1, Allow(1)),
        (20 * SECOND_US, 1, Allow(0)),
        (20 * SECOND_US, 1, Deny(40 * SECOND_US)),
        (20 * SECOND_US, 1, Deny(40 * SECOND_US)),
        (60 * SECOND_US, 1, Allow(2)),
    ];
    table(factory, Policy::fixed_window("3/60s"), &rows);
}

fn a_staggered_minute(factory: &Factory<'_>) {
    // By the documented function, worked out by a script in another language.
    const STAGGER_US: u64 = 42_135_032;
    let rows = [
        (0, 2, Allow(1)),
        (0, 2, Deny(STAGGER_US)),
        (STAGGER_US - 1, 1, Allow(0)),
        (STAGGER_US - 1, 1, Deny(1)),
        (STAGGER_US, 3, Allow(0)),
        // The minute itself is no boundary here.
        (60 * SECOND_US, 1, Deny(STAGGER_US)),
        (60 * SECOND_US + STAGGER_US, 1, Allow(2)),
    ];
    table(factory, Policy::fixed_window("3/min").and_then(Policy::with_stagger), &rows);
}

/// Microseconds from the start, 2023-11-14T22:13:00Z, until `unix_s`.
const fn until(unix_s: u64) -> u64 {
    unix_s * SECOND_US - START_US
}

fn ten_thousand_a_month(factory: &Factory<'_>) {
    const FEBRUARY_15: u64 = until(1_707_955_200);
    const MARCH: u64 = until(1_709_251_200);
    const APRIL: u64 = until(1_711_929_600);
    const DAY_US: u64 = 86_400 * SECOND_US;
    let rows = [
        (FEBRUARY_15, 9_999, Allow(1)),
        // 2024 is a leap year: the 15th to the 29th are 15 days.
        (FEBRUARY_15, 2, Deny(15 * DAY_US)),
        // 2024-02-29T23:59:59.999999Z, and a microsecond later.
        (MARCH - 1, 1, Allow(0)),
        (MARCH - 1, 1, Deny(1)),
        (MARCH, 10_000, Allow(0)),
        (MARCH, 1, Deny(31 * DAY_US)),
        (MARCH, 10_001, Never(0)),
        (APRIL, 0, Allow(10_000)),
    ];
    table(factory, Policy::calendar_window(10_000, Period::Month), &rows);
}

fn a_day_in_india_begins_at_18_30_utc(factory: &Factory<'_>) {
    const HOUR_US: u64 = 3_600 * SECOND_US;
    // 2023-11-15T18:30Z, midnight at +05:30.
    const MIDNIGHT: u64 = until(1_700_073_000);
    let rows = [
        (MIDNIGHT - 1, 3, Allow(0)),
        (MIDNIGHT - 1, 1, Deny(1)),
        (MIDNIGHT, 2, Allow(1)),
        // Midnight in UTC is nothing special there.
        (MIDNIGHT + 5 * HOUR_US + HOUR_US / 2, 2, Deny(18 * HOUR_US + HOUR_US / 2)),
        (MIDNIGHT + 24 * HOUR_US, 3, Allow(0)),
    ];
    let policy = Policy::calendar_window(3, Period::Day);
    table(factory, policy.and_then(|policy| policy.with_utc_offset(330)), &rows);
}

fn a_week_ends_on_sunday(factory: &Factory<'_>) {
    // 2023-11-20T00:00Z, the Monday after the start.
    const MONDAY: u64 = until(1_700_438_400);
    const WEEK_US: u64 = 7 * 86_400 * SECOND_US;
    let rows = [
        (0, 1, Allow(2)),
        (MONDAY - 1, 2, Allow(0)),
        (MONDAY - 1, 1, Deny(1)),
        (MONDAY, 3, Allow(0)),
        (MONDAY, 1, Deny(WEEK_US)),
        // The clock goes back into the week before: this one stays in force.
        (MONDAY - 1, 1, Deny(WEEK_US + 1)),
        (MONDAY + WEEK_US, 1, Allow(2)),
    ];
    table(factory, Policy::calendar_window(3, Period::Week), &rows);
}

fn sliding_window_weighs_the_previous(factory: &Factory<'_>) {
    let policy = Policy::sliding_window("100/min").expect("100/min is a policy");
    let subject = factory(at(0));
    assert_eq!(passing(&*subject, &policy, 30 * SECOND_US, 70), 70);
    assert_eq!(passing(&*subject, &policy, 75 * SECOND_US, 30), 30);
    // 70 x 3/4 + 30 = 82.5: 17 more make 99.5, 18 would make 100.5.
    assert_eq!(subject.peek(at(75 * SECOND_US), b"key", &policy).remaining, 17);
    assert_eq!(passing(&*subject, &policy, 75 * SECOND_US, 40), 17);
}

fn sliding_window_forgets_after_idling(factory: &Factory<'_>) {
    let rows = [
        (59 * SECOND_US, 100, Allow(0)),
        // The last instant of the next window: 100 x 1 us / 60 s is still something.
        (120 * SECOND_US - 1, 0, Allow(99)),
        (120 * SECOND_US, 100, Allow(0)),
    ];
    table(factory, Policy::sliding_window("100/min"), &rows);
}

fn sliding_window_is_open_again_at_60_6_s(factory: &Factory<'_>) {
    let rows = [
        (15 * SECOND_US, 100, Allow(0)),
        // 100 x (60 - 0.6) / 60 = 99, which leaves room for one.
        (15 * SECOND_US, 1, Deny(45_600 * MS_US)),
        (60_600 * MS_US - 1, 1, Deny(1)),
        (60_600 * MS_US, 1, Allow(0)),
    ];
    table(factory, Policy::sliding_window("100/60s"), &rows);
}

fn leaky_bucket_polled_every_100_ms_drains(factory: &Factory<'_>) {
    let mut rows = vec![(0, 5, Allow(0))];
    for poll in 1..=100 {
        // One leaks out every 2 s, however often somebody asks.
        let since_grant_ms = poll * 100 % 2_000;
        let expected = match since_grant_ms {
            0 => Allow(0),
            _ => Deny((2_000 - since_grant_ms) * MS_US),
        };
        rows.push((poll * 100 * MS_US, 1, expected));
    }
    rows.push((20_000 * MS_US - 1, 0, Allow(4)));
    rows.push((20_000 * MS_US, 0, Allow(5)));
    table(factory, Policy::leaky_bucket("5/10s"), &rows);
}

fn leaky_queue_of_2_per_s(factory: &Factory<'_>) {
    let rows = [
        (0, 0, Allow(3)),
        (0, 1, Allow(2)),
        (0, 1, Wait(500 * MS_US, 1)),
        (0, 1, Wait(1_000 * MS_US, 0)),
        // Two wait, and the third would.
        (0, 1, Deny(500 * MS_US)),
        (0, 4, Never(0)),
        (500 * MS_US - 1, 1, Deny(1)),
        (500 * MS_US, 1, Wait(1_000 * MS_US, 0)),
        // The turns so far are 0, 0.5, 1 and 1.5 s; the queue is empty at 2 s.
        (1_250 * MS_US, 0, Allow(1)),
        (1_250 * MS_US, 1, Wait(750 * MS_US, 0)),
        (2_500 * MS_US, 3, Allow(0)),
        // Three places are three turns: the next is at 4 s.
        (3_000 * MS_US, 1, Wait(1_000 * MS_US, 0)),
    ];
    table(factory, Policy::leaky_queue("2/s", 2), &rows);
}

fn leaky_queue_of_3_per_10_us(factory: &Factory<'_>) {
    let rows = [
        // Turns at 0, 3.33, 6.67, 10 and 13.33 us.
        (0, 1, Allow(4)),
        (0, 1, Wait(4, 3)),
        (0, 1, Wait(7, 2)),
        (0, 1, Wait(10, 1)),
        (0, 1, Wait(14, 0)),
        // The queue has room again at 3.33 us, which is when the second leaves.
        (0, 1, Deny(4)),
        (3, 1, Deny(1)),
        // At 16.67 us, and the next at 20.
        (4, 1, Wait(13, 0)),
        (20, 0, Allow(5)),
    ];
    table(factory, Policy::leaky_queue("3/10us", 4), &rows);
}

fn leaky_queue_with_max_wait(factory: &Factory<'_>) {
    let max_wait = |wait: Duration| {
        Policy::leaky_queue("2/s", 9).and_then(|policy| policy.with_max_wait(wait))
    };
    let rows = [
        (0, 1, Allow(9)),
        (0, 1, Wait(500 * MS_US, 8)),
        // Nobody may wait for a whole second, so nothing is left for now.
        (0, 4, Wait(1_000 * MS_US, 0)),
        (0, 1, Deny(2_000 * MS_US)),
        (2_000 * MS_US - 1, 1, Deny(1)),
        (2_000 * MS_US, 0, Allow(8)),
        // There is room for eight more places, and for no wait above a second.
        (2_000 * MS_US, 9, Deny(500 * MS_US)),
        (2_000 * MS_US, 8, Wait(1_000 * MS_US, 0)),
    ];
    table(factory, max_wait(Duration::from_secs(1)), &rows);
    let rows = [(0, 1, Allow(0)), (0, 1, Deny(500 * MS_US)), (500 * MS_US, 10, Allow(0))];
    table(factory, max_wait(Duration::ZERO), &rows);
}

fn idling_59_s_earns_100_and_not_197(factory: &Factory<'_>) {
    let policy = Policy::token_bucket("100/min").and_then(|policy| policy.with_burst(100));
    let policy = policy.expect("100/min is a policy");
    let subject = factory(at(0));
    assert_eq!(passing(&*subject, &policy, 0, 1), 1);
    assert_eq!(passing(&*subject, &policy, 59 * SECOND_US, 300), 100);
}

fn one_per_minute_with_burst_1_limits(factory: &Factory<'_>) {
    for policy in [Policy::token_bucket("1/60s"), Policy::leaky_bucket("1/60s")] {
        let rows = [
            (0, 1, Allow(0)),
            (0, 1, Deny(60 * SECOND_US)),
            (59 * SECOND_US, 1, Deny(SECOND_US)),
            (60 * SECOND_US, 1, Allow(0)),
            (61 * SECOND_US, 1, Deny(59 * SECOND_US)),
        ];
        table(factory, policy.and_then(|policy| policy.with_burst(1)), &rows);
    }
}

fn strict_window_counts_a_sub_window_longer(factory: &Factory<'_>) {
    let rows = [
        // Sub-windows of 10 s: what came at 9 s counts until those of 10 s to 70 s are over.
        (9 * SECOND_US, 2, Allow(1)),
        (35 * SECOND_US, 1, Allow(0)),
        (35 * SECOND_US, 1, Deny(35 * SECOND_US)),
        (35 * SECOND_US, 3, Deny(65 * SECOND_US)),
        (70 * SECOND_US - 1, 1, Deny(1)),
        (70 * SECOND_US, 1, Allow(1)),
    ];
    table(factory, Policy::sliding_window_strict("3/min", 6), &rows);
}

fn a_log_of_3_a_minute(factory: &Factory<'_>) {
    let rows = [
        (0, 1, Allow(2)),
        (10 * SECOND_US, 1, Allow(1)),
        (30 * SECOND_US, 1, Allow(0)),
        // One leaves at 60 s, one at 70 s, one at 90 s.
        (30 * SECOND_US, 1, Deny(30 * SECOND_US)),
        (30 * SECOND_US, 2, Deny(40 * SECOND_US)),
        (30 * SECOND_US, 3, Deny(60 * SECOND_US)),
        (30 * SECOND_US, 4, Never(0)),
        (60 * SECOND_US - 1, 1, Deny(1)),
        (60 * SECOND_US, 1, Allow(0)),
        // The clock goes back: the last request stays the present, and the first does not return.
        (20 * SECOND_US, 1, Deny(50 * SECOND_US)),
        (70 * SECOND_US, 1, Allow(0)),
        (130 * SECOND_US - 1, 0, Allow(2)),
        (130 * SECOND_US, 3, Allow(0)),
    ];
    table(factory, Policy::sliding_window_log("3/min"), &rows);
}

fn a_log_of_10_000(factory: &Factory<'_>) {
    let rows = [
        (0, 9_000, Allow(1_000)),
        (0, 500, Allow(500)),
        (1, 500, Allow(0)),
        (1, 9_500, Deny(SECOND_US - 1)),
        (1, 9_501, Deny(SECOND_US)),
        (SECOND_US - 1, 1, Deny(1)),
        (SECOND_US, 9_501, Deny(1)),
        (SECOND_US, 9_500, Allow(0)),
    ];
    table(factory, Policy::sliding_window_log("10000/s"), &rows);
}
