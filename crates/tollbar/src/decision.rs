//! One policy's answer, and what may be read from it.

use std::time::Duration;

use crate::Timestamp;

/// Whether a request may pass one policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It may, and has paid.
    Allow,
    /// Not now. Nothing was charged.
    Deny {
        /// How long until the same request passes, if nobody else asks: denied one microsecond
        /// before, allowed at it.
        retry_after_us: u64,
    },
    /// Not now and not later: the cost is above what the policy can ever hold.
    Never,
}

/// What happened when the store could not answer and a [`FailurePolicy`](crate::FailurePolicy)
/// answered in its place.
// Eight bytes, which makes a decision whole words and copying one cheap: byte by byte it cost 5 ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Degraded {
    /// Let through unlimited.
    Allowed,
    /// Turned away unseen.
    Denied,
    /// Decided by the fallback limiter.
    Fallback,
}

/// One policy's answer to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub(crate) outcome: Outcome,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) reset_at: Timestamp,
    pub(crate) degraded: Option<Degraded>,
}

impl Decision {
    /// An answer from a store or an algorithm. `remaining` and `reset_at` are those after the
    /// charge, where there was one.
    #[must_use]
    pub const fn new(outcome: Outcome, limit: u64, remaining: u64, reset_at: Timestamp) -> Self {
        Self { outcome, limit, remaining, reset_at, degraded: None }
    }

    /// What stands in a decision's place until it is made.
    pub(crate) const UNDECIDED: Self = Self::new(Outcome::Never, 0, 0, Timestamp::ZERO);

    /// Allow, deny or never.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// True where the request may pass.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allow)
    }

    /// The policy's limit per window.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The largest cost that would pass now.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// For a denial, how long to wait; `None` for an allowed request and for one that will never
    /// pass.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.outcome {
            Outcome::Deny { retry_after_us } => Some(Duration::from_micros(retry_after_us)),
            Outcome::Allow | Outcome::Never => None,
        }
    }

    /// The window's end; for a bucket, when it is full again.
    #[must_use]
    pub const fn reset_at(&self) -> Timestamp {
        self.reset_at
    }

    /// Set where the store could not answer and the failure policy did.
    #[must_use]
    pub const fn degraded(&self) -> Option<Degraded> {
        self.degraded
    }

    /// The same answer, marked as given without the store.
    pub(crate) const fn into_degraded(mut self, how: Degraded) -> Self {
        self.degraded = Some(how);
        self
    }

    /// True where this binds harder than `other`: `Never` before the longest retry, before the
    /// least share of its limit remaining.
    pub(crate) fn binds_before(&self, other: &Self) -> bool {
        match (self.outcome, other.outcome) {
            (Outcome::Never, theirs) => theirs != Outcome::Never,
            (Outcome::Deny { .. }, Outcome::Allow) => true,
            (Outcome::Deny { retry_after_us: mine }, Outcome::Deny { retry_after_us: theirs }) => {
                mine > theirs
            }
            (Outcome::Allow, Outcome::Allow) => {
                // mine.remaining / mine.limit < theirs.remaining / theirs.limit, without division.
                u128::from(self.remaining) * u128::from(other.limit)
                    < u128::from(other.remaining) * u128::from(self.limit)
            }
            (Outcome::Deny { .. }, Outcome::Never) | (Outcome::Allow, _) => false,
        }
    }
}
