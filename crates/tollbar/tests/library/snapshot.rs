//! A store that was written down and restored decides as the old one would have.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tollbar::{Batch, Decision, Entry, ManualClock, MemoryStore, MemoryStoreBuilder};
use tollbar::{Policy, Store, Timestamp};
use tollbar_testkit::xorshift::Xorshift;

const KEYS: u64 = 200;

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000))
}

fn builder(max_keys: usize, clock: &ManualClock) -> MemoryStoreBuilder {
    MemoryStore::builder().max_keys(max_keys).max_wide_keys(max_keys).clock(clock.clone())
}

/// Every algorithm, in one word and in several, fresh soon and late.
fn policies() -> Vec<Policy> {
    let policies = [
        Policy::token_bucket("50/h"),
        Policy::token_bucket("7/3s"),
        Policy::token_bucket("999999999/s").and_then(|policy| policy.with_burst(50)),
        Policy::leaky_bucket("30/min"),
        Policy::fixed_window("20/min"),
        Policy::fixed_window("1000000000/s"),
        Policy::sliding_window("20/min"),
        Policy::sliding_window("100000/s"),
        Policy::sliding_window_strict("20/min", 2),
        Policy::sliding_window_strict("20/h", 10),
        Policy::sliding_window_strict("20/min", 62),
        Policy::sliding_window_log("20/min"),
        Policy::sliding_window_log("10000/h"),
    ];
    policies.into_iter().map(Result::unwrap).collect()
}

fn check(store: &MemoryStore, key: u64, policy: &Policy, cost: u64) -> Decision {
    store.check_now(&key.to_le_bytes(), policy, cost)
}

/// A store in which most counters of most keys have been charged.
fn charged_store(max_keys: usize, clock: &ManualClock) -> MemoryStore {
    let store = builder(max_keys, clock).build();
    let policies = policies();
    let mut random = Xorshift::named("charges");
    for _ in 0..20 * KEYS {
        clock.advance(Duration::from_micros(random.below(20_000)));
        let policy = &policies[random.below(policies.len() as u64) as usize];
        check(&store, random.below(KEYS), policy, 1 + random.below(5));
    }
    assert_eq!(store.stats().forced_evictions, 0, "the test wants a store with room");
    store
}

fn snapshot(store: &MemoryStore) -> Vec<u8> {
    let mut bytes = Vec::new();
    let summary = store.write_snapshot(&mut bytes).unwrap();
    assert_eq!(summary.bytes, bytes.len() as u64);
    bytes
}

fn assert_same_peeks(old: &MemoryStore, new: &MemoryStore) {
    for policy in policies() {
        for key in 0..KEYS {
            assert_eq!(check(old, key, &policy, 0), check(new, key, &policy, 0), "{policy:?}");
        }
    }
}

fn assert_same_trace(old: &MemoryStore, new: &MemoryStore, clock: &ManualClock) {
    let policies = policies();
    let mut random = Xorshift::named("later");
    for _ in 0..20 * KEYS {
        clock.advance(Duration::from_micros(random.below(20_000)));
        let policy = &policies[random.below(policies.len() as u64) as usize];
        let (key, cost) = (random.below(KEYS), random.below(6));
        assert_eq!(check(old, key, policy, cost), check(new, key, policy, cost), "{policy:?}");
    }
}

#[test]
fn a_restored_store_decides_as_the_old_one_whatever_its_size() {
    // The second is of the same size; the others have fewer and more lines.
    for max_keys in [16_000, 20_000, 50_001, 300_000] {
        for pause in [0, 1, 40, 4_000] {
            let clock = clock();
            let old = charged_store(20_000, &clock);
            let bytes = snapshot(&old);
            clock.advance(Duration::from_secs(pause));
            let new = builder(max_keys, &clock).restore(&mut bytes.as_slice()).unwrap();
            assert_eq!(new.stats().forced_evictions, 0);
            assert_same_peeks(&old, &new);
            assert_same_trace(&old, &new, &clock);
        }
    }
}

#[test]
fn a_full_store_comes_back_slot_by_slot() {
    // At twice the keys it was made for, many counters are in their second lines. Then half of
    // them become fresh and are not in the snapshot, so that first lines have gaps.
    let (long, short) =
        (Policy::token_bucket("5/h").unwrap(), Policy::token_bucket("5/s").unwrap());
    for max_keys in [2, 10, 100, 400, 3_000] {
        let clock = clock();
        let old = builder(max_keys, &clock).build();
        let keys = max_keys as u64;
        for key in 0..keys {
            check(&old, key, &short, 1);
            check(&old, key, &long, 1 + key % 5);
        }
        clock.advance(Duration::from_secs(10));
        let bytes = snapshot(&old);
        let new = builder(max_keys, &clock).restore(&mut bytes.as_slice()).unwrap();
        assert_eq!(new.stats().live_keys, old.stats().live_keys);
        assert_eq!(new.stats().forced_evictions, 0);
        for key in 0..keys {
            assert_eq!(check(&new, key, &long, 0), check(&old, key, &long, 0), "{max_keys} {key}");
        }
        // Charging finds them too, and makes no second copy.
        for key in (0..keys).filter(|key| check(&old, *key, &long, 0).remaining().unwrap() < 5) {
            let (old, new) = (check(&old, key, &long, 1), check(&new, key, &long, 1));
            assert_eq!(new, old, "{max_keys} {key}");
        }
        assert_eq!(new.stats().live_keys, old.stats().live_keys);
    }
}

#[test]
fn a_full_store_fits_one_of_another_size() {
    // As above, many counters are in their second lines, and many tags could stand for two names.
    let (long, short) =
        (Policy::token_bucket("5/h").unwrap(), Policy::token_bucket("5/s").unwrap());
    for (old_keys, new_keys) in
        [(512, 514), (520, 2_000), (3_000, 700), (3_000, 2_900), (3_000, 3_500), (3_000, 50_000)]
    {
        let clock = clock();
        let old = builder(old_keys, &clock).build();
        let keys = old_keys as u64;
        for key in 0..keys {
            check(&old, key, &short, 1);
            check(&old, key, &long, 1 + key % 5);
        }
        clock.advance(Duration::from_secs(10));
        let bytes = snapshot(&old);
        let new = builder(new_keys, &clock).restore(&mut bytes.as_slice()).unwrap();
        let forgotten = new.stats().forced_evictions;
        let differs = |key: &u64| check(&new, *key, &long, 0) != check(&old, *key, &long, 0);
        let different = (0..keys).filter(differs).count() as u64;
        assert!(different <= forgotten, "{different} > {forgotten}: {old_keys} to {new_keys}");
        assert!(new_keys < old_keys * 2 || forgotten <= keys / 500, "{forgotten}");
    }
}

#[test]
fn a_restored_store_can_be_snapshotted_again_with_the_same_counters() {
    let clock = clock();
    let old = charged_store(20_000, &clock);
    let bytes = snapshot(&old);
    let new = builder(20_000, &clock).restore(&mut bytes.as_slice()).unwrap();
    let again = snapshot(&new);
    assert_eq!(again.len(), bytes.len());
    let third = builder(9_000, &clock).restore(&mut again.as_slice()).unwrap();
    assert_eq!(third.stats().forced_evictions, 0);
    assert_same_peeks(&old, &third);
}

#[test]
fn where_the_clock_went_back_counters_hold_until_it_has_caught_up() {
    let clock = clock();
    let old = charged_store(20_000, &clock);
    let bytes = snapshot(&old);
    let back = ManualClock::at(Timestamp::from_micros(1_600_000_000_000_000));
    let new = builder(20_000, &back).restore(&mut bytes.as_slice()).unwrap();
    for policy in policies() {
        for key in 0..KEYS {
            let (before, now) = (check(&old, key, &policy, 0), check(&new, key, &policy, 0));
            assert!(
                now.remaining().unwrap() <= before.remaining().unwrap(),
                "{policy:?}: {before:?} {now:?}"
            );
        }
    }
    clock.advance(Duration::from_secs(1));
    back.set(tollbar::Clock::now(&clock));
    assert_same_peeks(&old, &new);
}

#[test]
fn while_checks_go_on_no_counter_is_torn() {
    // Every charge takes 3 of 100, so whoever is whole has a multiple of 3; and once the checks of
    // a key are over (it is denied), it is exactly where they left it.
    let clock = clock();
    let store = builder(20_000, &clock).build();
    let policies = [
        Policy::token_bucket("100/day").unwrap(),
        Policy::fixed_window("100/day").unwrap(),
        Policy::sliding_window("100/day").unwrap(),
        Policy::sliding_window_strict("100/day", 4).unwrap(),
        Policy::sliding_window_strict("100/day", 30).unwrap(),
    ];
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..2 {
            let (store, policies, done) = (&store, &policies, &done);
            scope.spawn(move || {
                for round in 0..40 {
                    for key in 0..300 {
                        let key = ((key + 150 * thread) % 300 + round % 2).to_string();
                        for policy in policies {
                            store.check_now(key.as_bytes(), policy, 3);
                        }
                        let entries =
                            policies.iter().map(|policy| Entry::new(&key, policy).with_cost(3));
                        let mut entries: Vec<_> = entries.collect();
                        store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
                    }
                }
                done.store(true, Ordering::Release);
            });
        }
        let mut last: Option<MemoryStore> = None;
        while !done.load(Ordering::Acquire) {
            let new = builder(20_000, &clock).restore(&mut snapshot(&store).as_slice()).unwrap();
            for key in 0..301 {
                let key = key.to_string();
                for policy in &policies {
                    let left = |store: &MemoryStore| {
                        store.check_now(key.as_bytes(), policy, 0).remaining().unwrap()
                    };
                    assert_eq!(left(&new) % 3, 1, "{policy:?}");
                    assert!(left(&new) >= left(&store), "more than was ever charged");
                    assert!(last.as_ref().is_none_or(|last| left(last) >= left(&new)));
                }
            }
            last = Some(new);
        }
        assert!(last.is_some());
    });
    assert_eq!(store.stats().forced_evictions, 0);
}
