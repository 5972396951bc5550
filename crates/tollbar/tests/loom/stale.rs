//! Threads that read different times: nothing is forgiven, and nothing is admitted too often, in any
//! interleaving.

use std::cell::Cell;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use tollbar::{Batch, Clock, Decisions, Entry, MemoryStore, Policy, Store, Timestamp};

use super::{all_or_none, cancel, model, passes, race, remaining, reserve};

const START_US: u64 = 1_000_000_000;

loom::thread_local! {
    /// What the clock shows to this thread, in milliseconds after the start.
    static READING_MS: Cell<u64> = Cell::new(0);
}

/// Shows every thread the reading that it holds on to.
#[derive(Debug)]
struct HeldReadings;

impl Clock for HeldReadings {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(START_US + READING_MS.with(Cell::get) * 1_000)
    }
}

fn read_at(ms: u64) {
    READING_MS.with(|reading| reading.set(ms));
}

/// Asks for one token.
type Ask = fn(&MemoryStore, &Policy) -> bool;

/// One line of four slots.
fn store(clock: impl Clock) -> Arc<MemoryStore> {
    let builder = MemoryStore::builder().max_keys(2).max_wide_keys(1);
    Arc::new(builder.clock(clock).build())
}

/// Two tokens in ten seconds are spent at once. Five seconds later there is one more, for a thread
/// whose reading is new; one whose reading is old is denied, and once stored a debt that was cut to
/// what its reading allowed.
fn one_token_is_earned(policy: Policy, ask: Ask) {
    model(move || {
        let store = store(HeldReadings);
        assert!(passes(&store, "key", &policy) && passes(&store, "key", &policy));
        let (a, b) = (store.clone(), store.clone());
        let (p, q) = (policy.clone(), policy.clone());
        let (old, new) = race(
            move || {
                read_at(0);
                passes(&a, "key", &p)
            },
            move || {
                read_at(5_000);
                ask(&b, &q)
            },
        );
        assert_eq!((old, new), (false, true));
        for (at_ms, left) in [(5_000, 0), (9_999, 0), (10_000, 1)] {
            read_at(at_ms);
            assert_eq!(remaining(&store, "key", &policy), left, "after {at_ms} ms");
        }
    });
}

#[test]
fn a_denial_by_an_old_reading_forgives_nothing() {
    let bucket = Policy::token_bucket("2/10s").unwrap();
    one_token_is_earned(bucket, |store, policy| passes(store, "key", policy));
}

#[test]
fn a_denial_by_an_old_reading_beside_a_batch_forgives_nothing() {
    let bucket = Policy::token_bucket("2/10s").unwrap();
    one_token_is_earned(bucket, |store, policy| {
        all_or_none(store, [("key", policy), ("other", policy)])
    });
}

#[test]
fn a_denial_by_an_old_reading_moves_nobody_up_in_a_queue() {
    let queue = Policy::leaky_queue("2/10s", 1).unwrap();
    one_token_is_earned(queue, |store, policy| passes(store, "key", policy));
}

/// Three tokens of five are reserved and two are spent, at two seconds each. After four seconds two
/// more are taken, and one of the three comes back, of which time has paid the others.
#[test]
fn a_denial_by_an_old_reading_beside_a_refund_forgives_nothing() {
    model(|| {
        let store = store(HeldReadings);
        let policy = Policy::token_bucket("5/10s").unwrap();
        let stamp = reserve(&store, &policy, 1, 3);
        assert!(passes(&store, "key", &policy) && passes(&store, "key", &policy));
        let (a, b) = (store.clone(), store.clone());
        let (p, q) = (policy.clone(), policy.clone());
        let (old, new) = race(
            move || {
                read_at(0);
                passes(&a, "key", &p)
            },
            move || {
                read_at(4_000);
                let is_taken = b.check(b"key", &q, 2).wait().unwrap().is_allowed();
                is_taken && cancel(&b, &q, 1, stamp, 3)
            },
        );
        assert_eq!((old, new), (false, true));
        for (at_ms, left) in [(4_000, 1), (5_999, 1), (6_000, 2), (12_000, 5)] {
            read_at(at_ms);
            assert_eq!(remaining(&store, "key", &policy), left, "after {at_ms} ms");
        }
    });
}

/// A charge by an old reading and a refund by a new one: both count, whichever comes first.
#[test]
fn a_charge_by_an_old_reading_beside_a_refund_loses_neither() {
    model(|| {
        let store = store(HeldReadings);
        let policy = Policy::token_bucket("5/10s").unwrap();
        let stamp = reserve(&store, &policy, 1, 3);
        let (a, b) = (store.clone(), store.clone());
        let (p, q) = (policy.clone(), policy.clone());
        let (old, new) = race(
            move || {
                read_at(0);
                passes(&a, "key", &p)
            },
            move || {
                read_at(2_000);
                cancel(&b, &q, 1, stamp, 3)
            },
        );
        assert_eq!((old, new), (true, true));
        // Eight seconds were owed, and four of the first six had not been paid.
        for (at_ms, left) in [(2_000, 4), (3_999, 4), (4_000, 5)] {
            read_at(at_ms);
            assert_eq!(remaining(&store, "key", &policy), left, "after {at_ms} ms");
        }
    });
}

/// A clock that runs for all threads alike: a reading that is taken later is never earlier.
#[derive(Debug, Clone)]
struct RunningClock(Arc<AtomicU64>);

impl RunningClock {
    fn new() -> Self {
        Self(Arc::new(AtomicU64::new(START_US)))
    }

    fn advance_to_ms(&self, ms: u64) {
        self.0.swap(START_US + ms * 1_000, Ordering::SeqCst);
    }
}

impl Clock for RunningClock {
    fn now(&self) -> Timestamp {
        // A load could be served with an older value, which no clock shows.
        Timestamp::from_micros(self.0.fetch_add(0, Ordering::SeqCst))
    }
}

/// One token in ten seconds, spent at the start. At 12 s another key takes its slot, because it is
/// fresh. A thread that read 9.9 s and then finds it gone must count from 12 s on: from 9.9 s, the
/// time until 10 s would pay twice.
fn forgotten_and_put_back(ask: Ask) {
    model(move || {
        let clock = RunningClock::new();
        let store = store(clock.clone());
        let policy = Policy::token_bucket("1/10s").unwrap();
        let other = Policy::token_bucket("9/h").unwrap();
        assert!(passes(&store, "key", &policy));
        for key in ["b", "c", "d"] {
            assert!(passes(&store, key, &other));
        }
        clock.advance_to_ms(9_900);
        let (a, b) = (store.clone(), store.clone());
        let (p, q, right_clock) = (policy.clone(), other.clone(), clock.clone());
        let (is_admitted, _) = race(
            move || ask(&a, &p),
            move || {
                right_clock.advance_to_ms(12_000);
                passes(&b, "new", &q)
            },
        );
        // Admitted at 12 s at the earliest, so that the next one has to wait until 22 s.
        clock.advance_to_ms(21_999);
        assert_eq!(passes(&store, "key", &policy), !is_admitted);
    });
}

#[test]
fn a_key_that_is_forgotten_as_fresh_is_put_back_by_a_later_reading() {
    forgotten_and_put_back(|store, policy| passes(store, "key", policy));
}

#[test]
fn a_key_that_is_forgotten_as_fresh_is_put_back_by_a_batch_with_a_later_reading() {
    forgotten_and_put_back(|store, policy| {
        let mut entries = [Entry::new("key", policy)];
        store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
        Decisions::from_entries(&entries).is_allowed()
    });
}
