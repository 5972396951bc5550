//! Permits of stores that answer later, or not at all.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tollbar::{Degraded, Entry, FailurePolicy, Limiter, Outcome, Policy, Store};
use tollbar_testkit::later_store::LaterStore;

use super::{permits, store};

/// A store across a network, and what is left of its permits.
struct Remote(Arc<LaterStore>);

impl Remote {
    fn new() -> Self {
        Self(Arc::new(LaterStore::new(store(100))))
    }

    fn left(&self, policy: &Policy) -> u64 {
        self.0.inner().check_now(b"key", policy, 0).remaining()
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

fn limiter(remote: &Remote, policy: &Policy, on_failure: FailurePolicy) -> Limiter {
    let store = Arc::clone(&remote.0) as Arc<dyn Store>;
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
    let denied = block_on(limiter.acquire_all_async(&mut entries())).unwrap_err();
    assert_eq!(denied.verdict().unwrap().binding(), Some(1));
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
    remote.0.set_down(true);
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
    remote.0.set_down(false);
    let _held = allowing.acquire_cost("key", 2).unwrap();
    drop(permit);
    assert_eq!(remote.left(&policy), 0);

    remote.0.set_down(true);
    let denying = limiter(&remote, &policy, FailurePolicy::Deny);
    assert_eq!(denying.acquire("key").unwrap_err().degraded(), Some(Degraded::Denied));
    assert!(denying.acquire_all(&mut entries).unwrap_err().verdict().unwrap().is_degraded());
}

#[test]
fn a_fallback_lends_its_own_permits_and_gets_them_back() {
    let (remote, policy) = (Remote::new(), permits(9));
    remote.0.set_down(true);
    let local = store(10);
    let fallback = super::limiter(&local, permits(1));
    let limiter = limiter(&remote, &policy, FailurePolicy::Fallback(Box::new(fallback)));
    let permit = limiter.acquire("key").unwrap();
    assert_eq!((permit.count(), permit.is_degraded()), (1, true));
    let denied = limiter.acquire("key").unwrap_err();
    assert_eq!((denied.outcome(), denied.degraded()), (Outcome::Busy, Some(Degraded::Fallback)));
    drop(permit);
    assert_eq!(local.stats().live_keys, 0);
    // A batch is decided by the policies of its entries. The second finds the only permit taken, so
    // the first takes none.
    let one = permits(1);
    let mut entries = [Entry::new("key", &one), Entry::new("key", &one)];
    assert!(limiter.acquire_all(&mut entries).is_err());
    assert_eq!(local.stats().live_keys, 0);
    assert_eq!(limiter.acquire_all(&mut entries[..1]).unwrap().count(), 1);
    assert_eq!(local.stats().live_keys, 0);
}
