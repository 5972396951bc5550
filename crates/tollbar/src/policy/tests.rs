//! What rounding keeps, and what is refused.

mod code;
mod memory;
mod reserve;
mod warm_up;

use proptest::prelude::*;

use super::*;
use crate::Interval;
use crate::WarmUp;

#[track_caller]
fn interval(rate: &str) -> (u64, u64) {
    let interval = Policy::token_bucket(rate).unwrap().interval().unwrap();
    (interval.numerator_us, interval.denominator)
}

#[test]
fn everyday_rates_are_held_exactly() {
    assert_eq!(interval("10/s"), (100_000, 1));
    assert_eq!(interval("0.5/s"), (2_000_000, 1));
    assert_eq!(interval("100/min"), (600_000, 1));
    assert_eq!(interval("1/month"), (2_592_000_000_000, 1));
    assert_eq!(interval("1000000000/s"), (1, 1_000));
    assert_eq!(interval("175000/s"), (40, 7));
}

#[test]
fn awkward_rates_lose_less_than_a_millionth() {
    // 600,000,001/s in whole nanoseconds would be a billion; as 1/600 us it is off by 2e-9.
    assert_eq!(interval("600000001/s"), (1, 600));
    // Too awkward for ten bits of fraction; still held, and exactly.
    assert_eq!(interval("999999999/s"), (1_000_000, 999_999_999));
}

proptest! {
    #[test]
    fn no_rate_is_rounded_up_nor_down_by_a_millionth(
        tokens in 1_u64..1_000_000_000,
        window_us in prop_oneof![Just(1_000_000_u64), 1_000_000_u64..3_000_000_000_000],
        burst in 1_u64..1_000,
    ) {
        let rate = Rate { tokens, tokens_divisor: 1, window_us };
        let policy = Policy::token_bucket(rate).unwrap().with_burst(burst).unwrap();
        let Interval { numerator_us, denominator } = policy.interval().unwrap();
        // ours / asked = (denominator / numerator) / (tokens / window).
        let ours = u128::from(denominator) * u128::from(window_us);
        let asked = u128::from(numerator_us) * u128::from(tokens);
        prop_assert!(ours <= asked);
        prop_assert!((asked - ours) * 1_000_000 < asked);
    }
}

proptest! {
    /// A state that no check has written comes out of a damaged store, or a rule that changed.
    #[test]
    fn no_state_makes_an_algorithm_panic(
        words in prop::collection::vec(prop_oneof![any::<u64>(), 0_u64..9, Just(u64::MAX)], 80),
        now_us in prop_oneof![Just(0), Just(u64::MAX), 0_u64..1 << 52],
        cost in prop_oneof![any::<u64>(), 0_u64..5],
        rate in prop_oneof![Just("3/s"), Just("999999999/s"), Just("1/month"), Just("9/124us")],
    ) {
        for policy in [
            Policy::token_bucket(rate),
            Policy::leaky_bucket(rate),
            Policy::leaky_queue(rate, 2),
            Policy::leaky_queue(rate, 2).and_then(|policy| policy.with_max_wait(Duration::ZERO)),
            Policy::fixed_window(rate),
            Policy::fixed_window(rate).and_then(Policy::with_stagger),
            Policy::calendar_window(3, Period::Month),
            Policy::sliding_window(rate),
            Policy::sliding_window_strict(rate, 4),
            Policy::sliding_window_strict(rate, 62),
            Policy::sliding_window_log("9/7us"),
            Policy::sliding_window_log("64/month"),
            warming(Policy::token_bucket("9/s"), 2),
            warming(Policy::fixed_window("9/7us").and_then(Policy::with_stagger), 2),
            warming(Policy::calendar_window(3, Period::Month), 1),
            warming(Policy::sliding_window("9/s"), 2),
            warming(Policy::sliding_window_strict("9/s", 60), 2),
            Policy::concurrency(3),
            Policy::concurrency(1 << 32),
            Policy::concurrency(32).and_then(|permits| permits.leased(Duration::from_secs(1))),
        ] {
            let policy = policy.unwrap();
            let algorithm = policy.algorithm();
            let mut state = words[..algorithm.words()].to_vec();
            for cost in [0, 1, cost, policy.capacity()] {
                let now = crate::Timestamp::from_micros(now_us).clamp_to_clock();
                let decision = algorithm.transition(&mut state, now, cost);
                prop_assert!(decision.remaining().unwrap() <= policy.capacity());
                algorithm.fresh_at(&state);
                let stamp = algorithm.stamp(&state);
                algorithm.refund(&mut state, now, stamp, cost);
                algorithm.refund(&mut state, now, words[0], cost);
                prop_assert!(algorithm.overdraw(&mut state, now, cost) <= cost);
            }
        }
    }
}

#[test]
fn a_window_is_that_of_the_rate_whatever_counts() {
    let rate = "9/7min";
    for policy in [
        Policy::token_bucket(rate),
        Policy::leaky_bucket(rate),
        Policy::leaky_queue(rate, 2),
        Policy::fixed_window(rate),
        Policy::fixed_window(rate).and_then(Policy::with_stagger),
        Policy::sliding_window(rate),
        Policy::sliding_window_strict(rate, 4),
        Policy::sliding_window_log(rate),
        warming(Policy::sliding_window(rate), 2),
    ] {
        let policy = policy.unwrap();
        assert_eq!(policy.window(), Duration::from_mins(7), "{}", policy.algorithm().name());
    }
}

#[test]
fn a_charge_can_be_given_back_for_as_long_as_it_counts() {
    const HOUR_US: u64 = 3_600_000_000;
    for (policy, longer_us) in [
        // A charge is named by the end of what it counts in.
        (Policy::token_bucket("9/h"), 0),
        (Policy::fixed_window("9/h"), 0),
        // These slide on from there for as long again.
        (Policy::sliding_window("9/h"), HOUR_US),
        (Policy::sliding_window_strict("9/h", 4), HOUR_US),
        (warming(Policy::sliding_window("9/h"), 2), HOUR_US),
    ] {
        let kind = policy.unwrap().kind;
        assert_eq!(kind.refundable_until_us(1_000), 1_000 + longer_us, "{kind:?}");
        assert_eq!(kind.refundable_until_us(u64::MAX), u64::MAX);
    }
}

fn warming(policy: Result<Policy, PolicyError>, start: u64) -> Result<Policy, PolicyError> {
    policy?.with_warm_up(WarmUp { start, over: Duration::from_secs(9), steps: 3 })
}

#[track_caller]
fn refused(policy: Result<Policy, PolicyError>, expected: &PolicyError) {
    assert_eq!(policy.unwrap_err(), *expected);
}

#[test]
fn what_cannot_be_counted_is_refused_with_its_reason() {
    refused(Policy::token_bucket("0/s"), &PolicyError::ZeroLimit);
    refused(Policy::fixed_window("10/0s"), &PolicyError::ZeroWindow);
    refused(Policy::token_bucket(Rate::new(1, Duration::ZERO)), &PolicyError::ZeroWindow);
    refused(Policy::token_bucket("1000000001/s"), &PolicyError::RateTooFast);
    refused(Policy::token_bucket("1001/us"), &PolicyError::RateTooFast);
    refused(
        Policy::token_bucket("1/11year"),
        &PolicyError::WindowTooLong { window_us: 346_896_000_000_000 },
    );
    let u64_max = Rate::new(u64::MAX, Duration::from_secs(1));
    refused(Policy::token_bucket(u64_max), &PolicyError::LimitTooLarge { limit: u64::MAX });
    refused(Policy::sliding_window(u64_max), &PolicyError::LimitTooLarge { limit: u64::MAX });
    refused(Policy::fixed_window("2.5/s"), &PolicyError::FractionalLimit);
    refused(Policy::sliding_window_strict("5/s", 0), &PolicyError::Subwindows { subwindows: 0 });
    refused(Policy::sliding_window_strict("5/s", 63), &PolicyError::Subwindows { subwindows: 63 });
    let bucket = |burst| Policy::token_bucket("1/month").unwrap().with_burst(burst);
    refused(bucket(0), &PolicyError::ZeroBurst);
    refused(bucket(u64::MAX), &PolicyError::BurstTooLarge { burst: u64::MAX });
    // 35 years and eight months.
    refused(bucket(435), &PolicyError::BurstTooLarge { burst: 435 });
    assert!(bucket(434).is_ok());
    // An interval of 1000000/1009 us would make this a debt of 10^16 parts of a microsecond. There
    // are coarser ones that are as good.
    assert!(Policy::token_bucket("1009/s").unwrap().with_burst(10_000_000_000).is_ok());
    // Found by the fuzzer: a fraction of nine digits times a large burst is more than 128 bits.
    refused(
        Policy::token_bucket("6.666626666/70d").unwrap().with_burst(3_401_966_373_333_918_969),
        &PolicyError::BurstTooLarge { burst: 3_401_966_373_333_918_969 },
    );
    refused(
        Policy::fixed_window("5/s").unwrap().with_burst(9),
        &PolicyError::BurstWithoutBucket { algorithm: "fixed_window" },
    );
    for length in [434, u64::MAX - 1, u64::MAX] {
        refused(Policy::leaky_queue("1/month", length), &PolicyError::QueueTooLong { length });
    }
    assert!(Policy::leaky_queue("1/month", 433).is_ok());
    refused(
        Policy::leaky_queue("5/s", 5).unwrap().with_burst(9),
        &PolicyError::BurstWithoutBucket { algorithm: "leaky_queue" },
    );
    refused(
        Policy::leaky_bucket("5/s").unwrap().with_max_wait(Duration::ZERO),
        &PolicyError::MaxWaitWithoutQueue { algorithm: "leaky_bucket" },
    );
    assert!(matches!(Policy::token_bucket("ten/s"), Err(PolicyError::Rate(_))));
}

#[test]
fn what_is_on_no_calendar_is_refused_with_its_reason() {
    refused(Policy::calendar_window(0, Period::Day), &PolicyError::ZeroLimit);
    refused(
        Policy::calendar_window(u64::MAX, Period::Month),
        &PolicyError::LimitTooLarge { limit: u64::MAX },
    );
    let a_billion_a_second = 86_400 * 1_000_000_000;
    assert!(Policy::calendar_window(a_billion_a_second, Period::Day).is_ok());
    refused(
        Policy::calendar_window(a_billion_a_second + 1, Period::Day),
        &PolicyError::RateTooFast,
    );
    let at = |minutes| Policy::calendar_window(5, Period::Week).unwrap().with_utc_offset(minutes);
    assert!(at(-1_080).is_ok() && at(1_080).is_ok());
    for minutes in [i32::MIN, -1_081, 1_081, i32::MAX] {
        refused(at(minutes), &PolicyError::UtcOffset { minutes });
    }
    refused(
        Policy::fixed_window("5/day").unwrap().with_utc_offset(0),
        &PolicyError::OffsetWithoutCalendar { algorithm: "fixed_window" },
    );
    refused(
        at(0).unwrap().with_burst(9),
        &PolicyError::BurstWithoutBucket { algorithm: "calendar_window" },
    );
    assert_eq!(
        at(1_081).unwrap_err().to_string(),
        "an offset of 1081 minutes from UTC is too far: write minutes from -1080 to 1080, such as \
         330 for +05:30",
    );
}

#[test]
fn only_a_fixed_window_is_staggered_and_then_it_counts_apart() {
    for policy in [
        Policy::token_bucket("5/s"),
        Policy::leaky_bucket("5/s"),
        Policy::leaky_queue("5/s", 5),
        Policy::sliding_window("5/s"),
        Policy::sliding_window_strict("5/s", 4),
        Policy::calendar_window(5, Period::Day),
    ] {
        let policy = policy.unwrap();
        let algorithm = policy.algorithm().name();
        refused(policy.with_stagger(), &PolicyError::StaggerWithoutFixedWindow { algorithm });
    }
    let plain = Policy::fixed_window("5/min").unwrap().with_name("a");
    let staggered = plain.clone().with_stagger().unwrap();
    assert_ne!(staggered.salt, plain.salt);
    assert_ne!(staggered.salt, Policy::fixed_window("5/min").unwrap().with_stagger().unwrap().salt);
    assert_eq!(
        (staggered.name(), staggered.limit(), staggered.window()),
        (Some("a"), 5, Duration::from_mins(1))
    );
    assert_eq!((plain.stagger_us(b"key"), staggered.stagger_us(b"key")), (None, Some(42_135_032)));
    assert_eq!(staggered.clone().with_stagger().unwrap().salt, staggered.salt);
}

#[test]
fn each_period_and_each_offset_has_counters_of_its_own() {
    let policy = |limit, period, minutes| {
        Policy::calendar_window(limit, period).unwrap().with_utc_offset(minutes).unwrap()
    };
    let salt = |period, minutes| policy(5, period, minutes).salt;
    let day = Policy::calendar_window(5, Period::Day).unwrap();
    assert_eq!(day.salt, salt(Period::Day, 0));
    assert_eq!(day.salt, policy(9, Period::Day, 0).salt);
    assert_ne!(day.salt, Policy::fixed_window("5/day").unwrap().salt);
    let mut salts: Vec<u64> = [Period::Day, Period::Week, Period::Month]
        .into_iter()
        .flat_map(|period| (-1_080..=1_080).map(move |minutes| salt(period, minutes)))
        .collect();
    salts.sort_unstable();
    salts.dedup();
    assert_eq!(salts.len(), 3 * 2_161);
    // A name stays, whichever is given first.
    let named_first = day.with_name("quota").with_utc_offset(60).unwrap();
    assert_eq!(named_first.salt, policy(5, Period::Day, 60).with_name("quota").salt);
    assert_eq!(
        (named_first.period(), named_first.utc_offset_minutes()),
        (Some(Period::Day), Some(60))
    );
}

#[test]
fn long_sliding_windows_count_time_in_coarser_ticks() {
    let granularity = |rate: &str| Policy::sliding_window(rate).unwrap().sliding_granularity_us();
    assert_eq!(granularity("100/min"), Some(1));
    assert_eq!(granularity("1000000/day"), Some(10));
    assert_eq!(granularity("10000000 per month"), Some(10_000));
}

#[test]
fn the_limit_is_not_part_of_a_counters_identity_but_name_window_and_algorithm_are() {
    let salt = |policy: Result<Policy, PolicyError>| policy.unwrap().salt;
    let bucket = salt(Policy::token_bucket("10/s"));
    assert_eq!(bucket, salt(Policy::token_bucket("20/s").unwrap().with_burst(5)));
    assert_ne!(bucket, salt(Policy::token_bucket("10/min")));
    assert_ne!(bucket, salt(Policy::leaky_bucket("10/s")));
    let named = |name: &str| Policy::token_bucket("10/s").unwrap().with_name(name);
    assert_ne!(bucket, named("reads").salt);
    assert_ne!(named("writes").salt, named("reads").salt);
    let rebuilt = named("reads").with_burst(50).unwrap();
    assert_eq!((rebuilt.salt, rebuilt.name()), (named("reads").salt, Some("reads")));
    let strict = |subwindows| salt(Policy::sliding_window_strict("10/s", subwindows));
    assert_ne!(strict(4), strict(5));
}

/// Both were one token a window: 100 times too fast.
#[test]
fn a_boost_or_share_of_a_fraction_of_a_token_is_not_a_whole_one() {
    let seconds_per_token = |policy: &Policy| {
        let Interval { numerator_us, denominator } = policy.interval().unwrap();
        numerator_us.div_ceil(denominator * 1_000_000)
    };
    let bucket = Policy::token_bucket("0.01/s").unwrap().with_burst(4).unwrap();
    let queue = Policy::leaky_queue("0.01/s", 4).unwrap();
    for policy in [&bucket, &queue] {
        let boosted = policy.boosted(200);
        assert_eq!(seconds_per_token(&boosted), 50, "{policy:?}");
        // It counts in the same counters.
        assert_eq!((boosted.window(), boosted.salt), (policy.window(), policy.salt));
        assert_eq!(seconds_per_token(&policy.boosted(1)), 10_000, "{policy:?}");
        assert_eq!(seconds_per_token(&policy.share(3)), 300, "{policy:?}");
    }
    assert_eq!((bucket.boosted(150).capacity(), bucket.share(2).capacity()), (6, 2));
}
