//! A denial, as an error that says why and when to come back.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::{Decision, Degraded, Outcome, readable_duration};

/// A request that may not pass. Nothing was charged.
///
/// ```
/// use tollbar::{Denied, DenyReason, Limiter, Policy};
///
/// fn serve(limiter: &Limiter) -> Result<&'static str, Denied> {
///     limiter.check("user:42").ok()?;
///     Ok("hello")
/// }
/// # fn main() -> Result<(), tollbar::PolicyError> {
/// let limiter = Limiter::new(Policy::token_bucket("1/min")?);
/// assert!(serve(&limiter).is_ok());
/// let denied = serve(&limiter).unwrap_err();
/// assert_eq!(denied.reason(), DenyReason::RateLimited);
/// assert!(denied.retry_after().is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denied {
    decision: Decision,
    reason: DenyReason,
}

/// Why a request was denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DenyReason {
    /// The limit is spent for now. [`Denied::retry_after`] says for how long.
    RateLimited,
    /// All permits are in flight, or the key is not [warm](crate::Policy::with_warm_up) enough. Nobody
    /// can know when that changes.
    Busy,
    /// The cost is above the policy's [capacity](crate::Policy::capacity): it never passes.
    ExceedsCapacity,
    /// The store cannot answer, and the [`OutagePolicy`](crate::OutagePolicy) denies.
    Outage,
}

impl Denied {
    /// Why.
    #[must_use]
    pub const fn reason(&self) -> DenyReason {
        self.reason
    }

    /// How long to wait before the same request passes. `None` where it never will
    /// ([`ExceedsCapacity`](DenyReason::ExceedsCapacity)) and where nobody can know
    /// ([`Busy`](DenyReason::Busy)).
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.decision.outcome() {
            Outcome::Deny { retry_after_us } => Some(Duration::from_micros(retry_after_us)),
            Outcome::Allow | Outcome::Busy | Outcome::Never => None,
        }
    }

    /// The decision: the limit, and what remains of it.
    #[must_use]
    pub const fn decision(&self) -> Decision {
        self.decision
    }
}

impl Decision {
    /// Turns a denial into an error, so that `?` can return it.
    #[inline]
    pub const fn ok(self) -> Result<Self, Denied> {
        match self.denied() {
            Some(denied) => Err(denied),
            None => Ok(self),
        }
    }

    /// The denial, of a decision that is known to be one.
    pub(crate) const fn into_denied(self) -> Denied {
        match self.denied() {
            Some(denied) => denied,
            None => Denied { decision: self, reason: DenyReason::Busy },
        }
    }

    /// The denial; `None` where the request may pass.
    #[must_use]
    pub const fn denied(&self) -> Option<Denied> {
        let reason = match self.outcome() {
            Outcome::Allow => return None,
            Outcome::Deny { .. } if matches!(self.degraded(), Some(Degraded::Denied)) => {
                DenyReason::Outage
            }
            Outcome::Deny { .. } => DenyReason::RateLimited,
            Outcome::Busy => DenyReason::Busy,
            Outcome::Never => DenyReason::ExceedsCapacity,
        };
        Some(Denied { decision: *self, reason })
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.reason {
            DenyReason::RateLimited => "the limit is spent",
            DenyReason::Busy => "all permits are in use",
            DenyReason::ExceedsCapacity => "the cost is above what the limit can ever allow",
            DenyReason::Outage => "the limiter's store cannot answer",
        })?;
        match self.retry_after() {
            Some(wait) => write!(f, ": retry after {}", readable_duration(wait)),
            None => Ok(()),
        }
    }
}

impl Error for Denied {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;

    #[test]
    fn a_denial_is_an_error_that_says_why_and_when() {
        let deny = Outcome::Deny { retry_after_us: 1_500_000 };
        let decision = |outcome| Decision::new(outcome, 4, 2, Timestamp::ZERO);
        assert_eq!(decision(Outcome::Allow).ok(), Ok(decision(Outcome::Allow)));
        let cases = [
            (decision(deny), DenyReason::RateLimited, "the limit is spent: retry after 2 s"),
            (decision(Outcome::Busy), DenyReason::Busy, "all permits are in use"),
            (
                decision(Outcome::Never),
                DenyReason::ExceedsCapacity,
                "the cost is above what the limit can ever allow",
            ),
            (
                Decision::uncounted(deny, 4, Degraded::Denied),
                DenyReason::Outage,
                "the limiter's store cannot answer: retry after 2 s",
            ),
        ];
        for (decision, reason, text) in cases {
            let denied = decision.ok().unwrap_err();
            assert_eq!((denied.reason(), denied.to_string().as_str()), (reason, text));
            assert_eq!(denied.decision(), decision);
        }
    }
}
