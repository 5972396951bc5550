//! The limiter: a policy, a store, and what to do when the store cannot answer.

mod acquiring;
mod leasing;
mod reserve;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::charge::ChargeIds;
use crate::receipt::ReceiptKey;
use crate::store::{Batch, Entry, Store, StoreError};
use crate::{Decision, Degraded, FailurePolicy, MemoryStore, Policy, PolicyResolver, Verdict};

pub use acquiring::AcquireError;
pub use reserve::{RequestError, Reservation};

/// Limits keys. Share one by reference or in an `Arc`; it has no state outside its store.
///
/// ```
/// use tollbar::{Limiter, Policy};
/// # fn main() -> Result<(), tollbar::PolicyError> {
/// let limiter = Limiter::new(Policy::token_bucket("10/s")?);
/// let decision = limiter.check("user:42");
/// assert!(decision.is_allowed());
/// assert_eq!(decision.remaining(), 9);
/// # Ok(())
/// # }
/// ```
///
/// The methods without `_async` answer at once over the memory store, and block the thread over a
/// store across a network; from async code use those with it. During an outage of the store the
/// [`FailurePolicy`] answers, and the decision says so. A call that is wrong, such as one with more
/// entries than a batch may have, is an error and charges nothing; a policy that the store cannot
/// count is denied for good ([`Outcome::Never`](crate::Outcome::Never)).
pub struct Limiter {
    pub(crate) policies: Policies,
    pub(crate) store: Arc<dyn Store>,
    /// The same store, where it is in memory: asked directly it answers 6 ns sooner, because its
    /// decision need not be taken out of a reply.
    pub(crate) memory: Option<Arc<MemoryStore>>,
    pub(crate) on_failure: FailurePolicy,
    charge_ids: ChargeIds,
    #[cfg(feature = "until-ready")]
    pub(crate) waiting: crate::waiting::Waiting,
}

pub(crate) enum Policies {
    One(Box<Policy>),
    Resolved(Box<dyn PolicyResolver>),
}

/// A [`Limiter`] in the making.
#[derive(Debug)]
pub struct LimiterBuilder {
    policies: Policies,
    store: Option<Arc<dyn Store>>,
    on_failure: FailurePolicy,
    receipt_key: Option<ReceiptKey>,
    request_id_ttl: Duration,
    #[cfg(feature = "until-ready")]
    pub(crate) waiting: crate::waiting::WaitingBuilder,
}

/// How many keys `check_many` asks its store for at once.
const CHECK_MANY_CHUNK: usize = 16;

impl Limiter {
    /// Every key under the same policy, in a memory store of its own for a million keys.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self::builder(policy).build()
    }

    /// Every key under the policy that `resolver` names, in a memory store of its own.
    #[must_use]
    pub fn resolved_by(resolver: impl PolicyResolver) -> Self {
        Self::builder_resolved_by(resolver).build()
    }

    /// A limiter with one policy and other parts.
    #[must_use]
    pub fn builder(policy: Policy) -> LimiterBuilder {
        LimiterBuilder::new(Policies::One(Box::new(policy)))
    }

    /// A limiter with a resolver and other parts.
    #[must_use]
    pub fn builder_resolved_by(resolver: impl PolicyResolver) -> LimiterBuilder {
        LimiterBuilder::new(Policies::Resolved(Box::new(resolver)))
    }

    /// May `key` pass once?
    #[inline]
    pub fn check(&self, key: impl AsRef<[u8]>) -> Decision {
        self.check_cost(key, 1)
    }

    /// May `key` pay `cost`? Cost 0 peeks: it is allowed and says what remains.
    #[inline]
    pub fn check_cost(&self, key: impl AsRef<[u8]>, cost: u64) -> Decision {
        let key = key.as_ref();
        self.policies.with(key, |policy| match &self.memory {
            Some(memory) => memory.check_now(key, policy, cost),
            None => self.check_elsewhere(key, policy, cost),
        })
    }

    #[cold]
    fn check_elsewhere(&self, key: &[u8], policy: &Policy, cost: u64) -> Decision {
        let answer = self.store.check(key, policy, cost).wait();
        answer.unwrap_or_else(|error| self.on_failure.decide(&error, key, policy, cost))
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn check_async(&self, key: impl AsRef<[u8]>, cost: u64) -> Decision {
        let key = key.as_ref();
        let policy = self.policies.with(key, Policy::clone);
        let answer = self.store.check(key, &policy, cost).await;
        answer.unwrap_or_else(|error| self.on_failure.decide(&error, key, &policy, cost))
    }

    /// What remains of `key`, without charging it.
    #[inline]
    pub fn peek(&self, key: impl AsRef<[u8]>) -> Decision {
        self.check_cost(key, 0)
    }

    /// Makes the counter of `key` fresh. Does nothing while the store cannot be reached.
    ///
    /// What was reserved before is gone with it: a reservation that is settled after the reset gives
    /// nothing back, and neither does a lease. A permit without a lease is like any other: one that
    /// was taken before the reset and comes back after it makes room for one more.
    pub fn reset(&self, key: impl AsRef<[u8]>) {
        let key = key.as_ref();
        self.policies.with(key, |policy| {
            // Nothing to decide in its place: a counter that cannot be reached stays as it is.
            let _ = self.store.reset(key, policy).wait();
        });
    }

    /// Many different requests of cost 1 at one instant, each charged by itself.
    ///
    /// `decisions` is emptied and then holds one per key. Several times faster per key than
    /// [`check`](Self::check) where the keys are many: their memory is fetched together.
    pub fn check_many<K: AsRef<[u8]>>(&self, keys: &[K], decisions: &mut Vec<Decision>) {
        if let (Policies::One(policy), Some(memory)) = (&self.policies, &self.memory) {
            return memory.check_many_now(keys, policy, decisions);
        }
        decisions.clear();
        decisions.reserve(keys.len());
        for keys in keys.chunks(CHECK_MANY_CHUNK) {
            match &self.policies {
                Policies::One(policy) => {
                    self.check_chunk(keys.iter().map(|key| Entry::new(key, policy)), decisions);
                }
                Policies::Resolved(resolver) => {
                    let policies: arrayvec::ArrayVec<Policy, CHECK_MANY_CHUNK> =
                        keys.iter().map(|key| resolver.resolve(key.as_ref())).collect();
                    let entries = keys.iter().zip(&policies);
                    self.check_chunk(
                        entries.map(|(key, policy)| Entry::new(key, policy)),
                        decisions,
                    );
                }
            }
        }
    }

    fn check_chunk<'e>(
        &self,
        entries: impl Iterator<Item = Entry<'e>>,
        decisions: &mut Vec<Decision>,
    ) {
        let mut entries: arrayvec::ArrayVec<Entry<'e>, CHECK_MANY_CHUNK> = entries.collect();
        let answer = self.store.decide(Batch::independent(&mut entries)).wait();
        if let Err(error) = answer {
            for entry in &mut entries {
                let (key, policy, cost) = (entry.key, entry.policy, entry.cost);
                entry.decision = Some(self.on_failure.decide(&error, key, policy, cost));
            }
        }
        decisions.extend(entries.iter().filter_map(Entry::decision));
    }

    /// One request under several policies or keys: all are charged, or none.
    ///
    /// The policies are those of the entries; the limiter lends its store and failure policy. Each
    /// entry holds its own decision afterwards, and the verdict names the one that binds.
    ///
    /// Beware of [concurrency](Policy::concurrency) among the entries: its permits stay taken until
    /// [`Store::refund`] gives them back. [`acquire_all`](Self::acquire_all) does so by itself.
    ///
    /// # Errors
    /// If there are more entries than a batch may have, or something else that the store cannot do
    /// is asked of it. Nothing is charged then.
    pub fn check_all(&self, entries: &mut [Entry<'_>]) -> Result<Verdict, RequestError> {
        let answer = self.store.decide(Batch::all_or_none(entries)).wait();
        self.verdict(answer, entries)
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn check_all_async(
        &self,
        entries: &mut [Entry<'_>],
    ) -> Result<Verdict, RequestError> {
        let answer = self.store.decide(Batch::all_or_none(entries)).await;
        self.verdict(answer, entries)
    }

    /// What a store's answer to a batch comes to; the failure policy's during an outage.
    fn verdict(
        &self,
        answer: Result<(), StoreError>,
        entries: &mut [Entry<'_>],
    ) -> Result<Verdict, RequestError> {
        if let Err(error) = answer {
            self.decide_without_store(error, entries)?;
        }
        Ok(Verdict::of(entries))
    }

    /// The decisions of the failure policy, for one request under several policies.
    #[cold]
    fn decide_without_store(
        &self,
        error: StoreError,
        entries: &mut [Entry<'_>],
    ) -> Result<(), RequestError> {
        if !error.is_outage() {
            return Err(error.into());
        }
        if let FailurePolicy::Fallback(limiter) = &self.on_failure {
            // By the entries' own policies, all or none, in the store of the other limiter.
            limiter.check_all(entries)?;
            for entry in entries {
                entry.decision = entry.decision.map(|it| it.into_degraded(Degraded::Fallback));
            }
            return Ok(());
        }
        for entry in entries {
            let (key, policy, cost) = (entry.key, entry.policy, entry.cost);
            entry.decision = Some(self.on_failure.decide(&error, key, policy, cost));
        }
        Ok(())
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }
}

impl Policies {
    #[inline]
    fn with<T>(&self, key: &[u8], f: impl FnOnce(&Policy) -> T) -> T {
        match self {
            Self::One(policy) => f(policy),
            Self::Resolved(resolver) => f(&resolver.resolve(key)),
        }
    }
}

impl LimiterBuilder {
    fn new(policies: Policies) -> Self {
        Self {
            policies,
            store: None,
            on_failure: FailurePolicy::default(),
            receipt_key: None,
            request_id_ttl: ChargeIds::REQUEST_ID_TTL_DEFAULT,
            #[cfg(feature = "until-ready")]
            waiting: crate::waiting::WaitingBuilder::default(),
        }
    }

    /// Counts in `store`, which other limiters may share.
    #[must_use]
    pub fn store(self, store: Arc<dyn Store>) -> Self {
        Self { store: Some(store), ..self }
    }

    /// What to answer when the store cannot. By default, allow.
    #[must_use]
    pub fn on_failure(self, on_failure: FailurePolicy) -> Self {
        Self { on_failure, ..self }
    }

    /// Gives out receipts that every limiter with the same key and the same store can settle. By
    /// default, a key of its own that is gone when the limiter is.
    #[must_use]
    pub fn receipt_key(self, key: ReceiptKey) -> Self {
        Self { receipt_key: Some(key), ..self }
    }

    /// For how long an allowed request is remembered by its id. By default, ten minutes.
    #[must_use]
    pub fn request_id_ttl(self, ttl: Duration) -> Self {
        Self { request_id_ttl: ttl, ..self }
    }

    /// The limiter.
    #[must_use]
    pub fn build(self) -> Limiter {
        let store = self.store.unwrap_or_else(|| Arc::new(MemoryStore::new()));
        let any: Arc<dyn Any + Send + Sync> = store.clone();
        Limiter {
            policies: self.policies,
            memory: any.downcast().ok(),
            store,
            on_failure: self.on_failure,
            charge_ids: ChargeIds::new(
                self.receipt_key.unwrap_or_else(ReceiptKey::random),
                self.request_id_ttl,
            ),
            #[cfg(feature = "until-ready")]
            waiting: self.waiting.build(),
        }
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("policies", &self.policies)
            .field("store", &self.store)
            .field("on_failure", &self.on_failure)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(policy) => f.debug_tuple("One").field(policy).finish(),
            Self::Resolved(_) => f.write_str("Resolved(..)"),
        }
    }
}
