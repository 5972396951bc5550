//! All or nothing, costs of nothing and of too much, refused numbers, and what a rule change and
//! a boundary do.

use std::time::Duration;

use proptest::prelude::*;
use tollbar::{Charge, Concurrency, Outcome, Policy, PolicyError, Rate, Role, Timestamp};
use tollbar_testkit::admissions::Admissions;
use tollbar_testkit::adversary::TraceState;
use tollbar_testkit::answer::Answer;
use tollbar_testkit::memory_subject::MemorySubject;
use tollbar_testkit::oracle::OracleEntry;
use tollbar_testkit::strategy::{self, Move, cases};
use tollbar_testkit::subject::Subject;

const KEYS: [&[u8]; 3] = [b"a", b"b", b"c"];

/// Plays single requests; the standing afterwards.
fn play(
    subject: &dyn Subject,
    start: Timestamp,
    policies: &[Policy],
    moves: &[Move],
) -> TraceState {
    let mut trace_state = TraceState::at(start);
    for each in moves {
        let policy = &policies[each.policy % policies.len()];
        trace_state.now = trace_state.advanced(each.advance, policy);
        let cost = trace_state.cost(each.price, policy);
        trace_state.last = Some(subject.check(trace_state.now, KEYS[each.key], policy, cost));
    }
    trace_state
}

fn peek_all(subject: &dyn Subject, now: Timestamp, policies: &[Policy]) -> Vec<Answer> {
    let counters = KEYS.iter().flat_map(|key| policies.iter().map(move |policy| (key, policy)));
    counters.map(|(key, policy)| subject.peek(now, key, policy)).collect()
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn a_denied_batch_leaves_every_counter_as_it_was(
        policies in strategy::policies(),
        start in strategy::start(),
        moves in strategy::trace(0..30),
        batch in strategy::trace(1..6),
    ) {
        let subject = MemorySubject::at(start);
        let subject: &dyn Subject = &subject;
        let trace_state = play(subject, start, &policies, &moves);
        let before = peek_all(subject, trace_state.now, &policies);
        let questions: Vec<OracleEntry<'_>> = batch
            .iter()
            .map(|each| {
                let policy = &policies[each.policy % policies.len()];
                let cost = trace_state.cost(each.price, policy);
                OracleEntry { key: KEYS[each.key], policy, cost, role: each.role, alternative: None }
            })
            .collect();
        let answers = subject.check_all(trace_state.now, Charge::AllOrNone, &questions);
        let allows = |(asked, answer): (&OracleEntry<'_>, &Answer)| {
            asked.role == Role::Shadow || answer.outcome == Outcome::Allow
        };
        if !questions.iter().zip(&answers).all(allows) {
            prop_assert_eq!(peek_all(subject, trace_state.now, &policies), before);
        }
    }

    #[test]
    fn cost_0_and_costs_above_capacity_charge_nothing(
        policy in strategy::policy(),
        start in strategy::start(),
        moves in strategy::trace_with_jumps_back(0..30),
        above in prop_oneof![Just(1), Just(u64::MAX), 2_u64..1_000_000],
    ) {
        let subject = MemorySubject::at(start);
        let subject: &dyn Subject = &subject;
        let policies = [policy];
        let [policy] = &policies;
        let trace_state = play(subject, start, &policies, &moves);
        let before = peek_all(subject, trace_state.now, &policies);
        let cost = policy.capacity().saturating_add(above);
        for key in KEYS {
            let peeked = subject.peek(trace_state.now, key, policy);
            prop_assert_eq!(peeked.outcome, Outcome::Allow);
            let refused = subject.check(trace_state.now, key, policy, cost);
            // Its reset is that of the largest cost that can pass, and a peek's that of a cost of 1.
            prop_assert!(refused.reset_at >= peeked.reset_at);
            let expected = Answer { outcome: Outcome::Never, reset_at: refused.reset_at, ..peeked };
            prop_assert_eq!(refused, expected);
        }
        prop_assert_eq!(peek_all(subject, trace_state.now, &policies), before);
    }

    /// A debt that was written in thirds of a microsecond may be read in sevenths. What the
    /// change forgives or adds is less than one microsecond.
    #[test]
    fn a_rule_change_between_fractions_moves_a_debt_by_less_than_a_microsecond(
        (before, after) in (1_u64..2_000, 1_u64..2_000),
        window_us in 1_000_u64..5_000,
        cost in 1_u64..2_000,
    ) {
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let subject = MemorySubject::at(now);
        let subject: &dyn Subject = &subject;
        let window = Duration::from_micros(window_us);
        let bucket = |limit| Policy::token_bucket(Rate::new(limit, window)).unwrap();
        let (before, after) = (bucket(before), bucket(after));
        // Leaves room for one more under any limit.
        let cost = cost.min(before.capacity() / 2).max(1);
        let charged = subject.check(now, b"a", &before, cost);
        let seen = subject.check(now, b"a", &after, 1);
        let token_us = |policy: &Policy| {
            let interval = policy.interval().unwrap();
            interval.numerator_us as f64 / interval.denominator as f64
        };
        let exact_us = cost as f64 * token_us(&before) + token_us(&after);
        if exact_us + 1.0 < after.capacity() as f64 * token_us(&after) {
            let debt_us = (seen.reset_at.as_micros() - now.as_micros()) as f64;
            // Less than one for the change, and less than one for rounding up what is reported.
            prop_assert!((debt_us - exact_us).abs() < 2.0, "{charged:?} {seen:?} {exact_us}");
        }
    }
}

#[test]
fn fixed_window_admits_2x_limit_across_a_boundary() {
    let policy = Policy::fixed_window("100/min").unwrap();
    let boundary_us = 1_700_000_040_000_000;
    let subject = MemorySubject::at(Timestamp::ZERO);
    let subject: &dyn Subject = &subject;
    let passing = |now_us| {
        let now = Timestamp::from_micros(now_us);
        let asked = (0..150).map(|_| subject.check(now, b"a", &policy, 1).outcome);
        asked.filter(|outcome| *outcome == Outcome::Allow).count()
    };
    assert_eq!((passing(boundary_us - 1), passing(boundary_us)), (100, 100));
}

#[test]
fn a_limit_that_no_longer_fits_one_word_keeps_its_counter_and_so_does_one_that_fits_again() {
    // Two counts of a window of 4 us have six bits each in a word: 63.
    let window =
        |limit| Policy::sliding_window(Rate::new(limit, Duration::from_micros(4))).unwrap();
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let subject = MemorySubject::at(now);
    let subject: &dyn Subject = &subject;
    assert_eq!(subject.check(now, b"a", &window(50), 20).remaining, 30);
    assert_eq!(subject.peek(now, b"a", &window(1_000)).remaining, 980);
    assert_eq!(subject.check(now, b"a", &window(1_000), 10).remaining, 970);
    assert_eq!(subject.peek(now, b"a", &window(50)).remaining, 20);
    assert_eq!(subject.check(now, b"a", &window(50), 1).remaining, 19);
}

/// One more key than there are slots. A tick before the others are fresh, one of them is lost and
/// counted as lost. Once they are fresh nothing is: for a bucket at that very tick, for a window
/// within an eighth of one, because a word keeps its end rounded up by less than that.
#[test]
fn a_full_store_loses_a_counter_only_while_none_is_fresh() {
    let start = Timestamp::from_micros(1_700_000_000_000_000);
    let window = Duration::from_secs(1);
    let cases = [
        (Policy::token_bucket("1/s"), window, Duration::ZERO),
        (Policy::fixed_window("1/s"), window, window / 8),
        (Policy::sliding_window("1/s"), window * 2, window / 8),
    ];
    for (policy, fresh_after, given_up_after) in cases {
        let policy = policy.unwrap();
        let fresh_at = start.after(fresh_after);
        let a_tick_before = Timestamp::from_micros(fresh_at.as_micros() - 1);
        for (now, lost) in [(a_tick_before, 1), (fresh_at.after(given_up_after), 0)] {
            let memory = MemorySubject::with_keys_max(start, 1);
            let subject: &dyn Subject = &memory;
            for key in 0..memory.stats().slots {
                subject.check(start, &key.to_le_bytes(), &policy, 1);
            }
            subject.check(now, b"one more", &policy, 1);
            assert_eq!(memory.stats().forced_evictions, lost, "{policy:?}");
        }
    }
}

/// A denial under a lowered burst used to cut the debt to the new full one, and so forgave the rest.
/// It writes nothing: the debt is whole when the burst is raised again, and the retry-after counts
/// all of it.
#[test]
fn a_denial_under_a_lowered_burst_forgives_nothing() {
    let burst = |burst| Policy::token_bucket("1/s").unwrap().with_burst(burst).unwrap();
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let subject = MemorySubject::at(now);
    let subject: &dyn Subject = &subject;
    for key in [&b"alone"[..], b"denied", b"shadow"] {
        subject.check(now, key, &burst(10), 10);
    }
    let lowered = burst(2);
    let enforce = OracleEntry {
        key: b"denied",
        policy: &lowered,
        cost: 1,
        role: Role::Enforce,
        alternative: None,
    };
    let shadow = OracleEntry { key: b"shadow", role: Role::Shadow, ..enforce };
    let mut answers = subject.check_all(now, Charge::AllOrNone, &[enforce, shadow]);
    answers.push(subject.check(now, b"alone", &lowered, 1));
    for answer in answers {
        // Ten are owed, and one is left of two when nine are paid.
        assert_eq!(answer.outcome, Outcome::Deny { retry_after_us: 9_000_000 });
        assert_eq!((answer.remaining, answer.reset_at), (0, now.after(Duration::from_secs(10))));
    }
    for key in [&b"alone"[..], b"denied", b"shadow"] {
        assert_eq!(subject.peek(now, key, &burst(10)).remaining, 0);
    }
}

/// Why the rate of a bucket is promised only to buckets that are not full between two ticks.
#[test]
fn a_bucket_that_is_full_between_two_microseconds_earns_nothing_until_the_next() {
    let policy = Policy::token_bucket("0.7/3us").unwrap();
    let start = Timestamp::from_micros(1_700_000_000_000_000);
    let subject = MemorySubject::at(start);
    let admitted = Admissions::from_greedy_client(&subject, &policy, start, 7);
    let after_us = admitted.charges.iter().map(|(at_us, _)| at_us - start.as_micros());
    // A token is due every 4.29 us, and the bucket holds one.
    assert_eq!(after_us.collect::<Vec<_>>(), [0, 5, 10, 15]);
}

/// The first version lowered the count to what a word holds when the limit was lowered, and so
/// gave the difference away when it was raised again.
#[test]
fn a_limit_that_is_lowered_and_raised_again_has_given_nothing_away() {
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let subject = MemorySubject::at(now);
    let subject: &dyn Subject = &subject;
    let window = Duration::from_micros(7);
    let policies: [fn(Rate) -> Result<Policy, PolicyError>; 4] = [
        Policy::fixed_window,
        Policy::sliding_window,
        |rate| Policy::sliding_window_strict(rate, 7),
        Policy::sliding_window_log,
    ];
    for policy in policies {
        let limit = |limit| policy(Rate::new(limit, window)).unwrap();
        let full = subject.check(now, b"a", &limit(6_000), 6_000);
        assert_eq!((full.outcome, full.remaining), (Outcome::Allow, 0));
        let lowered = subject.check(now, b"a", &limit(1), 1);
        assert!(matches!(lowered.outcome, Outcome::Deny { .. }), "{lowered:?}");
        let raised = subject.check(now, b"a", &limit(6_000), 1);
        assert!(matches!(raised.outcome, Outcome::Deny { .. }), "{:?}: {raised:?}", limit(6_000));
    }
}

#[test]
fn numbers_that_cannot_be_counted_are_refused() {
    let refused = |policy: Result<Policy, PolicyError>| policy.expect_err("it must be refused");
    assert_eq!(refused(Policy::token_bucket("0/s")), PolicyError::ZeroLimit);
    assert_eq!(refused(Policy::leaky_bucket("0.0/s")), PolicyError::ZeroLimit);
    assert_eq!(refused(Policy::fixed_window("1/0s")), PolicyError::ZeroWindow);
    assert_eq!(refused(Policy::sliding_window("0.5/s")), PolicyError::FractionalLimit);
    let no_parts = refused(Policy::sliding_window_strict("5/s", 0));
    assert_eq!(no_parts, PolicyError::Subwindows { subwindows: 0 });
    let long_log = refused(Policy::sliding_window_log("10001/s"));
    assert_eq!(long_log, PolicyError::LogLimit { limit: 10_001 });
    assert!(Policy::sliding_window_log("10000/s").is_ok());
    let burst = |burst| {
        refused(Policy::token_bucket("1/month").and_then(|policy| policy.with_burst(burst)))
    };
    assert_eq!(burst(0), PolicyError::ZeroBurst);
    assert_eq!(burst(u64::MAX), PolicyError::BurstTooLarge { burst: u64::MAX });
    assert_eq!(refused(Concurrency::new(0).map(Concurrency::into_policy)), PolicyError::ZeroLimit);
    for limit in [(1 << 32) + 1, u64::MAX] {
        assert_eq!(
            refused(Concurrency::new(limit).map(Concurrency::into_policy)),
            PolicyError::TooManyPermits { limit }
        );
    }
    let most = Rate::new(u64::MAX, Duration::MAX);
    for policy in [
        Policy::token_bucket(most),
        Policy::leaky_bucket(most),
        Policy::fixed_window(most),
        Policy::sliding_window(most),
        Policy::sliding_window_strict(most, 10),
        Policy::sliding_window_log(most),
    ] {
        refused(policy);
    }
}

/// A bucket that adds what it has earned at every poll, rounded down, never earns anything when it is polled faster
/// than that.
#[test]
fn one_per_minute_polled_every_100_us_grants_exactly_its_due() {
    let policy = Policy::token_bucket("1/min").unwrap();
    let start_us = 1_699_999_980_000_000;
    let subject: &dyn Subject = &MemorySubject::at(Timestamp::from_micros(start_us));
    let polls = (0..=2 * 60 * 10_000_u64).map(|poll| poll * 100);
    let granted: Vec<u64> = polls
        .filter(|after_us| {
            let now = Timestamp::from_micros(start_us + after_us);
            subject.check(now, b"key", &policy, 1).outcome == Outcome::Allow
        })
        .collect();
    assert_eq!(granted, [0, 60_000_000, 120_000_000]);
}
