//! What to answer when the store cannot: the one failure-policy type.

use std::time::Duration;

use crate::{Decision, Degraded, Limiter, Outcome, Policy, Timestamp};

/// What happens to requests while the store cannot answer. The answer is marked
/// [`degraded`](Decision::degraded) either way.
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
    /// The answer to one request that the store did not answer.
    pub(crate) fn decide(&self, key: &[u8], policy: &Policy, cost: u64) -> Decision {
        match self {
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
