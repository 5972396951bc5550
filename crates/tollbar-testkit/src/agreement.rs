//! Properties that every store has: it and the oracle give the same answers, to the last number.
//!
//! [`agreement!`](crate::agreement!) makes a test of each.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tollbar::store::{Alternative, Hold, Once, ReservationId, ReservationRef};
use tollbar::{Charge, Policy, Role, Timestamp};

use crate::adversary::TraceState;
use crate::duel::Duel;
use crate::oracle::OracleEntry;
use crate::strategy::{self, Move, roles_and_alternatives};
use crate::subject::Factory;

/// A test of every property, for the stores of a [`Factory`], with so many cases each.
#[macro_export]
macro_rules! agreement {
    ($factory:expr, $cases:expr) => {
        $crate::agreement!(
            $factory,
            $cases,
            agrees_with_the_oracle,
            agrees_when_the_clock_goes_back,
            agrees_when_parts_are_reserved,
            agrees_when_rules_change,
            agrees_when_rules_change_and_the_clock_goes_back,
            agrees_on_batches,
            agrees_on_batches_when_rules_change,
            agrees_on_reservations,
            agrees_on_reservations_when_the_clock_goes_back,
        );
    };
    ($factory:expr, $cases:expr, $($property:ident),+ $(,)?) => {
        $(
            #[test]
            fn $property() {
                $crate::agreement::$property(&$factory, $cases);
            }
        )+
    };
}

/// Panics with the smallest failure. Panics within `test` would be printed at every step of the search for it.
fn hold<S: Strategy>(cases: u32, values: &S, test: impl Fn(S::Value) -> Result<(), String>) {
    let mut runner = TestRunner::new(strategy::cases(cases));
    let result = runner.run(values, |value| test(value).map_err(TestCaseError::fail));
    assert!(result.is_ok(), "{}", result.err().map_or_else(String::new, |error| error.to_string()));
}

/// One policy, three keys.
///
/// # Panics
/// If they disagree; so does every other property here.
pub fn agrees_with_the_oracle(factory: &Factory<'_>, cases: u32) {
    let values = (strategy::policy(), strategy::start(), strategy::trace(1..60));
    hold(cases, &values, |(policy, start, moves)| {
        Duel::new(factory(start)).play(start, &[policy], 3, &moves)
    });
}

/// A clock that goes back as well.
pub fn agrees_when_the_clock_goes_back(factory: &Factory<'_>, cases: u32) {
    let values = (strategy::policy(), strategy::start(), strategy::trace_with_jumps_back(1..60));
    hold(cases, &values, |(policy, start, moves)| {
        Duel::new(factory(start)).play(start, &[policy], 1, &moves)
    });
}

/// Requests of three classes on the same counters: the lower ones leave a part of the limit to the others.
pub fn agrees_when_parts_are_reserved(factory: &Factory<'_>, cases: u32) {
    let values = (strategy::reserved_policy(), strategy::start(), strategy::trace(1..60));
    hold(cases, &values, |((policy, [of_some, of_more]), start, moves)| {
        Duel::new(factory(start)).play_reserving(start, &policy, [0, of_some, of_more], 2, &moves)
    });
}

/// Rules that change between requests.
pub fn agrees_when_rules_change(factory: &Factory<'_>, cases: u32) {
    let values = (strategy::versions(), strategy::start(), strategy::trace(1..60));
    hold(cases, &values, |(policies, start, moves)| {
        Duel::new(factory(start)).play(start, &policies, 2, &moves)
    });
}

/// Both at once.
pub fn agrees_when_rules_change_and_the_clock_goes_back(factory: &Factory<'_>, cases: u32) {
    let values = (strategy::versions(), strategy::start(), strategy::trace_with_jumps_back(1..60));
    hold(cases, &values, |(policies, start, moves)| {
        Duel::new(factory(start)).play(start, &policies, 1, &moves)
    });
}

/// Several counters at one instant.
pub fn agrees_on_batches(factory: &Factory<'_>, cases: u32) {
    let values = (strategy::policies(), strategy::start(), batches());
    hold(cases, &values, |(policies, start, batches)| {
        Duel::new(factory(start)).play_batches(start, &policies, 2, &batches)
    });
}

/// Several counters at one instant, under rules that change between batches.
pub fn agrees_on_batches_when_rules_change(factory: &Factory<'_>, cases: u32) {
    let values = (strategy::versions(), strategy::start(), batches().prop_map(one_version_each));
    hold(cases, &values, |(policies, start, batches)| {
        Duel::new(factory(start)).play_batches(start, &policies, 2, &batches)
    });
}

/// Reservations, settlements, requests that pay once, and resets.
pub fn agrees_on_reservations(factory: &Factory<'_>, cases: u32) {
    let values = (strategy::policies(), strategy::start(), actions(false, 0));
    hold(cases, &values, |(policies, start, actions)| {
        play(factory, start, &policies, &actions, RequestIds::OfAll)
    });
}

/// Loans among reservations, settlements, requests that pay once, and resets. For stores that lend.
pub fn agrees_on_loans(factory: &Factory<'_>, cases: u32) {
    let values = (strategy::lendable_policy(), strategy::start(), actions(false, LENDS));
    hold(cases, &values, |(policy, start, actions)| {
        play(factory, start, &[policy], &actions, RequestIds::OfAll)
    });
}

/// Loans while the clock goes back; without resets, after which it may not.
pub fn agrees_on_loans_when_the_clock_goes_back(factory: &Factory<'_>, cases: u32) {
    let values = (strategy::lendable_policy(), strategy::start(), actions(true, LENDS));
    hold(cases, &values, |(policy, start, actions)| {
        play(factory, start, &[policy], &actions, RequestIds::OfAll)
    });
}

/// Loans under rules that change.
pub fn agrees_on_loans_when_rules_change(factory: &Factory<'_>, cases: u32) {
    let loans = vec((strategy::trace(1..2), proptest::option::of((0_u64..20, 0_u64..20))), 1..60);
    let values = (strategy::versions(), strategy::start(), loans);
    hold(cases, &values, |(policies, start, steps)| {
        let mut duel = Duel::new(factory(start));
        let mut trace_state = TraceState::at(start);
        for (moves, loan) in &steps {
            let policy = &policies[moves[0].policy % policies.len()];
            trace_state.now = trace_state.advanced(moves[0].advance, policy);
            let cost = trace_state.cost(moves[0].price, policy);
            if let Some(parts) = loan {
                let request = strategy::loan_request(policy, cost, *parts);
                duel.lend(trace_state.now, b"key", policy, request)?;
            }
            trace_state.last = Some(duel.check(trace_state.now, b"key", policy, cost)?);
        }
        Ok(())
    });
}

/// Reservations while the clock goes back; without resets, after which it may not.
pub fn agrees_on_reservations_when_the_clock_goes_back(factory: &Factory<'_>, cases: u32) {
    let values = (strategy::policies(), strategy::start(), actions(true, 0));
    hold(cases, &values, |(policies, start, actions)| {
        play(factory, start, &policies, &actions, RequestIds::OfAll)
    });
}

/// Reservations under windows and logs alone, for stores that give back what a denied request has charged for a
/// moment: that leaves windows as they were, and buckets with less to give back.
pub fn agrees_on_reservations_of_windows(factory: &Factory<'_>, cases: u32) {
    let is_window = |policy: &Policy| {
        let name = policy.algorithm().name();
        policy.warm_up().is_none() && (name.contains("window") || name.contains("leased"))
    };
    let policies = strategy::policies().prop_map(move |mut policies| {
        policies.retain(is_window);
        policies
    });
    let policies = policies.prop_filter("no windows", |policies| !policies.is_empty());
    let values = (policies, strategy::start(), actions(false, 0));
    hold(cases, &values, |(policies, start, actions)| {
        play(factory, start, &policies, &actions, RequestIds::OfKeys)
    });
}

fn batches() -> impl Strategy<Value = Vec<(Charge, Vec<Move>)>> {
    let charge = prop_oneof![3 => Just(Charge::AllOrNone), 1 => Just(Charge::Independent)];
    vec((charge, strategy::trace(1..7)), 1..30)
}

/// A batch is asked under one state of the rules, as a program asks it.
fn one_version_each(mut batches: Vec<(Charge, Vec<Move>)>) -> Vec<(Charge, Vec<Move>)> {
    for (_, moves) in &mut batches {
        let version = moves[0].policy;
        for each in moves {
            each.policy = version;
        }
    }
    batches
}

/// One step of a trace of reservations.
#[derive(Debug, Clone)]
enum Action {
    /// Reserves under these policies, perhaps by one of a few ids; the first move sets the time.
    Reserve(Option<u8>, Vec<Move>),
    /// Settles the reservation of this number, once the clock has moved, at so many fourths of what
    /// it reserved.
    Settle(usize, Move, u64),
    /// Sends a request by one of a few ids and with one of a few contents so many times.
    Once(u8, u128, usize, Vec<Move>),
    /// Releases the permits of the request of this number, once the clock has moved, and sends it again.
    Release(usize, Move),
    /// Resets the counter of a key under a policy.
    Reset(Move),
    /// Borrows tokens, for a term and under a cut of so many parts.
    Lend(Move, (u64, u64)),
}

/// How many of ten actions or so are loans.
const LENDS: u32 = 4;

const TTL: Duration = Duration::from_secs(20);

/// Few, so that traces go beyond it.
const REPLAYS_MAX: u8 = 2;

/// What clients call their requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestIds {
    /// The same for all keys.
    OfAll,
    /// Others for other keys, as engines do it: a cluster remembers an id beside its keys.
    OfKeys,
}

impl RequestIds {
    fn id(self, kind: u8, number: u8, asked: &[OracleEntry<'_>]) -> Vec<u8> {
        let keys = asked.iter().flat_map(|each| each.key).filter(|_| self == Self::OfKeys);
        [kind, number].iter().chain(keys).copied().collect()
    }
}

fn actions(jumps_back: bool, lend_weight: u32) -> impl Strategy<Value = Vec<Action>> {
    let moves = move |len: std::ops::Range<usize>| {
        if jumps_back {
            strategy::trace_with_jumps_back(len).boxed()
        } else {
            strategy::trace(len).boxed()
        }
    };
    // A clock that goes back further than the store allows for after a reset is another matter.
    let reset_weight = u32::from(!jumps_back);
    let action = prop_oneof![
        3 => (proptest::option::of(0_u8..3), moves(1..5))
            .prop_map(|(id, moves)| Action::Reserve(id, moves)),
        3 => (0_usize..40, moves(1..2), 0_u64..8)
            .prop_map(|(number, moves, fourths)| Action::Settle(number, moves[0], fourths)),
        2 => (0_u8..3, 0_u128..2, 1_usize..5, moves(1..5))
            .prop_map(|(id, content, times, moves)| Action::Once(id, content, times, moves)),
        1 => (0_usize..40, moves(1..2))
            .prop_map(|(number, moves)| Action::Release(number, moves[0])),
        reset_weight => moves(1..2).prop_map(|moves| Action::Reset(moves[0])),
        lend_weight => (moves(1..2), (0_u64..20, 0_u64..20))
            .prop_map(|(moves, parts)| Action::Lend(moves[0], parts)),
    ];
    vec(action, 1..40)
}

fn once(request_id: &[u8], content: u128) -> Once<'_> {
    Once { content, replays_max: REPLAYS_MAX, ..Once::new(request_id, TTL) }
}

fn play(
    factory: &Factory<'_>,
    start: Timestamp,
    policies: &[Policy],
    actions: &[Action],
    request_ids: RequestIds,
) -> Result<(), String> {
    let mut duel = Duel::new(factory(start));
    if request_ids == RequestIds::OfKeys {
        duel = duel.ignoring_unused_resets();
    }
    let mut trace_state = TraceState::at(start);
    let mut reservations = Vec::new();
    let mut requests = Vec::new();
    let names = [[0_u8], [1]];
    let policy_of = |each: &Move| &policies[each.policy % policies.len()];
    let questions = |trace_state: &TraceState, moves: &[Move]| -> Vec<OracleEntry<'_>> {
        let question = |(each, place): (&Move, (Role, Option<Alternative>))| OracleEntry {
            key: &names[each.key % names.len()],
            policy: policy_of(each),
            cost: trace_state.cost(each.price, policy_of(each)),
            role: place.0,
            // A group lies in one slot of a cluster.
            alternative: place.1.filter(|_| request_ids == RequestIds::OfAll),
        };
        moves.iter().zip(roles_and_alternatives(moves)).map(question).collect()
    };
    for (number, action) in actions.iter().enumerate() {
        let id = ReservationId(number as u128);
        match action {
            Action::Reserve(request, moves) => {
                trace_state.now = trace_state.advanced(moves[0].advance, policy_of(&moves[0]));
                let asked = questions(&trace_state, moves);
                let request_id = request.map(|number| request_ids.id(b'r', number, &asked));
                // A request that is sent again has the same reservation.
                let number =
                    |id: &Vec<u8>| id.iter().fold(1, |sum, byte| sum << 8 | u128::from(*byte));
                let id = request_id.as_ref().map_or(id, |id| ReservationId(number(id)));
                let hold = Hold { id, ttl: TTL };
                let once = request_id.as_ref().map(|request_id| once(request_id, 0));
                let reserved = duel.check_marked(trace_state.now, &asked, once, Some(hold))?;
                if reserved.is_some() {
                    // A receipt from before, of the same name, is of charges that came back.
                    reservations.retain(|(known, _, _)| *known != id);
                }
                // A cluster finds a reservation by the keys on its receipt.
                let reserved = reserved
                    .filter(|reserved| request_ids == RequestIds::OfAll || !reserved.is_empty());
                reservations.extend(reserved.map(|reserved| (id, request_id, reserved)));
            }
            Action::Settle(number, each, fourths) => {
                trace_state.now = trace_state.advanced(each.advance, policy_of(each));
                if reservations.is_empty() {
                    continue;
                }
                let (id, request_id, reserved) = &reservations[number % reservations.len()];
                let reservation = ReservationRef { id: *id, request_id: request_id.as_deref() };
                // Some entries at one share, the others at another.
                let spent = |at: usize, cost: u64| cost * ((fourths + at as u64) % 8) / 4;
                duel.settle(trace_state.now, reservation, reserved, spent)?;
            }
            Action::Once(id, content, times, moves) => {
                trace_state.now = trace_state.advanced(moves[0].advance, policy_of(&moves[0]));
                let asked = questions(&trace_state, moves);
                let request_id = request_ids.id(b'o', *id, &asked);
                let mut charged = None;
                for _ in 0..*times {
                    let once = once(&request_id, *content);
                    charged = duel.check_marked(trace_state.now, &asked, Some(once), None)?;
                }
                requests.extend(charged.map(|charged| (request_id, *content, asked, charged)));
            }
            Action::Release(number, each) => {
                trace_state.now = trace_state.advanced(each.advance, policy_of(each));
                if requests.is_empty() {
                    continue;
                }
                let (request_id, content, asked, charged) = &requests[number % requests.len()];
                if duel.release_request(trace_state.now, request_id, charged)? {
                    let once = once(request_id, *content);
                    duel.check_marked(trace_state.now, asked, Some(once), None)?;
                }
            }
            Action::Lend(each, parts) => {
                trace_state.now = trace_state.advanced(each.advance, policy_of(each));
                let (policy, key) = (policy_of(each), &names[each.key % names.len()]);
                let tokens = trace_state.cost(each.price, policy);
                let request = strategy::loan_request(policy, tokens, *parts);
                duel.lend(trace_state.now, key, policy, request)?;
            }
            Action::Reset(each) => {
                trace_state.now = trace_state.advanced(each.advance, policy_of(each));
                // Logs and queues tell charges apart by the microsecond, so the clock has to move on after
                // a reset. At its last instant it cannot.
                let next = trace_state.now.after(Duration::from_micros(1));
                if next <= Timestamp::MAX {
                    duel.reset(trace_state.now, &names[each.key % names.len()], policy_of(each));
                    trace_state.now = next;
                }
            }
        }
        // What the settlement has left behind shows in what remains.
        for name in &names {
            for policy in policies {
                trace_state.last = Some(duel.check(trace_state.now, name, policy, 0)?);
            }
        }
    }
    Ok(())
}
