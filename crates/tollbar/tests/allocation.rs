//! No check allocates: not a hit, not a miss, not a denial, not a batch.

use std::sync::Arc;
use std::time::Duration;

use tollbar::{Entry, Limiter, MemoryStore, Period, Policy, Store, WarmUp};
use tollbar_testkit::allocations::{Counting, allocates_nothing};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn no_check_allocates() {
    let store = Arc::new(MemoryStore::builder().max_keys(64).build());
    let keys: Vec<String> = (0..1_000).map(|key| format!("key:{key}")).collect();
    let warm_up = WarmUp { start: 1, over: Duration::from_hours(1), steps: 16 };
    let policies = [
        Policy::token_bucket("3/month").unwrap(),
        Policy::leaky_bucket("999999999/s").unwrap(),
        Policy::fixed_window("3/month").unwrap(),
        Policy::fixed_window("3/h").unwrap().staggered().unwrap(),
        Policy::calendar_window(3, Period::Month).unwrap(),
        Policy::sliding_window("3/month").unwrap(),
        Policy::sliding_window_strict("3/month", 62).unwrap(),
        Policy::sliding_window_log("3/month").unwrap(),
        Policy::sliding_window_log("10000/month").unwrap().named("long"),
        Policy::token_bucket("3/month").unwrap().with_warm_up(warm_up).unwrap(),
        Policy::fixed_window("3/h").unwrap().staggered().unwrap().with_warm_up(warm_up).unwrap(),
        Policy::sliding_window_strict("3/month", 60).unwrap().with_warm_up(warm_up).unwrap(),
        Policy::concurrency(3).unwrap(),
        Policy::concurrency(3).unwrap().leased(std::time::Duration::from_mins(1)).unwrap(),
    ];
    for policy in &policies {
        let limiter = Limiter::builder(policy.clone()).store(store.clone()).build();
        let mut decisions = Vec::with_capacity(keys.len());
        let name = policy.algorithm().name();
        // A table for 64 keys: hits, misses, evictions and denials are all in here.
        allocates_nothing(name, || {
            for key in keys.iter().chain(&keys[..10]).chain(&keys[..10]).chain(&keys[..10]) {
                limiter.check(key);
                limiter.peek(key);
            }
            limiter.check_many(&keys, &mut decisions);
            limiter.reset(&keys[0]);
        });
    }
    let mut entries: Vec<Entry<'_>> =
        policies.iter().map(|policy| Entry::new("batch", policy)).collect();
    let limiter = Limiter::builder(policies[0].clone()).store(store.clone()).build();
    allocates_nothing("a batch", || {
        for _ in 0..5 {
            limiter.check_all(&mut entries).unwrap();
        }
    });
    allocates_nothing("statistics", || {
        assert!(store.stats().live_keys > 0);
    });
    let _: &dyn Store = &*store;
}

#[test]
fn no_permit_allocates() {
    let limiter = Limiter::new(Policy::concurrency(2).unwrap());
    let (rate, permits) = (Policy::token_bucket("9/min").unwrap(), Policy::concurrency(2).unwrap());
    allocates_nothing("a permit", || {
        for key in ["a", "b", "a"] {
            let first = limiter.acquire(key).unwrap().into_owned();
            let second = limiter.acquire(key).unwrap();
            assert!(limiter.acquire(key).is_err());
            drop((first, second));
        }
    });
    allocates_nothing("a permit beside a rate", || {
        let mut entries = [Entry::new("c", &rate), Entry::new("c", &permits)];
        drop(limiter.acquire_all(&mut entries).unwrap());
    });
}
