//! Waiting under policies that have no queue: buckets, windows and permits.

use std::sync::Arc;
use std::time::Duration;

use tollbar::store::block_on;
use tollbar::{
    AsyncConcurrencyLimiter, Concurrency, ConcurrencyLimiter, DenyReason, MemoryStore, Policies,
    Policy, StoreError, WaitError, WarmUp,
};

use super::fixture::Fixture;

/// Two at once, and one more every 10 us.
fn bucket() -> Policy {
    Policy::token_bucket("1/10us").unwrap().with_burst(2).unwrap()
}

/// Waiting under a token bucket failed with `NotAQueue`.
#[test]
fn a_bucket_lets_waiters_go_first_in_first_out_as_it_fills() {
    let mut fixture = Fixture::new(bucket());
    fixture.come_times("key", 5);
    assert_eq!(fixture.went(), [(0, 0), (1, 0)]);
    assert_eq!(fixture.timer.sleepers(), 1, "only the first sleeps");
    assert_eq!((fixture.limiter.waiting().waiters, fixture.limiter.waiting().keys), (3, 1));
    fixture.finish();
    assert_eq!(fixture.went(), [(0, 0), (1, 0), (2, 10), (3, 20), (4, 30)]);
    fixture.assert_empty();
}

#[test]
fn every_kind_of_window_can_be_waited_for() {
    // When the last of seven goes. A sliding window's estimate admits one per window under a line that
    // never ends; a strict window of 5 parts admits 5/6 of its limit.
    for (policy, last_us) in [
        (Policy::fixed_window("2/10us"), 30),
        (Policy::sliding_window("2/10us"), 50),
        (Policy::sliding_window_strict("2/10us", 5), 36),
        (Policy::sliding_window_log("2/10us"), 30),
        (Policy::leaky_bucket("2/10us"), 25),
    ] {
        let policy = policy.unwrap();
        let mut fixture = Fixture::new(policy.clone());
        fixture.come_times("key", 7);
        fixture.finish();
        let order: Vec<usize> = fixture.departures.iter().map(|departure| departure.task).collect();
        assert_eq!(order, [0, 1, 2, 3, 4, 5, 6], "{policy}");
        assert_eq!(fixture.departures[6].after_us, last_us, "{policy}");
        fixture.assert_empty();
    }
}

#[test]
fn a_waiter_that_gives_up_leaves_its_turn_to_the_next() {
    let mut fixture = Fixture::new(bucket());
    fixture.come_times("key", 6);
    fixture.cancel(2);
    assert_eq!(fixture.timer.sleepers(), 1, "the new first sleeps");
    fixture.cancel(4);
    fixture.finish();
    assert_eq!(fixture.went(), [(0, 0), (1, 0), (3, 10), (5, 20)]);
    fixture.assert_empty();
}

#[test]
fn a_large_cost_is_not_overtaken() {
    let mut fixture = Fixture::new(bucket());
    for cost in [2, 2, 1, 0] {
        fixture.come("key", cost);
    }
    fixture.finish();
    // A peek waits for nothing.
    assert_eq!(fixture.went(), [(0, 0), (3, 0), (1, 20), (2, 30)]);
    fixture.assert_empty();
}

#[test]
fn what_waiting_cannot_help_is_refused_at_once() {
    let mut fixture = Fixture::new(bucket());
    fixture.come("key", 3);
    let denied = fixture.refused[0].1.denied().unwrap();
    assert_eq!(denied.reason(), DenyReason::ExceedsCapacity);

    // A key that only waits grows cold, so a cost for warm keys would wait for ever.
    let warm_up = WarmUp { start: 10, over: Duration::from_mins(1), steps: 6 };
    let policy = Policy::token_bucket("100/s").unwrap().with_warm_up(warm_up).unwrap();
    let mut fixture = Fixture::new(policy);
    fixture.come("key", 1);
    fixture.come("key", 100);
    assert_eq!(fixture.refused[0].1.denied().unwrap().reason(), DenyReason::Busy);
    fixture.assert_empty();
}

#[test]
fn no_more_wait_than_there_is_room_for() {
    let mut fixture = Fixture::with(bucket(), |builder| builder.max_waiters(2));
    fixture.come_times("key", 5);
    assert!(matches!(fixture.refused[..], [(4, WaitError::TooManyWaiters { waiters_max: 2 })]));
    fixture.finish();
    assert_eq!(fixture.went(), [(0, 0), (1, 0), (2, 10), (3, 20)]);
    fixture.assert_empty();
}

/// A fixture whose tasks take a permit each, and keep it.
struct PermitFixture {
    fixture: Fixture,
    limiter: ConcurrencyLimiter,
}

impl PermitFixture {
    fn new(permits: Concurrency) -> Self {
        let fixture = Fixture::new(bucket());
        let store = MemoryStore::builder().max_keys(100).clock(fixture.clock.clone()).build();
        let limiter = ConcurrencyLimiter::builder(permits.with_name("permits"));
        let limiter = limiter.store(Arc::new(store)).timer(fixture.timer.clone()).build().unwrap();
        Self { fixture, limiter }
    }

    fn come(&mut self) -> usize {
        let limiter = self.limiter.clone();
        self.fixture.spawn(async move {
            let permit = limiter.acquire("key").await?.into_owned();
            std::mem::forget(permit);
            Ok(limiter.peek("key"))
        })
    }

    fn order(&self) -> Vec<usize> {
        self.fixture.departures.iter().map(|departure| departure.task).collect()
    }
}

#[test]
fn a_permit_that_comes_back_goes_to_the_first_waiter_at_once() {
    let mut permits = PermitFixture::new(Concurrency::new(2).unwrap());
    let limiter = permits.limiter.clone();
    let first = limiter.try_acquire("key").unwrap();
    let second = limiter.try_acquire("key").unwrap();
    for _ in 0..3 {
        permits.come();
    }
    assert_eq!(permits.order(), [0; 0]);
    assert_eq!(permits.limiter.waiting().waiters, 3);
    drop(first);
    permits.fixture.run();
    assert_eq!(permits.order(), [0]);
    // The next one gives up, and the one behind it is the first.
    permits.fixture.cancel(1);
    drop(second);
    permits.fixture.run();
    assert_eq!(permits.order(), [0, 2]);
    assert_eq!(permits.fixture.after_us(), 0, "no time has passed");
    assert_eq!((permits.limiter.waiting().keys, permits.fixture.timer.sleepers()), (0, 0));
}

#[test]
fn a_lease_that_ends_is_noticed_by_the_first_waiter() {
    let ttl = Duration::from_secs(1);
    let mut permits = PermitFixture::new(Concurrency::new(1).unwrap().with_lease(ttl).unwrap());
    let lease = permits.limiter.lease("key").unwrap();
    permits.come();
    permits.come();
    while permits.order().is_empty() {
        permits.fixture.advance_us(u64::MAX);
    }
    let after = Duration::from_micros(permits.fixture.after_us());
    assert!((ttl..ttl + Duration::from_millis(101)).contains(&after), "{after:?}");
    assert!(!permits.limiter.release(&lease));
    assert_eq!(permits.order(), [0]);
}

/// No permit comes back, and there is one more after a second.
#[test]
fn a_limit_that_has_climbed_is_noticed_by_the_first_waiter() {
    let over = Duration::from_secs(1);
    let warm_up = WarmUp { start: 1, over: over * 2, steps: 2 };
    let mut permits =
        PermitFixture::new(Concurrency::new(3).unwrap().with_warm_up(warm_up).unwrap());
    permits.come();
    permits.come();
    assert_eq!(permits.order(), [0]);
    while permits.order().len() < 2 {
        permits.fixture.advance_us(u64::MAX);
    }
    let after = Duration::from_micros(permits.fixture.after_us());
    assert!((over..over + Duration::from_millis(101)).contains(&after), "{after:?}");
}

#[test]
fn a_lease_that_is_released_goes_to_the_first_waiter_at_once() {
    let ttl = Duration::from_secs(1);
    let mut permits = PermitFixture::new(Concurrency::new(1).unwrap().with_lease(ttl).unwrap());
    let lease = permits.limiter.lease("key").unwrap();
    permits.come();
    assert!(permits.limiter.release(&lease));
    permits.fixture.run();
    assert_eq!((permits.order(), permits.fixture.after_us()), (vec![0], 0));
}

/// The limiter woke another line than the one in which requests waited.
#[test]
fn a_leased_permit_that_is_dropped_goes_to_the_first_waiter_at_once() {
    let ttl = Duration::from_secs(1);
    let mut permits = PermitFixture::new(Concurrency::new(1).unwrap().with_lease(ttl).unwrap());
    let limiter = permits.limiter.clone();
    let permit = limiter.try_acquire("key").unwrap();
    permits.come();
    drop(permit);
    permits.fixture.run();
    assert_eq!((permits.order(), permits.fixture.after_us()), (vec![0], 0));
}

/// Over a store across a network as well.
#[test]
fn a_permit_of_any_store_goes_to_the_first_waiter_at_once() {
    let mut fixture = Fixture::new(bucket());
    let store = MemoryStore::builder().max_keys(100).clock(fixture.clock.clone()).build();
    let permits = Concurrency::new(1).unwrap().with_name("permits");
    let builder = AsyncConcurrencyLimiter::builder(permits, Arc::new(store));
    let limiter = builder.timer(fixture.timer.clone()).build().unwrap();
    let permit = block_on(limiter.try_acquire("key")).unwrap();
    let waiter = limiter.clone();
    fixture.spawn(async move {
        let _permit = waiter.acquire("key").await?;
        Ok(waiter.peek("key").await?)
    });
    assert_eq!((fixture.departures.len(), limiter.waiting().waiters), (0, 1));
    drop(permit);
    fixture.run();
    assert_eq!((fixture.went(), limiter.waiting().waiters), (vec![(0, 0)], 0));
    let permit = block_on(limiter.acquire("key")).unwrap();
    assert!(block_on(limiter.try_acquire("key")).is_err());
    block_on(limiter.reset("key")).unwrap();
    assert!(block_on(limiter.try_acquire("key")).is_ok(), "a reset forgets what is in flight");
    drop(permit);
}

/// A function may return a policy of permits, which would never come back.
#[test]
fn a_policy_with_permits_is_not_waited_for() {
    let permits = Concurrency::new(1).unwrap().into_policy();
    let mut fixture = Fixture::new(Policies::from_fn(move |_| permits.clone()));
    fixture.come("key", 1);
    assert!(matches!(fixture.refused[..], [(0, WaitError::Store(StoreError::Unsupported { .. }))]));
    fixture.assert_empty();
}
