//! Real threads on real memory: exactly the limit passes, again and again.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tollbar::{Batch, Entry, ManualClock, MemoryStore, Period, Policy, Store, Timestamp, Verdict};

fn store(max_keys: usize) -> MemoryStore {
    let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    MemoryStore::builder().max_keys(max_keys).max_wide_keys(1_000).clock(clock).build()
}

/// Every thread asks `asks` times for each of `keys`; how many passed for each key.
fn admitted(
    store: &MemoryStore,
    threads: usize,
    keys: &[String],
    asks: usize,
    pass: impl Fn(&MemoryStore, &str) -> bool + Sync,
) -> Vec<u64> {
    let counts: Vec<AtomicU64> = keys.iter().map(|_| AtomicU64::new(0)).collect();
    let barrier = Barrier::new(threads);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (counts, barrier, pass) = (&counts, &barrier, &pass);
            scope.spawn(move || {
                barrier.wait();
                for ask in 0..asks * keys.len() {
                    // Each thread starts at another key, and they meet again and again.
                    let at = (ask + thread) % keys.len();
                    if pass(store, &keys[at]) {
                        counts[at].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    counts.into_iter().map(AtomicU64::into_inner).collect()
}

fn policies() -> Vec<Policy> {
    vec![
        Policy::token_bucket("50/month").unwrap(),
        Policy::token_bucket("999999999/s").unwrap().with_burst(50).unwrap(),
        Policy::fixed_window("50/month").unwrap(),
        Policy::fixed_window("50/h").unwrap().staggered().unwrap(),
        Policy::calendar_window(50, Period::Month).unwrap(),
        Policy::sliding_window("50/month").unwrap(),
        Policy::sliding_window_strict("50/month", 4).unwrap(),
        Policy::sliding_window_log("50/month").unwrap(),
    ]
}

fn exactly_the_limit_passes(runs: usize) {
    for run in 0..runs {
        for policy in policies() {
            let store = store(1_000);
            let threads = 2 + run % 7;
            let keys: Vec<String> = (0..4).map(|key| format!("{run}:{key}")).collect();
            let pass = |store: &MemoryStore, key: &str| {
                store.check(key.as_bytes(), &policy, 1).wait().unwrap().is_allowed()
            };
            let counts = admitted(&store, threads, &keys, 60, pass);
            assert_eq!(counts, [50; 4], "{} with {threads} threads", policy.algorithm().name());
        }
    }
}

#[test]
fn two_to_eight_threads_admit_exactly_the_limit() {
    exactly_the_limit_passes(14);
}

#[test]
#[ignore = "long: the same, thousands of times"]
fn two_to_eight_threads_admit_exactly_the_limit_thousands_of_times() {
    exactly_the_limit_passes(2_000);
}

#[test]
fn threads_with_batches_admit_exactly_the_lesser_limit_and_charge_both_alike() {
    let (client, all) =
        (Policy::token_bucket("30/month").unwrap(), Policy::sliding_window("100/month").unwrap());
    for threads in 2..=8 {
        let store = store(1_000);
        let keys: Vec<String> = (0..5).map(|key| format!("client:{key}")).collect();
        let pass = |store: &MemoryStore, key: &str| {
            let mut entries = [Entry::new("everyone", &all), Entry::new(key, &client)];
            store.check_all(Batch::all_or_none(&mut entries)).wait().unwrap();
            Verdict::of(&entries).is_allowed()
        };
        let counts = admitted(&store, threads, &keys, 40, pass);
        // Five clients of 30 under a total of 100: the total binds, and is spent exactly.
        assert_eq!(counts.iter().sum::<u64>(), 100, "{threads} threads");
        for (key, count) in keys.iter().zip(&counts) {
            let left = store.check(key.as_bytes(), &client, 0).wait().unwrap().remaining();
            assert_eq!(left, 30 - count, "a client pays for exactly what it got through");
        }
    }
}

#[test]
fn a_full_table_under_threads_never_admits_more_than_evictions_explain() {
    // 64 keys in a table for 8: counters are evicted all the time, and each eviction can forgive
    // one counter's worth.
    let policy = Policy::token_bucket("5/month").unwrap();
    for threads in [2, 4, 8] {
        let store = store(8);
        let keys: Vec<String> = (0..64).map(|key| format!("key:{key}")).collect();
        let pass = |store: &MemoryStore, key: &str| {
            store.check(key.as_bytes(), &policy, 1).wait().unwrap().is_allowed()
        };
        let total: u64 = admitted(&store, threads, &keys, 20, pass).iter().sum();
        let evictions = store.stats().forced_evictions;
        assert!(total >= 64 * 5);
        assert!(total <= (64 + evictions) * 5, "{total} admitted, {evictions} evictions");
    }
}

/// The same for logs, of up to 40 stamps each, in a slab that has one block of 15 in each shard.
#[test]
fn a_full_slab_under_threads_never_admits_more_than_evictions_explain() {
    let policy = Policy::sliding_window_log("40/month").unwrap();
    for threads in [2, 4, 8] {
        let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
        let builder = MemoryStore::builder().max_keys(1_000).max_log_stamps(1);
        let store = builder.clock(clock.clone()).build();
        let keys: Vec<String> = (0..300).map(|key| format!("key:{key}")).collect();
        let pass = |store: &MemoryStore, key: &str| {
            clock.advance(Duration::from_micros(1));
            store.check(key.as_bytes(), &policy, 1).wait().unwrap().is_allowed()
        };
        let total: u64 = admitted(&store, threads, &keys, 20, pass).iter().sum();
        let stats = store.stats();
        assert!(stats.forced_evictions > 0 && stats.log_blocks <= stats.log_blocks_max);
        assert!(total >= 300 * 40);
        assert!(total <= (300 + stats.forced_evictions) * 40, "{total} admitted, {stats:?}");
    }
}

#[test]
fn one_token_left_and_two_threads_one_passes() {
    let policy = Policy::token_bucket("1/month").unwrap();
    let store = store(10_000);
    let keys: Vec<String> = (0..5_000).map(|key| format!("key:{key}")).collect();
    let pass = |store: &MemoryStore, key: &str| {
        store.check(key.as_bytes(), &policy, 1).wait().unwrap().is_allowed()
    };
    let counts = admitted(&store, 2, &keys, 1, pass);
    assert!(counts.iter().all(|count| *count == 1));
}
