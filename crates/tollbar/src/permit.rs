//! Permits in flight: lent by a limiter, and given back when they are dropped.

use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::pin;
use std::slice;
use std::sync::Arc;
use std::task::{Context, Waker};

use crate::memory::Taken;
use crate::store::{Reply, Store};
use crate::{MemoryStore, Policy};

/// Leave to go on, from [`Limiter::acquire`](crate::Limiter::acquire): what it holds is in flight
/// until it is dropped.
///
/// It holds permits of [concurrency](Policy::concurrency) policies only. A rate that was paid stays
/// paid.
///
/// ```
/// use tollbar::{Limiter, Policy};
/// # fn main() -> Result<(), tollbar::PolicyError> {
/// let limiter = Limiter::new(Policy::concurrency(10)?);
/// match limiter.acquire("user:42") {
///     Ok(_permit) => { /* serve the request; the permit goes back at the end of this block */ }
///     Err(decision) => assert!(decision.retry_after().is_none()),
/// }
/// assert_eq!(limiter.peek("user:42").remaining(), 10);
/// # Ok(())
/// # }
/// ```
///
/// Where the store is across a network, dropping is the best that can be done and no more: a permit
/// from a blocking call waits until the store has answered, one from an `_async` call sends its
/// return off and does not wait. [`release_async`](Self::release_async) does.
#[must_use = "a permit that is dropped at once has limited nothing"]
#[derive(Debug)]
pub struct Permit<'a> {
    held: Held<&'a Arc<MemoryStore>, &'a Arc<dyn Store>>,
    is_degraded: bool,
}

/// A [`Permit`] that borrows nothing, so that it can go along with a spawned task: see
/// [`Permit::into_owned`].
#[must_use = "a permit that is dropped at once has limited nothing"]
#[derive(Debug)]
pub struct OwnedPermit {
    held: Held<Arc<MemoryStore>, Arc<dyn Store>>,
    is_degraded: bool,
}

impl<'a> Permit<'a> {
    /// Nothing is in flight: a rate was paid, or nobody counts.
    pub(crate) const NOTHING: Self = Self { held: Held::Nothing, is_degraded: false };

    #[inline]
    pub(crate) fn here(store: &'a Arc<MemoryStore>, taken: Taken) -> Self {
        Self { held: Held::Here { store, taken }, is_degraded: false }
    }

    pub(crate) fn there(loan: Loan<&'a Arc<dyn Store>>) -> Self {
        Self { held: Held::There(Box::new(loan)), is_degraded: false }
    }

    pub(crate) fn into_degraded(self) -> Self {
        Self { is_degraded: true, ..self }
    }

    /// Both as one, which is given back as one. Allocates where both hold something.
    pub(crate) fn and(mut self, mut other: Self) -> Self {
        self.is_degraded |= other.is_degraded;
        self.held.join(other.held.take());
        self
    }

    /// How many permits are held. None where a rate was paid, where the cost was 0, and where the
    /// store could not answer.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.held.count()
    }

    /// True where the store could not answer and the [`FailurePolicy`](crate::FailurePolicy) let it
    /// through. It holds nothing then, but for what a fallback limiter has lent.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.is_degraded
    }

    /// The same permit, sharing the store instead of borrowing the limiter.
    ///
    /// ```
    /// use std::thread;
    /// use tollbar::{Limiter, Policy};
    /// # fn main() -> Result<(), tollbar::PolicyError> {
    /// let limiter = Limiter::new(Policy::concurrency(10)?);
    /// if let Ok(permit) = limiter.acquire("user:42") {
    ///     let permit = permit.into_owned();
    ///     let task = thread::spawn(move || drop(permit));
    /// #   task.join().unwrap();
    /// }
    /// # assert_eq!(limiter.peek("user:42").remaining(), 10);
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_owned(mut self) -> OwnedPermit {
        OwnedPermit { held: self.held.take().into_owned(), is_degraded: self.is_degraded }
    }

    /// Gives the permits back, and waits until a store across a network has taken them.
    pub async fn release_async(mut self) {
        self.held.take().release_async().await;
    }
}

impl OwnedPermit {
    /// As [`Permit::count`].
    #[must_use]
    pub fn count(&self) -> u64 {
        self.held.count()
    }

    /// As [`Permit::is_degraded`].
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.is_degraded
    }

    /// As [`Permit::release_async`].
    pub async fn release_async(mut self) {
        self.held.take().release_async().await;
    }
}

/// What is in flight, and whom it goes back to. A count of 0 has gone back already.
enum Held<M: Borrow<Arc<MemoryStore>>, S: Borrow<Arc<dyn Store>>> {
    Nothing,
    Here { store: M, taken: Taken },
    There(Box<Loan<S>>),
    Several(Vec<Self>),
}

/// Permits of a store that is asked by key.
#[derive(Debug)]
pub(crate) struct Loan<S> {
    pub(crate) store: S,
    pub(crate) key: Box<[u8]>,
    pub(crate) policy: Policy,
    pub(crate) stamp: u64,
    pub(crate) count: u64,
    /// Whether the thread may be blocked until the store has answered.
    pub(crate) may_block: bool,
}

impl<S: Borrow<Arc<dyn Store>>> Loan<S> {
    /// Nothing is left in the loan from here on, whatever becomes of the reply: returned twice, it
    /// would make room for two.
    fn refund(&mut self) -> Reply<'_, u64> {
        let count = mem::take(&mut self.count);
        self.store.borrow().refund(&self.key, &self.policy, self.stamp, count)
    }

    /// As far as it can be done here: nobody is left to tell of a failure.
    fn give_back(&mut self) {
        let may_block = self.may_block;
        match self.refund() {
            Reply::Pending(future) if !may_block => {
                // Polled once, it is on its way; who cannot wait for the answer goes without.
                let _ = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
            }
            // A store that cannot be reached keeps what it has.
            reply => drop(reply.wait()),
        }
    }
}

impl<M: Borrow<Arc<MemoryStore>>, S: Borrow<Arc<dyn Store>>> Held<M, S> {
    fn take(&mut self) -> Self {
        mem::replace(self, Self::Nothing)
    }

    fn count(&self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Here { taken, .. } => taken.count(),
            Self::There(loan) => loan.count,
            Self::Several(each) => each.iter().map(Self::count).sum(),
        }
    }

    fn join(&mut self, other: Self) {
        match (&mut *self, other) {
            (_, Self::Nothing) => {}
            (Self::Several(each), other) => each.push(other),
            (Self::Nothing, other) => *self = other,
            (_, other) => *self = Self::Several(vec![self.take(), other]),
        }
    }

    fn into_owned(mut self) -> Held<Arc<MemoryStore>, Arc<dyn Store>> {
        match &mut self {
            Self::Nothing => Held::Nothing,
            Self::Here { store, taken } => {
                Held::Here { store: Arc::clone((*store).borrow()), taken: taken.take() }
            }
            Self::There(loan) => Held::There(Box::new(Loan {
                store: Arc::clone(loan.store.borrow()),
                key: mem::take(&mut loan.key),
                policy: loan.policy.clone(),
                stamp: loan.stamp,
                count: mem::take(&mut loan.count),
                may_block: loan.may_block,
            })),
            Self::Several(each) => Held::Several(each.drain(..).map(Self::into_owned).collect()),
        }
    }

    /// Those in memory go back when this is dropped, and nobody has to wait for them.
    async fn release_async(mut self) {
        let loans: &mut [Self] = match &mut self {
            Self::Several(each) => each,
            one => slice::from_mut(one),
        };
        for held in loans {
            if let Self::There(loan) = held {
                // A store that cannot be reached keeps what it has.
                let _ = loan.refund().await;
            }
        }
    }
}

impl<M: Borrow<Arc<MemoryStore>>, S: Borrow<Arc<dyn Store>>> Drop for Held<M, S> {
    #[inline]
    fn drop(&mut self) {
        match self {
            Self::Here { store, taken } if taken.count() > 0 => {
                (*store).borrow().put_back(taken);
            }
            Self::There(loan) if loan.count > 0 => loan.give_back(),
            // Each of several gives back its own.
            _ => {}
        }
    }
}

impl<M: Borrow<Arc<MemoryStore>>, S: Borrow<Arc<dyn Store>>> fmt::Debug for Held<M, S> {
    /// Without the store, which is long, and the key, which may be somebody's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("count", &self.count()).finish_non_exhaustive()
    }
}
