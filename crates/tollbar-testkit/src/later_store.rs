//! A store across a network, in this process: counts in memory and answers later, or not at all.
//!
//! What it is asked arrives when the reply is first polled, and its answer is there when it is polled
//! again: a reply that nobody polls was never sent, and one that is dropped halfway was.

use std::fmt;
use std::future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use tollbar::store::{Adjustment, ReservationRef};
use tollbar::{Batch, Decision, Feature, MemoryStore, Policy, Reply, Store, StoreError, Timestamp};

/// What a request waits for before it arrives.
type Delay = Box<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// See the module.
pub struct LaterStore {
    inner: Arc<MemoryStore>,
    delay: Option<Delay>,
    is_down: AtomicBool,
    refunded: AtomicU64,
}

impl LaterStore {
    /// Counts in `inner`.
    #[must_use]
    pub fn new(inner: Arc<MemoryStore>) -> Self {
        Self { inner, delay: None, is_down: AtomicBool::new(false), refunded: AtomicU64::new(0) }
    }

    /// Delays every request: it arrives when the future that `delay` makes is
    /// done, such as a timer of tokio's.
    #[must_use]
    pub fn with_delay<F>(self, delay: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self { delay: Some(Box::new(move || Box::pin(delay()))), ..self }
    }

    /// Whether it cannot be reached from now on.
    pub fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::SeqCst);
    }

    /// How many tokens have been given back.
    #[must_use]
    pub fn refunded(&self) -> u64 {
        self.refunded.load(Ordering::SeqCst)
    }

    /// Where it counts.
    #[must_use]
    pub fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn reply<'a, T: Send + 'a>(
        &'a self,
        ask: impl FnOnce(&'a MemoryStore) -> Reply<'a, T> + Send + 'a,
    ) -> Reply<'a, T> {
        Reply::Pending(Box::pin(async move {
            if let Some(delay) = &self.delay {
                delay().await;
            }
            if self.is_down.load(Ordering::SeqCst) {
                return Err(StoreError::Unavailable { source: Arc::new(fmt::Error) });
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

impl Store for LaterStore {
    fn supports(&self, feature: Feature<'_>) -> Result<(), StoreError> {
        self.inner.supports(feature)
    }

    fn check<'a>(&'a self, key: &'a [u8], policy: &'a Policy, cost: u64) -> Reply<'a, Decision> {
        self.reply(move |store| store.check(key, policy, cost))
    }

    fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        self.reply(move |store| store.decide(batch))
    }

    fn refund<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
        amount: u64,
    ) -> Reply<'a, u64> {
        self.reply(move |store| {
            let refunded = store.refund(key, policy, stamp, amount).wait();
            self.refunded.fetch_add(*refunded.as_ref().unwrap_or(&0), Ordering::SeqCst);
            Reply::Ready(refunded)
        })
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
        reservation: ReservationRef<'a>,
        adjustments: &'a mut [Adjustment<'e>],
    ) -> Reply<'a, bool> {
        self.reply(move |store| store.settle(reservation, adjustments))
    }

    fn forget_request<'a>(&'a self, request_id: &'a [u8], key: &'a [u8]) -> Reply<'a, ()> {
        self.reply(move |store| store.forget_request(request_id, key))
    }

    fn reset<'a>(&'a self, key: &'a [u8], policy: &'a Policy) -> Reply<'a, ()> {
        self.reply(move |store| store.reset(key, policy))
    }
}

impl fmt::Debug for LaterStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaterStore").field("inner", &self.inner).finish_non_exhaustive()
    }
}
