//! Counters in any database that can compare and swap.
//!
//! A [`CounterBackend`] keeps a few words under a key. A [`CounterStore`] over it is a
//! [`Store`] that counts by every algorithm, custom ones included, with permits, leases,
//! request ids, reservations, refunds and resets. A check is a [load](CounterBackend::load), a pure
//! step of the algorithm, and a [swap](CounterBackend::compare_and_swap): two round trips for what is
//! allowed, one for what is denied, because a denial writes nothing.
//!
//! # Write a store
//!
//! 1. Keep the words of a [`Value`] under the text of a [`CounterKey`]; [`Value::to_bytes`] and
//!    [`Value::from_bytes`] are there for databases that keep bytes. An absent key has no words.
//! 2. In `load`, read the values, then the database's own time. A database without a clock may return
//!    this process's: then a node whose clock is ahead forgives by as much, which your documents
//!    should say.
//! 3. In `compare_and_swap`, change all keys or none, and only if each still has the value that was
//!    loaded. Compare the words, or put a version number into [`Value::version`] and compare that.
//! 4. Let a key expire no earlier than its [`ttl`](Swap::ttl). Later is fine.
//! 5. Declare what a swap can change in [`limits`](CounterBackend::limits). What does not fit is
//!    rejected when a limiter or a rule set is built.
//! 6. Report an outage as such: [`StoreError::Unavailable`], [`Timeout`](StoreError::Timeout),
//!    [`Overloaded`](StoreError::Overloaded) or [`Refused`](StoreError::Refused). Answer `false` only
//!    if it is certain that nothing was changed.
//! 7. Run `tollbar_testkit::suite` over it.
//!
//! ```
//! use std::collections::HashMap;
//! use std::sync::{Mutex, PoisonError};
//! use tollbar::counter::{BackendLimits, CounterBackend, CounterKey, CounterStore, Loaded, Swap, Value};
//! use tollbar::{Clock, Policy, Reply, Store, SystemClock};
//!
//! /// Counters in a map of this process, which never forgets.
//! #[derive(Debug)]
//! struct MapBackend {
//!     values: Mutex<HashMap<CounterKey, Value>>,
//!     clock: SystemClock,
//! }
//!
//! impl CounterBackend for MapBackend {
//!     fn limits(&self) -> BackendLimits {
//!         BackendLimits::new(100, 65_536)
//!     }
//!
//!     fn load<'a>(&'a self, keys: &'a [CounterKey]) -> Reply<'a, Loaded> {
//!         let map = self.values.lock().unwrap_or_else(PoisonError::into_inner);
//!         let value = |key| map.get(key).cloned().unwrap_or_default();
//!         Reply::Ready(Ok(Loaded { values: keys.iter().map(value).collect(), now: self.clock.now() }))
//!     }
//!
//!     fn compare_and_swap<'a>(&'a self, swaps: &'a [Swap]) -> Reply<'a, bool> {
//!         let mut map = self.values.lock().unwrap_or_else(PoisonError::into_inner);
//!         let is_same = |swap: &Swap| map.get(&swap.key).cloned().unwrap_or_default() == swap.before;
//!         let is_unchanged = swaps.iter().all(is_same);
//!         for swap in swaps.iter().filter(|_| is_unchanged) {
//!             map.insert(swap.key, Value { words: swap.after.clone(), version: 0 });
//!         }
//!         Reply::Ready(Ok(is_unchanged))
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = MapBackend { values: Mutex::default(), clock: SystemClock::new() };
//! let store = CounterStore::new(backend, [7; 32]);
//! let policy = Policy::token_bucket("10/min")?;
//! assert_eq!(store.check(b"user:42", &policy, 1).wait()?.remaining(), Some(9));
//! # Ok(())
//! # }
//! ```
//!
//! # Why it is exact
//!
//! The state that was decided on is the state that is replaced, so no charge is lost, and several
//! counters change together or not at all. The time may be older than the swap, because it was read
//! before it; no algorithm admits more for a clock that is behind the state it meets. One case needs
//! care: a counter that was absent when it was loaded, then charged by others, and fresh and forgotten
//! again before the swap. So every key is kept for ten seconds longer than it counts, and a swap that
//! is not answered within ten seconds of its load is an error ([`StoreError::Timeout`]), whatever it
//! has done.
//!
//! When others change a counter between a load and a swap, both are repeated, up to
//! [`attempts_max`](CounterStore::attempts_max) times. Then a check is denied without a charge
//! ([`Outcome::Busy`]), and nothing is lent: a counter that is asked for too much is no outage, whose policy
//! may let everything pass. A refund or a settlement ends in [`StoreError::Overloaded`].

mod backend;
mod backend_keys;
mod batch;
mod settlement;
mod value;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::algorithm::word::NUMBER_MAX;
use crate::store::{
    Adjustment, Batch, Charge, Entry, Feature, Loan, LoanRequest, Reply, ReservationRef, StoreError,
};
use crate::{Clock, Decision, Outcome, Policy, Store, SystemClock, Timestamp};

pub use backend::{BackendLimits, CounterBackend, CounterKey, Loaded, Swap, Value};

use backend_keys::BackendKeys;
use batch::BatchStep;

/// How long a swap may come after its load, and how much longer than it counts a key is kept.
const PATIENCE: Duration = Duration::from_secs(10);

/// Attempts of one call, unless it is told otherwise.
const ATTEMPTS_MAX_DEFAULT: u32 = 64;

/// Counters in any [`CounterBackend`]. See the [module](self).
pub struct CounterStore<B> {
    backend: B,
    backend_keys: BackendKeys,
    attempts_max: u32,
    /// Measures how long a swap took. What is decided, the backend's clock decides.
    stopwatch: SystemClock,
}

/// What a step changes.
#[derive(Debug)]
struct Change {
    /// Which of the keys that were loaded.
    at: usize,
    after: Vec<u64>,
    forgettable_at: Timestamp,
}

/// Others were faster, each time.
#[derive(Debug, Error)]
#[error(
    "a counter was changed by others {attempts} times in a row: allow more attempts, or ask less"
)]
struct ContentionError {
    attempts: u32,
}

/// The answer came too late to be trusted.
#[derive(Debug, Error)]
#[error("a swap was not answered within {PATIENCE:?} of its load")]
struct LateSwapError;

/// A backend that breaks its contract.
#[derive(Debug, Error)]
#[error("the backend returned {values} values for {keys} keys")]
struct ValueCountError {
    keys: usize,
    values: usize,
}

impl<B: CounterBackend> CounterStore<B> {
    /// Counts in `backend`. The secret, such as the output of `openssl rand 32`, is what keys are hashed
    /// under: processes that share counters have the same one.
    #[must_use]
    pub fn new(backend: B, secret: [u8; 32]) -> Self {
        Self {
            backend,
            backend_keys: BackendKeys::new(secret),
            attempts_max: ATTEMPTS_MAX_DEFAULT,
            stopwatch: SystemClock::new(),
        }
    }

    /// Gives it counters of its own among others in the same database.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        Self { backend_keys: self.backend_keys.with_namespace(namespace), ..self }
    }

    /// Sets how often a call is tried while others change its counters: 64 times by default, at least
    /// once.
    #[must_use]
    pub fn attempts_max(self, attempts_max: u32) -> Self {
        Self { attempts_max: attempts_max.max(1), ..self }
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Loads `keys`, lets `step` decide on their values, and swaps what it changes: again and again,
    /// until nothing was changed by others in between.
    async fn run<T>(
        &self,
        keys: &[CounterKey],
        mut step: impl FnMut(&[Value], Timestamp) -> Result<(Vec<Change>, T), StoreError> + Send,
    ) -> Result<T, StoreError> {
        for _ in 0..self.attempts_max {
            let started = self.stopwatch.now();
            let Loaded { values, now } = self.backend.load(keys).await?;
            if values.len() != keys.len() {
                let mismatch = ValueCountError { keys: keys.len(), values: values.len() };
                return Err(StoreError::Refused { source: Arc::new(mismatch) });
            }
            let now = now.clamp_to_clock();
            let (changes, answer) = step(&values, now)?;
            let swap = |change: Change| Swap {
                key: keys[change.at],
                before: values[change.at].clone(),
                ttl: ttl(&change, now),
                after: change.after,
            };
            let swaps: Vec<Swap> = changes.into_iter().map(swap).collect();
            if swaps.is_empty() {
                return Ok(answer);
            }
            let is_swapped = self.backend.compare_and_swap(&swaps).await?;
            if self.stopwatch.now().since(started) >= PATIENCE {
                return Err(StoreError::Timeout { source: Arc::new(LateSwapError) });
            }
            if is_swapped {
                return Ok(answer);
            }
        }
        let error = ContentionError { attempts: self.attempts_max };
        Err(StoreError::Overloaded { source: Arc::new(error) })
    }

    async fn decide_all_or_none(&self, batch: Batch<'_, '_>) -> Result<(), StoreError> {
        let Batch { entries, once, hold, .. } = batch;
        let needs = [once.map(|_| Feature::RequestIds), hold.map(|_| Feature::Reservations)];
        for feature in needs.into_iter().flatten() {
            self.supports(feature)?;
        }
        let mut step = BatchStep::new(&self.backend_keys, entries, once, hold);
        let keys = step.keys();
        self.fits(keys.len(), step.entries.len())?;
        let decided = self.run(&keys, |values, now| Ok((step.all_or_none(values, now)?, ()))).await;
        self.deny_if_contended(decided, step.entries)
    }

    async fn decide_independent(&self, entries: &mut [Entry<'_>]) -> Result<(), StoreError> {
        for entries in entries.chunks_mut(self.backend.limits().keys_per_swap_max) {
            let mut step = BatchStep::new(&self.backend_keys, entries, None, None);
            let keys = step.keys();
            let decided =
                self.run(&keys, |values, now| Ok((step.independent(values, now)?, ()))).await;
            self.deny_if_contended(decided, step.entries)?;
        }
        Ok(())
    }

    /// Denies entries whose counters others have changed too often, in place of what a lost swap would have said.
    fn deny_if_contended(
        &self,
        decided: Result<(), StoreError>,
        entries: &mut [Entry<'_>],
    ) -> Result<(), StoreError> {
        match decided {
            Err(StoreError::Overloaded { source }) if source.is::<ContentionError>() => {
                for entry in entries {
                    entry.decision = Some(self.busy(entry.policy));
                }
                Ok(())
            }
            decided => decided,
        }
    }

    fn busy(&self, policy: &Policy) -> Decision {
        let now = self.clock().unwrap_or(&self.stopwatch).now();
        Decision::new(Outcome::Busy, policy.limit(), 0, now)
    }

    /// An error if the backend cannot swap so many keys at once.
    fn fits(&self, keys: usize, entries: usize) -> Result<(), StoreError> {
        let keys_max = self.backend.limits().keys_per_swap_max;
        if keys <= keys_max {
            return Ok(());
        }
        self.supports(Feature::SeveralCounters)?;
        // Beside the entries, what remembers the request takes a key or two.
        let entries_max = keys_max.saturating_sub(keys.saturating_sub(entries));
        Err(StoreError::BatchTooLarge { entries, entries_max })
    }

    fn supports_policy(&self, policy: &Policy) -> Result<(), StoreError> {
        let (words, words_max) =
            (value::words_max(policy), self.backend.limits().words_per_value_max);
        if words <= words_max {
            return Ok(());
        }
        let algorithm = policy.algorithm().name();
        Err(StoreError::unsupported(format!(
            "a counter of `{algorithm}` may take {words} words and this store keeps {words_max}: write \
             a lower limit, or an algorithm of fewer words, such as `sliding_window`"
        )))
    }
}

impl<B: CounterBackend> Store for CounterStore<B> {
    /// What the [limits](CounterBackend::limits) of the backend allow.
    fn supports(&self, feature: Feature<'_>) -> Result<(), StoreError> {
        match feature {
            Feature::Policy(policy) => self.supports_policy(policy),
            Feature::SeveralCounters
            | Feature::SplitAlternatives
            | Feature::RequestIds
            | Feature::Reservations => {
                let is_supported = self.backend.limits().keys_per_swap_max > 1;
                if is_supported { Ok(()) } else { Err(feature.unsupported()) }
            }
            Feature::Refunds | Feature::LeaseRenewals | Feature::Resets => Ok(()),
        }
    }

    fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        if batch.entries.is_empty() {
            return Reply::Ready(Ok(()));
        }
        Reply::Pending(Box::pin(async move {
            for entry in batch.entries.iter() {
                self.supports_policy(entry.policy)?;
            }
            match batch.charge {
                Charge::AllOrNone => self.decide_all_or_none(batch).await,
                Charge::Independent => self.decide_independent(batch.entries).await,
            }
        }))
    }

    fn refund<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
        amount: u64,
    ) -> Reply<'a, u64> {
        Reply::Pending(Box::pin(self.refund_one(key, policy, stamp, amount)))
    }

    fn renew<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
    ) -> Reply<'a, Option<Timestamp>> {
        Reply::Pending(Box::pin(self.renew_one(key, policy, stamp)))
    }

    fn settle<'a, 'e: 'a>(
        &'a self,
        reservation: ReservationRef<'a>,
        adjustments: &'a mut [Adjustment<'e>],
    ) -> Reply<'a, bool> {
        Reply::Pending(Box::pin(self.settle_all(reservation, adjustments)))
    }

    fn forget_request<'a>(&'a self, request_id: &'a [u8], _: &'a [u8]) -> Reply<'a, ()> {
        Reply::Pending(Box::pin(self.forget_mark(request_id)))
    }

    fn lend<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        request: LoanRequest,
    ) -> Reply<'a, Loan> {
        if !policy.kind.is_lendable() {
            return Reply::Ready(Ok(Loan::NONE));
        }
        Reply::Pending(Box::pin(self.lend_one(key, policy, request)))
    }

    fn reset<'a>(&'a self, key: &'a [u8], policy: &'a Policy) -> Reply<'a, ()> {
        Reply::Pending(Box::pin(self.reset_one(key, policy)))
    }

    fn clock(&self) -> Option<&dyn Clock> {
        self.backend.clock()
    }
}

impl<B: fmt::Debug> fmt::Debug for CounterStore<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("CounterStore")
            .field("backend", &self.backend)
            .field("backend_keys", &self.backend_keys)
            .finish_non_exhaustive()
    }
}

/// How long the key is kept; `None` for permits in flight, which count until they are given back.
fn ttl(change: &Change, now: Timestamp) -> Option<Duration> {
    let counts_forever = change.forgettable_at > Timestamp::MAX;
    (!counts_forever).then(|| change.forgettable_at.since(now) + PATIENCE)
}

/// Longer than a clock runs is for ever.
fn micros(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX).min(NUMBER_MAX)
}
