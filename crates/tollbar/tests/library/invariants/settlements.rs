//! Reservations: nothing is minted by what comes back.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollbar::store::{Adjustment, Hold, ReservationId, Spending};
use tollbar::{Outcome, Policy, Role, Timestamp};
use tollbar_testkit::admissions::Admissions;
use tollbar_testkit::adversary::TraceState;
use tollbar_testkit::memory_subject::MemorySubject;
use tollbar_testkit::oracle::OracleEntry;
use tollbar_testkit::spec::Kind;
use tollbar_testkit::strategy::{self, Move, cases};
use tollbar_testkit::subject::Subject;

use super::{bucket, is_within_burst_and_rate, start, window_us};

/// What was spent, and when it was reserved, where each request reserves what it asks for and some
/// are settled at a share of it, in fourths.
fn spent(policy: &Policy, start: Timestamp, trace: &[(Move, usize, u64)]) -> Admissions {
    let subject: &dyn Subject = &MemorySubject::at(start);
    let mut trace_state = TraceState::at(start);
    let mut open = Vec::new();
    let mut spent = Admissions::default();
    for (number, (each, settled, fourths)) in trace.iter().enumerate() {
        trace_state.now = trace_state.advanced(each.advance, policy);
        let cost = trace_state.cost(each.price, policy);
        let id = ReservationId(number as u128);
        let asked =
            OracleEntry { key: b"key", policy, cost, role: Role::Enforce, alternative: None };
        let hold = Some(Hold { id, ttl: Duration::MAX });
        let charged = subject.check_marked(trace_state.now, &[asked], None, hold).unwrap()[0];
        if charged.answer.outcome == Outcome::Allow {
            open.push((id, charged.stamp, cost, spent.charges.len()));
            spent.charges.push((trace_state.now.as_micros(), cost));
        }
        trace_state.last = Some(charged.answer);
        if *fourths <= 4 && !open.is_empty() {
            let (id, stamp, reserved, at) = open.swap_remove(settled % open.len());
            let spending = Spending { reserved, spent: reserved * fourths / 4 };
            let mut adjustments = [Adjustment::new(b"key", policy, stamp, spending)];
            assert!(subject.settle(trace_state.now, id, &mut adjustments));
            assert!(!subject.settle(trace_state.now, id, &mut adjustments), "it was settled once");
            spent.charges[at].1 = spending.spent;
        }
    }
    spent
}

fn trace() -> impl Strategy<Value = Vec<(Move, usize, u64)>> {
    let moves = strategy::trace(1..2).prop_map(|moves| moves[0]);
    vec((moves, 0_usize..8, 0_u64..8), 1..150)
}

proptest! {
    #![proptest_config(cases(256))]

    /// As if each had reserved no more than it came to: what comes back late does not count twice.
    #[test]
    fn what_is_spent_of_reservations_stays_within_the_bounds_of_a_bucket(
        policy in bucket(), start in start(), trace in trace(),
    ) {
        for span in spent(&policy, start, &trace).intervals() {
            prop_assert!(is_within_burst_and_rate(&policy, span), "{span:?}");
        }
    }

    #[test]
    fn what_is_spent_of_reservations_stays_within_the_limit_of_a_strict_window(
        policy in strategy::policy_of(Kind::SlidingWindowStrict), start in start(), trace in trace(),
    ) {
        let window_us = window_us(&policy);
        for span in spent(&policy, start, &trace).intervals() {
            let is_within = span.length_us >= window_us || span.tokens <= policy.limit();
            prop_assert!(is_within, "{span:?}");
        }
    }

    #[test]
    fn what_is_spent_of_reservations_stays_within_the_limit_of_a_fixed_window(
        policy in strategy::policy_of(Kind::FixedWindow), start in start(), trace in trace(),
    ) {
        let sums = spent(&policy, start, &trace).by_aligned_window(window_us(&policy));
        prop_assert!(sums.values().all(|sum| *sum <= policy.limit()), "{sums:?}");
    }
}
