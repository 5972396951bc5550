//! The limiters: over counters in this process or over any store, of rates or of permits in flight.
//!
//! | module | what it has |
//! |---|---|
//! | this one, `async_limiter` | limiters of rates |
//! | `concurrency_limiter`, `async_concurrency_limiter` | limiters of permits in flight |
//! | `policies` | which policy a key is under |
//! | `admit`, `decisions` | one request under several limits, and what its decisions come to |
//! | `reserve`, `permit`, `lease` | what a caller holds until it is settled, dropped or ended |
//! | `outage` | what to answer while the store cannot |
//! | `waiting` | waiting for a turn, first in, first out for each key |

pub(crate) mod admit;
pub(crate) mod async_concurrency_limiter;
pub(crate) mod async_limiter;
pub(crate) mod concurrency_limiter;
pub(crate) mod decisions;
pub(crate) mod lease;
pub(crate) mod outage;
pub(crate) mod permit;
pub(crate) mod policies;
pub(crate) mod reserve;
#[cfg(feature = "until-ready")]
pub(crate) mod waiting;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::charge::ChargeIds;
use crate::limiter::outage::StoreRef;
use crate::limiter::policies::PERMITS;
use crate::receipt::ReceiptKey;
use crate::store::{Entry, Once};
use crate::{Clock, Decision, Key, MemoryStore, MemoryStoreBuilder, Policies, Policy, StoreError};

/// Limits keys, by counters in this process. No method blocks.
///
/// ```
/// use tollbar::{Limiter, Policy};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Policy::token_bucket("10/s")?);
/// let decision = limiter.check("user:42").ok()?;
/// assert_eq!(decision.remaining(), Some(9));
/// # Ok(())
/// # }
/// ```
///
/// Clones share the same counters, so one can be kept in a `static`, in the state of a web service,
/// or in each of its handlers. For counters in Redis or another store, see
/// [`AsyncLimiter`](crate::AsyncLimiter), which has the same verbs.
#[derive(Clone)]
pub struct Limiter {
    pub(crate) policies: Policies,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) parts: Arc<LimiterParts>,
}

/// What only reservations and waiting need.
#[derive(Debug)]
pub(crate) struct LimiterParts {
    pub(crate) charge_ids: ChargeIds,
    pub(crate) reservation_ttl: Duration,
    #[cfg(feature = "until-ready")]
    pub(crate) waiting: crate::limiter::waiting::Waitlist,
}

/// Builds [`LimiterParts`].
#[derive(Debug)]
pub(crate) struct LimiterPartsBuilder {
    pub(crate) receipt_key: Option<ReceiptKey>,
    pub(crate) request_id_ttl: Duration,
    pub(crate) request_id_replays: u8,
    pub(crate) reservation_ttl: Duration,
    #[cfg(feature = "until-ready")]
    pub(crate) waiting: crate::limiter::waiting::WaitlistSettings,
}

/// Builds a [`Limiter`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct LimiterBuilder {
    policies: Policies,
    store: Option<Arc<MemoryStore>>,
    own_store: MemoryStoreBuilder,
    pub(crate) parts: LimiterPartsBuilder,
}

/// Why a limiter cannot be built.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Two policies without a name would share counters in a store that others use as well.
    #[error(
        "this {algorithm} policy has no name: write `.with_name(\"..\")`, because policies without \
         one share counters with others in the same store"
    )]
    Unnamed {
        /// The policy's algorithm.
        algorithm: &'static str,
    },
    /// Permits have to come back, which a rate limiter does not see to.
    #[error("{PERMITS}")]
    Permits,
    /// The store cannot count by the policy.
    #[error(transparent)]
    Unsupported(#[from] StoreError),
}

/// How long a reservation can be settled unless the builder says otherwise.
const RESERVATION_TTL_DEFAULT: Duration = Duration::from_mins(10);

impl Limiter {
    /// Builds a limiter with room for a million keys.
    ///
    /// Takes a [`Policy`] for all keys, a [`PolicyMap`](crate::PolicyMap), or
    /// [`Policies::from_fn`].
    /// # Panics
    /// If a policy has permits: use [`ConcurrencyLimiter`](crate::ConcurrencyLimiter).
    #[must_use]
    pub fn new(policies: impl Into<Policies>) -> Self {
        let builder = Self::builder(policies);
        let has_permits = builder.policies.known().iter().any(Policy::has_permits);
        assert!(!has_permits, "{}", BuildError::Permits);
        Self {
            store: Arc::new(builder.own_store.build()),
            parts: Arc::new(builder.parts.build()),
            policies: builder.policies,
        }
    }

    /// Starts a limiter of another size, with another clock or over a store that is shared.
    pub fn builder(policies: impl Into<Policies>) -> LimiterBuilder {
        LimiterBuilder {
            policies: policies.into(),
            store: None,
            own_store: MemoryStore::builder(),
            parts: LimiterPartsBuilder::default(),
        }
    }

    /// May `key` pass once? Charges it if so.
    #[inline]
    #[must_use = "it says whether the request may pass"]
    pub fn check<'k>(&self, key: impl Into<Key<'k>>) -> Decision {
        self.check_n(key, 1)
    }

    /// May `key` pay `cost`? Charges it if so. Cost 0 peeks: it is allowed and says what remains.
    #[inline]
    #[must_use = "it says whether the request may pass"]
    pub fn check_n<'k>(&self, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        let key = key.into();
        let key = key.as_bytes();
        self.policies.with(key, |policy| {
            if policy.has_permits() {
                // A permit would never come back. Nothing is charged, and no retry will change that.
                return Decision::UNDECIDED;
            }
            self.store.check_now(key, policy, cost)
        })
    }

    /// What remains of `key`, without charging it.
    #[inline]
    #[must_use]
    pub fn peek<'k>(&self, key: impl Into<Key<'k>>) -> Decision {
        self.check_n(key, 0)
    }

    /// Makes the counter of `key` fresh.
    ///
    /// A reservation that was made before the reset gives nothing back when it is settled.
    pub fn reset<'k>(&self, key: impl Into<Key<'k>>) {
        let key = key.into();
        let key = key.as_bytes();
        self.policies.with(key, |policy| self.store.reset_now(key, policy));
    }

    /// Checks many different requests of cost 1 at one instant, each charged by itself.
    ///
    /// `decisions` is emptied and then holds one per key. Several times faster per key than
    /// [`check`](Self::check) where the keys are many: their memory is fetched together.
    pub fn check_many<K: AsRef<[u8]>>(&self, keys: &[K], decisions: &mut Vec<Decision>) {
        if let Some(policy) = self.policies.only_one() {
            return self.store.check_many_now(keys, policy, decisions);
        }
        decisions.clear();
        decisions.reserve(keys.len());
        for keys in keys.chunks(CHECK_MANY_CHUNK) {
            let Ok(policies) = resolve_chunk(&self.policies, keys) else {
                decisions.extend(keys.iter().map(|key| self.check(key)));
                continue;
            };
            let mut entries: Chunk<'_> = entries_of(keys, &policies);
            self.store.check_independent(&mut entries);
            decisions.extend(entries.iter().filter_map(Entry::decision));
        }
    }

    /// The store that counts.
    #[must_use]
    pub fn store(&self) -> &Arc<MemoryStore> {
        &self.store
    }

    pub(crate) fn store_ref(&self) -> StoreRef<'_> {
        StoreRef { store: &*self.store, outage: None }
    }
}

/// How many keys `check_many` asks for at once.
pub(crate) const CHECK_MANY_CHUNK: usize = 16;

pub(crate) type Chunk<'a> = arrayvec::ArrayVec<Entry<'a>, CHECK_MANY_CHUNK>;
pub(crate) type ChunkPolicies = arrayvec::ArrayVec<Policy, CHECK_MANY_CHUNK>;

pub(crate) fn resolve_chunk<K: AsRef<[u8]>>(
    policies: &Policies,
    keys: &[K],
) -> Result<ChunkPolicies, StoreError> {
    keys.iter().map(|key| Ok(policies.resolve_rate(key.as_ref())?.as_policy().clone())).collect()
}

pub(crate) fn entries_of<'a, K: AsRef<[u8]>>(
    keys: &'a [K],
    policies: &'a ChunkPolicies,
) -> Chunk<'a> {
    keys.iter().zip(policies).map(|(key, policy)| Entry::new(key, policy)).collect()
}

/// Rejects policies that a rate limiter cannot have, and unnamed ones where `is_shared` is true.
pub(crate) fn check_policies(policies: &[Policy], is_shared: bool) -> Result<(), BuildError> {
    for policy in policies {
        if policy.has_permits() {
            return Err(BuildError::Permits);
        }
        if is_shared && policy.name().is_none() {
            return Err(BuildError::Unnamed { algorithm: policy.algorithm().name() });
        }
    }
    Ok(())
}

impl LimiterBuilder {
    /// Counts in `store`, which other limiters may share. The policies need
    /// [names](Policy::with_name) then.
    pub fn store(self, store: Arc<MemoryStore>) -> Self {
        Self { store: Some(store), ..self }
    }

    /// How many keys the limiter's own store has room for; see
    /// [`MemoryStoreBuilder::max_keys`]. A million by default.
    pub fn max_keys(self, keys_max: usize) -> Self {
        Self { own_store: self.own_store.max_keys(keys_max), ..self }
    }

    /// The clock of the limiter's own store. By default, the system's.
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { own_store: self.own_store.clock(clock), ..self }
    }

    /// Builds the limiter.
    ///
    /// # Errors
    /// If a policy has permits, or has no name although a store is passed in.
    pub fn build(self) -> Result<Limiter, BuildError> {
        check_policies(&self.policies.known(), self.store.is_some())?;
        let own_store = self.own_store;
        Ok(Limiter {
            policies: self.policies,
            store: self.store.unwrap_or_else(|| Arc::new(own_store.build())),
            parts: Arc::new(self.parts.build()),
        })
    }
}

/// What the builders of both limiters say about receipts, request ids and reservations.
macro_rules! parts_settings {
    ($builder:ty) => {
        impl $builder {
            /// Signs receipts that every limiter with the same key and the same store can settle. By
            /// default, a key of its own that is gone when the limiter is.
            pub fn receipt_key(mut self, key: ReceiptKey) -> Self {
                self.parts.receipt_key = Some(key);
                self
            }

            /// For how long an allowed request is remembered by its id. By default, ten minutes.
            pub fn request_id_ttl(mut self, ttl: Duration) -> Self {
                self.parts.request_id_ttl = ttl;
                self
            }

            /// How often an allowed request is answered again by its id for one charge. By default, eight
            /// times; after that it pays again.
            pub fn request_id_replays(mut self, replays_max: u8) -> Self {
                self.parts.request_id_replays = replays_max;
                self
            }

            /// For how long a reservation can be settled. By default, ten minutes; after that its charge
            /// stands as it is.
            pub fn reservation_ttl(mut self, ttl: Duration) -> Self {
                self.parts.reservation_ttl = ttl;
                self
            }
        }
    };
}

parts_settings!(LimiterBuilder);
parts_settings!(crate::AsyncLimiterBuilder);

impl Default for LimiterPartsBuilder {
    fn default() -> Self {
        Self {
            receipt_key: None,
            request_id_ttl: ChargeIds::REQUEST_ID_TTL_DEFAULT,
            request_id_replays: Once::REPLAYS_MAX_DEFAULT,
            reservation_ttl: RESERVATION_TTL_DEFAULT,
            #[cfg(feature = "until-ready")]
            waiting: crate::limiter::waiting::WaitlistSettings::default(),
        }
    }
}

impl LimiterPartsBuilder {
    pub(crate) fn build(self) -> LimiterParts {
        let receipt_key = self.receipt_key.unwrap_or_else(ReceiptKey::random);
        let charge_ids = ChargeIds::new(receipt_key, self.request_id_ttl);
        LimiterParts {
            charge_ids: charge_ids.with_replays_max(self.request_id_replays),
            reservation_ttl: self.reservation_ttl,
            #[cfg(feature = "until-ready")]
            waiting: crate::limiter::waiting::Waitlist::new(self.waiting),
        }
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("policies", &self.policies)
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}
