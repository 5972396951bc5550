//! Permits of stores that answer later, or not at all.

use std::future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use tollbar::store::{Adjustment, ReservationId};
use tollbar::{
    Batch, Decision, Degraded, Entry, FailurePolicy, Limiter, MemoryStore, Outcome, Policy, Reply,
    Store, StoreError, Timestamp,
};

use super::{permits, store};

/// A store across a network: what it is asked arrives when the reply is first polled, and the
/// answer is there when it is polled again.
#[derive(Debug)]
struct Remote {
    inner: Arc<MemoryStore>,
    is_down: AtomicBool,
}

impl Remote {
    fn new() -> Arc<Self> {
        Arc::new(Self { inner: store(100), is_down: AtomicBool::new(false) })
    }

    fn left(&self, policy: &Policy) -> u64 {
        self.inner.check_now(b"key", policy, 0).remaining()
    }

    fn reply<'a, T: Send + 'a>(
        &'a self,
        ask: impl FnOnce(&'a MemoryStore) -> Reply<'a, T> + Send + 'a,
    ) -> Reply<'a, T> {
        Reply::Pending(Box::pin(async move {
            if self.is_down.load(Ordering::Relaxed) {
                return Err(StoreError::Unavailable { source: Arc::new(std::fmt::Error) });
            }
            let answer = ask(&self.inner).wait();
            let mut looked = false;
            future::poll_fn(|context| {
                context.waker().wake_by_ref();
                if std::mem::replace(&mut looked, true) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            answer
        }))
    }
}

impl Store for Remote {
    fn check<'a>(&'a self, key: &'a [u8], policy: &'a Policy, cost: u64) -> Reply<'a, Decision> {
        self.reply(move |store| store.check(key, policy, cost))
    }

    fn check_all<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        self.reply(move |store| store.check_all(batch))
    }

    fn refund<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
        amount: u64,
    ) -> Reply<'a, u64> {
        self.reply(move |store| store.refund(key, policy, stamp, amount))
    }

    fn renew<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
    ) -> Reply<'a, Option<Timestamp>> {
        self.reply(move |store| store.renew(key, policy, stamp))
    }

    fn settle<'a, 'e: 'a>(
        &'a self,
        id: ReservationId,
        adjustments: &'a mut [Adjustment<'e>],
    ) -> Reply<'a, bool> {
        self.reply(move |store| store.settle(id, adjustments))
    }

    fn reset<'a>(&'a self, key: &'a [u8], policy: &'a Policy) -> Reply<'a, ()> {
        self.reply(move |store| store.reset(key, policy))
    }
}

/// Polls until it is done: nothing here waits for another thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}

fn limiter(remote: &Arc<Remote>, policy: &Policy, on_failure: FailurePolicy) -> Limiter {
    let store = Arc::clone(remote) as Arc<dyn Store>;
    Limiter::builder(policy.clone()).store(store).on_failure(on_failure).build()
}

#[test]
fn permits_of_a_store_that_answers_later_come_back() {
    let (remote, policy) = (Remote::new(), permits(2));
    let limiter = limiter(&remote, &policy, FailurePolicy::Allow);

    let permit = limiter.acquire_cost("key", 2).unwrap();
    assert_eq!((permit.count(), remote.left(&policy)), (2, 0));
    assert_eq!(limiter.acquire("key").unwrap_err().outcome(), Outcome::Busy);
    drop(permit);
    assert_eq!(remote.left(&policy), 2);

    let permit = block_on(limiter.acquire_async("key", 2)).unwrap();
    assert_eq!(remote.left(&policy), 0);
    assert_eq!(block_on(limiter.acquire_async("key", 1)).unwrap_err().outcome(), Outcome::Busy);
    // Sent off, though nobody waits for the answer.
    drop(permit);
    assert_eq!(remote.left(&policy), 2);

    let permit = block_on(limiter.acquire_async("key", 2)).unwrap();
    block_on(permit.release_async());
    assert_eq!(remote.left(&policy), 2);
    let permit = block_on(limiter.acquire_async("key", 2)).unwrap().into_owned();
    assert_eq!((permit.count(), remote.left(&policy)), (2, 0));
    block_on(permit.release_async());
    assert_eq!(remote.left(&policy), 2);
}

#[test]
fn batches_of_a_store_that_answers_later_come_back() {
    let (remote, policy, other) = (Remote::new(), permits(2), permits(5).named("other"));
    let limiter = limiter(&remote, &policy, FailurePolicy::Allow);
    let entries = || [Entry::new("key", &policy), Entry::new("key", &other).with_cost(3)];
    let permit = limiter.acquire_all(&mut entries()).unwrap().into_owned();
    assert_eq!((permit.count(), remote.left(&policy), remote.left(&other)), (4, 1, 2));
    drop(permit);
    assert_eq!((remote.left(&policy), remote.left(&other)), (2, 5));

    let permit = block_on(limiter.acquire_all_async(&mut entries())).unwrap();
    assert_eq!(block_on(limiter.acquire_all_async(&mut entries())).unwrap_err().binding(), Some(1));
    block_on(permit.release_async());
    assert_eq!((remote.left(&policy), remote.left(&other)), (2, 5));
}

#[test]
fn a_release_that_is_given_up_halfway_is_not_sent_twice() {
    let (remote, policy) = (Remote::new(), permits(4));
    let limiter = limiter(&remote, &policy, FailurePolicy::Allow);
    let _held = limiter.acquire_cost("key", 2).unwrap();
    let permit = block_on(limiter.acquire_async("key", 2)).unwrap();
    {
        let mut release = pin!(permit.release_async());
        let polled = release.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    }
    assert_eq!(remote.left(&policy), 2);
}

#[test]
fn without_an_answer_the_failure_policy_decides_and_the_permit_holds_nothing() {
    let (remote, policy) = (Remote::new(), permits(2));
    remote.is_down.store(true, Ordering::Relaxed);
    let allowing = limiter(&remote, &policy, FailurePolicy::Allow);
    for permit in [allowing.acquire("key"), block_on(allowing.acquire_async("key", 1))] {
        let permit = permit.unwrap();
        assert_eq!((permit.count(), permit.is_degraded()), (0, true));
        let permit = permit.into_owned();
        assert_eq!((permit.count(), permit.is_degraded()), (0, true));
    }
    let mut entries = [Entry::new("key", &policy)];
    let permit = allowing.acquire_all(&mut entries).unwrap();
    assert_eq!((permit.count(), permit.is_degraded()), (0, true));
    // Nothing is given back that was never taken.
    remote.is_down.store(false, Ordering::Relaxed);
    let _held = allowing.acquire_cost("key", 2).unwrap();
    drop(permit);
    assert_eq!(remote.left(&policy), 0);

    remote.is_down.store(true, Ordering::Relaxed);
    let denying = limiter(&remote, &policy, FailurePolicy::Deny);
    assert_eq!(denying.acquire("key").unwrap_err().degraded(), Some(Degraded::Denied));
    assert!(denying.acquire_all(&mut entries).unwrap_err().is_degraded());
}

#[test]
fn a_fallback_lends_its_own_permits_and_gets_them_back() {
    let (remote, policy) = (Remote::new(), permits(9));
    remote.is_down.store(true, Ordering::Relaxed);
    let local = store(10);
    let fallback = super::limiter(&local, permits(1));
    let limiter = limiter(&remote, &policy, FailurePolicy::Fallback(Box::new(fallback)));
    let permit = limiter.acquire("key").unwrap();
    assert_eq!((permit.count(), permit.is_degraded()), (1, true));
    let denied = limiter.acquire("key").unwrap_err();
    assert_eq!((denied.outcome(), denied.degraded()), (Outcome::Busy, Some(Degraded::Fallback)));
    drop(permit);
    assert_eq!(local.stats().live_keys, 0);
    // The second entry finds the fallback's only permit taken: the first is given back.
    let mut entries = [Entry::new("key", &policy), Entry::new("key", &policy)];
    assert!(limiter.acquire_all(&mut entries).is_err());
    assert_eq!(local.stats().live_keys, 0);
    assert_eq!(limiter.acquire_all(&mut entries[..1]).unwrap().count(), 1);
    assert_eq!(local.stats().live_keys, 0);
}
