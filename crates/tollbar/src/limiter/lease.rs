//! A lease: permits for a while, as data that can travel.

use crate::charge::HeldPermits;
use crate::limiter::outage::StoreRef;
use crate::{Decision, Key, LeaseError, Policy, Timestamp};

/// Permits that are in flight until they end or are given back, from
/// [`ConcurrencyLimiter::lease`](crate::ConcurrencyLimiter::lease).
///
/// Unlike a [`Permit`](crate::Permit) it is nothing but data: dropping it gives nothing back. With its
/// key and its id it can be renewed and released from anywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// The key of the permits.
    pub key: Box<[u8]>,
    /// The store's name for the lease; 0 where it holds nothing.
    pub id: u64,
    /// How many permits it holds.
    pub count: u64,
    /// When it ends, by the store's clock, unless it is renewed.
    pub ends_at: Timestamp,
}

impl Lease {
    /// The lease of `key` that a store calls `id`. When it ends is not known until it is renewed.
    #[must_use]
    pub fn from_id<'k>(key: impl Into<Key<'k>>, id: u64) -> Self {
        Self { key: key.into().as_bytes().into(), id, count: 0, ends_at: Timestamp::ZERO }
    }

    /// True where the store could not answer and the [`OutagePolicy`](crate::OutagePolicy) let the
    /// request through: nothing is held, renewed or released.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.id == 0
    }

    /// Under another policy an id would mean something else, such as another request's permit.
    fn is_of(&self, policy: &Policy) -> bool {
        self.id != 0 && policy.lease_ttl().is_some()
    }
}

/// Leases, granted and returned: what limiters over memory and over other stores share.
impl StoreRef<'_> {
    pub(crate) async fn lease(
        self,
        key: &[u8],
        policy: &Policy,
        count: u64,
    ) -> Result<Lease, LeaseError> {
        if policy.lease_ttl().is_none() {
            return Err(LeaseError::NoLease);
        }
        let entry = self.ask(key, policy, count).await?;
        let decision = entry.decision.unwrap_or(Decision::UNDECIDED).ok()?;
        // A lease of this process could not be renewed or released by its id elsewhere.
        Ok(match HeldPermits::from_entry(&entry).filter(|_| decision.degraded().is_none()) {
            Some(held) => Lease {
                id: held.stamp,
                count: held.count,
                ends_at: held.ends_at().unwrap_or(held.granted_at),
                key: held.key,
            },
            None => Lease::from_id(key, 0),
        })
    }

    /// False where the lease has ended, and while the store cannot answer.
    pub(crate) async fn renew(self, lease: &mut Lease, policy: &Policy) -> bool {
        if !lease.is_of(policy) {
            return false;
        }
        let ends_at = self.store.renew(&lease.key, policy, lease.id).await.ok().flatten();
        lease.ends_at = ends_at.unwrap_or(lease.ends_at);
        ends_at.is_some()
    }

    /// False where the lease has ended, and while the store cannot answer.
    pub(crate) async fn release(self, lease: &Lease, policy: &Policy) -> bool {
        let refund = || self.store.refund(&lease.key, policy, lease.id, u64::MAX);
        lease.is_of(policy) && refund().await.is_ok_and(|count| count > 0)
    }
}
