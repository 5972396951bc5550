//! Stores that are too small: whatever is forgotten early is counted, and a store has the room that
//! it was made with.

use std::sync::Arc;
use std::time::Duration;

use tollbar::{
    AdmitError, Charges, Concurrency, ManualClock, MemoryStore, MemoryStoreBuilder, Policy,
    SettleError, Timestamp,
};

use super::limiter_over;

const TTL: Duration = Duration::from_mins(10);

fn builder() -> MemoryStoreBuilder {
    let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    MemoryStore::builder().clock(clock)
}

/// Room for a few thousand states of more than one word, which is the least there can be.
fn smallest_store() -> Arc<MemoryStore> {
    Arc::new(builder().max_keys(1).max_wide_keys(1).max_request_ids(1).build())
}

#[test]
fn every_counter_that_is_forgotten_early_is_counted() {
    const KEYS: u64 = 6_000;
    let policies = [
        Policy::token_bucket("9/h"),
        Policy::token_bucket("999999999/s").and_then(|policy| policy.with_burst(1_000_000_000)),
        Policy::fixed_window("9/h"),
        Policy::fixed_window("1000000000/h"),
        Policy::sliding_window("9/h"),
        Policy::sliding_window_strict("9/h", 2),
        Policy::sliding_window_strict("9/h", 62),
        Policy::sliding_window_log("9/h"),
        Concurrency::new(9)
            .and_then(|permits| permits.with_lease(Duration::from_hours(1)))
            .map(Concurrency::into_policy),
    ];
    for policy in policies {
        let policy = policy.unwrap();
        let store = smallest_store();
        for key in 0..KEYS {
            assert!(store.check_now(&key.to_le_bytes(), &policy, 1).is_allowed());
        }
        let is_fresh = |key: &u64| {
            let left = store.check_now(&key.to_le_bytes(), &policy, 0).remaining().unwrap();
            left == policy.capacity()
        };
        let fresh = (0..KEYS).filter(is_fresh).count() as u64;
        assert_eq!(fresh, store.stats().forced_evictions, "{policy:?}");
        assert!(fresh > 0, "{policy:?}");
    }
}

#[test]
fn every_reservation_that_is_forgotten_early_is_counted() {
    let store = smallest_store();
    let limiter =
        limiter_over(&store, Policy::fixed_window("1000000/day").unwrap().with_name("daily"));
    let receipts: Vec<_> = (0..6_000)
        .map(|_| limiter.reserve("key", 1).unwrap().receipt().expect("it is allowed").clone())
        .collect();
    let counted = store.stats().forced_evictions;
    let is_lost = |receipt| matches!(limiter.cancel(receipt), Err(SettleError::NotOpen));
    let lost = receipts.iter().filter(|receipt| is_lost(receipt)).count() as u64;
    assert_eq!(lost, counted);
    assert!(lost > 0);
    // What could not be settled stays charged.
    assert_eq!(limiter.peek("key").remaining().unwrap(), 1_000_000 - lost);
}

#[test]
fn every_request_id_that_is_forgotten_early_is_counted() {
    let store = smallest_store();
    let policy = Policy::fixed_window("1000000/day").unwrap().with_name("daily");
    let limiter = limiter_over(&store, policy.clone());
    let once = |id: &str, cost| {
        limiter.admit(Charges::new().charge("key", &policy, cost).request_id(id)).map(drop)
    };
    let ids: Vec<String> = (0..6_000).map(|id| id.to_string()).collect();
    for id in &ids {
        once(id, 1).unwrap();
    }
    let counted = store.stats().request_ids_forgotten;
    // Another question under an id that is remembered is refused. Under one that is not it is
    // denied here, which is not remembered.
    let is_lost = |id: &&String| match once(id, 1_000_000) {
        Err(AdmitError::RequestIdReused) => false,
        Err(AdmitError::Denied(_)) => true,
        other => panic!("{other:?}"),
    };
    let lost = ids.iter().filter(is_lost).count() as u64;
    assert_eq!(lost, counted);
    assert!(lost > 0);
    assert_eq!(store.stats().forced_evictions, 0, "no counter made room for an id");
}

/// The daemon refuses `--max-keys` below 1,000. In a store for 16 keys no batch of 32 fits.
#[test]
fn the_keys_of_one_request_always_fit_a_store_of_a_thousand() {
    let store = Arc::new(builder().max_keys(1_000).build());
    let policy = Policy::token_bucket("9/h").unwrap().with_name("hourly");
    let limiter = limiter_over(&store, policy.clone());
    // The table is full of counters that are not fresh when most of the requests come.
    for request in 0..5_000 {
        let keys: Vec<String> = (0..32).map(|key| format!("{request}-{key}")).collect();
        let charges =
            keys.iter().fold(Charges::new(), |charges, key| charges.charge(key, &policy, 1));
        let admitted = limiter.admit(charges).map(drop);
        assert!(admitted.is_ok(), "request {request}: {admitted:?}");
    }
    assert!(store.stats().forced_evictions > 100_000, "{:?}", store.stats());
}

#[test]
fn nearly_all_of_the_wide_keys_that_a_store_is_made_for_fit_it() {
    const KEYS: usize = 40_000;
    for parts in [2, 6, 14, 30, 62] {
        let store = builder().max_keys(1).max_wide_keys(KEYS).build();
        let policy = Policy::sliding_window_strict("9/h", parts).unwrap();
        for key in 0..KEYS {
            store.check_now(&key.to_le_bytes(), &policy, 1);
        }
        let lost = store.stats().forced_evictions as f64 / KEYS as f64;
        assert!(lost < 0.02, "{lost} with {parts} parts");
    }
}

#[test]
fn memory_for_wide_keys_grows_with_their_number_and_is_told() {
    const KEYS: usize = 40_000;
    let bytes = |keys: usize| builder().max_keys(1).max_wide_keys(keys).build().stats().wide_bytes;
    // The largest state has 64 words, and a name and a time beside them. There are states of five
    // sizes, and room for twice the keys.
    let least = KEYS * (64 + 2) * 8;
    assert!((least..6 * least).contains(&bytes(KEYS)), "{}", bytes(KEYS));
    let ratio = bytes(4 * KEYS) as f64 / bytes(KEYS) as f64;
    assert!((3.8..4.2).contains(&ratio), "{ratio}");
}

/// They are divided over 256 parts of the store, and a key is in one of them.
#[test]
fn a_store_has_room_for_as_many_leases_as_it_is_made_for() {
    const LEASES: u64 = 150;
    let store = builder().max_keys(1).max_leases(256 * LEASES as usize).build();
    let policy = Concurrency::new(LEASES).unwrap().with_lease(TTL).unwrap().into_policy();
    for _ in 0..LEASES {
        assert!(store.check_now(b"key", &policy, 1).is_allowed());
    }
    assert_eq!(store.stats().forced_evictions, 0);
    assert!(!store.check_now(b"key", &policy, 1).is_allowed());
}
