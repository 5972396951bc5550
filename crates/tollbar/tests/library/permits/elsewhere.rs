//! Permits of stores that answer later, or not at all.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tollbar::{
    AcquireError, AsyncConcurrencyLimiter, AsyncLimiter, Charges, Concurrency, Degraded, Denied,
    DenyReason, OutagePolicy, Permit, Policy,
};
use tollbar_testkit::later_store::LaterStore;

use super::{permits, store};

/// A store across a network, and what is left of its permits.
struct RemoteStore(Arc<LaterStore>);

impl RemoteStore {
    fn new() -> Self {
        Self(Arc::new(LaterStore::new(store(100))))
    }

    fn left(&self, permits: &Concurrency) -> u64 {
        self.0.inner().check_now(b"key", permits.as_policy(), 0).remaining().unwrap()
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

fn limiter(
    remote: &RemoteStore,
    permits: &Concurrency,
    on_outage: OutagePolicy,
) -> AsyncConcurrencyLimiter {
    let builder = AsyncConcurrencyLimiter::builder(permits.clone(), remote.0.clone());
    builder.on_outage(on_outage).build().unwrap()
}

fn rates(remote: &RemoteStore, on_outage: OutagePolicy) -> AsyncLimiter {
    let rate = Policy::token_bucket("100/s").unwrap().with_name("rate");
    AsyncLimiter::builder(rate, remote.0.clone()).on_outage(on_outage).build().unwrap()
}

fn acquire(limiter: &AsyncConcurrencyLimiter, count: u64) -> Result<Permit<'static>, Denied> {
    match block_on(limiter.try_acquire_n("key", count)) {
        Ok(permit) => Ok(permit),
        Err(AcquireError::Denied(denied)) => Err(denied),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn permits_of_a_store_that_answers_later_come_back() {
    let (remote, permits) = (RemoteStore::new(), permits(2));
    let limiter = limiter(&remote, &permits, OutagePolicy::Allow);
    let permit = acquire(&limiter, 2).unwrap();
    assert_eq!((permit.count(), remote.left(&permits)), (2, 0));
    assert_eq!(acquire(&limiter, 1).unwrap_err().reason(), DenyReason::Busy);
    // Sent off, though nobody waits for the answer.
    drop(permit);
    assert_eq!(remote.left(&permits), 2);

    let permit = acquire(&limiter, 2).unwrap();
    block_on(permit.release()).unwrap();
    assert_eq!(remote.left(&permits), 2);
    let permit = acquire(&limiter, 2).unwrap().into_owned();
    assert_eq!((permit.count(), remote.left(&permits)), (2, 0));
    block_on(permit.release()).unwrap();
    assert_eq!(remote.left(&permits), 2);
}

#[test]
fn grants_of_a_store_that_answers_later_come_back() {
    let (remote, permits) = (RemoteStore::new(), permits(2));
    let other = Concurrency::new(5).unwrap().with_name("other");
    let limiter = rates(&remote, OutagePolicy::Allow);
    let admit = || {
        block_on(limiter.admit(Charges::new().permit("key", &permits, 1).permit("key", &other, 3)))
    };
    let grant = admit().unwrap();
    assert_eq!((grant.permit_count(), remote.left(&permits), remote.left(&other)), (4, 1, 2));
    drop(grant);
    assert_eq!((remote.left(&permits), remote.left(&other)), (2, 5));

    let grant = admit().unwrap();
    assert_eq!(admit().unwrap_err().decisions().unwrap().binding(), Some(1));
    block_on(grant.release()).unwrap();
    assert_eq!((remote.left(&permits), remote.left(&other)), (2, 5));
}

#[test]
fn a_release_that_the_store_does_not_take_is_an_error() {
    let (remote, permits) = (RemoteStore::new(), permits(4));
    let permits_limiter = limiter(&remote, &permits, OutagePolicy::Allow);
    let permit = acquire(&permits_limiter, 1).unwrap();
    let rates = rates(&remote, OutagePolicy::Allow);
    let grant = block_on(rates.admit(Charges::new().permit("key", &permits, 1))).unwrap();
    remote.0.set_down(true);
    assert!(block_on(permit.release()).unwrap_err().is_outage());
    assert!(block_on(grant.release()).unwrap_err().is_outage());
    remote.0.set_down(false);
    assert_eq!(remote.left(&permits), 2, "the store keeps what it was not asked for");
}

#[test]
fn a_release_that_is_given_up_halfway_is_not_sent_twice() {
    let (remote, permits) = (RemoteStore::new(), permits(4));
    let limiter = limiter(&remote, &permits, OutagePolicy::Allow);
    let _held = acquire(&limiter, 2).unwrap();
    let permit = acquire(&limiter, 2).unwrap();
    {
        let mut release = pin!(permit.release());
        let polled = release.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    }
    assert_eq!(remote.left(&permits), 2);
}

#[test]
fn without_an_answer_the_outage_policy_decides_and_the_permit_holds_nothing() {
    let (remote, permits) = (RemoteStore::new(), permits(2));
    remote.0.set_down(true);
    let allowing = limiter(&remote, &permits, OutagePolicy::Allow);
    let permit = acquire(&allowing, 1).unwrap().into_owned();
    assert_eq!((permit.count(), permit.is_degraded()), (0, true));
    let rates = rates(&remote, OutagePolicy::Allow);
    let grant = block_on(rates.admit(Charges::new().permit("key", &permits, 1))).unwrap();
    assert_eq!((grant.permit_count(), grant.decisions().is_degraded()), (0, true));
    // Nothing is given back that was never taken.
    remote.0.set_down(false);
    let _held = acquire(&allowing, 2).unwrap();
    drop((permit, grant));
    assert_eq!(remote.left(&permits), 0);

    remote.0.set_down(true);
    let denying = limiter(&remote, &permits, OutagePolicy::Deny);
    let denied = acquire(&denying, 1).unwrap_err();
    assert_eq!(denied.reason(), DenyReason::Outage);
    assert_eq!(denied.decision().degraded(), Some(Degraded::Denied));
}

#[test]
fn permits_that_are_counted_here_during_an_outage_come_back() {
    let (remote, permits) = (RemoteStore::new(), permits(3));
    remote.0.set_down(true);
    let local = limiter(&remote, &permits, OutagePolicy::Local { nodes: 3 });
    let permit = acquire(&local, 1).unwrap();
    assert_eq!((permit.count(), permit.is_degraded()), (1, true));
    let denied = acquire(&local, 1).unwrap_err();
    assert_eq!(denied.reason(), DenyReason::Busy);
    assert_eq!(denied.decision().degraded(), Some(Degraded::Fallback));
    drop(permit);
    drop(acquire(&local, 1).unwrap());
    let rates = rates(&remote, OutagePolicy::Local { nodes: 3 });
    let admit = || block_on(rates.admit(Charges::new().permit("key", &permits, 1)));
    let grant = admit().unwrap();
    assert_eq!(grant.permit_count(), 1);
    assert!(admit().is_err());
    drop(grant);
    assert!(admit().is_ok());
}
