//! `CounterStore` is a store like any other: over a map in this process, and over a plain Redis without
//! scripts, it passes everything that stores are judged by.

#![allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")]

mod agreement;
mod contention;
mod contract;
mod shifted_time;
mod watch_backend;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tollbar::counter::{BackendLimits, CounterStore};
use tollbar::store::{Hold, Once, ReservationId};
use tollbar::{
    Batch, Concurrency, Entry, Feature, ManualClock, Policy, Store, StoreError, Timestamp,
};
use tollbar_testkit::memory_backend::{CounterSubject, MemoryBackend};
use tollbar_testkit::redis::process::RedisProcess;
use tollbar_testkit::subject::Subject;
use tollbar_testkit::suite;
use watch_backend::WatchBackend;

/// One server for all tests that need it at the same time; the last of them ends it.
pub(crate) fn server() -> Arc<RedisProcess> {
    static SERVER: Mutex<Weak<RedisProcess>> = Mutex::new(Weak::new());
    let mut server = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    server.upgrade().unwrap_or_else(|| {
        let new = Arc::new(RedisProcess::start());
        *server = Arc::downgrade(&new);
        new
    })
}

pub(crate) const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// A backend whose keys nobody else has.
pub(crate) fn watch_backend() -> WatchBackend {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    WatchBackend::new(server(), &format!("{number}:"))
}

pub(crate) fn watch_subject(now: Timestamp) -> Box<dyn Subject> {
    let clock = ManualClock::at(now);
    let backend = watch_backend().with_clock(clock.clone());
    Box::new(CounterSubject::new("counter store in Redis", backend, clock))
}

#[test]
fn counter_store_in_memory_passes_the_whole_suite() {
    suite::run_all(&CounterSubject::boxed);
}

#[test]
fn counter_store_in_redis_without_scripts_passes_the_whole_suite() {
    suite::run_all(&watch_subject);
}

#[test]
fn time_is_the_servers_and_not_the_callers() {
    let policy = Policy::token_bucket("1/min").unwrap();
    let reset_at = |backend: WatchBackend| {
        let store = CounterStore::new(backend, [1; 32]);
        store.check(b"key", &policy, 1).wait().unwrap().reset_at().unwrap()
    };
    let here = reset_at(watch_backend());
    let ahead = reset_at(watch_backend().at(&shifted_time::url_of(server().port()))).since(here);
    let shift = Duration::from_secs(shifted_time::SHIFT_S);
    assert!(ahead >= shift && ahead < shift + Duration::from_mins(10), "{ahead:?}");
}

/// Keys are kept until they are fresh and a little longer, and permits for as long as they are out.
#[test]
fn keys_expire_in_redis_once_they_are_fresh() {
    let expiry_ms = |policy: &Policy| -> i64 {
        let backend = Arc::new(watch_backend());
        let store = CounterStore::new(backend.clone(), [1; 32]);
        assert!(store.check(b"key", policy, 1).wait().unwrap().is_allowed());
        let mut client = redis::Client::open(server().url()).unwrap().get_connection().unwrap();
        let keys: Vec<String> =
            redis::cmd("KEYS").arg(format!("{}*", backend.prefix())).query(&mut client).unwrap();
        let [key] = keys.as_slice() else { panic!("one counter is one key: {keys:?}") };
        redis::cmd("PTTL").arg(key).query(&mut client).unwrap()
    };
    let minute = expiry_ms(&Policy::token_bucket("1/min").unwrap());
    assert!((60_000..=70_000).contains(&minute), "{minute}");
    let permits = Concurrency::new(1).unwrap();
    assert_eq!(expiry_ms(permits.as_policy()), -1);
    let lease = expiry_ms(permits.with_lease(Duration::from_mins(5)).unwrap().as_policy());
    assert!((300_000..=310_000).contains(&lease), "{lease}");
}

fn single_key_store(clock: &ManualClock) -> CounterStore<MemoryBackend> {
    CounterStore::new(MemoryBackend::new(clock.clone(), 1), [1; 32])
}

fn is_unsupported<T>(answer: &Result<T, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Unsupported { .. }))
}

#[test]
fn backend_of_one_key_per_swap_declares_what_it_cannot_do() {
    let store = single_key_store(&ManualClock::at(NOW));
    let policy = Policy::token_bucket("4/min").unwrap();
    for feature in [
        Feature::SeveralCounters,
        Feature::SplitAlternatives,
        Feature::RequestIds,
        Feature::Reservations,
    ] {
        assert!(is_unsupported(&store.supports(feature)), "{feature:?}");
    }
    for feature in [Feature::Refunds, Feature::Resets, Feature::Policy(&policy)] {
        store.supports(feature).unwrap();
    }
    let mut single = [Entry::new("a", &policy)];
    let (id, ttl) = (ReservationId(1), Duration::from_mins(1));
    let once = Once::new(b"id", ttl);
    assert!(is_unsupported(&store.decide(Batch::all_or_none(&mut single).once(once)).wait()));
    assert!(is_unsupported(
        &store.decide(Batch::all_or_none(&mut single).held(Hold { id, ttl })).wait()
    ));
    assert!(is_unsupported(&store.settle(id.into(), &mut []).wait()));
    let mut two = [Entry::new("a", &policy), Entry::new("b", &policy)];
    assert!(is_unsupported(&store.decide(Batch::all_or_none(&mut two)).wait()));
    // One counter twice is one key, and requests that have nothing to do with each other may be many.
    let mut twice = [Entry::new("a", &policy), Entry::new("a", &policy)];
    store.decide(Batch::all_or_none(&mut twice)).wait().unwrap();
    store.decide(Batch::independent(&mut two)).wait().unwrap();
    assert_eq!(two.map(|entry| entry.decision().unwrap().remaining().unwrap()), [1, 3]);
}

#[test]
fn more_counters_than_one_swap_holds_are_a_mistake() {
    let backend = MemoryBackend::new(ManualClock::at(NOW), 3);
    let store = CounterStore::new(backend, [1; 32]);
    let policy = Policy::token_bucket("4/min").unwrap();
    let once = Once::new(b"id", Duration::from_mins(1));
    let mut entries: Vec<Entry<'_>> = ["a", "b", "c"].map(|key| Entry::new(key, &policy)).into();
    store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
    let error = store.decide(Batch::all_or_none(&mut entries).once(once)).wait().unwrap_err();
    let StoreError::BatchTooLarge { entries: 3, entries_max: 2 } = error else {
        panic!("{error:?}");
    };
    store.decide(Batch::all_or_none(&mut entries[..2]).once(once)).wait().unwrap();
}

#[test]
fn policies_that_take_more_words_than_a_value_has_are_unsupported() {
    let backend = MemoryBackend::with_limits(ManualClock::at(NOW), BackendLimits::new(1, 64));
    let store = CounterStore::new(backend, [1; 32]);
    let log = |rate: &str| Policy::sliding_window_log(rate).unwrap();
    store.supports(Feature::Policy(&log("10/min"))).unwrap();
    let error = store.supports(Feature::Policy(&log("100/min"))).unwrap_err();
    assert!(error.to_string().contains("write a lower limit"), "{error}");
    assert!(is_unsupported(&store.check(b"key", &log("100/min"), 1).wait()));
    assert!(is_unsupported(&store.reset(b"key", &log("100/min")).wait()));
}

#[test]
fn a_key_that_holds_something_else_is_refused() {
    let store = CounterStore::new(contract::ForeignBackend, [1; 32]);
    let policy = Policy::token_bucket("4/min").unwrap();
    let error = store.check(b"key", &policy, 1).wait().unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
}
