//! A limiter over any store.

use std::fmt;
use std::sync::Arc;

use crate::limiter::outage::{Outage, StoreRef};
use crate::limiter::{
    BuildError, CHECK_MANY_CHUNK, Chunk, LimiterParts, LimiterPartsBuilder, check_policies,
    entries_of, resolve_chunk,
};
use crate::store::{Batch, Entry, Feature, Store, StoreError};
use crate::{Decision, Key, OutagePolicy, Policies, Policy};

/// Limits keys, by counters in any store. It has the verbs of a [`Limiter`](crate::Limiter), `async`.
///
/// ```
/// use std::sync::Arc;
/// use tollbar::{AsyncLimiter, MemoryStore, OutagePolicy, Policy, Store};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tollbar::store::block_on(async {
/// // In production a store across a network, such as `tollbar_redis::RedisStore`.
/// let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
/// let policy = Policy::token_bucket("10/s")?.with_name("api");
/// let limiter =
///     AsyncLimiter::builder(policy, store).on_outage(OutagePolicy::Local { nodes: 3 }).build()?;
/// let decision = limiter.check("user:42").await?;
/// assert_eq!(decision.remaining(), Some(9));
/// # Ok(())
/// # })
/// # }
/// ```
///
/// While the store cannot answer, the [`OutagePolicy`] does, and the decision is marked as
/// [degraded](Decision::degraded). A call that is wrong is an error and charges nothing. Clones share
/// the same store. Over a store in memory no call suspends, and none of the checks allocates.
#[derive(Clone)]
pub struct AsyncLimiter {
    pub(crate) policies: Policies,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) outage: Arc<Outage>,
    pub(crate) parts: Arc<LimiterParts>,
}

/// Builds an [`AsyncLimiter`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct AsyncLimiterBuilder {
    policies: Policies,
    store: Arc<dyn Store>,
    on_outage: OutagePolicy,
    pub(crate) parts: LimiterPartsBuilder,
}

impl AsyncLimiter {
    /// Starts a limiter that counts in `store`. The policies need
    /// [names](crate::Policy::with_name), because others may count in the same store.
    pub fn builder(policies: impl Into<Policies>, store: Arc<dyn Store>) -> AsyncLimiterBuilder {
        AsyncLimiterBuilder {
            policies: policies.into(),
            store,
            on_outage: OutagePolicy::default(),
            parts: LimiterPartsBuilder::default(),
        }
    }

    /// May `key` pass once? Charges it if so.
    ///
    /// # Errors
    /// If the store cannot count by the key's policy, or there is an outage and
    /// [`OutagePolicy::Error`].
    pub async fn check<'k>(&self, key: impl Into<Key<'k>>) -> Result<Decision, StoreError> {
        self.check_n(key, 1).await
    }

    /// May `key` pay `cost`? Charges it if so. Cost 0 peeks: it is allowed and says what remains.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub async fn check_n<'k>(
        &self,
        key: impl Into<Key<'k>>,
        cost: u64,
    ) -> Result<Decision, StoreError> {
        let key = key.into();
        let key = key.as_bytes();
        let policy = self.policies.resolve_rate(key)?;
        let policy = policy.as_policy();
        match self.store.check(key, policy, cost).await {
            Ok(decision) => Ok(decision),
            Err(error) => self.outage.decide_one(error, key, policy, cost),
        }
    }

    /// What remains of `key`, without charging it.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub async fn peek<'k>(&self, key: impl Into<Key<'k>>) -> Result<Decision, StoreError> {
        self.check_n(key, 0).await
    }

    /// Makes the counter of `key` fresh: see [`Limiter::reset`](crate::Limiter::reset).
    ///
    /// # Errors
    /// If the store cannot answer, or cannot reset counters. The counter stays as it is then.
    pub async fn reset<'k>(&self, key: impl Into<Key<'k>>) -> Result<(), StoreError> {
        let key = key.into();
        let key = key.as_bytes();
        let policy = self.policies.resolve(key);
        self.store.reset(key, policy.as_policy()).await
    }

    /// Checks many different requests of cost 1, each charged by itself. `decisions` is emptied and
    /// then holds one per key.
    ///
    /// # Errors
    /// As [`check`](Self::check). The decisions made until then are in `decisions`.
    pub async fn check_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        decisions.clear();
        decisions.reserve(keys.len());
        for keys in keys.chunks(CHECK_MANY_CHUNK) {
            let policies = resolve_chunk(&self.policies, keys)?;
            let mut entries: Chunk<'_> = entries_of(keys, &policies);
            if let Err(error) = self.store.decide(Batch::independent(&mut entries)).await {
                for entry in &mut entries {
                    // Each by itself: one that is denied does not keep the others from passing.
                    self.outage.decide(error.clone(), std::slice::from_mut(entry))?;
                }
            }
            decisions.extend(entries.iter().filter_map(Entry::decision));
        }
        Ok(())
    }

    /// The store that counts.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(crate) fn store_ref(&self) -> StoreRef<'_> {
        StoreRef { store: &*self.store, outage: Some(&self.outage) }
    }
}

impl AsyncLimiterBuilder {
    /// What to answer while the store cannot. By default, [`OutagePolicy::Allow`].
    pub fn on_outage(self, on_outage: OutagePolicy) -> Self {
        Self { on_outage, ..self }
    }

    /// Builds the limiter.
    ///
    /// # Errors
    /// If a policy has no name, has permits, or is one that the store cannot count by.
    pub fn build(self) -> Result<AsyncLimiter, BuildError> {
        let policies = self.policies.known();
        check_policies(&policies, true)?;
        check_supported(&*self.store, &policies)?;
        Ok(AsyncLimiter {
            policies: self.policies,
            store: self.store,
            outage: Arc::new(Outage::new(self.on_outage)),
            parts: Arc::new(self.parts.build()),
        })
    }
}

/// Rejects policies that the store cannot count by.
pub(crate) fn check_supported(store: &dyn Store, policies: &[Policy]) -> Result<(), StoreError> {
    policies.iter().try_for_each(|policy| store.supports(Feature::Policy(policy)))
}

impl fmt::Debug for AsyncLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncLimiter")
            .field("policies", &self.policies)
            .field("store", &self.store)
            .field("outage", &self.outage)
            .finish_non_exhaustive()
    }
}
