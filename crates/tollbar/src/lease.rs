//! A lease: permits for a while, as data that can travel.

use crate::Timestamp;

/// Permits that are in flight until they end or are given back, from
/// [`Limiter::lease`](crate::Limiter::lease).
///
/// Unlike a [`Permit`](crate::Permit) it is nothing but data: dropping it gives nothing back. Whoever
/// has its key and its id may renew or release it, from anywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// Whose permits they are.
    pub key: Box<[u8]>,
    /// What the store calls it; 0 where it holds nothing.
    pub id: u64,
    /// How many permits it holds.
    pub count: u64,
    /// When it ends, by the store's clock, unless it is renewed.
    pub ends_at: Timestamp,
}

impl Lease {
    /// The lease of `key` that a store calls `id`, as whoever holds it has kept it. When it ends is
    /// not known until it is renewed.
    #[must_use]
    pub fn of(key: impl AsRef<[u8]>, id: u64) -> Self {
        Self { key: key.as_ref().into(), id, count: 0, ends_at: Timestamp::ZERO }
    }

    /// True where the store could not answer and the [`FailurePolicy`](crate::FailurePolicy) let it
    /// through: nothing is held, renewed or released.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.id == 0
    }
}
