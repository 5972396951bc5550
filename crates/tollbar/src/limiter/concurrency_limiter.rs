//! Limits how many requests are in flight, by counters in this process.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::charge::HeldPermits;
use crate::limiter::BuildError;
use crate::limiter::outage::StoreRef;
use crate::limiter::permit::Permit;
#[cfg(feature = "until-ready")]
use crate::memory::counter_id::CounterId;
use crate::policy::Kind;
use crate::store::{Entry, StoreError, answer_now};
use crate::{Concurrency, Decision, Denied, Key, Lease, MemoryStore, Policies, Policy};

/// Limits how many requests of a key are in flight at once. No method blocks.
///
/// ```
/// use tollbar::{Concurrency, ConcurrencyLimiter, DenyReason};
/// # fn main() -> Result<(), tollbar::PolicyError> {
/// let reports = ConcurrencyLimiter::new(Concurrency::new(1)?);
/// let permit = reports.try_acquire("acme");
/// assert!(permit.is_ok());
/// let denied = reports.try_acquire("acme").unwrap_err();
/// assert_eq!(denied.reason(), DenyReason::Busy);
/// drop(permit);
/// assert!(reports.try_acquire("acme").is_ok());
/// # Ok(())
/// # }
/// ```
///
/// Clones share the same counters. For counters in Redis or another store, see
/// [`AsyncConcurrencyLimiter`](crate::AsyncConcurrencyLimiter).
#[derive(Clone)]
pub struct ConcurrencyLimiter {
    pub(crate) policies: Policies,
    pub(crate) store: Arc<MemoryStore>,
    #[cfg(feature = "until-ready")]
    pub(crate) waiting: Arc<crate::limiter::waiting::Waitlist>,
}

/// Builds a [`ConcurrencyLimiter`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct ConcurrencyLimiterBuilder {
    policies: Policies,
    store: Option<Arc<MemoryStore>>,
    #[cfg(feature = "until-ready")]
    pub(crate) waiting: crate::limiter::waiting::WaitlistSettings,
}

/// Why there is no lease. Nothing is held.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// All permits are in flight.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The permits have no lease.
    #[error("these permits have no lease: write `Concurrency::with_lease`")]
    NoLease,
    /// The store cannot lease, or there is an outage and
    /// [`OutagePolicy::Error`](crate::OutagePolicy::Error).
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ConcurrencyLimiter {
    /// Builds a limiter with the same number of permits for every key.
    #[must_use]
    pub fn new(concurrency: Concurrency) -> Self {
        Self::from_policies(concurrency.into_policy().into())
    }

    /// Builds a limiter in which the number of permits is a function of the key. It is called on
    /// every acquisition, so it should be quick.
    #[must_use]
    pub fn from_fn(concurrency_of: impl Fn(&[u8]) -> Concurrency + Send + Sync + 'static) -> Self {
        Self::from_policies(Policies::from_fn(move |key| concurrency_of(key).into_policy()))
    }

    fn from_policies(policies: Policies) -> Self {
        Self {
            policies,
            store: Arc::new(MemoryStore::new()),
            #[cfg(feature = "until-ready")]
            waiting: Arc::new(crate::limiter::waiting::Waitlist::new(
                crate::limiter::waiting::WaitlistSettings::default(),
            )),
        }
    }

    /// Starts a limiter over a store that is shared, or with other numbers for waiting.
    pub fn builder(concurrency: Concurrency) -> ConcurrencyLimiterBuilder {
        ConcurrencyLimiterBuilder {
            policies: concurrency.into_policy().into(),
            store: None,
            #[cfg(feature = "until-ready")]
            waiting: crate::limiter::waiting::WaitlistSettings::default(),
        }
    }

    /// Takes one permit of `key`, if one is free now. It comes back when the [`Permit`] is dropped.
    ///
    /// # Errors
    /// If all permits are in flight.
    #[inline]
    pub fn try_acquire<'k>(&self, key: impl Into<Key<'k>>) -> Result<Permit<'_>, Denied> {
        self.try_acquire_n(key, 1)
    }

    /// Takes `count` permits of `key`, all of them or none. A count of 0 peeks: it is allowed and
    /// holds nothing.
    ///
    /// # Errors
    /// If so many are not free now, or never can be.
    #[inline]
    pub fn try_acquire_n<'k>(
        &self,
        key: impl Into<Key<'k>>,
        count: u64,
    ) -> Result<Permit<'_>, Denied> {
        let key = key.into();
        let key = key.as_bytes();
        self.policies.with(key, |policy| match &policy.kind {
            Kind::Concurrency(permits) => match self.store.take(permits, key, policy, count) {
                Ok(counter_permits) => Ok(Permit::local(self, counter_permits)),
                Err(decision) => Err(decision.into_denied()),
            },
            _ => self.try_acquire_leased(key, policy, count),
        })
    }

    #[cold]
    fn try_acquire_leased(
        &self,
        key: &[u8],
        policy: &Policy,
        count: u64,
    ) -> Result<Permit<'_>, Denied> {
        let Ok(entry) = answer_now(self.store_ref().ask(key, policy, count)) else {
            // A store in this process answers a batch of one.
            return Err(Decision::UNDECIDED.into_denied());
        };
        entry.decision.unwrap_or(Decision::UNDECIDED).ok()?;
        Ok(self.lend(&entry))
    }

    /// The permit of what an entry was charged.
    pub(crate) fn lend(&self, entry: &Entry<'_>) -> Permit<'_> {
        if let Kind::Concurrency(_) = entry.policy.kind {
            return Permit::local(
                self,
                self.store.counter_permits(entry.key, entry.policy, entry.cost),
            );
        }
        let permit = Permit::remote(self.store.clone(), HeldPermits::from_entry(entry));
        #[cfg(feature = "until-ready")]
        let permit = permit.with_waitlist(&self.waiting, self.waiting_id(entry.key, entry.policy));
        permit
    }

    /// The name of the line in which requests wait for permits.
    #[cfg(feature = "until-ready")]
    pub(crate) fn waiting_id(&self, key: &[u8], policy: &Policy) -> CounterId {
        // Permits without a lease come back by the store's name.
        self.store.counter_id(key, policy)
    }

    pub(crate) fn store_ref(&self) -> StoreRef<'_> {
        StoreRef { store: &*self.store, outage: None }
    }

    /// Takes one permit of `key` as a [`Lease`]: data that can travel, and that ends by itself.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollbar::{Concurrency, ConcurrencyLimiter, Lease};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let jobs = ConcurrencyLimiter::new(Concurrency::new(1)?.with_lease(Duration::from_secs(30))?);
    /// let mut lease = jobs.lease("job:7")?;
    /// assert!(jobs.lease("job:7").is_err());
    /// // A worker that is alive says so from time to time.
    /// assert!(jobs.renew(&mut lease));
    /// // Key and id go to the worker, and come back.
    /// assert!(jobs.release(&Lease::from_id(&*lease.key, lease.id)));
    /// assert!(!jobs.release(&lease), "once is enough");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If all permits are in flight, or they have no [lease](Concurrency::with_lease).
    pub fn lease<'k>(&self, key: impl Into<Key<'k>>) -> Result<Lease, LeaseError> {
        self.lease_n(key, 1)
    }

    /// Takes `count` permits of `key` as one lease, all of them or none.
    ///
    /// # Errors
    /// As [`lease`](Self::lease).
    pub fn lease_n<'k>(&self, key: impl Into<Key<'k>>, count: u64) -> Result<Lease, LeaseError> {
        let key = key.into();
        let key = key.as_bytes();
        self.policies.with(key, |policy| answer_now(self.store_ref().lease(key, policy, count)))
    }

    /// Lets a lease begin anew. False where it has ended, or was released.
    pub fn renew(&self, lease: &mut Lease) -> bool {
        let policy = self.policies.resolve(&lease.key);
        answer_now(self.store_ref().renew(lease, policy.as_policy()))
    }

    /// Gives the permits of a lease back. False where it has ended, or was released before.
    #[expect(clippy::must_use_candidate, reason = "a lease that has ended needs no care")]
    pub fn release(&self, lease: &Lease) -> bool {
        self.policies.with(&lease.key, |policy| {
            let is_released = answer_now(self.store_ref().release(lease, policy));
            #[cfg(feature = "until-ready")]
            if is_released {
                self.waiting.notify(self.waiting_id(&lease.key, policy));
            }
            is_released
        })
    }

    /// How many permits of `key` are free, without taking one.
    #[must_use]
    pub fn peek<'k>(&self, key: impl Into<Key<'k>>) -> Decision {
        let key = key.into();
        let key = key.as_bytes();
        self.policies.with(key, |policy| self.store.check_now(key, policy, 0))
    }

    /// Forgets the permits of `key` that are in flight. A lease from before gives nothing back
    /// afterwards; a permit without a lease that was taken before and comes back after makes room for
    /// one more.
    pub fn reset<'k>(&self, key: impl Into<Key<'k>>) {
        let key = key.into();
        let key = key.as_bytes();
        self.policies.with(key, |policy| self.store.reset_now(key, policy));
    }
}

impl ConcurrencyLimiterBuilder {
    /// Counts in `store`, which other limiters may share. The permits need a
    /// [name](Concurrency::with_name) then.
    pub fn store(self, store: Arc<MemoryStore>) -> Self {
        Self { store: Some(store), ..self }
    }

    /// Builds the limiter.
    ///
    /// # Errors
    /// If the permits have no name although a store is passed in.
    pub fn build(self) -> Result<ConcurrencyLimiter, BuildError> {
        if self.store.is_some() {
            check_names(&self.policies)?;
        }
        Ok(ConcurrencyLimiter {
            policies: self.policies,
            store: self.store.unwrap_or_default(),
            #[cfg(feature = "until-ready")]
            waiting: Arc::new(crate::limiter::waiting::Waitlist::new(self.waiting)),
        })
    }
}

/// Rejects permits without a name, which would share counters with others in the same store.
pub(crate) fn check_names(policies: &Policies) -> Result<(), BuildError> {
    match policies.known().iter().find(|policy| policy.name().is_none()) {
        Some(policy) => Err(BuildError::Unnamed { algorithm: policy.algorithm().name() }),
        None => Ok(()),
    }
}

impl fmt::Debug for ConcurrencyLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcurrencyLimiter")
            .field("policies", &self.policies)
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}
