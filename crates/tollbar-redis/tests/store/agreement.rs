//! The Redis store and the oracle give the same answers, to the last number.

use std::time::Duration;

use crate::support::RedisSubject;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tollbar::store::{Hold, Once, ReservationId};
use tollbar::{Charge, Policy, Timestamp};
use tollbar_testkit::adversary::Standing;
use tollbar_testkit::duel::Duel;
use tollbar_testkit::oracle::Question;
use tollbar_testkit::strategy::{self, Move, cases};

/// Panics would be printed at every step of the search for a smaller failure.
fn agrees(start: Timestamp, play: impl FnOnce(&mut Duel) -> Result<(), String>) -> TestCaseResult {
    play(&mut Duel::new(RedisSubject::boxed(start))).map_err(TestCaseError::fail)
}

fn batches() -> impl Strategy<Value = Vec<(Charge, Vec<Move>)>> {
    let charge = prop_oneof![3 => Just(Charge::AllOrNone), 1 => Just(Charge::Independent)];
    vec((charge, strategy::trace(1..5)), 1..20)
}

/// A batch that is asked under one state of the rules, as a program asks it.
fn one_version_each(mut batches: Vec<(Charge, Vec<Move>)>) -> Vec<(Charge, Vec<Move>)> {
    for (_, moves) in &mut batches {
        let version = moves[0].policy;
        for each in moves {
            each.policy = version;
        }
    }
    batches
}

const TTL: Duration = Duration::from_secs(20);

/// What is reserved; and, perhaps, which reservation is settled then, at how many fourths of it.
type Act = (Vec<Move>, Option<(usize, u64)>);

fn settles(
    duel: &mut Duel,
    start: Timestamp,
    policies: &[Policy],
    acts: &[Act],
) -> Result<(), String> {
    const NAMES: [[u8; 1]; 2] = [[0], [1]];
    let policy_of = |each: &Move| &policies[each.policy % policies.len()];
    let mut standing = Standing::at(start);
    let mut reserved = Vec::new();
    for (number, (moves, settled)) in acts.iter().enumerate() {
        standing.now = standing.advanced(moves[0].advance, policy_of(&moves[0]));
        let question = |each: &Move| Question {
            key: &NAMES[each.key % NAMES.len()],
            policy: policy_of(each),
            cost: standing.cost(each.price, policy_of(each)),
            role: each.role,
        };
        let asked: Vec<Question<'_>> = moves.iter().map(question).collect();
        let id = ReservationId(number as u128);
        let request_id = [number as u8 % 3];
        // Every third is also charged once, by one of a few ids.
        let once = (number % 3 == 0).then_some(Once { request_id: &request_id, ttl: TTL });
        let hold = once.is_none().then_some(Hold { id, ttl: TTL });
        let charged = duel.check_marked(standing.now, &asked, once, hold)?;
        reserved.extend(charged.filter(|_| hold.is_some()).map(|charged| (id, charged)));
        if let Some((which, fourths)) = settled
            && !reserved.is_empty()
        {
            let (id, charged) = &reserved[which % reserved.len()];
            let spent = |at: usize, cost: u64| cost * ((fourths + at as u64) % 8) / 4;
            duel.settle(standing.now, *id, charged, spent)?;
        }
        for (name, policy) in
            NAMES.iter().flat_map(|name| policies.iter().map(move |it| (name, it)))
        {
            standing.last = Some(duel.check(standing.now, name, policy, 0)?);
        }
    }
    Ok(())
}

fn acts(moves: BoxedStrategy<Vec<Move>>) -> impl Strategy<Value = Vec<Act>> {
    vec((moves, prop::option::of((0_usize..40, 0_u64..8))), 1..20)
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn redis_store_agrees_with_the_oracle(
        policy in strategy::policy(), start in strategy::start(), moves in strategy::trace(1..60),
    ) {
        agrees(start, |duel| duel.play(start, &[policy], 3, &moves))?;
    }

    #[test]
    fn redis_store_agrees_with_the_oracle_when_rules_change_and_the_clock_goes_back(
        policies in strategy::versions(),
        start in strategy::start(),
        moves in strategy::trace_with_jumps_back(1..60),
    ) {
        agrees(start, |duel| duel.play(start, &policies, 1, &moves))?;
    }

    #[test]
    fn redis_store_agrees_with_the_oracle_when_the_clock_goes_back(
        policy in strategy::policy(),
        start in strategy::start(),
        moves in strategy::trace_with_jumps_back(1..60),
    ) {
        agrees(start, |duel| duel.play(start, &[policy], 1, &moves))?;
    }

    #[test]
    fn redis_store_agrees_with_the_oracle_on_batches(
        policies in strategy::policies(),
        start in strategy::start(),
        batches in batches(),
    ) {
        agrees(start, |duel| duel.play_batches(start, &policies, 2, &batches))?;
    }

    #[test]
    fn redis_store_agrees_with_the_oracle_on_batches_when_rules_change(
        policies in strategy::versions(),
        start in strategy::start(),
        batches in batches(),
    ) {
        let batches = one_version_each(batches);
        agrees(start, |duel| duel.play_batches(start, &policies, 2, &batches))?;
    }

    #[test]
    fn redis_store_agrees_with_the_oracle_on_reservations(
        policies in strategy::policies(),
        start in strategy::start(),
        acts in acts(strategy::trace(1..4).boxed()),
    ) {
        agrees(start, |duel| settles(duel, start, &policies, &acts))?;
    }

    #[test]
    fn redis_store_agrees_with_the_oracle_on_reservations_when_the_clock_goes_back(
        policies in strategy::policies(),
        start in strategy::start(),
        acts in acts(strategy::trace_with_jumps_back(1..4).boxed()),
    ) {
        agrees(start, |duel| settles(duel, start, &policies, &acts))?;
    }
}
