//! The promises of the sliding window log: hard from above and from below, and what is given back.

use proptest::collection::vec;
use proptest::prelude::*;
use tollbar::{Batch, Entry, Outcome, Policy, Timestamp};
use tollbar_testkit::adversary::TraceState;
use tollbar_testkit::answer::Answer;
use tollbar_testkit::memory_subject::MemorySubject;
use tollbar_testkit::oracle::Oracle;
use tollbar_testkit::spec::Kind;
use tollbar_testkit::strategy::{self, Move, cases};
use tollbar_testkit::subject::Subject;

use super::{REQUESTS, admitted, greedy, start, window_us};

fn log() -> impl Strategy<Value = Policy> {
    strategy::policy_of(Kind::SlidingWindowLog)
}

/// A charge that may be given back: what the store calls it, what the oracle does, what is left.
struct OpenCharge {
    stamp: u64,
    event: u64,
    left: u64,
}

/// The store's answer to a batch of one, and what it calls the charge.
fn ask(subject: &MemorySubject, now: Timestamp, policy: &Policy, cost: u64) -> (Answer, u64) {
    subject.set_now(now);
    let mut entries = [Entry::new("key", policy).with_cost(cost)];
    subject.store().decide(Batch::all_or_none(&mut entries)).wait().unwrap();
    (entries[0].decision().unwrap().into(), entries[0].stamp())
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn a_log_admits_at_most_its_limit_in_any_window(
        policy in log(), start in start(), moves in strategy::trace(1..REQUESTS),
    ) {
        let most = admitted(&policy, start, &moves).most_in_any_window(window_us(&policy));
        prop_assert!(most <= policy.limit(), "{most}");
    }

    /// In any window that ends while it asks: at the instants it is admitted and just before.
    #[test]
    fn a_greedy_client_gets_the_limit_of_a_log_in_any_window(policy in log(), start in start()) {
        let admitted = greedy(&policy, start);
        // The requests may have run out in the last one.
        let last_us = admitted.charges.last().map_or(0, |(at_us, _)| *at_us);
        let ends = admitted.charges.iter().flat_map(|(at_us, _)| [*at_us, *at_us - 1]);
        for end_us in ends.filter(|end_us| (start.as_micros()..last_us).contains(end_us)) {
            let got = admitted.in_window_ending(end_us, window_us(&policy));
            prop_assert_eq!(got, policy.limit(), "{}", end_us);
        }
    }

    #[test]
    fn what_is_given_back_was_never_charged(
        policy in log(),
        start in strategy::start(),
        moves in strategy::trace_with_jumps_back(1..60),
        refunds in vec(prop_oneof![2 => Just(None), 1 => (any::<usize>(), 0_u64..9).prop_map(Some)], 60),
    ) {
        let subject = MemorySubject::at(start);
        let mut oracle = Oracle::new();
        let mut trace_state = TraceState::at(start);
        let mut charges: Vec<OpenCharge> = Vec::new();
        // The same as a pure function over words.
        let algorithm = policy.algorithm();
        let mut words = vec![0; algorithm.words()];
        for (Move { advance, price, .. }, refund) in moves.iter().zip(refunds) {
            trace_state.now = trace_state.advanced(*advance, &policy);
            let now = trace_state.now;
            let cost = trace_state.cost(*price, &policy);
            let (got, stamp) = ask(&subject, now, &policy, cost);
            prop_assert_eq!(got, oracle.check(now, b"key", &policy, cost));
            prop_assert_eq!(got, algorithm.transition(&mut words, now, cost).into());
            if cost > 0 && got.outcome == Outcome::Allow {
                prop_assert_eq!(algorithm.stamp(&words), stamp);
                charges.push(OpenCharge { stamp, event: charges.len() as u64, left: cost });
            }
            trace_state.last = Some(got);
            let Some((which, eighths)) = refund.filter(|_| !charges.is_empty()) else {
                continue;
            };
            let which = which % charges.len();
            let OpenCharge { stamp, event, left } = &mut charges[which];
            let amount = (*left * eighths).div_ceil(8).min(*left);
            let given_back = subject.store().refund(b"key", &policy, *stamp, amount).wait().unwrap();
            prop_assert_eq!(given_back, oracle.refund(now, b"key", &policy, *event, amount));
            prop_assert_eq!(given_back, algorithm.refund(&mut words, now, *stamp, amount).tokens);
            *left -= given_back;
            let peeked = ask(&subject, now, &policy, 0).0;
            prop_assert_eq!(peeked, oracle.check(now, b"key", &policy, 0));
            prop_assert_eq!(peeked, algorithm.transition(&mut words, now, 0).into());
        }
    }
}

#[test]
fn a_refund_of_what_was_never_charged_gives_nothing() {
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let subject = MemorySubject::at(now);
    let policy = Policy::sliding_window_log("5/min").unwrap();
    let refund = |stamp, amount| subject.store().refund(b"key", &policy, stamp, amount).wait();
    assert_eq!(refund(now.as_micros(), 5).unwrap(), 0, "nobody was there");
    let (_, stamp) = ask(&subject, now, &policy, 3);
    for stamp in [0, stamp - 1, stamp + 1, u64::MAX] {
        assert_eq!(refund(stamp, 5).unwrap(), 0);
    }
    assert_eq!(refund(stamp, 5).unwrap(), 3, "no more than was charged");
    assert_eq!(refund(stamp, 5).unwrap(), 0, "and not twice");
    assert_eq!(ask(&subject, now, &policy, 0).0.remaining, 5);
}
