//! Which warm-ups are refused, and which counters they share.

use super::*;
use crate::{Algorithm, Decision, Outcome, Timestamp};

fn plain_policies() -> [Policy; 11] {
    [
        Policy::token_bucket("10/s"),
        Policy::leaky_bucket("10/s"),
        Policy::fixed_window("10/s"),
        Policy::fixed_window("10/s").and_then(Policy::with_stagger),
        Policy::calendar_window(10, Period::Day),
        Policy::sliding_window("10/s"),
        Policy::sliding_window_strict("10/s", 10),
        Policy::sliding_window_log("10/s"),
        Policy::leaky_queue("10/s", 9),
        Policy::concurrency(10),
        Policy::concurrency(10).and_then(|permits| permits.leased(Duration::from_mins(1))),
    ]
    .map(Result::unwrap)
}

const WARM_UP: WarmUp = WarmUp { start: 2, over: Duration::from_mins(1), steps: 4 };

#[derive(Debug)]
pub(super) struct OpenDoor;

impl Algorithm for OpenDoor {
    fn name(&self) -> &'static str {
        "open_door"
    }

    fn limit(&self) -> u64 {
        10
    }

    fn window_us(&self) -> u64 {
        1
    }

    fn words(&self) -> usize {
        1
    }

    fn transition(&self, _: &mut [u64], now: Timestamp, _: u64) -> Decision {
        Decision::new(Outcome::Allow, 10, 10, now)
    }

    fn fresh_at(&self, _: &[u64]) -> Timestamp {
        Timestamp::ZERO
    }
}

#[test]
fn a_warm_up_that_cannot_be_is_refused_with_its_reason() {
    for plain in plain_policies() {
        let with = |warm_up| plain.clone().with_warm_up(warm_up);
        for start in [0, 10, 11, u64::MAX] {
            let expected = PolicyError::WarmUpStart { start, limit: 10 };
            refused(with(WarmUp { start, ..WARM_UP }), &expected);
        }
        for steps in [0, 17, u32::MAX] {
            refused(with(WarmUp { steps, ..WARM_UP }), &PolicyError::WarmUpSteps { steps });
        }
        let ten_years_us = 10 * 366 * 86_400 * 1_000_000;
        for over_us in [0, ten_years_us + 1, u64::MAX] {
            let over = Duration::from_micros(over_us);
            refused(with(WarmUp { over, ..WARM_UP }), &PolicyError::WarmUpDuration { over_us });
        }
        let over = Duration::MAX;
        refused(
            with(WarmUp { over, ..WARM_UP }),
            &PolicyError::WarmUpDuration { over_us: u64::MAX },
        );
        for (start, over_us, steps) in [(1, 1, 1), (9, ten_years_us, 16)] {
            let over = Duration::from_micros(over_us);
            assert!(with(WarmUp { start, over, steps }).is_ok());
        }
    }
    let custom = Policy::custom(OpenDoor).unwrap();
    refused(
        custom.with_warm_up(WARM_UP),
        &PolicyError::WarmUpWithoutLimit { algorithm: "open_door" },
    );
    let strict = |subwindows| Policy::sliding_window_strict("10/s", subwindows).unwrap();
    assert!(strict(60).with_warm_up(WARM_UP).is_ok());
    refused(strict(61).with_warm_up(WARM_UP), &PolicyError::WarmUpSubwindows { subwindows: 61 });
    refused(
        warming(Policy::token_bucket("0.5/s"), 1),
        &PolicyError::WarmUpStart { start: 1, limit: 1 },
    );
}

/// What a bucket owes at most, counted so finely that all steps are within a millionth of their
/// rates, has to be below 2^53.
#[test]
fn a_bucket_too_large_for_a_common_measure_is_refused() {
    let bucket = |burst| Policy::token_bucket("1000000000/s").unwrap().with_burst(burst).unwrap();
    let awkward = WarmUp { start: 123_456_789, ..WARM_UP };
    assert!(bucket(1_000_000_000).with_warm_up(awkward).is_ok());
    let start = awkward.start;
    refused(
        bucket(1_000_000_000_000_000).with_warm_up(awkward),
        &PolicyError::WarmUpInexact { start },
    );
    // Steps with a common measure need no finer one.
    let even = WarmUp { start: 500_000_000, steps: 1, ..WARM_UP };
    assert!(bucket(1_000_000_000_000_000).with_warm_up(even).is_ok());
    // One token of the lowest step takes longer than the whole bucket otherwise.
    let slow = Policy::token_bucket("1000/10year").unwrap().with_burst(3_500).unwrap();
    refused(
        slow.with_warm_up(WarmUp { start: 1, ..WARM_UP }),
        &PolicyError::WarmUpInexact { start: 1 },
    );
}

#[test]
fn a_warm_up_counts_apart_and_its_numbers_do_not_matter() {
    let other = WarmUp { start: 5, over: Duration::from_secs(7), steps: 16 };
    for plain in plain_policies() {
        let warm = plain.clone().with_warm_up(WARM_UP).unwrap();
        assert_ne!(warm.salt, plain.salt);
        assert_eq!(warm.algorithm().name(), plain.algorithm().name());
        assert_eq!((warm.limit(), warm.capacity()), (plain.limit(), plain.capacity()));
        assert_eq!((warm.window(), warm.interval()), (plain.window(), plain.interval()));
        assert_eq!(warm.stagger_us(b"key"), plain.stagger_us(b"key"));
        assert_eq!(warm.period(), plain.period());
        assert_eq!(warm.queue_length(), plain.queue_length());
        assert_eq!(warm.lease_ttl(), plain.lease_ttl());
        assert_eq!(warm.has_permits(), plain.has_permits());
        assert_eq!(warm.share(2).warm_up().map(|warm_up| warm_up.start), Some(1));
        let mut code = Vec::new();
        assert!(warm.write_code(&mut code));
        assert_eq!(Policy::read_code(&mut code.as_slice()).as_ref(), Some(&warm));
        assert_eq!(warm.sliding_granularity_us(), plain.sliding_granularity_us());
        assert_eq!((plain.warm_up(), warm.warm_up()), (None, Some(WARM_UP)));
        let named = warm.clone().with_name("a");
        assert_ne!(named.salt, warm.salt);
        // The last one counts.
        let changed = named.clone().with_warm_up(other).unwrap();
        assert_eq!((changed.salt, changed.warm_up()), (named.salt, Some(other)));
    }
}

#[test]
fn a_warm_up_may_be_said_before_or_after_what_it_is_of() {
    let warm = |policy: Result<Policy, PolicyError>| policy.unwrap().with_warm_up(WARM_UP).unwrap();
    let first = warm(Policy::token_bucket("10/s")).with_burst(50).unwrap();
    let last = warm(Policy::token_bucket("10/s").unwrap().with_burst(50));
    assert_eq!((first.capacity(), first.salt), (50, last.salt));
    assert_eq!(first.warm_up_intervals(), last.warm_up_intervals());
    let first = warm(Policy::fixed_window("10/s")).with_stagger().unwrap();
    let last = warm(Policy::fixed_window("10/s").unwrap().with_stagger());
    assert_eq!((first.stagger_us(b"key"), first.salt), (last.stagger_us(b"key"), last.salt));
    let first = warm(Policy::calendar_window(10, Period::Day)).with_utc_offset(60).unwrap();
    let last = warm(Policy::calendar_window(10, Period::Day).unwrap().with_utc_offset(60));
    assert_eq!((first.utc_offset_minutes(), first.salt), (Some(60), last.salt));
    let wait = Duration::from_millis(500);
    let first = warm(Policy::leaky_queue("10/s", 9)).with_max_wait(wait).unwrap();
    let last = warm(Policy::leaky_queue("10/s", 9).unwrap().with_max_wait(wait));
    assert_eq!((first.max_wait(), &first), (Some(wait), &last));
    let first = warm(Policy::concurrency(10)).leased(wait).unwrap();
    let last = warm(Policy::concurrency(10).unwrap().leased(wait));
    assert_eq!((first.lease_ttl(), &first), (Some(wait), &last));
    refused(
        warm(Policy::fixed_window("10/s")).with_burst(9),
        &PolicyError::BurstWithoutBucket { algorithm: "fixed_window" },
    );
}

#[test]
fn everyday_steps_are_counted_exactly_in_few_parts() {
    let intervals = |rate: &str, start, steps| {
        let warm_up = WarmUp { start, steps, ..WARM_UP };
        let policy = Policy::token_bucket(rate).unwrap().with_warm_up(warm_up).unwrap();
        let intervals = policy.warm_up_intervals().unwrap();
        let numerators = intervals.iter().map(|interval| interval.numerator_us).collect::<Vec<_>>();
        (intervals[0].denominator, numerators)
    };
    assert_eq!(intervals("100/s", 10, 3), (7, vec![700_000, 175_000, 100_000, 70_000]));
    assert_eq!(intervals("100/s", 10, 2), (11, vec![1_100_000, 200_000, 110_000]));
}

/// 2,620,089 a second earn a token in 229/600 us, which is rounded up by six parts in ten million. One
/// a second less is not rounded as far, and would be faster.
#[test]
fn no_step_is_faster_than_the_full_rate_as_it_is_rounded() {
    let plain = Policy::token_bucket("2620089/s").unwrap();
    let warm_up = WarmUp { start: 2_620_088, steps: 1, ..WARM_UP };
    let intervals = plain.with_warm_up(warm_up).unwrap().warm_up_intervals().unwrap();
    assert!(intervals[0].numerator_us >= intervals[1].numerator_us, "{intervals:?}");
}

/// A token is dearer at a lower step, and a stamp says at which it was charged.
#[test]
fn a_stamp_says_at_which_step_it_was_charged() {
    let policy = warming(Policy::token_bucket("9/s"), 1).unwrap();
    let algorithm = policy.algorithm();
    let mut state = vec![0; algorithm.words()];
    for (second, step) in [(0, 0), (2, 0), (3, 1), (6, 2), (8, 2), (9, 3), (17, 3), (26, 0)] {
        let now = Timestamp::from_micros(second * 1_000_000);
        let decision = algorithm.transition(&mut state, now, 1);
        assert_eq!((decision.is_allowed(), algorithm.stamp(&state) >> 56), (true, step));
    }
}
