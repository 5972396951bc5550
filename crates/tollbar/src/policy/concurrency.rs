//! How many requests may be in flight at once.

use std::fmt;
use std::time::Duration;

use crate::{Policy, PolicyError, WarmUp};

/// At most so many permits in flight at any instant, whatever the rate: for
/// [`ConcurrencyLimiter`](crate::ConcurrencyLimiter) and [`Charges::permit`](crate::Charges::permit).
///
/// Where all permits are in flight the answer is [`DenyReason::Busy`](crate::DenyReason::Busy): nobody
/// can know when one comes back. A lowered limit cuts nothing that is in flight; it refuses new permits
/// until enough have come back.
///
/// Permits without a lease end with the process that holds them, so they are in no
/// [snapshot](crate::MemoryStore::write_snapshot). A memory store that is full forgets a counter with
/// permits in flight last of all, and counts it among its forced evictions.
#[derive(Debug, Clone, PartialEq)]
pub struct Concurrency(Policy);

impl Concurrency {
    /// At most `limit` permits in flight (1 to 2<sup>32</sup>).
    ///
    /// # Errors
    /// If the limit is 0 or too large.
    pub fn new(limit: u64) -> Result<Self, PolicyError> {
        Policy::concurrency(limit).map(Self)
    }

    /// The same number of permits, leased: each acquisition ends by itself after `ttl`, unless it is
    /// renewed. For holders in other processes, which may vanish. It has counters of its own, apart
    /// from those of permits without a lease, and limits up to
    /// [`LEASE_LIMIT_MAX`](crate::algorithm::leased::LEASE_LIMIT_MAX).
    ///
    /// A changed `ttl` applies to leases that are granted or renewed from then on. Leases are in
    /// snapshots.
    ///
    /// # Errors
    /// If `ttl` is below a microsecond or too long, or the limit too large for leases.
    pub fn with_lease(self, ttl: Duration) -> Result<Self, PolicyError> {
        self.0.leased(ttl).map(Self)
    }

    /// The same permits with a limit that climbs from `start` to the full one, for keys that are new and
    /// for those of which none was taken for as long as the climb takes: see [`Policy::with_warm_up`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollbar::{Concurrency, ConcurrencyLimiter, WarmUp};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let warm_up = WarmUp { start: 1, over: Duration::from_mins(1), steps: 3 };
    /// let jobs = ConcurrencyLimiter::new(Concurrency::new(10)?.with_warm_up(warm_up)?);
    /// // 1 at first, 4 after twenty seconds, 7 after forty and 10 after a minute.
    /// let first = jobs.try_acquire("backend")?;
    /// assert!(jobs.try_acquire("backend").is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the warm-up starts at 0 or at the limit, or has no duration or no steps.
    pub fn with_warm_up(self, warm_up: WarmUp) -> Result<Self, PolicyError> {
        self.0.with_warm_up(warm_up).map(Self)
    }

    /// The same permits under a name, with counters of their own.
    #[must_use]
    pub fn with_name(self, name: &str) -> Self {
        Self(self.0.with_name(name))
    }

    /// How many permits may be in flight.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.0.limit()
    }

    /// How long a lease lasts; `None` for permits without one.
    #[must_use]
    pub fn lease_ttl(&self) -> Option<Duration> {
        self.0.lease_ttl()
    }

    /// The policy, for code that sends [batches](crate::Batch) to a store itself. Whoever charges it
    /// must give it back, by [`Store::refund`](crate::Store::refund).
    #[must_use]
    pub fn as_policy(&self) -> &Policy {
        &self.0
    }

    /// The policy, as [`as_policy`](Self::as_policy).
    #[must_use]
    pub fn into_policy(self) -> Policy {
        self.0
    }
}

impl fmt::Display for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
