//! Waiting over stores that answer later, or not at all.

use std::future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tollbar::{
    Batch, Decision, Degraded, FailurePolicy, ManualClock, MemoryStore, Overrides, Policy, Reply,
    Store, StoreError, Timestamp, WaitError,
};

use super::world::{START_US, World};

fn policy() -> Policy {
    Policy::leaky_queue("1/s", 4).unwrap()
}

/// A memory store across a network: every answer is there at the second look.
#[derive(Debug)]
struct Remote {
    inner: MemoryStore,
    is_down: AtomicBool,
    refunds: AtomicU64,
}

impl Remote {
    fn new() -> (Arc<Self>, ManualClock) {
        let clock = ManualClock::at(Timestamp::from_micros(START_US));
        let inner = MemoryStore::builder().max_keys(10).clock(clock.clone()).build();
        let (is_down, refunds) = (AtomicBool::new(false), AtomicU64::new(0));
        (Arc::new(Self { inner, is_down, refunds }), clock)
    }

    fn reply<'a, T: Send + 'a>(&self, answer: Result<T, StoreError>) -> Reply<'a, T> {
        let down = || StoreError::Unavailable { source: Arc::new(std::fmt::Error) };
        let answer = if self.is_down.load(Ordering::SeqCst) { Err(down()) } else { answer };
        Reply::Pending(Box::pin(async move {
            let mut looked = false;
            future::poll_fn(|context| {
                if std::mem::replace(&mut looked, true) {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
            answer
        }))
    }
}

impl Store for Remote {
    fn check<'a>(&'a self, key: &'a [u8], policy: &'a Policy, cost: u64) -> Reply<'a, Decision> {
        self.reply(self.inner.check(key, policy, cost).wait())
    }

    fn check_all<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        self.reply(self.inner.check_all(batch).wait())
    }

    fn refund<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
        amount: u64,
    ) -> Reply<'a, u64> {
        let refunded = self.inner.refund(key, policy, stamp, amount).wait();
        self.refunds.fetch_add(*refunded.as_ref().unwrap(), Ordering::SeqCst);
        self.reply(refunded)
    }

    fn reset<'a>(&'a self, key: &'a [u8], policy: &'a Policy) -> Reply<'a, ()> {
        self.reply(self.inner.reset(key, policy).wait())
    }
}

/// The limiter has no clock but the machine's then; so its timer says when time has passed.
#[test]
fn over_a_store_that_answers_later_waiters_wait_and_give_their_places_back() {
    let (store, _) = Remote::new();
    let remote = store.clone();
    let mut world = World::with(policy(), |builder| builder.store(remote));
    world.come_times("key", 5);
    assert_eq!((world.went(), world.limiter.waiting().waiters), (vec![(0, 0)], 4));
    world.cancel(2);
    assert_eq!((store.refunds.load(Ordering::SeqCst), world.limiter.waiting().waiters), (1, 3));
    assert_eq!(world.limiter.peek("key").remaining(), 1);
    for task in [1, 3, 4] {
        world.cancel(task);
    }
    assert_eq!(store.refunds.load(Ordering::SeqCst), 4);
    world.assert_empty();
}

#[test]
fn without_a_store_the_failure_policy_answers() {
    let (store, _) = Remote::new();
    store.is_down.store(true, Ordering::SeqCst);
    for (on_failure, goes) in [(FailurePolicy::Allow, true), (FailurePolicy::Deny, false)] {
        let remote = store.clone();
        let mut world =
            World::with(policy(), |builder| builder.store(remote).on_failure(on_failure));
        world.come_times("key", 3);
        assert_eq!(world.departures.len(), if goes { 3 } else { 0 });
        for (_, error) in &world.refused {
            let WaitError::Denied(decision) = error else { panic!("{error:?}") };
            assert_eq!(decision.degraded(), Some(Degraded::Denied));
        }
        world.assert_empty();
    }
}

/// A changed rate keeps the line. Places of another width are never given back: that would give
/// back more than was taken.
#[test]
fn a_rule_that_changes_while_somebody_waits_gives_nothing_away() {
    let tenants = Overrides::new(Policy::leaky_queue("10/s", 9).unwrap());
    let clock = ManualClock::at(Timestamp::from_micros(START_US));
    let timer = tollbar::ManualTimer::new(clock.clone());
    let store = Arc::new(MemoryStore::builder().max_keys(10).clock(clock).build());
    let limiter =
        tollbar::Limiter::builder_resolved_by(tenants.clone()).store(store).timer(timer).build();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut wait = || {
        let mut future = Box::pin(limiter.until_ready("key"));
        let answer = future.as_mut().poll(&mut context);
        (future, answer)
    };
    let (_first, answer) = wait();
    assert!(answer.is_ready());
    let (second, _) = wait();
    // Ten times slower: a place is a second now.
    tenants.set_default(Policy::leaky_queue("1/s", 9).unwrap());
    let (third, _) = wait();
    assert_eq!(limiter.waiting().waiters, 2);
    drop(third);
    drop(second);
    assert_eq!(limiter.waiting().waiters, 0);
    // 0.1 s for the one that went, 0.1 s and 1 s for places: at most these are owed, and not less
    // than the first is.
    let delay = limiter.check("key").delay();
    assert!((Duration::from_millis(100)..=Duration::from_millis(1_200)).contains(&delay));
}
