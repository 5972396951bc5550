//! No check allocates: not a hit, not a miss, not a denial, not a batch.

#![allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")]

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollbar::{
    AdmitError, AsyncLimiter, Batch, Charges, Concurrency, ConcurrencyLimiter, Entry, Limiter,
    MemoryStore, Period, Policy, Store, WarmUp,
};
use tollbar_testkit::allocations::{CountingAllocator, allocates_nothing};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn no_check_allocates() {
    let store = Arc::new(MemoryStore::builder().max_keys(64).build());
    let keys: Vec<String> = (0..1_000).map(|key| format!("key:{key}")).collect();
    let warm_up = WarmUp { start: 1, over: Duration::from_hours(1), steps: 16 };
    let policies = [
        Policy::token_bucket("3/month").unwrap(),
        Policy::leaky_bucket("999999999/s").unwrap(),
        Policy::fixed_window("3/month").unwrap(),
        Policy::fixed_window("3/h").unwrap().with_stagger().unwrap(),
        Policy::calendar_window(3, Period::Month).unwrap(),
        Policy::sliding_window("3/month").unwrap(),
        Policy::sliding_window_strict("3/month", 62).unwrap(),
        Policy::sliding_window_log("3/month").unwrap(),
        Policy::sliding_window_log("10000/month").unwrap().with_name("long"),
        Policy::token_bucket("3/month").unwrap().with_warm_up(warm_up).unwrap(),
        Policy::fixed_window("3/h").unwrap().with_stagger().unwrap().with_warm_up(warm_up).unwrap(),
        Policy::sliding_window_strict("3/month", 60).unwrap().with_warm_up(warm_up).unwrap(),
        Concurrency::new(3).unwrap().into_policy(),
        Concurrency::new(3)
            .unwrap()
            .with_lease(std::time::Duration::from_mins(1))
            .unwrap()
            .into_policy(),
    ];
    for policy in &policies {
        let named = policy.clone().with_name("test");
        if policy.has_permits() {
            allocates_nothing("permits", || {
                for key in &keys {
                    let _ = store.check_now(key.as_bytes(), policy, 1);
                    let _ = store.check_now(key.as_bytes(), policy, 0);
                }
            });
            continue;
        }
        let limiter = Limiter::builder(named).store(store.clone()).build().unwrap();
        let mut decisions = Vec::with_capacity(keys.len());
        let name = policy.algorithm().name();
        // A table for 64 keys: hits, misses, evictions and denials are all in here.
        allocates_nothing(name, || {
            for key in keys.iter().chain(&keys[..10]).chain(&keys[..10]).chain(&keys[..10]) {
                let _ = limiter.check(key);
                let _ = limiter.peek(key);
            }
            limiter.check_many(&keys, &mut decisions);
            limiter.reset(&keys[0]);
        });
    }
    let mut entries: Vec<Entry<'_>> =
        policies.iter().map(|policy| Entry::new("batch", policy)).collect();
    allocates_nothing("a batch", || {
        for _ in 0..5 {
            store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
        }
    });
    allocates_nothing("statistics", || {
        assert!(store.stats().live_keys > 0);
    });
    let _: &dyn Store = &*store;
}

#[test]
fn no_permit_allocates() {
    let limiter = ConcurrencyLimiter::new(Concurrency::new(2).unwrap());
    allocates_nothing("a permit", || {
        for key in ["a", "b", "a"] {
            let first = limiter.try_acquire(key).unwrap().into_owned();
            let second = limiter.try_acquire(key).unwrap();
            assert!(limiter.try_acquire(key).is_err());
            drop((first, second));
        }
    });
    let rate = Policy::token_bucket("4/month").unwrap().with_name("rate");
    let permits = Concurrency::new(2).unwrap();
    let limiter = Limiter::new(rate.clone());
    allocates_nothing("a permit beside a rate", || {
        let charges = || Charges::new().charge("c", &rate, 1).permit("c", &permits, 1);
        let first = limiter.admit(charges()).unwrap();
        let second = limiter.admit(charges()).unwrap();
        assert!(matches!(limiter.admit(charges()), Err(AdmitError::Denied(_))), "busy");
        assert_eq!((first.permit_count(), second.decisions().each().len()), (1, 2));
        drop((first, second));
        let _grants = (limiter.admit(charges()).unwrap(), limiter.admit(charges()).unwrap());
    });
    assert!(!limiter.check("c").is_allowed(), "each was charged once");
}

/// Over a store in memory the async form answers at the first poll, and allocates nothing.
#[test]
fn no_async_check_over_memory_suspends_or_allocates() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::builder().max_keys(64).build());
    let policy = Policy::token_bucket("3/month").unwrap().with_name("async");
    let permits = Concurrency::new(1).unwrap().with_name("permits");
    let limiter = AsyncLimiter::builder(policy.clone(), store).build().unwrap();
    let mut decisions = Vec::with_capacity(4);
    allocates_nothing("async checks", || {
        for key in ["a", "b", "a"] {
            assert!(poll_once(limiter.check(key)).unwrap().is_allowed());
            assert!(poll_once(limiter.peek(key)).unwrap().is_allowed());
        }
        poll_once(limiter.check_many(&["a", "c"], &mut decisions)).unwrap();
        poll_once(limiter.reset("a")).unwrap();
        let charges = Charges::new().charge("d", &policy, 1).permit("d", &permits, 1);
        let grant = poll_once(limiter.admit(charges)).unwrap();
        assert_eq!(grant.permit_count(), 1);
    });
    assert_eq!(decisions.len(), 2);
}

fn poll_once<F: Future>(future: F) -> F::Output {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it is suspended"),
    }
}
