//! Logs and leases over plain words, as a store of one's own keeps them: [`Policy::algorithm`] must
//! decide as the memory store does, which keeps both in lists.

use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollbar::charge::HeldPermits;
use tollbar::{
    Algorithm, Batch, Clock, Concurrency, Decision, Entry, Limiter, ManualClock, MemoryStore,
    Policies, Policy, Receipt, ReceiptKey, ReserveError, Store, Timestamp,
};
use tollbar_testkit::strategy::cases;

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const HOLD: Duration = Duration::from_hours(1);

/// One counter in words, and the same counter in a memory store.
struct Twins {
    clock: ManualClock,
    policy: Policy,
    words: Vec<u64>,
    store: Arc<MemoryStore>,
}

impl Twins {
    fn new(policy: Policy) -> Self {
        let clock = ManualClock::at(START);
        let store = Arc::new(MemoryStore::builder().max_keys(16).clock(clock.clone()).build());
        let words = vec![0; policy.algorithm().words()];
        Self { clock, policy, words, store }
    }

    fn limiter(&self) -> Limiter {
        let key = ReceiptKey::new([7; 32]);
        let policy = self.policy.clone();
        let policies = Policies::from_fn(move |_| policy.clone());
        let limiter = Limiter::builder(policies).store(Arc::clone(&self.store)).receipt_key(key);
        limiter.reservation_ttl(HOLD).build().unwrap()
    }

    fn algorithm(&self) -> &dyn Algorithm {
        self.policy.algorithm()
    }

    /// Asks the words, and names the charge.
    fn transition(&mut self, cost: u64) -> (Decision, u64) {
        let algorithm = self.policy.algorithm();
        let decision = algorithm.transition(&mut self.words, self.clock.now(), cost);
        (decision, algorithm.stamp(&self.words))
    }

    fn refund(&mut self, stamp: u64, amount: u64) -> u64 {
        self.policy.algorithm().refund(&mut self.words, self.clock.now(), stamp, amount).tokens
    }

    fn overdraw(&mut self, amount: u64) -> u64 {
        self.policy.algorithm().overdraw(&mut self.words, self.clock.now(), amount)
    }

    fn move_clock(&self, forward_us: u64, back_us: u64) {
        let now_us = self.clock.now().as_micros() + forward_us - back_us;
        self.clock.set(Timestamp::from_micros(now_us));
    }
}

/// A charge that is settled later.
struct OpenReservation {
    cost: u64,
    stamp: u64,
    receipt: Receipt,
}

#[derive(Debug, Clone)]
enum LogOp {
    Check { cost: u64 },
    Reserve { cost: u64 },
    Settle { which: usize, spent: u64 },
    Move { forward_us: u64, back_us: u64 },
}

fn log_op() -> impl Strategy<Value = LogOp> {
    let cost = prop_oneof![4 => 0_u64..4, 1 => 0_u64..12, 1 => 4_000_u64..5_000];
    prop_oneof![
        4 => cost.clone().prop_map(|cost| LogOp::Check { cost }),
        2 => cost.clone().prop_map(|cost| LogOp::Reserve { cost }),
        2 => (0..8_usize, cost).prop_map(|(which, spent)| LogOp::Settle { which, spent }),
        4 => (0_u64..14).prop_map(|forward_us| LogOp::Move { forward_us, back_us: 0 }),
        1 => (0_u64..30).prop_map(|back_us| LogOp::Move { forward_us: 0, back_us }),
    ]
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn a_log_in_plain_words_decides_as_the_memory_store_does(
        limit in prop_oneof![3 => 1_u64..10, 1 => Just(10_000_u64)],
        ops in vec(log_op(), 1..60),
    ) {
        let mut twins = Twins::new(Policy::sliding_window_log(&*format!("{limit}/20us")).unwrap());
        let mut open: Vec<OpenReservation> = Vec::new();
        for op in ops {
            match op {
                LogOp::Check { cost } => {
                    let expected = twins.store.check_now(b"key", &twins.policy, cost);
                    prop_assert_eq!(twins.transition(cost).0, expected);
                }
                LogOp::Reserve { cost } => {
                    let reservation = twins.limiter().reserve("key", cost);
                    let (decision, stamp) = twins.transition(cost);
                    match reservation {
                        Ok(reservation) => {
                            prop_assert_eq!(decision, reservation.decision());
                            let receipt = reservation.receipt().unwrap().clone();
                            open.push(OpenReservation { cost, stamp, receipt });
                        }
                        Err(ReserveError::Denied(denied)) => {
                            prop_assert_eq!(decision, denied.decision());
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                LogOp::Settle { which, spent } if which < open.len() => {
                    let OpenReservation { cost, stamp, receipt } = open.swap_remove(which);
                    let charge = twins.limiter().commit(&receipt, spent).unwrap().charges()[0];
                    if spent <= cost {
                        prop_assert_eq!(twins.refund(stamp, cost - spent), charge.refunded);
                    } else {
                        prop_assert_eq!(twins.overdraw(spent - cost), charge.overdrawn);
                    }
                }
                LogOp::Settle { .. } => {}
                LogOp::Move { forward_us, back_us } => twins.move_clock(forward_us, back_us),
            }
            let expected = twins.store.check_now(b"key", &twins.policy, 0);
            prop_assert_eq!(twins.transition(0).0, expected);
            let is_fresh = twins.algorithm().fresh_at(&twins.words) <= twins.clock.now();
            prop_assert!(!is_fresh || expected.remaining().unwrap() == limit);
        }
    }
}

#[test]
fn a_charge_drops_every_stamp_that_has_left_the_window() {
    let mut twins = Twins::new(Policy::sliding_window_log("4/20us").unwrap());
    for _ in 0..3 {
        assert!(twins.transition(1).0.is_allowed());
        twins.move_clock(1, 0);
    }
    twins.move_clock(30, 0);
    assert!(twins.transition(1).0.is_allowed());
    let mut fresh = Twins::new(twins.policy.clone());
    fresh.clock.set(twins.clock.now());
    fresh.transition(1);
    assert_eq!(twins.words, fresh.words);
}

/// A log whose newest charge was given back keeps its instant, because the clock may go back. The
/// next charge takes its place, or a log of many refunds would need more words than it has.
#[test]
fn a_charge_takes_the_place_of_one_that_was_given_back() {
    let mut twins = Twins::new(Policy::sliding_window_log("2/h").unwrap());
    let word_count = twins.words.len();
    for _ in 0..2 * word_count {
        let (decision, stamp) = twins.transition(1);
        assert!(decision.is_allowed());
        assert_eq!(twins.refund(stamp, 1), 1);
        twins.move_clock(1, 0);
        assert_eq!(twins.words.iter().filter(|word| **word != 0).count(), 1);
    }
}

/// A lease that is held, by both of its names.
struct HeldLease {
    lease: HeldPermits,
    stamp: u64,
}

#[derive(Debug, Clone)]
enum LeaseOp {
    Take { cost: u64 },
    Release { which: usize, amount: u64 },
    Move { forward_us: u64 },
}

fn lease_op() -> impl Strategy<Value = LeaseOp> {
    let cost = prop_oneof![5 => 0_u64..5, 1 => 2_000_u64..5_000];
    prop_oneof![
        4 => cost.prop_map(|cost| LeaseOp::Take { cost }),
        2 => (0..6_usize, prop_oneof![1_u64..4, Just(u64::MAX)])
            .prop_map(|(which, amount)| LeaseOp::Release { which, amount }),
        4 => (0_u64..6).prop_map(|forward_us| LeaseOp::Move { forward_us }),
    ]
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn leases_in_plain_words_are_granted_as_in_the_memory_store(
        limit in prop_oneof![3 => 1_u64..6, 1 => Just(9_000_u64)],
        ttl_us in 1_u64..12,
        ops in vec(lease_op(), 1..60),
    ) {
        let leased = Concurrency::new(limit).unwrap().with_lease(Duration::from_micros(ttl_us));
        let mut twins = Twins::new(leased.unwrap().into_policy());
        let mut held: Vec<HeldLease> = Vec::new();
        for op in ops {
            match op {
                LeaseOp::Take { cost } => {
                    let mut entries = [Entry::new("key", &twins.policy).with_cost(cost)];
                    twins.store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
                    let granted = entries[0].decision();
                    let lease = HeldPermits::from_entry(&entries[0]);
                    let (decision, stamp) = twins.transition(cost);
                    prop_assert_eq!(Some(decision), granted);
                    held.extend(lease.map(|lease| HeldLease { lease, stamp }));
                }
                LeaseOp::Release { which, amount } if which < held.len() => {
                    let HeldLease { lease, stamp } = held.swap_remove(which);
                    let returned = twins.store.refund_now(b"key", &twins.policy, lease.stamp, amount);
                    prop_assert_eq!(twins.refund(stamp, amount), returned);
                }
                LeaseOp::Release { .. } => {}
                LeaseOp::Move { forward_us } => twins.move_clock(forward_us, 0),
            }
            // A name of plain words may return once its lease has ended.
            held.retain(|permit| permit.lease.ends_at().unwrap() > twins.clock.now());
            let expected = twins.store.check_now(b"key", &twins.policy, 0);
            prop_assert_eq!(twins.transition(0).0, expected);
            let is_fresh = twins.algorithm().fresh_at(&twins.words) <= twins.clock.now();
            prop_assert_eq!(is_fresh, expected.remaining().unwrap() == limit);
        }
    }
}

/// All words are in use when the leases end, at the very instant at which others are granted: those
/// need the room.
#[test]
fn leases_that_end_now_make_room_for_those_that_begin_now() {
    let leased =
        Concurrency::new(2).unwrap().with_lease(Duration::from_micros(10)).unwrap().into_policy();
    let mut twins = Twins::new(leased);
    for _ in 0..3 {
        assert!(twins.transition(1).0.is_allowed() && twins.transition(1).0.is_allowed());
        twins.move_clock(9, 0);
        assert!(!twins.transition(1).0.is_allowed());
        twins.move_clock(1, 0);
    }
    let now = twins.clock.now();
    assert_eq!(twins.algorithm().fresh_at(&twins.words), now);
}
