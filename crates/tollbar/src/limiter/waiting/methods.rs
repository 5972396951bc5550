//! The verbs that wait, and what builders say about waiting. Limiters over memory and over any other
//! store have the same ones.

use std::sync::Arc;
use std::time::Duration;

use super::{Timer, WaitError, WaitRequest, WaitingStats};
use crate::limiter::async_concurrency_limiter::{
    AsyncConcurrencyLimiter, AsyncConcurrencyLimiterBuilder,
};
use crate::limiter::async_limiter::{AsyncLimiter, AsyncLimiterBuilder};
use crate::limiter::concurrency_limiter::{ConcurrencyLimiter, ConcurrencyLimiterBuilder};
use crate::{Decision, Key, Limiter, LimiterBuilder, Permit};

macro_rules! wait_verbs {
    ($limiter:ty) => {
        impl $limiter {
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
            /// Works under every policy and every runtime, first in, first out for each key in this
            /// process. A [leaky queue](crate::Policy::leaky_queue) spaces requests evenly and bounds
            /// how many wait. Across processes the order is that in which the store is asked.
            ///
            /// Dropping the future gives the turn to the next one in line, so a timeout around it is
            /// fine; while a store across a network is being asked, it may leave a charge behind. A
            /// future that has been polled and is then neither polled nor dropped holds up those
            /// behind it once it is the first.
            ///
            /// # Errors
            /// If waiting would not help, or too many requests wait already: see [`WaitError`].
            pub async fn wait<'k>(&self, key: impl Into<Key<'k>>) -> Result<Decision, WaitError> {
                self.wait_n(key, 1).await
            }

            /// Waits until `key` may pay `cost`, and charges it. In a queue its turn is that of its
            /// first place, and the next one's comes `cost` intervals later. Cost 0 peeks, and waits
            /// for nothing.
            ///
            /// # Errors
            /// As [`wait`](Self::wait).
            pub async fn wait_n<'k>(
                &self,
                key: impl Into<Key<'k>>,
                cost: u64,
            ) -> Result<Decision, WaitError> {
                let (key, store) = (key.into(), self.store_ref());
                let key = key.as_bytes();
                let policy = self.policies.resolve_rate(key)?;
                let policy = policy.as_policy();
                let id = self.parts.waiting.id(key, policy);
                let request = WaitRequest { store, id, key, policy, cost };
                let entry = self.parts.waiting.turn(request).await?;
                Ok(entry.decision.unwrap_or(Decision::UNDECIDED))
            }
        }
    };
}

wait_verbs!(Limiter);
wait_verbs!(AsyncLimiter);

macro_rules! acquire_verbs {
    ($limiter:ty, $permit:ty) => {
        impl $limiter {
            /// Waits until a permit of `key` is free, and takes it.
            ///
            /// First in, first out for each key in this process. Permits that other processes return
            /// are noticed within a tenth of a second. Dropping the future gives its turn to the next
            /// one in line. It needs no runtime.
            ///
            /// # Errors
            /// If too many requests wait already, the outage policy denies, or the store cannot count
            /// permits.
            pub async fn acquire<'k>(&self, key: impl Into<Key<'k>>) -> Result<$permit, WaitError> {
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
            ) -> Result<$permit, WaitError> {
                let (key, store) = (key.into(), self.store_ref());
                let key = key.as_bytes();
                let policy = self.policies.resolve(key);
                let policy = policy.as_policy();
                let id = self.waiting_id(key, policy);
                let request = WaitRequest { store, id, key, policy, cost: count };
                Ok(self.lend(&self.waiting.turn(request).await?))
            }
        }
    };
}

acquire_verbs!(ConcurrencyLimiter, Permit<'_>);
acquire_verbs!(AsyncConcurrencyLimiter, Permit<'static>);

macro_rules! waiting_settings {
    ($limiter:ty, $builder:ty, $($waiting:ident).+) => {
        impl $limiter {
            /// How many requests wait at this moment, and what they take up.
            #[must_use]
            pub fn waiting(&self) -> WaitingStats {
                self.$($waiting).+.queues.stats()
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
