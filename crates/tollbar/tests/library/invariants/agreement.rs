//! The in-memory store and the oracle give the same answers, to the last number.

use std::rc::Rc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tollbar::{Charge, Policy, Timestamp};
use tollbar_testkit::adversary::Standing;
use tollbar_testkit::duel::Duel;
use tollbar_testkit::memory_subject::MemorySubject;
use tollbar_testkit::strategy::{self, Move, cases};

fn charge() -> impl Strategy<Value = Charge> {
    prop_oneof![3 => Just(Charge::AllOrNone), 1 => Just(Charge::Independent)]
}

fn batches() -> impl Strategy<Value = Vec<(Charge, Vec<Move>)>> {
    vec((charge(), strategy::trace(1..5)), 1..30)
}

/// Panics would be printed at every step of the search for a smaller failure.
fn agrees(start: Timestamp, play: impl FnOnce(&mut Duel) -> Result<(), String>) -> TestCaseResult {
    play(&mut Duel::new(MemorySubject::boxed(start))).map_err(TestCaseError::fail)
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn memory_store_agrees_with_the_oracle(
        policy in strategy::policy(), start in strategy::start(), moves in strategy::trace(1..60),
    ) {
        agrees(start, |duel| duel.play(start, &[policy], 3, &moves))?;
    }

    #[test]
    fn memory_store_agrees_with_the_oracle_when_the_clock_goes_back(
        policy in strategy::policy(),
        start in strategy::start(),
        moves in strategy::trace_with_jumps_back(1..60),
    ) {
        agrees(start, |duel| duel.play(start, &[policy], 1, &moves))?;
    }

    #[test]
    fn memory_store_agrees_with_the_oracle_when_rules_change(
        policies in strategy::versions(),
        start in strategy::start(),
        moves in strategy::trace(1..60),
    ) {
        agrees(start, |duel| duel.play(start, &policies, 2, &moves))?;
    }

    #[test]
    fn memory_store_agrees_with_the_oracle_when_rules_change_and_the_clock_goes_back(
        policies in strategy::versions(),
        start in strategy::start(),
        moves in strategy::trace_with_jumps_back(1..60),
    ) {
        agrees(start, |duel| duel.play(start, &policies, 1, &moves))?;
    }

    #[test]
    fn memory_store_agrees_with_the_oracle_on_batches(
        policies in strategy::policies(),
        start in strategy::start(),
        batches in batches(),
    ) {
        agrees(start, |duel| duel.play_batches(start, &policies, 2, &batches))?;
    }

    #[test]
    fn memory_store_agrees_with_the_oracle_on_batches_when_rules_change(
        policies in strategy::versions(),
        start in strategy::start(),
        batches in batches(),
    ) {
        let batches = one_version_each(batches);
        agrees(start, |duel| duel.play_batches(start, &policies, 2, &batches))?;
    }

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
            let mut standing = Standing::at(now);
            for each in moves {
                standing.now = standing.advanced(each.advance, policy);
                let cost = standing.cost(each.price, policy);
                let answer = duel.check(standing.now, &[key], policy, cost);
                standing.last = Some(answer.map_err(TestCaseError::fail)?);
            }
            if policy.algorithm().name() == "concurrency" {
                let released = duel.release(standing.now, &[key], policy, u64::MAX);
                released.map_err(TestCaseError::fail)?;
            }
            now = fresh_at(policy, &standing);
            if now > Timestamp::MAX {
                break;
            }
        }
        prop_assert_eq!(subject.stats().forced_evictions, 0);
    }
}

/// A batch is asked under one state of the rules.
fn one_version_each(mut batches: Vec<(Charge, Vec<Move>)>) -> Vec<(Charge, Vec<Move>)> {
    for (_, moves) in &mut batches {
        let version = moves[0].policy;
        for each in moves {
            each.policy = version;
        }
    }
    batches
}

/// When a counter is fresh: a sliding window weighs for a window more after its reset, a key that
/// warms up is known for as long as that takes, and a lease ends when it ends.
fn fresh_at(policy: &Policy, standing: &Standing) -> Timestamp {
    let reset_at = standing.last.map_or(standing.now, |answer| answer.reset_at);
    let over = policy.warm_up().map_or(Duration::ZERO, |warm_up| warm_up.over);
    let reset_at = reset_at.max(standing.now.after(over));
    match (policy.sliding_granularity_us(), policy.lease_ttl()) {
        (Some(_), _) => reset_at.after(policy.window()),
        (_, Some(ttl)) => reset_at.after(ttl),
        _ => reset_at,
    }
}
