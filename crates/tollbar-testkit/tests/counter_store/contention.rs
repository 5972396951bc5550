//! Others that change a counter between a load and its swap.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tollbar::counter::{CounterBackend, CounterStore};
use tollbar::store::{Adjustment, Hold, ReservationId, Spending};
use tollbar::{Batch, Concurrency, Entry, ManualClock, Outcome, Policy, Store, Timestamp};
use tollbar_testkit::memory_backend::MemoryBackend;

use crate::contract::AlwaysChanged;
use crate::{NOW, watch_backend};

fn memory(clock: &ManualClock) -> Arc<MemoryBackend> {
    Arc::new(MemoryBackend::new(clock.clone(), 10))
}

fn store<B: CounterBackend>(backend: &Arc<B>) -> CounterStore<Arc<B>> {
    CounterStore::new(backend.clone(), [1; 32])
}

fn bucket() -> Policy {
    Policy::token_bucket("4/min").unwrap()
}

#[test]
fn charge_of_others_before_the_swap_is_counted() {
    let backend = memory(&ManualClock::at(NOW));
    let other = store(&backend);
    backend.before_next_swap(move || {
        assert_eq!(other.check(b"key", &bucket(), 3).wait().unwrap().remaining(), Some(1));
    });
    let decision = store(&backend).check(b"key", &bucket(), 2).wait().unwrap();
    assert!(!decision.is_allowed());
    assert_eq!(decision.remaining(), Some(1));
}

#[test]
fn charge_of_others_between_compare_and_exec_is_counted_in_redis() {
    let backend = Arc::new(watch_backend());
    let other = store(&backend);
    backend.after_next_compare(move || {
        assert!(other.check(b"key", &bucket(), 3).wait().unwrap().is_allowed());
    });
    assert!(!store(&backend).check(b"key", &bucket(), 2).wait().unwrap().is_allowed());
}

#[test]
fn batch_whose_one_counter_was_changed_charges_none() {
    let (backend, policy) = (memory(&ManualClock::at(NOW)), bucket());
    let other = store(&backend);
    backend.before_next_swap(move || {
        assert!(other.check(b"b", &bucket(), 4).wait().unwrap().is_allowed());
    });
    let store = store(&backend);
    let mut entries = [Entry::new("a", &policy), Entry::new("b", &policy)];
    store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
    assert!(!entries[1].decision().unwrap().is_allowed());
    assert_eq!(entries[0].decision().unwrap().remaining(), Some(4));
    assert_eq!(store.check(b"a", &policy, 0).wait().unwrap().remaining(), Some(4));
}

/// Two nodes settle one reservation at the same time: one of them does.
#[test]
fn reservation_that_two_nodes_settle_is_settled_once() {
    let (backend, policy) = (memory(&ManualClock::at(NOW)), bucket());
    let store_a = store(&backend);
    let hold = Hold { id: ReservationId(1), ttl: Duration::from_mins(1) };
    let mut entries = [Entry::new("key", &policy).with_cost(4)];
    store_a.decide(Batch::all_or_none(&mut entries).held(hold)).wait().unwrap();
    let (stamp, other) = (entries[0].stamp(), store(&backend));
    let spending = Spending { reserved: 4, spent: 2 };
    backend.before_next_swap(move || {
        let policy = bucket();
        let mut adjustments = [Adjustment::new(b"key", &policy, stamp, spending)];
        assert!(other.settle(hold.id.into(), &mut adjustments).wait().unwrap());
    });
    let mut adjustments = [Adjustment::new(b"key", &policy, stamp, spending)];
    assert!(!store_a.settle(hold.id.into(), &mut adjustments).wait().unwrap());
    assert_eq!(store_a.check(b"key", &policy, 0).wait().unwrap().remaining(), Some(2));
}

/// A counter that was absent when it was loaded is charged by others up to its limit; then its window
/// ends. If it were forgotten at once, the swap would find it absent again, and charge the window that is
/// over: the next window would have its whole limit besides.
#[test]
fn counter_that_others_have_charged_is_not_forgotten_before_a_swap_that_is_under_way() {
    let window = Duration::from_secs(1);
    let end = Timestamp::from_micros(NOW.as_micros() + 999_999);
    let clock = ManualClock::at(end);
    let backend = memory(&clock);
    let policy = Policy::fixed_window("4/s").unwrap();
    assert_eq!(policy.window(), window);
    let other = store(&backend);
    backend.before_next_swap(move || {
        let policy = Policy::fixed_window("4/s").unwrap();
        assert!(other.check(b"key", &policy, 4).wait().unwrap().is_allowed());
        clock.advance(Duration::from_micros(1));
    });
    let store = store(&backend);
    assert!(store.check(b"key", &policy, 4).wait().unwrap().is_allowed());
    // It was counted in the window in which it was admitted.
    assert!(!store.check(b"key", &policy, 1).wait().unwrap().is_allowed());
}

#[test]
fn keys_are_forgotten_after_they_are_fresh() {
    let clock = ManualClock::at(NOW);
    let backend = memory(&clock);
    let store = store(&backend);
    assert!(store.check(b"key", &bucket(), 4).wait().unwrap().is_allowed());
    assert_eq!(backend.key_count(), 1);
    clock.advance(Duration::from_secs(60 + 10));
    assert_eq!(backend.key_count(), 0);
    let permits = Concurrency::new(1).unwrap().into_policy();
    assert!(store.check(b"key", &permits, 1).wait().unwrap().is_allowed());
    clock.advance(Duration::from_hours(10_000));
    assert_eq!(backend.key_count(), 1);
    assert_eq!(store.refund(b"key", &permits, 0, 1).wait().unwrap(), 1);
    assert_eq!(backend.key_count(), 0);
}

/// It was an outage: a flood on one key lifted the limit of that key wherever outages let requests pass.
#[test]
fn endless_contention_is_a_denial_and_no_outage() {
    let backend = Arc::new(AlwaysChanged::default());
    let store = store(&backend).attempts_max(5);
    assert_eq!(store.check(b"key", &bucket(), 1).wait().unwrap().outcome(), Outcome::Busy);
    assert_eq!(backend.swaps(), 5);
    let policy = bucket();
    let mut entries = [Entry::new("key", &policy)];
    store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
    assert_eq!(entries[0].decision().unwrap().outcome(), Outcome::Busy);
    let mut entries = [Entry::new("key", &policy)];
    store.decide(Batch::independent(&mut entries)).wait().unwrap();
    assert_eq!(entries[0].decision().unwrap().outcome(), Outcome::Busy);
}

#[test]
fn peeks_and_denials_write_nothing() {
    let backend = Arc::new(AlwaysChanged::default());
    let store = store(&backend);
    store.check(b"key", &bucket(), 0).wait().unwrap();
    assert!(!store.check(b"key", &bucket(), 5).wait().unwrap().is_allowed());
    assert_eq!(backend.swaps(), 0);
}

/// Four clients of a real server, each with connections of its own, on one counter.
#[test]
fn clients_at_once_never_pass_the_limit() {
    const THREADS: usize = 4;
    let backend = Arc::new(watch_backend());
    let policy = Policy::fixed_window("50/day").unwrap();
    let allowed: usize = thread::scope(|scope| {
        let client = || {
            let store = store(&backend).attempts_max(1_000);
            (0..25).filter(|_| store.check(b"key", &policy, 1).wait().unwrap().is_allowed()).count()
        };
        let clients: Vec<_> = (0..THREADS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(allowed, 50);
}
