//! Permits in flight: asked for, and lent until they are dropped.

use thiserror::Error;

use super::{Limiter, RequestError};
use crate::permit::Loan;
use crate::policy::Kind;
use crate::store::{Batch, Entry, StoreError};
use crate::{Decision, FailurePolicy, Permit, Policy, Verdict};

/// Why several permits were not lent. Nothing was charged.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// A limit denies: the entries hold their decisions.
    #[error("denied: {:?}", .0.outcome())]
    Denied(Verdict),
    /// Something is asked that the store cannot do.
    #[error(transparent)]
    Request(#[from] RequestError),
}

impl AcquireError {
    /// What the decisions came to, where a limit denies.
    #[must_use]
    pub fn verdict(&self) -> Option<Verdict> {
        match self {
            Self::Denied(verdict) => Some(*verdict),
            Self::Request(_) => None,
        }
    }
}

impl Limiter {
    /// May one more of `key` be in flight? It is until the permit is dropped.
    ///
    /// For a [concurrency](Policy::concurrency) policy. Under any other this is a
    /// [`check`](Self::check), and the permit holds nothing: a rate that was paid stays paid.
    ///
    /// ```
    /// use tollbar::{Limiter, Outcome, Policy};
    /// # fn main() -> Result<(), tollbar::PolicyError> {
    /// let limiter = Limiter::new(Policy::concurrency(1)?);
    /// let permit = limiter.acquire("user:42");
    /// assert!(permit.is_ok());
    /// let denied = limiter.acquire("user:42").unwrap_err();
    /// assert_eq!(denied.outcome(), Outcome::Busy);
    /// drop(permit);
    /// assert!(limiter.acquire("user:42").is_ok());
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn acquire(&self, key: impl AsRef<[u8]>) -> Result<Permit<'_>, Decision> {
        self.acquire_cost(key, 1)
    }

    /// May `cost` more of `key` be in flight? All of them, or none. Cost 0 peeks: it is allowed and
    /// holds nothing.
    #[inline]
    pub fn acquire_cost(&self, key: impl AsRef<[u8]>, cost: u64) -> Result<Permit<'_>, Decision> {
        let key = key.as_ref();
        self.policies.with(key, |policy| match (&self.memory, &policy.kind) {
            (Some(memory), Kind::Concurrency(permits)) => {
                Ok(Permit::here(memory, memory.take(permits, key, policy, cost)?))
            }
            (Some(memory), kind) if !kind.is_in_flight() => {
                permitted((memory.check_now(key, policy, cost), Permit::NOTHING))
            }
            _ => self.acquire_elsewhere(key, policy, cost),
        })
    }

    #[cold]
    fn acquire_elsewhere(
        &self,
        key: &[u8],
        policy: &Policy,
        cost: u64,
    ) -> Result<Permit<'_>, Decision> {
        permitted(self.decide_and_lend(key, policy, cost))
    }

    /// As [`acquire_cost`](Self::acquire_cost), without blocking the thread while a store across a
    /// network answers.
    ///
    /// Such a store learns of a dropped permit as well as it can be told without waiting; prefer
    /// [`Permit::release_async`].
    pub async fn acquire_async(
        &self,
        key: impl AsRef<[u8]>,
        cost: u64,
    ) -> Result<Permit<'_>, Decision> {
        let key = key.as_ref();
        let policy = self.policies.with(key, Policy::clone);
        let mut entries = [Entry::new(key, &policy).with_cost(cost)];
        let answer = self.store.decide(Batch::all_or_none(&mut entries)).await;
        permitted(match answer {
            Ok(()) => self.lent(&entries[0], false),
            Err(error) => self.on_failure.decide_and_lend(&error, key, &policy, cost),
        })
    }

    /// One request under several policies or keys: all are charged, or none; and what is in flight
    /// for it comes back when the permit is dropped.
    ///
    /// As [`check_all`](Self::check_all), and each entry holds its decision afterwards. The permit
    /// holds what was taken under [concurrency](Policy::concurrency) policies, shadows included; the
    /// rates beside them stay paid.
    ///
    /// ```
    /// use tollbar::{Entry, Limiter, Policy};
    /// # fn main() -> Result<(), tollbar::PolicyError> {
    /// let (rate, in_flight) = (Policy::token_bucket("100/s")?, Policy::concurrency(10)?);
    /// let limiter = Limiter::new(rate.clone());
    /// let mut entries = [Entry::new("user:42", &rate), Entry::new("user:42", &in_flight)];
    /// match limiter.acquire_all(&mut entries) {
    ///     Ok(permit) => assert_eq!(permit.count(), 1),
    ///     Err(error) => panic!("{error}"),
    /// }
    /// assert_eq!(limiter.peek("user:42").remaining(), 99);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If a limit denies; or, as for [`check_all`](Self::check_all), if the store cannot do what is
    /// asked.
    pub fn acquire_all(&self, entries: &mut [Entry<'_>]) -> Result<Permit<'_>, AcquireError> {
        let answer = self.store.decide(Batch::all_or_none(entries)).wait();
        self.lend_all(entries, answer, true)
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn acquire_all_async(
        &self,
        entries: &mut [Entry<'_>],
    ) -> Result<Permit<'_>, AcquireError> {
        let answer = self.store.decide(Batch::all_or_none(entries)).await;
        self.lend_all(entries, answer, false)
    }

    fn lend_all(
        &self,
        entries: &mut [Entry<'_>],
        answer: Result<(), StoreError>,
        may_block: bool,
    ) -> Result<Permit<'_>, AcquireError> {
        let is_answered = answer.is_ok();
        let verdict = self.verdict(answer, entries)?;
        if !verdict.is_allowed() {
            return Err(AcquireError::Denied(verdict));
        }
        // What was let through without a store holds nothing; what a fallback has counted, it holds.
        let lender = match &self.on_failure {
            _ if is_answered => Some(self),
            FailurePolicy::Fallback(limiter) => Some(&**limiter),
            FailurePolicy::Allow | FailurePolicy::Deny => None,
        };
        let mut permit = Permit::NOTHING;
        for entry in entries {
            permit = permit.and(lender.map_or(Permit::NOTHING, |it| it.lend(entry, may_block)));
        }
        Ok(if is_answered { permit } else { permit.into_degraded() })
    }

    /// Decides one request, wherever the store is, and lends what it has taken.
    fn decide_and_lend(&self, key: &[u8], policy: &Policy, cost: u64) -> (Decision, Permit<'_>) {
        let mut entries = [Entry::new(key, policy).with_cost(cost)];
        let answer = self.store.decide(Batch::all_or_none(&mut entries)).wait();
        match answer {
            Ok(()) => self.lent(&entries[0], true),
            Err(error) => self.on_failure.decide_and_lend(&error, key, policy, cost),
        }
    }

    /// The decision about one request, and what it has taken that must come back.
    fn lent(&self, entry: &Entry<'_>, may_block: bool) -> (Decision, Permit<'_>) {
        (entry.decision.unwrap_or(Decision::UNDECIDED), self.lend(entry, may_block))
    }

    /// What an entry of an allowed request has taken that must come back.
    fn lend(&self, entry: &Entry<'_>, may_block: bool) -> Permit<'_> {
        let is_taken = entry.decision.is_some_and(|decision| decision.is_allowed());
        if !is_taken || entry.cost == 0 || !entry.policy.kind.is_in_flight() {
            return Permit::NOTHING;
        }
        match (&self.memory, &entry.policy.kind) {
            (Some(memory), Kind::Concurrency(_)) => {
                Permit::here(memory, memory.taken(entry.key, entry.policy, entry.cost))
            }
            _ => Permit::there(Loan {
                store: &self.store,
                key: entry.key.into(),
                policy: entry.policy.clone(),
                stamp: entry.stamp,
                count: entry.cost,
                may_block,
            }),
        }
    }
}

impl FailurePolicy {
    /// The answer to one request that the store did not answer because of `error`, and what a
    /// fallback has lent.
    fn decide_and_lend(
        &self,
        error: &StoreError,
        key: &[u8],
        policy: &Policy,
        cost: u64,
    ) -> (Decision, Permit<'_>) {
        let limiter = match self {
            Self::Fallback(limiter) if error.is_outage() && cost <= policy.capacity() => limiter,
            _ => {
                let decision = self.decide(error, key, policy, cost);
                return (decision, Permit::NOTHING.into_degraded());
            }
        };
        let (decision, permit) =
            limiter.policies.with(key, |policy| limiter.decide_and_lend(key, policy, cost));
        (decision.into_degraded(crate::Degraded::Fallback), permit.into_degraded())
    }
}

fn permitted((decision, permit): (Decision, Permit<'_>)) -> Result<Permit<'_>, Decision> {
    if decision.is_allowed() { Ok(permit) } else { Err(decision) }
}
