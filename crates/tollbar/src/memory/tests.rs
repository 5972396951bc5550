//! Who makes room for whom, what moves where, and what a store knows of itself.

use std::time::Duration;

use super::*;
use crate::{Batch, Decisions, Entry, ManualClock, Outcome, Period, StoreError, Timestamp};

fn store(max_keys: usize) -> (MemoryStore, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    let store = MemoryStore::builder().max_keys(max_keys).max_wide_keys(64).clock(clock.clone());
    (store.build(), clock)
}

fn check(store: &MemoryStore, key: &str, policy: &Policy, cost: u64) -> Decision {
    store.check(key.as_bytes(), policy, cost).wait().unwrap()
}

#[test]
fn a_throttled_key_outlives_a_flood_of_new_ones() {
    // Four slots. The victim has spent its whole bucket, the flood one token each.
    let (store, _) = store(2);
    let policy = Policy::token_bucket("5/min").unwrap();
    check(&store, "victim", &policy, 5);
    for key in 0..10_000 {
        assert!(check(&store, &format!("flood:{key}"), &policy, 1).is_allowed());
    }
    assert!(!check(&store, "victim", &policy, 1).is_allowed());
    assert_eq!(store.stats().forced_evictions, 10_000 - 3);
}

#[test]
fn of_windows_that_end_together_the_lower_count_is_forgotten() {
    for policy in [Policy::fixed_window("5/min"), Policy::sliding_window("5/min")] {
        let policy = policy.unwrap();
        let (store, _) = store(2);
        check(&store, "victim", &policy, 5);
        for key in 0..1_000 {
            check(&store, &format!("flood:{key}"), &policy, 1);
        }
        assert!(!check(&store, "victim", &policy, 1).is_allowed());
    }
}

#[test]
fn even_when_crowded_a_newcomer_is_limited() {
    // All slots are taken by full debts; the newcomer has to displace one, and is counted.
    let (store, _) = store(2);
    let policy = Policy::token_bucket("5/min").unwrap();
    for key in ["a", "b", "c", "d"] {
        check(&store, key, &policy, 5);
    }
    let admitted = (0..100).filter(|_| check(&store, "new", &policy, 1).is_allowed()).count();
    assert_eq!(admitted, 5);
}

#[test]
fn a_fresh_counter_makes_room_without_an_eviction() {
    let (store, clock) = store(2);
    let policy = Policy::token_bucket("5/s").unwrap();
    for round in 0..1_000 {
        for key in 0..4 {
            assert_eq!(
                check(&store, &format!("{round}:{key}"), &policy, 1).remaining().unwrap(),
                4
            );
        }
        assert_eq!(store.stats().live_keys, 4);
        clock.advance(Duration::from_millis(200));
        assert_eq!(store.stats().live_keys, 0);
    }
    assert_eq!(store.stats().forced_evictions, 0);
}

#[test]
fn a_denial_and_a_peek_store_nothing() {
    let (store, _) = store(100);
    for policy in [
        Policy::token_bucket("5/min"),
        Policy::fixed_window("5/min"),
        Policy::fixed_window("5/min").and_then(Policy::with_stagger),
        Policy::calendar_window(5, Period::Day),
        Policy::sliding_window("5/min"),
        Policy::sliding_window_strict("5/min", 4),
        Policy::sliding_window_log("5/min"),
    ] {
        let policy = policy.unwrap();
        let name = policy.algorithm().name();
        let live = store.stats().live_keys;
        assert!(check(&store, name, &policy, 0).is_allowed());
        assert_eq!(check(&store, name, &policy, 6).outcome(), Outcome::Never);
        assert_eq!(store.stats().live_keys, live, "{name}");
        check(&store, name, &policy, 5);
        let words = words_of(&store);
        assert!(!check(&store, name, &policy, 1).is_allowed());
        assert_eq!(words_of(&store), words, "{name}");
    }
}

/// The table, word for word.
fn words_of(store: &MemoryStore) -> Vec<u64> {
    let slots = (0..store.table.line_count()).flat_map(|line| store.table.slots(line));
    let load =
        |word: &std::sync::atomic::AtomicU64| word.load(std::sync::atomic::Ordering::Relaxed);
    slots.flat_map(|slot| [load(slot.tag), load(slot.state)]).collect()
}

#[test]
fn a_denied_batch_of_cold_keys_takes_no_slot() {
    let (store, _) = store(2);
    let policy = Policy::token_bucket("5/min").unwrap();
    check(&store, "spent", &policy, 5);
    for key in ["a", "b", "c"] {
        check(&store, key, &policy, 5);
    }
    let words = words_of(&store);
    let mut entries = [Entry::new("cold", &policy), Entry::new("spent", &policy)];
    store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
    assert!(!Decisions::from_entries(&entries).is_allowed());
    assert_eq!(words_of(&store), words);
    assert_eq!(store.stats().forced_evictions, 0);
}

#[test]
fn a_batch_that_needs_more_slots_than_there_are_says_so_and_charges_nothing() {
    let (store, _) = store(2);
    let policy = Policy::token_bucket("5/min").unwrap();
    let keys: Vec<String> = (0..5).map(|key| key.to_string()).collect();
    let mut entries: Vec<_> = keys.iter().map(|key| Entry::new(key, &policy)).collect();
    let answer = store.decide(Batch::all_or_none(&mut entries)).wait();
    // No outage, which rules may let pass: it would be one for good.
    let error = answer.unwrap_err();
    assert!(matches!(error, StoreError::Unsupported { .. }) && !error.is_outage(), "{error:?}");
    assert!(error.to_string().contains("make it larger"), "{error}");
    assert!(keys.iter().all(|key| check(&store, key, &policy, 0).remaining().unwrap() == 5));
    // Nothing stays locked behind it.
    assert!(keys.iter().all(|key| check(&store, key, &policy, 1).is_allowed()));
}

#[test]
fn a_limit_that_outgrows_one_word_and_back_keeps_the_count() {
    let (store, _) = store(100);
    for (small, large) in [
        (Policy::sliding_window("100/s"), Policy::sliding_window("100000/s")),
        (Policy::fixed_window("100/s"), Policy::fixed_window("1000000000/s")),
        (
            Policy::fixed_window("100/min").and_then(Policy::with_stagger),
            Policy::fixed_window("60000000000/min").and_then(Policy::with_stagger),
        ),
        (
            Policy::calendar_window(100, Period::Month),
            Policy::calendar_window(1 << 48, Period::Month),
        ),
    ] {
        let (small, large) = (small.unwrap(), large.unwrap());
        assert!(small.kind.fits_word() && !large.kind.fits_word());
        assert_eq!(check(&store, "key", &small, 30).remaining().unwrap(), 70);
        assert_eq!(check(&store, "key", &large, 5).remaining().unwrap(), large.limit() - 35);
        assert_eq!(check(&store, "key", &small, 5).remaining().unwrap(), 60);
        // And within batches, where one entry asks each way.
        let mut entries = [Entry::new("key", &small), Entry::new("key", &large)];
        store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
        assert_eq!(entries[1].decision().unwrap().remaining().unwrap(), large.limit() - 42);
        assert_eq!(check(&store, "key", &small, 0).remaining().unwrap(), 58);
        store.reset(b"key", &large).wait().unwrap();
        assert_eq!(check(&store, "key", &small, 0).remaining().unwrap(), 100);
    }
    // Buckets keep their debt of time: half of a full one stays half.
    let small = Policy::token_bucket("1000/s").unwrap().with_burst(1_000_000).unwrap();
    let large = Policy::token_bucket("999999999/s").unwrap().with_burst(1_000_000).unwrap();
    check(&store, "key", &small, 1);
    assert!(!large.kind.fits_word());
    // One token at 1,000/s is a millisecond of debt, which at the new rate is a full bucket.
    assert_eq!(check(&store, "key", &large, 0).remaining().unwrap(), 0);
}

#[test]
fn statistics_count_live_keys_of_both_kinds() {
    let (store, clock) = store(1_000);
    let (bucket, strict) =
        (Policy::token_bucket("1/s").unwrap(), Policy::sliding_window_strict("1/s", 4).unwrap());
    for key in 0..100 {
        check(&store, &key.to_string(), &bucket, 1);
    }
    for key in 0..10 {
        check(&store, &key.to_string(), &strict, 1);
    }
    let stats = store.stats();
    assert_eq!((stats.live_keys, stats.slots, stats.bytes), (110, 2_000, 32_000));
    assert!((stats.occupancy() - 0.055).abs() < 1e-9);
    clock.advance(Duration::from_secs(2));
    assert_eq!(store.stats().live_keys, 0);
}

#[test]
fn large_stores_estimate_their_live_keys() {
    let (store, _) = store(500_000);
    let policy = Policy::token_bucket("1/month").unwrap();
    for key in 0..200_000 {
        check(&store, &key.to_string(), &policy, 1);
    }
    let live = store.stats().live_keys;
    assert!((190_000..210_000).contains(&live), "{live}");
}

#[test]
fn at_the_design_load_few_keys_are_forgotten() {
    let (store, _) = store(200_000);
    let policy = Policy::token_bucket("1/month").unwrap();
    for key in 0..200_000 {
        check(&store, &key.to_string(), &policy, 1);
    }
    let lost = store.stats().forced_evictions as f64 / 200_000.0;
    assert!(lost < 0.005, "{lost}");
}
