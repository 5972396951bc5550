//! The in-memory store and the oracle give the same answers, to the last number.

use std::rc::Rc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollbar::{Policy, Timestamp};
use tollbar_testkit::adversary::TraceState;
use tollbar_testkit::duel::Duel;
use tollbar_testkit::memory_subject::MemorySubject;
use tollbar_testkit::strategy::{self, cases};

tollbar_testkit::agreement!(MemorySubject::boxed, 256);

proptest! {
    #![proptest_config(cases(256))]

    /// The smallest store there is, and many keys, one after the other: each is fresh again
    /// before the next one comes, so slots change hands all the time and nothing live is lost.
    #[test]
    fn forgetting_a_fresh_counter_changes_nothing(
        policies in vec(strategy::policy(), 1..4),
        visits in vec((0_u8..24, strategy::trace(1..6)), 1..30),
    ) {
        let mut now = Timestamp::from_micros(1_700_000_000_000_000);
        let subject = Rc::new(MemorySubject::with_keys_max(now, 1));
        let mut duel = Duel::new(Box::new(Rc::clone(&subject)));
        for (key, moves) in visits {
            let policy = &policies[usize::from(key) % policies.len()];
            let mut trace_state = TraceState::at(now);
            for each in moves {
                trace_state.now = trace_state.advanced(each.advance, policy);
                let cost = trace_state.cost(each.price, policy);
                let answer = duel.check(trace_state.now, &[key], policy, cost);
                trace_state.last = Some(answer.map_err(TestCaseError::fail)?);
            }
            if policy.algorithm().name() == "concurrency" {
                let released = duel.release(trace_state.now, &[key], policy, u64::MAX);
                released.map_err(TestCaseError::fail)?;
            }
            now = fresh_at(policy, &trace_state);
            if now > Timestamp::MAX {
                break;
            }
        }
        prop_assert_eq!(subject.stats().forced_evictions, 0);
    }
}

/// When a counter is fresh: a sliding window weighs for a window more after its reset, a key that
/// warms up is known for as long as that takes, and a lease ends when it ends.
fn fresh_at(policy: &Policy, trace_state: &TraceState) -> Timestamp {
    let reset_at = trace_state.last.map_or(trace_state.now, |answer| answer.reset_at);
    let over = policy.warm_up().map_or(Duration::ZERO, |warm_up| warm_up.over);
    let reset_at = reset_at.max(trace_state.now.after(over));
    match (policy.sliding_granularity_us(), policy.lease_ttl()) {
        (Some(_), _) => reset_at.after(policy.window()),
        (_, Some(ttl)) => reset_at.after(ttl),
        _ => reset_at,
    }
}
