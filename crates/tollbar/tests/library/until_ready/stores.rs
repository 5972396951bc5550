//! Waiting over stores that answer later, or not at all.

use std::sync::Arc;
use std::time::Duration;

use tollbar::store::block_on;
use tollbar::{
    AsyncLimiter, DenyReason, ManualClock, ManualTimer, MemoryStore, OutagePolicy, Policy,
    PolicyMap, Timestamp, WaitError,
};
use tollbar_testkit::later_store::LaterStore;

use super::fixture::{Fixture, START_US};

fn policy() -> Policy {
    Policy::leaky_queue("1/s", 4).unwrap()
}

/// A store across a network.
fn remote() -> Arc<LaterStore> {
    let clock = ManualClock::at(Timestamp::from_micros(START_US));
    let inner = MemoryStore::builder().max_keys(10).clock(clock).build();
    Arc::new(LaterStore::new(Arc::new(inner)))
}

fn limiter(store: &Arc<LaterStore>, timer: &ManualTimer, on_outage: OutagePolicy) -> AsyncLimiter {
    let builder = AsyncLimiter::builder(policy().with_name("queue"), store.clone());
    builder.on_outage(on_outage).timer(timer.clone()).build().unwrap()
}

/// The limiter has no clock but the machine's then; so its timer says when time has passed.
#[test]
fn over_a_store_that_answers_later_waiters_wait_and_give_their_places_back() {
    let store = remote();
    let mut fixture = Fixture::new(policy());
    let limiter = limiter(&store, &fixture.timer, OutagePolicy::Allow);
    for _ in 0..5 {
        let limiter = limiter.clone();
        fixture.spawn(async move { limiter.wait("key").await });
    }
    assert_eq!((fixture.went(), limiter.waiting().waiters), (vec![(0, 0)], 4));
    fixture.cancel(2);
    assert_eq!((store.refunded(), limiter.waiting().waiters), (1, 3));
    let remaining = block_on(limiter.peek("key")).unwrap().remaining();
    assert_eq!(remaining, Some(1));
    for task in [1, 3, 4] {
        fixture.cancel(task);
    }
    assert_eq!(store.refunded(), 4);
    assert_eq!((limiter.waiting().keys, fixture.timer.sleepers()), (0, 0));
}

#[test]
fn without_a_store_the_outage_policy_answers() {
    let store = remote();
    store.set_down(true);
    for (on_outage, goes) in [(OutagePolicy::Allow, true), (OutagePolicy::Deny, false)] {
        let mut fixture = Fixture::new(policy());
        let limiter = limiter(&store, &fixture.timer, on_outage);
        for _ in 0..3 {
            let limiter = limiter.clone();
            fixture.spawn(async move { limiter.wait("key").await });
        }
        assert_eq!(fixture.departures.len(), if goes { 3 } else { 0 });
        for (_, error) in &fixture.refused {
            assert_eq!(error.denied().unwrap().reason(), DenyReason::Outage);
        }
        fixture.assert_empty();
    }
    let mut fixture = Fixture::new(policy());
    let limiter = limiter(&store, &fixture.timer, OutagePolicy::Error);
    fixture.spawn(async move { limiter.wait("key").await });
    assert!(matches!(&fixture.refused[0].1, WaitError::Store(error) if error.is_outage()));
}

/// Nothing says when the store answers again, so a request is denied and not kept waiting.
#[test]
fn a_denial_of_the_outage_policy_is_not_waited_for() {
    let store = remote();
    store.set_down(true);
    let mut fixture = Fixture::new(policy());
    let bucket = Policy::token_bucket("1/s").unwrap().with_name("bucket");
    let builder = AsyncLimiter::builder(bucket, store).on_outage(OutagePolicy::Deny);
    let limiter = builder.timer(fixture.timer.clone()).build().unwrap();
    fixture.spawn(async move { limiter.wait("key").await });
    assert_eq!(fixture.refused[0].1.denied().unwrap().reason(), DenyReason::Outage);
    assert_eq!(fixture.timer.sleepers(), 0);
}

/// Somebody who waits under a rule that changes.
struct ChangingRule {
    fixture: Fixture,
    tenants: PolicyMap,
}

impl ChangingRule {
    /// One has gone at once.
    fn new() -> Self {
        let tenants = PolicyMap::new(every(10));
        let resolver = tenants.clone();
        let fixture = Fixture::new(resolver);
        let mut changing = Self { fixture, tenants };
        assert_eq!(changing.come(10), 0);
        changing
    }

    fn come(&mut self, interval_us: u64) -> usize {
        self.tenants.set_default(every(interval_us));
        self.fixture.come("key", 1)
    }
}

/// One of these windows is one interval; all have the same counter.
fn every(interval_us: u64) -> Policy {
    let rate = tollbar::Rate::new(1_000 / interval_us, Duration::from_millis(1));
    Policy::leaky_queue(rate, 90).unwrap()
}

#[test]
fn after_a_rule_change_nobody_moves_up_into_a_turn_that_is_too_short_for_it() {
    let mut changing = ChangingRule::new();
    let turns = [(10, 10), (100, 20), (10, 120)];
    let tasks = turns.map(|(interval_us, _)| changing.come(interval_us));
    changing.fixture.cancel(tasks[0]);
    changing.fixture.finish();
    assert_eq!(changing.fixture.went(), [(0, 0), (tasks[1], 20), (tasks[2], 120)]);
}

/// A place of 10 us given back as one of 100 us would let somebody in who then meets another.
#[test]
fn after_a_rule_change_no_place_is_given_back_under_another_interval() {
    for gives_up in [1, 2] {
        let mut changing = ChangingRule::new();
        let tasks = [10, 100, 10].map(|interval_us| changing.come(interval_us));
        // The last moves up, or is itself the one that was charged under the line's first rule.
        changing.fixture.cancel(tasks[gives_up]);
        let delay = changing.fixture.limiter.check("key").delay();
        let expected_us = if gives_up == 1 { 130 } else { 120 };
        assert_eq!(delay, Duration::from_micros(expected_us));
        changing.fixture.finish();
        let second_us = 20;
        assert_eq!(changing.fixture.departures.last().unwrap().after_us, second_us);
        changing.fixture.assert_empty();
    }
    // One charged under a later rule than the line's is not given back at all, by whoever it is.
    let mut changing = ChangingRule::new();
    let tasks = [100, 10].map(|interval_us| changing.come(interval_us));
    changing.fixture.cancel(tasks[0]);
    assert_eq!(changing.fixture.limiter.check("key").delay(), Duration::from_micros(120));
    let mut changing = ChangingRule::new();
    let tasks = [10, 100].map(|interval_us| changing.come(interval_us));
    changing.fixture.cancel(tasks[1]);
    assert_eq!(changing.fixture.limiter.check("key").delay(), Duration::from_micros(120));
}
