//! Permits in flight: lent by a limiter, and given back when they are dropped.

use std::fmt;
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use crate::ConcurrencyLimiter;
use crate::charge::HeldPermits;
use crate::memory::CounterPermits;
#[cfg(feature = "until-ready")]
use crate::memory::counter_id::CounterId;
use crate::store::{Reply, Store, StoreError};

/// Leave to go on, from [`ConcurrencyLimiter::try_acquire`]: it is in flight until it is dropped.
///
/// ```
/// use tollbar::{Concurrency, ConcurrencyLimiter};
/// # fn main() -> Result<(), tollbar::PolicyError> {
/// let limiter = ConcurrencyLimiter::new(Concurrency::new(10)?);
/// match limiter.try_acquire("user:42") {
///     Ok(_permit) => { /* serve the request; the permit goes back at the end of this block */ }
///     Err(denied) => println!("{denied}"),
/// }
/// assert_eq!(limiter.peek("user:42").remaining(), Some(10));
/// # Ok(())
/// # }
/// ```
///
/// A permit of a store across a network is sent off when it is dropped, without waiting for the
/// answer. [`release`](Self::release) waits.
#[must_use = "a permit that is dropped at once has limited nothing"]
#[derive(Debug)]
pub struct Permit<'a> {
    held: PermitState<'a>,
    is_degraded: bool,
}

enum PermitState<'a> {
    Empty,
    Local { limiter: LimiterRef<'a>, counter_permits: CounterPermits },
    Remote(Box<RemotePermits>),
}

enum LimiterRef<'a> {
    Borrowed(&'a ConcurrencyLimiter),
    Owned(ConcurrencyLimiter),
}

/// Permits of a store that is asked by key.
struct RemotePermits {
    store: Arc<dyn Store>,
    held: HeldPermits,
    /// The requests that wait for these permits.
    #[cfg(feature = "until-ready")]
    waiting: Option<(Arc<crate::limiter::waiting::Waitlist>, CounterId)>,
}

impl<'a> Permit<'a> {
    /// Nothing is in flight: nothing was asked for, or nobody counts.
    pub(crate) const EMPTY: Self = Self { held: PermitState::Empty, is_degraded: false };

    #[inline]
    pub(crate) fn local(limiter: &'a ConcurrencyLimiter, counter_permits: CounterPermits) -> Self {
        let limiter = LimiterRef::Borrowed(limiter);
        Self { held: PermitState::Local { limiter, counter_permits }, is_degraded: false }
    }

    pub(crate) fn remote(store: Arc<dyn Store>, held: Option<HeldPermits>) -> Self {
        let Some(held) = held else {
            return Self::EMPTY;
        };
        let remote = RemotePermits {
            store,
            held,
            #[cfg(feature = "until-ready")]
            waiting: None,
        };
        Self { held: PermitState::Remote(Box::new(remote)), is_degraded: false }
    }

    pub(crate) fn into_degraded(mut self) -> Self {
        self.is_degraded = true;
        self
    }

    /// Lets the first request that waits in queue `id` ask again once the permit is back.
    #[cfg(feature = "until-ready")]
    pub(crate) fn with_waitlist(
        mut self,
        waiting: &Arc<crate::limiter::waiting::Waitlist>,
        id: CounterId,
    ) -> Self {
        if let PermitState::Remote(remote) = &mut self.held {
            remote.waiting = Some((Arc::clone(waiting), id));
        }
        self
    }

    /// How many permits are held. 0 where none was asked for, and where the store could not answer.
    #[must_use]
    pub fn count(&self) -> u64 {
        match &self.held {
            PermitState::Empty => 0,
            PermitState::Local { counter_permits, .. } => counter_permits.count(),
            PermitState::Remote(remote) => remote.held.count,
        }
    }

    /// True where the store could not answer and the [`OutagePolicy`](crate::OutagePolicy) let the
    /// request through. Nothing is held then, but for what was counted in this process.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.is_degraded
    }

    /// Shares the limiter's store instead of borrowing the limiter, so that the permit can go along
    /// with a thread or a task.
    ///
    /// ```
    /// use std::thread;
    /// use tollbar::{Concurrency, ConcurrencyLimiter};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = ConcurrencyLimiter::new(Concurrency::new(10)?);
    /// let permit = limiter.try_acquire("user:42")?.into_owned();
    /// let task = thread::spawn(move || drop(permit));
    /// # task.join().unwrap();
    /// # assert_eq!(limiter.peek("user:42").remaining(), Some(10));
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_owned(mut self) -> Permit<'static> {
        let held = match mem::replace(&mut self.held, PermitState::Empty) {
            PermitState::Empty => PermitState::Empty,
            PermitState::Local { limiter, counter_permits } => {
                PermitState::Local { limiter: limiter.into_owned(), counter_permits }
            }
            PermitState::Remote(remote) => PermitState::Remote(remote),
        };
        Permit { held, is_degraded: self.is_degraded }
    }

    /// Gives the permits back, and waits until a store across a network has taken them.
    ///
    /// # Errors
    /// The store's error. It keeps the permits until their lease ends.
    pub async fn release(mut self) -> Result<(), StoreError> {
        // Taken out first, so that they are sent once even if this future is dropped halfway.
        if let PermitState::Remote(remote) = mem::replace(&mut self.held, PermitState::Empty) {
            let released = remote.held.release(&*remote.store).await;
            remote.notify();
            released?;
        }
        Ok(())
    }
}

impl RemotePermits {
    #[cfg_attr(
        not(feature = "until-ready"),
        expect(clippy::unused_self, reason = "without the feature nobody waits for a permit")
    )]
    fn notify(&self) {
        #[cfg(feature = "until-ready")]
        if let Some((waiting, id)) = &self.waiting {
            waiting.notify(*id);
        }
    }
}

impl Drop for Permit<'_> {
    #[inline]
    fn drop(&mut self) {
        match &self.held {
            PermitState::Local { limiter, counter_permits } if counter_permits.count() > 0 => {
                limiter.put_back(counter_permits);
            }
            PermitState::Remote(remote) => {
                send_off(remote.held.release(&*remote.store));
                remote.notify();
            }
            PermitState::Local { .. } | PermitState::Empty => {}
        }
    }
}

impl LimiterRef<'_> {
    fn into_owned(self) -> LimiterRef<'static> {
        match self {
            Self::Borrowed(limiter) => LimiterRef::Owned(limiter.clone()),
            Self::Owned(limiter) => LimiterRef::Owned(limiter),
        }
    }

    #[inline]
    fn put_back(&self, counter_permits: &CounterPermits) {
        let limiter = match self {
            Self::Borrowed(limiter) => *limiter,
            Self::Owned(limiter) => limiter,
        };
        limiter.store.put_back(counter_permits);
        #[cfg(feature = "until-ready")]
        limiter.waiting.notify(counter_permits.id());
    }
}

/// Sends a request whose answer nobody waits for. Polled once, it is on its way; a store that cannot
/// be reached keeps what it has.
pub(crate) fn send_off<T>(reply: Reply<'_, T>) {
    if let Reply::Pending(future) = reply {
        #[expect(
            clippy::let_underscore_must_use,
            reason = "the first poll sends it off; nobody waits for the answer"
        )]
        let _ = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
    }
}

impl fmt::Debug for PermitState<'_> {
    /// Without the store, which is long, and the key, which may be somebody's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "Empty",
            Self::Local { .. } => "Local(..)",
            Self::Remote(_) => "Remote(..)",
        })
    }
}
