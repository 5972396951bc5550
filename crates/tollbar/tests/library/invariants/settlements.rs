//! Reservations and requests that pay once: the store and the oracle agree, and nothing is minted.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollbar::store::{Adjustment, Hold, Once, ReservationId, Spending};
use tollbar::{Outcome, Policy, Role, Timestamp};
use tollbar_testkit::admitted::Admitted;
use tollbar_testkit::adversary::Standing;
use tollbar_testkit::duel::Duel;
use tollbar_testkit::memory_subject::MemorySubject;
use tollbar_testkit::oracle::Question;
use tollbar_testkit::spec::Kind;
use tollbar_testkit::strategy::{self, Move, cases};
use tollbar_testkit::subject::Subject;

use super::{bucket, is_within_burst_and_rate, start, window_us};

/// One step of a trace of reservations.
#[derive(Debug, Clone)]
enum Act {
    /// Reserves under these policies; the first move sets the time.
    Reserve(Vec<Move>),
    /// Settles the reservation of this number, once the clock has moved, at so many fourths of what
    /// it reserved.
    Settle(usize, Move, u64),
    /// Sends a request by one of a few ids.
    Once(u8, Vec<Move>),
    /// Resets the counter of a key under a policy.
    Reset(Move),
}

const TTL: Duration = Duration::from_secs(20);

fn acts(jumps_back: bool) -> impl Strategy<Value = Vec<Act>> {
    let moves = move |len: std::ops::Range<usize>| {
        if jumps_back {
            strategy::trace_with_jumps_back(len).boxed()
        } else {
            strategy::trace(len).boxed()
        }
    };
    // A clock that goes back further than the store allows for after a reset is another matter.
    let reset_weight = u32::from(!jumps_back);
    let act = prop_oneof![
        3 => moves(1..4).prop_map(Act::Reserve),
        3 => (0_usize..40, moves(1..2), 0_u64..8)
            .prop_map(|(number, moves, fourths)| Act::Settle(number, moves[0], fourths)),
        1 => (0_u8..3, moves(1..3)).prop_map(|(id, moves)| Act::Once(id, moves)),
        reset_weight => moves(1..2).prop_map(|moves| Act::Reset(moves[0])),
    ];
    vec(act, 1..40)
}

fn play(start: Timestamp, policies: &[Policy], acts: &[Act]) -> Result<(), String> {
    let mut duel = Duel::new(MemorySubject::boxed(start));
    let mut standing = Standing::at(start);
    let mut reservations = Vec::new();
    let names = [[0_u8], [1]];
    let policy_of = |each: &Move| &policies[each.policy % policies.len()];
    let questions = |standing: &Standing, moves: &[Move]| -> Vec<Question<'_>> {
        let question = |each: &Move| Question {
            key: &names[each.key % names.len()],
            policy: policy_of(each),
            cost: standing.cost(each.price, policy_of(each)),
            role: each.role,
        };
        moves.iter().map(question).collect()
    };
    for (number, act) in acts.iter().enumerate() {
        let id = ReservationId(number as u128);
        match act {
            Act::Reserve(moves) => {
                standing.now = standing.advanced(moves[0].advance, policy_of(&moves[0]));
                let hold = Hold { id, ttl: TTL };
                let asked = questions(&standing, moves);
                let reserved = duel.check_marked(standing.now, &asked, None, Some(hold))?;
                reservations.extend(reserved.map(|reserved| (id, reserved)));
            }
            Act::Settle(number, each, fourths) => {
                standing.now = standing.advanced(each.advance, policy_of(each));
                if reservations.is_empty() {
                    continue;
                }
                let (id, reserved) = &reservations[number % reservations.len()];
                // Some entries at one share, the others at another.
                let spent = |at: usize, cost: u64| cost * ((fourths + at as u64) % 8) / 4;
                duel.settle(standing.now, *id, reserved, spent)?;
            }
            Act::Once(id, moves) => {
                standing.now = standing.advanced(moves[0].advance, policy_of(&moves[0]));
                let asked = questions(&standing, moves);
                let once = Once { request_id: &[*id], ttl: TTL };
                duel.check_marked(standing.now, &asked, Some(once), None)?;
            }
            Act::Reset(each) => {
                standing.now = standing.advanced(each.advance, policy_of(each));
                // Logs and queues tell charges apart by the microsecond, so the clock has to move on after
                // a reset. At its last instant it cannot.
                let next = standing.now.after(Duration::from_micros(1));
                if next <= Timestamp::MAX {
                    duel.reset(standing.now, &names[each.key % names.len()], policy_of(each));
                    standing.now = next;
                }
            }
        }
        // What the settlement has left behind shows in what remains.
        for name in &names {
            for policy in policies {
                standing.last = Some(duel.check(standing.now, name, policy, 0)?);
            }
        }
    }
    Ok(())
}

/// What was spent, and when it was reserved, where each request reserves what it asks for and some
/// are settled at a share of it, in fourths.
fn spent(policy: &Policy, start: Timestamp, trace: &[(Move, usize, u64)]) -> Admitted {
    let subject: &dyn Subject = &MemorySubject::at(start);
    let mut standing = Standing::at(start);
    let mut open = Vec::new();
    let mut spent = Admitted::default();
    for (number, (each, settled, fourths)) in trace.iter().enumerate() {
        standing.now = standing.advanced(each.advance, policy);
        let cost = standing.cost(each.price, policy);
        let id = ReservationId(number as u128);
        let asked = Question { key: b"key", policy, cost, role: Role::Enforce };
        let hold = Some(Hold { id, ttl: Duration::MAX });
        let charged = subject.check_marked(standing.now, &[asked], None, hold).unwrap()[0];
        if charged.answer.outcome == Outcome::Allow {
            open.push((id, charged.stamp, cost, spent.charges.len()));
            spent.charges.push((standing.now.as_micros(), cost));
        }
        standing.last = Some(charged.answer);
        if *fourths <= 4 && !open.is_empty() {
            let (id, stamp, reserved, at) = open.swap_remove(settled % open.len());
            let spending = Spending { reserved, spent: reserved * fourths / 4 };
            let mut adjustments = [Adjustment::new(b"key", policy, stamp, spending)];
            assert!(subject.settle(standing.now, id, &mut adjustments));
            assert!(!subject.settle(standing.now, id, &mut adjustments), "it was settled once");
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

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn memory_store_agrees_with_the_oracle_on_reservations(
        policies in strategy::policies(), start in strategy::start(), acts in acts(false),
    ) {
        play(start, &policies, &acts).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn memory_store_agrees_with_the_oracle_on_reservations_when_the_clock_goes_back(
        policies in strategy::policies(), start in strategy::start(), acts in acts(true),
    ) {
        play(start, &policies, &acts).map_err(TestCaseError::fail)?;
    }
}
