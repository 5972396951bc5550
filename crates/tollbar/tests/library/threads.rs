//! Real threads on real memory: exactly the limit passes, again and again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use tollbar::{
    Batch, Charges, Concurrency, ConcurrencyLimiter, Decisions, Entry, ManualClock, MemoryStore,
    Period, Policy, Store, Timestamp,
};

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
        Policy::fixed_window("50/h").unwrap().with_stagger().unwrap(),
        Policy::calendar_window(50, Period::Month).unwrap(),
        Policy::sliding_window("50/month").unwrap(),
        Policy::sliding_window_strict("50/month", 4).unwrap(),
        Policy::sliding_window_log("50/month").unwrap(),
        Concurrency::new(50).unwrap().into_policy(),
    ]
}

/// Threads of two classes at once: the lower one gets its part at most, and the reserve is there for the other.
#[test]
fn no_thread_of_a_lower_class_takes_the_reserve() {
    // Its limit does not fit a word, and that of the lower class does: the counter moves back and forth.
    let outgrown = Policy::fixed_window("1100/10us").unwrap();
    let policies = policies().into_iter().map(|policy| (policy, 10)).chain([(outgrown, 90)]);
    for (policy, reserved) in policies {
        let lower = policy.reserving(reserved).unwrap();
        let store = store(1_000);
        let keys = ["a".to_owned(), "b".to_owned()];
        let usual_passed: Vec<AtomicU64> = keys.iter().map(|_| AtomicU64::new(0)).collect();
        let turns = AtomicU64::new(0);
        let pass = |store: &MemoryStore, key: &str| {
            let is_urgent = turns.fetch_add(1, Ordering::Relaxed).is_multiple_of(8);
            let asked = if is_urgent { &policy } else { &lower };
            let is_allowed = store.check(key.as_bytes(), asked, 1).wait().unwrap().is_allowed();
            if is_allowed && !is_urgent {
                usual_passed[usize::from(key == "b")].fetch_add(1, Ordering::Relaxed);
            }
            is_allowed
        };
        let asks = 4 * policy.capacity() as usize;
        let passed = admitted(&store, 4, &keys, asks, pass);
        let name = policy.algorithm().name();
        assert_eq!(passed, [policy.capacity(); 2], "{name}: urgent requests get the rest");
        let usual: Vec<u64> = usual_passed.into_iter().map(AtomicU64::into_inner).collect();
        assert!(usual.iter().all(|passed| *passed <= lower.capacity()), "{name}: {usual:?}");
    }
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
    let client = Policy::token_bucket("30/month").unwrap();
    let all = [Policy::sliding_window("100/month"), Policy::sliding_window_log("100/month")];
    for (all, threads) in all.iter().flat_map(|all| (2..=8).map(move |threads| (all, threads))) {
        let all = all.as_ref().unwrap();
        let store = store(1_000);
        let keys: Vec<String> = (0..5).map(|key| format!("client:{key}")).collect();
        let pass = |store: &MemoryStore, key: &str| {
            let mut entries = [Entry::new("everyone", all), Entry::new(key, &client)];
            store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
            Decisions::from_entries(&entries).is_allowed()
        };
        let counts = admitted(&store, threads, &keys, 40, pass);
        // Five clients of 30 under a total of 100: the total binds, and is spent exactly.
        assert_eq!(counts.iter().sum::<u64>(), 100, "{threads} threads");
        for (key, count) in keys.iter().zip(&counts) {
            let left = store.check(key.as_bytes(), &client, 0).wait().unwrap().remaining().unwrap();
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
    // So large that no key finds both of its lines full. With room for 10,000, a key was forgotten
    // in every sixth run or so, and passed once more if the other thread came to it after that.
    let store = store(200_000);
    let keys: Vec<String> = (0..5_000).map(|key| format!("key:{key}")).collect();
    let pass = |store: &MemoryStore, key: &str| {
        store.check(key.as_bytes(), &policy, 1).wait().unwrap().is_allowed()
    };
    let counts = admitted(&store, 2, &keys, 1, pass);
    assert!(counts.iter().all(|count| *count == 1));
}

/// Eight threads take permits of three keys and give them back; what each believes to be in flight
/// is never above the limit, and in the end nothing is.
fn permits_come_and_go(store: &Arc<MemoryStore>, limit: u64, rounds: usize, count: u64) {
    let permits = Concurrency::new(limit).unwrap().with_name("permits");
    let limiter = ConcurrencyLimiter::builder(permits).store(Arc::clone(store)).build().unwrap();
    let in_flight = [const { AtomicU64::new(0) }; 3];
    let barrier = Barrier::new(8);
    let granted = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..8 {
            let (limiter, in_flight, barrier) = (&limiter, &in_flight, &barrier);
            let granted = &granted;
            scope.spawn(move || {
                barrier.wait();
                for round in 0..rounds {
                    let at = (thread + round) % in_flight.len();
                    let Ok(permit) = limiter.try_acquire_n(["a", "b", "c"][at], count) else {
                        continue;
                    };
                    let before = in_flight[at].fetch_add(permit.count(), Ordering::SeqCst);
                    assert!(before + permit.count() <= limit, "{before} and {permit:?}");
                    granted.fetch_add(1, Ordering::Relaxed);
                    if round % 8 == 0 {
                        thread::yield_now();
                    }
                    in_flight[at].fetch_sub(permit.count(), Ordering::SeqCst);
                    drop(permit);
                }
            });
        }
    });
    assert!(granted.into_inner() > 0);
    for key in ["a", "b", "c"] {
        assert_eq!(limiter.peek(key).remaining().unwrap(), limit, "a permit of {key} was lost");
    }
    assert_eq!(store.stats().forced_evictions, 0);
}

#[test]
fn eight_threads_never_have_more_in_flight_than_the_limit() {
    let store = Arc::new(store(1_000));
    permits_come_and_go(&store, 3, 20_000, 1);
    permits_come_and_go(&store, 5, 20_000, 2);
    assert_eq!(store.stats().live_keys, 0);
}

#[test]
fn eight_threads_with_batches_never_have_more_in_flight_than_the_limit() {
    let store = Arc::new(store(1_000));
    let rate = Policy::token_bucket("1000000/s").unwrap().with_name("rate");
    let permits = Concurrency::new(3).unwrap();
    let limiter = super::limiter_over(&store, rate.clone());
    let (in_flight, granted) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..5_000 {
                    let charges = Charges::new().charge("all", &rate, 1).permit("a", &permits, 1);
                    let Ok(grant) = limiter.admit(charges) else { continue };
                    let before = in_flight.fetch_add(1, Ordering::SeqCst);
                    assert!(before < 3, "{before} were in flight");
                    granted.fetch_add(1, Ordering::Relaxed);
                    in_flight.fetch_sub(1, Ordering::SeqCst);
                    drop(grant);
                }
            });
        }
    });
    assert!(granted.into_inner() > 0);
    assert_eq!(store.check_now(b"a", permits.as_policy(), 0).remaining(), Some(3));
}
