//! What a warm-up promises: it takes away and never gives.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tollbar::{Interval, ManualClock, MemoryStore, Outcome, Policy, Timestamp, WarmUp};
use tollbar_testkit::adversary::TraceState;
use tollbar_testkit::duel::Duel;
use tollbar_testkit::memory_subject::MemorySubject;
use tollbar_testkit::spec::{Kind, PolicySpec};
use tollbar_testkit::strategy::{self, cases};
use tollbar_testkit::subject::Subject;

fn start() -> impl Strategy<Value = Timestamp> {
    (1_700_000_000_000_000_u64..1_700_000_100_000_000).prop_map(Timestamp::from_micros)
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn a_warm_up_agrees_with_the_oracle(
        policy in strategy::warm_policy(),
        start in strategy::start(),
        moves in strategy::trace(1..60),
    ) {
        let mut duel = Duel::new(MemorySubject::boxed(start));
        duel.play(start, &[policy], 2, &moves).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn a_warm_up_agrees_with_the_oracle_when_the_clock_goes_back(
        policy in strategy::warm_policy(),
        start in strategy::start(),
        moves in strategy::trace_with_jumps_back(1..60),
    ) {
        let mut duel = Duel::new(MemorySubject::boxed(start));
        duel.play(start, &[policy], 1, &moves).map_err(TestCaseError::fail)?;
    }

    /// Whatever passes is put before the same policy without its warm-up, and passes there.
    #[test]
    fn a_warm_up_admits_nothing_that_the_full_policy_would_deny(
        (policy, plain) in strategy::warm_policy_and_plain(),
        start in start(),
        moves in strategy::trace(1..150),
    ) {
        let subject = MemorySubject::at(start);
        let subject: &dyn Subject = &subject;
        let mut trace_state = TraceState::at(start);
        for each in &moves {
            trace_state.now = trace_state.advanced(each.advance, &policy);
            let cost = trace_state.cost(each.price, &policy);
            let answer = subject.check(trace_state.now, b"key", &policy, cost);
            if answer.outcome == Outcome::Allow {
                let without = subject.check(trace_state.now, b"key", &plain, cost);
                prop_assert_eq!(without.outcome, Outcome::Allow);
                prop_assert!(answer.limit <= without.limit);
            }
            trace_state.last = Some(answer);
        }
    }

    /// No more than the first step's bucket or window holds, by what a plain policy of its limit
    /// and burst would let pass.
    #[test]
    fn a_new_key_gets_no_more_than_the_first_step_in_the_first_step(
        (kind, limit, window_us) in (strategy::kind(), 2_u64..200, 1_000_u64..100_000_000),
        share in 0_u64..16,
        steps in 1_u32..=16,
        first_step_us in 10_u64..200_000_000,
        start in start(),
        moves in strategy::trace(1..80),
    ) {
        let first = (limit * share / 16).clamp(1, limit - 1);
        let plain = PolicySpec::new(kind, limit, window_us).build().unwrap();
        let over = Duration::from_micros(first_step_us) * steps;
        let policy = plain.with_warm_up(WarmUp { start: first, over, steps });
        let Ok(policy) = policy else { return Ok(()) };
        let lowest = PolicySpec::new(kind, first, window_us).build().unwrap();
        let subject = MemorySubject::at(start);
        let subject: &dyn Subject = &subject;
        let mut trace_state = TraceState::at(start);
        let mut born: Option<Timestamp> = None;
        for each in &moves {
            trace_state.now = trace_state.advanced(each.advance, &policy);
            let step_ends = born.map(|born| born.after(Duration::from_micros(first_step_us)));
            if step_ends.is_some_and(|end| trace_state.now >= end) {
                break;
            }
            let cost = trace_state.cost(each.price, &policy);
            let answer = subject.check(trace_state.now, b"key", &policy, cost);
            prop_assert_eq!(answer.limit, first);
            if answer.outcome == Outcome::Allow {
                let lowest = subject.check(trace_state.now, b"key", &lowest, cost);
                prop_assert_eq!(lowest.outcome, Outcome::Allow);
            }
            if cost > 0 && answer.outcome == Outcome::Allow {
                born.get_or_insert(trace_state.now);
            }
            trace_state.last = Some(answer);
        }
    }

    /// Alone, the same request is denied a tick before and allowed at it; and where no wait is told,
    /// none is long enough.
    #[test]
    fn a_retry_after_counts_the_steps_that_are_still_to_come(
        policy in strategy::warm_policy(),
        start in start(),
        moves in strategy::trace(1..60),
        waits in prop::collection::vec(0_u64..40, 4),
    ) {
        let subject = MemorySubject::at(start);
        let subject: &dyn Subject = &subject;
        let mut trace_state = TraceState::at(start);
        for each in &moves {
            trace_state.now = trace_state.advanced(each.advance, &policy);
            let cost = trace_state.cost(each.price, &policy);
            let mut answer = subject.check(trace_state.now, b"key", &policy, cost);
            if let Outcome::Deny { retry_after_us } = answer.outcome {
                let due = trace_state.now.after(Duration::from_micros(retry_after_us));
                let early = Timestamp::from_micros(due.as_micros() - 1);
                let too_early = subject.check(early, b"key", &policy, cost);
                prop_assert_eq!(too_early.outcome, Outcome::Deny { retry_after_us: 1 });
                answer = subject.check(due, b"key", &policy, cost);
                prop_assert_eq!(answer.outcome, Outcome::Allow);
                trace_state.now = due;
            } else if answer.outcome == Outcome::Busy && !policy.has_permits() {
                let over = policy.warm_up().unwrap().over;
                for wait in &waits {
                    trace_state.now = trace_state.now.after(over / 16 * *wait as u32);
                    answer = subject.check(trace_state.now, b"key", &policy, cost);
                    prop_assert_eq!(answer.outcome, Outcome::Busy);
                }
            }
            trace_state.last = Some(answer);
        }
    }

    /// Two counters, one of which was forgotten at the first instant at which a store may do so.
    #[test]
    fn forgetting_a_key_that_is_new_again_and_owes_nothing_changes_nothing(
        policy in strategy::warm_policy(),
        start in start(),
        moves in strategy::trace(1..40),
        later in strategy::trace(1..20),
    ) {
        let algorithm = policy.algorithm();
        let mut kept = vec![0; algorithm.words()];
        let mut trace_state = TraceState::at(start);
        for each in &moves {
            trace_state.now = trace_state.advanced(each.advance, &policy);
            let cost = trace_state.cost(each.price, &policy);
            trace_state.last = Some(algorithm.transition(&mut kept, trace_state.now, cost).into());
        }
        if policy.has_permits() && policy.lease_ttl().is_none() {
            // Those in flight never end by themselves.
            algorithm.refund(&mut kept, trace_state.now, 0, u64::MAX);
        }
        trace_state.now = trace_state.now.max(algorithm.fresh_at(&kept)).clamp_to_clock();
        let mut forgotten = vec![0; algorithm.words()];
        for each in &later {
            let cost = trace_state.cost(each.price, &policy);
            let decision = algorithm.transition(&mut kept, trace_state.now, cost);
            prop_assert_eq!(decision, algorithm.transition(&mut forgotten, trace_state.now, cost));
            trace_state.last = Some(decision.into());
            trace_state.now = trace_state.advanced(each.advance, &policy);
        }
    }

    #[test]
    fn no_step_of_a_bucket_is_faster_than_its_limit_nor_slower_by_a_millionth(
        (limit, share) in (2_u64..1_000_000_000, 0_u64..1_000),
        window_us in prop_oneof![Just(1_000_000_u64), 1_000_000_u64..3_000_000_000_000],
        burst in 1_u64..1_000,
        steps in 1_u32..=16,
    ) {
        let first = (limit / 1_000 * share).clamp(1, limit - 1);
        let warm_up = WarmUp { start: first, over: Duration::from_mins(1), steps };
        let spec = PolicySpec::new(Kind::TokenBucket, limit, window_us).with_burst(burst);
        let plain = spec.build().unwrap();
        let policy = plain.clone().with_warm_up(warm_up).unwrap();
        let intervals = policy.warm_up_intervals().unwrap();
        prop_assert_eq!(intervals.len(), steps as usize + 1);
        let parts = |interval: Interval| {
            (u128::from(interval.numerator_us), u128::from(interval.denominator))
        };
        for (step, interval) in intervals.iter().enumerate() {
            let climbed = (limit - first) * step as u64 / u64::from(steps);
            let (numerator, denominator) = parts(*interval);
            // ours / asked = (denominator / numerator) / (limit / window).
            let ours = denominator * u128::from(window_us);
            let asked = numerator * u128::from(first + climbed);
            prop_assert!(ours <= asked);
            prop_assert!((asked - ours) * 1_000_000 < asked);
        }
        // The last step is the plain bucket.
        let (numerator, denominator) = parts(*intervals.last().unwrap());
        let (plain_numerator, plain_denominator) = parts(plain.interval().unwrap());
        prop_assert_eq!(numerator * plain_denominator, plain_numerator * denominator);
        prop_assert_eq!(policy.interval(), plain.interval());
    }
}

/// A second after its last step a key is new, and in its first step again; but what it has spent
/// counts for the whole hour.
#[test]
fn who_has_to_wait_until_after_the_key_is_new_learns_for_how_long() {
    let clock = ManualClock::at(Timestamp::from_micros(1_699_999_200_000_000));
    let store = Arc::new(MemoryStore::builder().max_keys(10).clock(clock.clone()).build());
    let warm_up = WarmUp { start: 9, over: Duration::from_secs(9), steps: 3 };
    let policy = Policy::fixed_window("10/h").unwrap().with_warm_up(warm_up).unwrap();
    let limiter = crate::limiter_over(&store, policy.with_name("warming"));
    assert!(limiter.check_n("key", 1).is_allowed());
    clock.advance(Duration::from_secs(1));
    assert!(limiter.check_n("key", 8).is_allowed());
    let denied = limiter.check_n("key", 9);
    assert_eq!(denied.ok().unwrap_err().retry_after(), Some(Duration::from_secs(3_599)));
}
