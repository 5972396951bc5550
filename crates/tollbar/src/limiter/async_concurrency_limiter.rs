//! Limits how many requests are in flight, by counters in any store.

use std::fmt;
use std::sync::Arc;

use crate::charge::HeldPermits;
use crate::limiter::BuildError;
use crate::limiter::async_limiter::check_supported;
use crate::limiter::concurrency_limiter::{LeaseError, check_names};
use crate::limiter::outage::{Outage, StoreRef};
use crate::limiter::permit::Permit;
use crate::store::{Entry, Store, StoreError};
use crate::{Concurrency, Decision, Denied, Key, Lease, OutagePolicy, Policies};
#[cfg(feature = "until-ready")]
use crate::{Policy, memory::counter_id::CounterId};

/// Limits how many requests of a key are in flight at once, by counters in any store. It has the verbs
/// of a [`ConcurrencyLimiter`](crate::ConcurrencyLimiter), `async`.
///
/// Give the permits a [lease](Concurrency::with_lease) where the store is across a network: a process
/// that vanishes cannot return them.
#[derive(Clone)]
pub struct AsyncConcurrencyLimiter {
    pub(crate) policies: Policies,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) outage: Arc<Outage>,
    #[cfg(feature = "until-ready")]
    pub(crate) waiting: Arc<crate::limiter::waiting::Waitlist>,
}

/// Builds an [`AsyncConcurrencyLimiter`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct AsyncConcurrencyLimiterBuilder {
    policies: Policies,
    store: Arc<dyn Store>,
    on_outage: OutagePolicy,
    #[cfg(feature = "until-ready")]
    pub(crate) waiting: crate::limiter::waiting::WaitlistSettings,
}

/// Why permits were not taken. Nothing is held.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// So many are not free now.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The store cannot count permits, or there is an outage and [`OutagePolicy::Error`].
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl AsyncConcurrencyLimiter {
    /// Starts a limiter that counts in `store`. The permits need a
    /// [name](Concurrency::with_name), because others may count in the same store.
    pub fn builder(
        concurrency: Concurrency,
        store: Arc<dyn Store>,
    ) -> AsyncConcurrencyLimiterBuilder {
        AsyncConcurrencyLimiterBuilder {
            policies: concurrency.into_policy().into(),
            store,
            on_outage: OutagePolicy::default(),
            #[cfg(feature = "until-ready")]
            waiting: crate::limiter::waiting::WaitlistSettings::default(),
        }
    }

    /// Takes one permit of `key`, if one is free now. It comes back when the [`Permit`] is dropped;
    /// [`Permit::release`] waits until the store has taken it.
    ///
    /// # Errors
    /// If all permits are in flight, or the store cannot count them.
    pub async fn try_acquire<'k>(
        &self,
        key: impl Into<Key<'k>>,
    ) -> Result<Permit<'static>, AcquireError> {
        self.try_acquire_n(key, 1).await
    }

    /// Takes `count` permits of `key`, all of them or none.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire).
    pub async fn try_acquire_n<'k>(
        &self,
        key: impl Into<Key<'k>>,
        count: u64,
    ) -> Result<Permit<'static>, AcquireError> {
        let key = key.into();
        let key = key.as_bytes();
        let policy = self.policies.resolve(key);
        let entry = self.store_ref().ask(key, policy.as_policy(), count).await?;
        entry.decision.unwrap_or(Decision::UNDECIDED).ok()?;
        Ok(self.lend(&entry))
    }

    /// The permit of what an entry was charged, by the store or in this process.
    pub(crate) fn lend(&self, entry: &Entry<'_>) -> Permit<'static> {
        let held = HeldPermits::from_entry(entry);
        if entry.decision.is_some_and(|decision| decision.degraded().is_some()) {
            let permit = match self.outage.local() {
                Some(local) => Permit::remote(local, held),
                None => Permit::EMPTY,
            };
            return permit.into_degraded();
        }
        let permit = Permit::remote(Arc::clone(&self.store), held);
        #[cfg(feature = "until-ready")]
        let permit = permit.with_waitlist(&self.waiting, self.waiting_id(entry.key, entry.policy));
        permit
    }

    /// The name of the line in which requests wait for permits.
    #[cfg(feature = "until-ready")]
    pub(crate) fn waiting_id(&self, key: &[u8], policy: &Policy) -> CounterId {
        self.waiting.id(key, policy)
    }

    pub(crate) fn store_ref(&self) -> StoreRef<'_> {
        StoreRef { store: &*self.store, outage: Some(&self.outage) }
    }

    /// Takes one permit of `key` as a [`Lease`]: see
    /// [`ConcurrencyLimiter::lease`](crate::ConcurrencyLimiter::lease).
    ///
    /// # Errors
    /// If all permits are in flight, they have no lease, or the store cannot lease.
    pub async fn lease<'k>(&self, key: impl Into<Key<'k>>) -> Result<Lease, LeaseError> {
        self.lease_n(key, 1).await
    }

    /// Takes `count` permits of `key` as one lease, all of them or none.
    ///
    /// # Errors
    /// As [`lease`](Self::lease).
    pub async fn lease_n<'k>(
        &self,
        key: impl Into<Key<'k>>,
        count: u64,
    ) -> Result<Lease, LeaseError> {
        let key = key.into();
        let key = key.as_bytes();
        let policy = self.policies.resolve(key);
        self.store_ref().lease(key, policy.as_policy(), count).await
    }

    /// Lets a lease begin anew. False where it has ended or was released, and while the store cannot
    /// answer.
    pub async fn renew(&self, lease: &mut Lease) -> bool {
        let policy = self.policies.resolve(&lease.key);
        self.store_ref().renew(lease, policy.as_policy()).await
    }

    /// Gives the permits of a lease back. False where it has ended or was released before, and while
    /// the store cannot answer: then it ends by itself.
    pub async fn release(&self, lease: &Lease) -> bool {
        let policy = self.policies.resolve(&lease.key);
        let policy = policy.as_policy();
        let is_released = self.store_ref().release(lease, policy).await;
        #[cfg(feature = "until-ready")]
        if is_released {
            self.waiting.notify(self.waiting_id(&lease.key, policy));
        }
        is_released
    }

    /// How many permits of `key` are free, without taking one.
    ///
    /// # Errors
    /// If the store cannot count permits, or there is an outage and [`OutagePolicy::Error`].
    pub async fn peek<'k>(&self, key: impl Into<Key<'k>>) -> Result<Decision, StoreError> {
        let key = key.into();
        let key = key.as_bytes();
        let policy = self.policies.resolve(key);
        let entry = self.store_ref().ask(key, policy.as_policy(), 0).await?;
        Ok(entry.decision.unwrap_or(Decision::UNDECIDED))
    }

    /// Forgets the permits of `key` that are in flight: see
    /// [`ConcurrencyLimiter::reset`](crate::ConcurrencyLimiter::reset).
    ///
    /// # Errors
    /// If the store cannot answer, or cannot reset counters. The permits stay in flight then.
    pub async fn reset<'k>(&self, key: impl Into<Key<'k>>) -> Result<(), StoreError> {
        let key = key.into();
        let key = key.as_bytes();
        self.store.reset(key, self.policies.resolve(key).as_policy()).await
    }
}

impl AsyncConcurrencyLimiterBuilder {
    /// What to answer while the store cannot. By default, [`OutagePolicy::Allow`].
    pub fn on_outage(self, on_outage: OutagePolicy) -> Self {
        Self { on_outage, ..self }
    }

    /// Builds the limiter.
    ///
    /// # Errors
    /// If the permits have no name, or the store cannot count them.
    pub fn build(self) -> Result<AsyncConcurrencyLimiter, BuildError> {
        check_names(&self.policies)?;
        check_supported(&*self.store, &self.policies.known())?;
        Ok(AsyncConcurrencyLimiter {
            policies: self.policies,
            store: self.store,
            outage: Arc::new(Outage::new(self.on_outage)),
            #[cfg(feature = "until-ready")]
            waiting: Arc::new(crate::limiter::waiting::Waitlist::new(self.waiting)),
        })
    }
}

impl fmt::Debug for AsyncConcurrencyLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncConcurrencyLimiter")
            .field("policies", &self.policies)
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}
