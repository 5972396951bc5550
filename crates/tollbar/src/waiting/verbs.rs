//! The verbs that wait, and what builders say about waiting.

use std::sync::Arc;
use std::time::Duration;

use super::{Request, Timer, WaitError, Waiting, WaitingStats};
use crate::async_concurrency_limiter::{AsyncConcurrencyLimiter, AsyncConcurrencyLimiterBuilder};
use crate::async_limiter::{AsyncLimiter, AsyncLimiterBuilder};
use crate::charge::HeldPermits;
use crate::concurrency_limiter::{ConcurrencyLimiter, ConcurrencyLimiterBuilder};
use crate::outage::StoreRef;
use crate::policy::Kind;
use crate::{Decision, Key, Limiter, LimiterBuilder, Permit, Policies};

impl Waiting {
    async fn wait(
        &self,
        store: StoreRef<'_>,
        policies: &Policies,
        key: Key<'_>,
        cost: u64,
    ) -> Result<Decision, WaitError> {
        let key = key.as_bytes();
        let policy = policies.resolve_rate(key)?;
        let policy = policy.as_policy();
        let id = self.id(key, policy);
        let entry = self.turn(Request { store, id, key, policy, cost }).await?;
        Ok(entry.decision.unwrap_or(Decision::UNDECIDED))
    }
}

impl Limiter {
    /// Waits until `key` may pass, and charges it.
    ///
    /// ```
    /// use tollbar::{Limiter, Policy, WaitError};
    ///
    /// async fn call(limiter: &Limiter) -> Result<(), WaitError> {
    ///     limiter.wait("api.example.com").await?;
    ///     // Ten requests a second leave from here.
    ///     Ok(())
    /// }
    /// # fn main() -> Result<(), tollbar::PolicyError> {
    /// let limiter = Limiter::new(Policy::token_bucket("10/s")?);
    /// # let _ = call(&limiter);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Works under every policy, first in, first out for each key. A
    /// [leaky queue](crate::Policy::leaky_queue) spaces requests evenly and bounds how many wait. It
    /// needs no runtime; see [`LimiterBuilder::timer`].
    ///
    /// Dropping the future gives the turn to the next one in line, so a timeout around it is fine. A
    /// future that has been polled and is then neither polled nor dropped holds up those behind it
    /// once it is the first, except in a leaky queue, where each has a turn of its own.
    ///
    /// # Errors
    /// If waiting would not help, or too many requests wait already: see [`WaitError`].
    pub async fn wait<'k>(&self, key: impl Into<Key<'k>>) -> Result<Decision, WaitError> {
        self.wait_n(key, 1).await
    }

    /// Waits until `key` may pay `cost`, and charges it. In a queue its turn is that of its first
    /// place, and the next one's comes `cost` intervals later. Cost 0 peeks, and waits for nothing.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn wait_n<'k>(
        &self,
        key: impl Into<Key<'k>>,
        cost: u64,
    ) -> Result<Decision, WaitError> {
        let (store, waiting) = (self.store_ref(), &self.parts.waiting);
        waiting.wait(store, &self.policies, key.into(), cost).await
    }
}

impl AsyncLimiter {
    /// Waits until `key` may pass, and charges it: see [`Limiter::wait`].
    ///
    /// First in, first out for each key in this process; across processes in the order in which the
    /// store is asked, which in a [leaky queue](crate::Policy::leaky_queue) is that of arrival. A
    /// future that is dropped before the store has answered may leave a charge behind.
    ///
    /// # Errors
    /// As [`Limiter::wait`], and if the store cannot count by the key's policy.
    pub async fn wait<'k>(&self, key: impl Into<Key<'k>>) -> Result<Decision, WaitError> {
        self.wait_n(key, 1).await
    }

    /// Waits until `key` may pay `cost`, and charges it: see [`Limiter::wait_n`].
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn wait_n<'k>(
        &self,
        key: impl Into<Key<'k>>,
        cost: u64,
    ) -> Result<Decision, WaitError> {
        let (store, waiting) = (self.store_ref(), &self.parts.waiting);
        waiting.wait(store, &self.policies, key.into(), cost).await
    }
}

impl ConcurrencyLimiter {
    /// Waits until a permit of `key` is free, and takes it.
    ///
    /// First in, first out for each key. Dropping the future gives its turn to the next one in line.
    /// It needs no runtime.
    ///
    /// # Errors
    /// If too many requests wait already.
    pub async fn acquire<'k>(&self, key: impl Into<Key<'k>>) -> Result<Permit<'_>, WaitError> {
        self.acquire_n(key, 1).await
    }

    /// Waits until `count` permits of `key` are free at once, and takes them.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and if there are never so many.
    pub async fn acquire_n<'k>(
        &self,
        key: impl Into<Key<'k>>,
        count: u64,
    ) -> Result<Permit<'_>, WaitError> {
        let key = key.into();
        let key = key.as_bytes();
        let policy = self.policies.resolve(key);
        let policy = policy.as_policy();
        let id = self.store.counter_id(key, policy);
        let request = Request { store: self.store_ref(), id, key, policy, cost: count };
        let entry = self.waiting.turn(request).await?;
        Ok(match &policy.kind {
            Kind::Concurrency(_) => Permit::here(self, self.store.taken(key, policy, count)),
            _ => self.lend(HeldPermits::of(&entry)),
        })
    }
}

impl AsyncConcurrencyLimiter {
    /// Waits until a permit of `key` is free, and takes it: see
    /// [`ConcurrencyLimiter::acquire`]. Permits that other processes return are noticed within a tenth
    /// of a second.
    ///
    /// # Errors
    /// If too many requests wait already, the outage policy denies, or the store cannot count permits.
    pub async fn acquire<'k>(&self, key: impl Into<Key<'k>>) -> Result<Permit<'static>, WaitError> {
        self.acquire_n(key, 1).await
    }

    /// Waits until `count` permits of `key` are free at once, and takes them.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and if there are never so many.
    pub async fn acquire_n<'k>(
        &self,
        key: impl Into<Key<'k>>,
        count: u64,
    ) -> Result<Permit<'static>, WaitError> {
        let key = key.into();
        let key = key.as_bytes();
        let policy = self.policies.resolve(key);
        let policy = policy.as_policy();
        let id = self.waiting.id(key, policy);
        let request = Request { store: self.store_ref(), id, key, policy, cost: count };
        let entry = self.waiting.turn(request).await?;
        let decision = entry.decision.unwrap_or(Decision::UNDECIDED);
        Ok(self.lend(decision, HeldPermits::of(&entry)))
    }
}

/// What every limiter says about its waiters, and what its builder says about waiting.
macro_rules! waiting_settings {
    ($limiter:ty, $builder:ty, $($waiting:ident).+) => {
        impl $limiter {
            /// How many requests wait at this moment, and what they take up.
            #[must_use]
            pub fn waiting(&self) -> WaitingStats {
                self.$($waiting).+.stats()
            }
        }

        impl $builder {
            /// Sleeps by `timer`: any function from a duration to a future, such as
            /// `tokio::time::sleep`. By default a thread of this library, which is started when
            /// something waits for the first time and serves any runtime.
            pub fn timer(mut self, timer: impl Timer) -> Self {
                self.$($waiting).+.timer = Arc::new(timer);
                self
            }

            /// How many requests may wait at the same time, all keys taken together; one more is
            /// refused at once. 65,536 by default.
            pub fn max_waiters(mut self, waiters_max: usize) -> Self {
                self.$($waiting).+.waiters_max = waiters_max;
                self
            }

            /// Delays each request that has waited by a random time more, up to `jitter`, once it is
            /// its turn. The next one is not held up by it, so two may leave closer together than the
            /// rate says, by up to `jitter`.
            pub fn jitter(mut self, jitter: Duration) -> Self {
                self.$($waiting).+.jitter = jitter;
                self
            }
        }
    };
}

waiting_settings!(Limiter, LimiterBuilder, parts.waiting);
waiting_settings!(AsyncLimiter, AsyncLimiterBuilder, parts.waiting);
waiting_settings!(ConcurrencyLimiter, ConcurrencyLimiterBuilder, waiting);
waiting_settings!(AsyncConcurrencyLimiter, AsyncConcurrencyLimiterBuilder, waiting);
