//! A lease: permits for a while, as data that can travel.

use crate::charge::HeldPermits;
use crate::{Key, Policy, Timestamp};

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
    pub fn of<'k>(key: impl Into<Key<'k>>, id: u64) -> Self {
        Self { key: key.into().as_bytes().into(), id, count: 0, ends_at: Timestamp::ZERO }
    }

    /// True where the store could not answer and the [`OutagePolicy`](crate::OutagePolicy) let the
    /// request through: nothing is held, renewed or released.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.id == 0
    }

    /// The lease of what was taken; one that holds nothing where nothing was.
    pub(crate) fn granted(key: &[u8], held: Option<HeldPermits>) -> Self {
        match held {
            Some(held) => Self {
                id: held.stamp,
                count: held.count,
                ends_at: held.ends_at().unwrap_or(held.granted_at),
                key: held.key,
            },
            None => Self::of(key, 0),
        }
    }

    /// Under another policy an id would mean something else, such as somebody's permit.
    pub(crate) fn is_of(&self, policy: &Policy) -> bool {
        self.id != 0 && policy.lease_ttl().is_some()
    }

    pub(crate) fn prolong(&mut self, ends_at: Option<Timestamp>) -> bool {
        self.ends_at = ends_at.unwrap_or(self.ends_at);
        ends_at.is_some()
    }
}
