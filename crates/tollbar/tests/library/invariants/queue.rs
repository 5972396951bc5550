//! What a queue promises: turns an interval apart, a bounded wait, and places given back once.

use proptest::collection::vec;
use proptest::prelude::*;
use tollbar::{Batch, Entry, Interval, Outcome, Policy, Timestamp};
use tollbar_testkit::adversary::{Advance, TraceState};
use tollbar_testkit::memory_subject::MemorySubject;
use tollbar_testkit::oracle::Oracle;
use tollbar_testkit::spec::Kind;
use tollbar_testkit::strategy::{self, Move, cases};
use tollbar_testkit::subject::Subject;

use super::{REQUESTS, holds_what_it_earns_in_a_tick, start};

/// A request that was let in.
#[derive(Debug, Clone, Copy)]
struct AdmittedRequest {
    asked_us: u64,
    departs_us: u64,
    cost: u64,
}

fn queue() -> impl Strategy<Value = Policy> {
    strategy::policy_of(Kind::LeakyQueue)
}

fn places(policy: &Policy, start: Timestamp, moves: &[Move]) -> Vec<AdmittedRequest> {
    let subject = MemorySubject::at(start);
    let subject: &dyn Subject = &subject;
    let mut trace_state = TraceState::at(start);
    let mut places = Vec::new();
    for each in moves {
        trace_state.now = trace_state.advanced(each.advance, policy);
        let cost = trace_state.cost(each.price, policy);
        let answer = subject.check(trace_state.now, b"key", policy, cost);
        if answer.outcome == Outcome::Allow && cost > 0 {
            let asked_us = trace_state.now.as_micros();
            places.push(AdmittedRequest { asked_us, departs_us: asked_us + answer.delay_us, cost });
        }
        trace_state.last = Some(answer);
    }
    places
}

/// So many intervals in whole microseconds, rounded down and up.
fn intervals_us(policy: &Policy, count: u64) -> (u128, u128) {
    let Interval { numerator_us, denominator } = policy.interval().unwrap();
    let units = u128::from(count) * u128::from(numerator_us);
    (units / u128::from(denominator), units.div_ceil(denominator.into()))
}

proptest! {
    #![proptest_config(cases(256))]

    /// Any two, whatever is between them: so no rounding adds up.
    #[test]
    fn departures_are_as_many_intervals_apart_as_the_tokens_between_them(
        policy in queue(), start in start(), moves in strategy::trace(1..REQUESTS),
    ) {
        let places = places(&policy, start, &moves);
        for (at, first) in places.iter().enumerate() {
            let mut cost = first.cost;
            for later in &places[at + 1..] {
                let apart_us = u128::from(later.departs_us).checked_sub(first.departs_us.into());
                let (least_us, _) = intervals_us(&policy, cost);
                prop_assert!(apart_us.is_some_and(|us| us >= least_us), "{first:?} {later:?}");
                cost += later.cost;
            }
        }
    }

    #[test]
    fn no_more_wait_than_the_queue_is_long_and_nobody_longer_than_the_longest_wait(
        policy in queue(), start in start(), moves in strategy::trace(1..REQUESTS),
    ) {
        let places = places(&policy, start, &moves);
        for (at, newest) in places.iter().enumerate() {
            let now_us = newest.asked_us;
            let waiting = places[..=at].iter().filter(|place| place.departs_us > now_us);
            let waiting: u64 = waiting.map(|place| place.cost).sum();
            prop_assert!(waiting <= policy.queue_length().unwrap(), "{waiting} wait: {newest:?}");
            let wait_us = u128::from(newest.departs_us - now_us);
            prop_assert!(policy.max_wait().is_none_or(|max| wait_us <= max.as_micros()));
        }
    }

    /// Somebody who asks whenever there is room leaves at the full rate.
    #[test]
    fn a_queue_that_is_kept_full_loses_no_turn(
        policy in queue().prop_filter("holds a tick", |policy| {
            holds_what_it_earns_in_a_tick(policy) && policy.queue_length() > Some(0)
        }),
        start in start(),
    ) {
        let subject = MemorySubject::at(start);
        let subject: &dyn Subject = &subject;
        let (mut now_us, mut departs_us) = (start.as_micros(), Vec::new());
        for _ in 0..REQUESTS {
            let answer = subject.check(Timestamp::from_micros(now_us), b"key", &policy, 1);
            match answer.outcome {
                Outcome::Deny { retry_after_us } => now_us += retry_after_us,
                _ => departs_us.push(now_us + answer.delay_us),
            }
        }
        for (turn, departs_us) in departs_us.iter().enumerate() {
            let (_, most_us) = intervals_us(&policy, turn as u64);
            let after_us = u128::from(departs_us - start.as_micros());
            prop_assert!(after_us <= most_us, "turn {turn} after {after_us} us");
        }
    }

    /// Charges and refunds in any order: what came back, and all answers afterwards. Whoever is given
    /// a place back does not ask for it again: its name may be another's by then.
    #[test]
    fn a_refund_gives_back_what_the_oracle_gives_back(
        policy in queue(),
        start in start(),
        steps in vec((strategy::trace(1..2), prop::option::of((0_usize..4, 0_u64..3))), 1..60),
    ) {
        // The oracle numbers what happened; a rate that takes more than a word gives nothing back.
        prop_assume!(policy.interval().unwrap().denominator <= 1_024);
        let memory = MemorySubject::at(start);
        let subject: &dyn Subject = &memory;
        let mut oracle = Oracle::new();
        let (mut events, mut charges) = (0, Vec::new());
        let mut trace_state = TraceState::at(start);
        for (moves, refund) in &steps {
            let advance = if refund.is_some() { Advance::Stay } else { moves[0].advance };
            trace_state.now = trace_state.advanced(advance, &policy);
            subject.set_now(trace_state.now);
            let cost = trace_state.cost(moves[0].price, &policy);
            let expected = oracle.check(trace_state.now, b"key", &policy, cost);
            let mut entries = [Entry::new(b"key", &policy).with_cost(cost)];
            subject.store().decide(Batch::all_or_none(&mut entries)).wait().unwrap();
            prop_assert_eq!(expected, entries[0].decision().unwrap().into());
            trace_state.last = Some(expected);
            if expected.outcome == Outcome::Allow && cost > 0 {
                charges.push((entries[0].stamp(), events, cost));
                events += 1;
            }
            if let Some((back, less)) = *refund && back < charges.len() {
                let at = charges.len() - 1 - back;
                let (stamp, event, cost) = charges[at];
                let amount = cost.saturating_sub(less);
                let expected = oracle.refund(trace_state.now, b"key", &policy, event, amount);
                let got = subject.store().refund(b"key", &policy, stamp, amount).wait().unwrap();
                prop_assert_eq!(expected, got);
                if got > 0 {
                    charges.remove(at);
                    events += 1;
                }
            }
        }
    }
}
