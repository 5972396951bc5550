//! Leases: granted, renewed and released.

use super::Limiter;
use crate::store::{Batch, Entry, StoreError};
use crate::{Decision, Lease, Policy, Timestamp};

impl Limiter {
    /// May one more of `key` be in flight? It is until the lease ends, or is released.
    ///
    /// For [leased](Policy::leased) permits; under any other policy a lease ends at once, and what
    /// was charged stays charged.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollbar::{Lease, Limiter, Policy};
    /// # fn main() -> Result<(), tollbar::PolicyError> {
    /// let limiter = Limiter::new(Policy::concurrency(1)?.leased(Duration::from_secs(30))?);
    /// if let Ok(lease) = limiter.lease("job:7") {
    ///     assert!(limiter.lease("job:7").is_err());
    ///     // Key and id go to whoever does the work, and come back.
    ///     let kept = Lease::of(&lease.key, lease.id);
    ///     assert!(limiter.release(&kept));
    /// }
    /// assert!(limiter.lease("job:7").is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn lease(&self, key: impl AsRef<[u8]>) -> Result<Lease, Decision> {
        self.lease_cost(key, 1)
    }

    /// May `cost` more of `key` be in flight? All of them as one lease, or none.
    pub fn lease_cost(&self, key: impl AsRef<[u8]>, cost: u64) -> Result<Lease, Decision> {
        let key = key.as_ref();
        self.policies.with(key, |policy| {
            let mut entries = [Entry::new(key, policy).with_cost(cost)];
            let answer = self.store.decide(Batch::all_or_none(&mut entries)).wait();
            self.granted(&entries[0], answer)
        })
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn lease_async(&self, key: impl AsRef<[u8]>, cost: u64) -> Result<Lease, Decision> {
        let key = key.as_ref();
        let policy = self.policies.with(key, Policy::clone);
        let mut entries = [Entry::new(key, &policy).with_cost(cost)];
        let answer = self.store.decide(Batch::all_or_none(&mut entries)).await;
        self.granted(&entries[0], answer)
    }

    fn granted(
        &self,
        entry: &Entry<'_>,
        answer: Result<(), StoreError>,
    ) -> Result<Lease, Decision> {
        let decision = match answer {
            Ok(()) => entry.decision.unwrap_or(Decision::UNDECIDED),
            Err(error) => self.on_failure.decide(&error, entry.key, entry.policy, entry.cost),
        };
        if !decision.is_allowed() {
            return Err(decision);
        }
        // A decision about leases resets at the present, from which they last.
        let ends_at = decision.reset_at.after(entry.policy.lease_ttl().unwrap_or_default());
        let is_held = decision.degraded().is_none() && entry.policy.lease_ttl().is_some();
        Ok(if is_held && entry.cost > 0 {
            Lease { key: entry.key.into(), id: entry.stamp, count: entry.cost, ends_at }
        } else {
            Lease { key: entry.key.into(), id: 0, count: 0, ends_at: decision.reset_at }
        })
    }

    /// Has a lease last as long again from now on, and writes into it until when. False where it
    /// has ended or was released, and while the store cannot be reached.
    pub fn renew(&self, lease: &mut Lease) -> bool {
        let ends_at = self.policies.with(&lease.key, |policy| {
            is_lease(lease, policy)
                .then(|| self.store.renew(&lease.key, policy, lease.id).wait().ok().flatten())
        });
        prolonged(lease, ends_at.flatten())
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn renew_async(&self, lease: &mut Lease) -> bool {
        let policy = self.policies.with(&lease.key, Policy::clone);
        if !is_lease(lease, &policy) {
            return false;
        }
        let ends_at = self.store.renew(&lease.key, &policy, lease.id).await.ok().flatten();
        prolonged(lease, ends_at)
    }

    /// Gives the permits of a lease back. False where it has ended or was released before, and
    /// while the store cannot be reached: then it ends by itself.
    pub fn release(&self, lease: &Lease) -> bool {
        self.policies.with(&lease.key, |policy| {
            is_lease(lease, policy)
                && self
                    .store
                    .refund(&lease.key, policy, lease.id, u64::MAX)
                    .wait()
                    .is_ok_and(|count| count > 0)
        })
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn release_async(&self, lease: &Lease) -> bool {
        let policy = self.policies.with(&lease.key, Policy::clone);
        is_lease(lease, &policy)
            && self
                .store
                .refund(&lease.key, &policy, lease.id, u64::MAX)
                .await
                .is_ok_and(|count| count > 0)
    }
}

/// Under another policy an id would mean something else: a permit of whoever holds one, for example.
fn is_lease(lease: &Lease, policy: &Policy) -> bool {
    lease.id != 0 && policy.lease_ttl().is_some()
}

fn prolonged(lease: &mut Lease, ends_at: Option<Timestamp>) -> bool {
    lease.ends_at = ends_at.unwrap_or(lease.ends_at);
    ends_at.is_some()
}
