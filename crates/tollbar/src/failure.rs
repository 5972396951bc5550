//! What to answer when the store cannot: the one failure-policy type.

use std::time::Duration;

use crate::{Decision, Degraded, Limiter, Outcome, Policy, StoreError, Timestamp};

/// What happens to requests during an [outage](crate::StoreError::is_outage) of the store. The answer
/// is marked [`degraded`](Decision::degraded) either way. A cost above the policy's
/// [capacity](Policy::capacity) never passes, whatever this says.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum FailurePolicy {
    /// Let everything through: limiting is worth less than serving.
    #[default]
    Allow,
    /// Turn everything away for a second: passing is worth less than limiting.
    Deny,
    /// Ask another limiter, usually one in process with a share of the limit.
    Fallback(Box<Limiter>),
}

/// How long a client that was denied unseen is told to wait.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl FailurePolicy {
    /// The answer to one request that the store did not answer because of `error`.
    pub(crate) fn decide(
        &self,
        error: &StoreError,
        key: &[u8],
        policy: &Policy,
        cost: u64,
    ) -> Decision {
        if !error.is_outage() {
            // However often it is asked, the store cannot answer it.
            return blind(Outcome::Never, policy);
        }
        match self {
            _ if cost > policy.capacity() => {
                blind(Outcome::Never, policy).into_degraded(Degraded::Denied)
            }
            Self::Allow => blind(Outcome::Allow, policy).into_degraded(Degraded::Allowed),
            Self::Deny => {
                let retry_after_us = RETRY_AFTER.as_micros() as u64;
                blind(Outcome::Deny { retry_after_us }, policy).into_degraded(Degraded::Denied)
            }
            Self::Fallback(limiter) => {
                limiter.check_cost(key, cost).into_degraded(Degraded::Fallback)
            }
        }
    }
}

/// An answer that has seen no counter: it knows the limit and nothing else.
fn blind(outcome: Outcome, policy: &Policy) -> Decision {
    Decision::new(outcome, policy.limit(), 0, Timestamp::ZERO)
}
