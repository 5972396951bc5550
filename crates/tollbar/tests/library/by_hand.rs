//! The tables worked out by hand, against the in-memory store; one test for each table, so that a
//! failure names it. The tables themselves are in `tollbar_testkit::by_hand`, where every other
//! store finds them too.

use tollbar::{Outcome, Policy, Timestamp};
use tollbar_testkit::by_hand;
use tollbar_testkit::memory_subject::MemorySubject;
use tollbar_testkit::subject::Subject;

macro_rules! tables {
    ($($name:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                let (_, case) = by_hand::CASES
                    .iter()
                    .find(|(name, _)| *name == stringify!($name))
                    .expect("the table is among the cases");
                case(&MemorySubject::boxed);
            }
        )+

        #[test]
        fn every_table_has_a_test_of_its_own() {
            let tested = [$(stringify!($name)),+];
            let tables: Vec<_> = by_hand::CASES.iter().map(|(name, _)| *name).collect();
            assert_eq!(tables, tested);
        }
    };
}

tables![
    token_bucket_of_5_per_10_s,
    buckets_of_10_at_5_per_s_deny_the_11th_for_200_ms,
    cost_10_never_passes_a_capacity_of_5,
    half_a_token_per_second_is_one_every_two,
    fixed_window_of_100_per_min_passes_200_around_a_boundary,
    fixed_window_of_3_counts_down_and_denies,
    a_staggered_minute_of_the_key_key_begins_42_s_late,
    ten_thousand_a_month_begin_again_after_a_leap_day,
    a_day_in_india_begins_at_18_30_utc,
    a_week_ends_on_sunday,
    sliding_window_weighs_the_previous_window,
    sliding_window_forgets_after_an_idle_window,
    sliding_window_of_100_is_open_again_at_60_6_s,
    leaky_bucket_polled_every_100_ms_drains,
    leaky_queue_of_2_per_s_tells_each_its_turn,
    leaky_queue_of_3_per_10_us_rounds_turns_up,
    leaky_queue_denies_who_would_wait_too_long,
    idling_59_s_earns_100_and_not_197,
    one_per_minute_with_burst_1_limits,
    strict_window_counts_a_sub_window_longer,
    a_log_of_3_a_minute_lets_each_go_after_a_minute,
    a_log_of_10_000_counts_costs_above_4_095,
    ten_a_second_from_two_in_two_steps,
    a_bucket_that_is_new_again_still_owes,
    a_window_that_is_new_again_has_counted,
    a_staggered_window_warms_up,
    windows_climb_by_the_hour,
    two_permits_are_busy_until_one_comes_back,
    a_lowered_limit_refuses_until_enough_have_come_back,
    leases_of_10_s_end_one_by_one,
];

/// A bucket that adds what it has earned at every poll, rounded down, never earns anything when
/// it is polled faster than that.
#[test]
fn one_per_minute_polled_every_100_us_grants_exactly_its_due() {
    let policy = Policy::token_bucket("1/min").unwrap();
    let start_us = 1_699_999_980_000_000;
    let subject = MemorySubject::at(Timestamp::from_micros(start_us));
    let subject: &dyn Subject = &subject;
    let polls = (0..=2 * 60 * 10_000_u64).map(|poll| poll * 100);
    let granted: Vec<u64> = polls
        .filter(|after_us| {
            let now = Timestamp::from_micros(start_us + after_us);
            subject.check(now, b"key", &policy, 1).outcome == Outcome::Allow
        })
        .collect();
    assert_eq!(granted, [0, 60_000_000, 120_000_000]);
}
