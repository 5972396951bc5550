//! Why somebody does not wait.

use thiserror::Error;

use crate::Decision;

/// Why [`Limiter::until_ready`](crate::Limiter::until_ready) has not let a request through.
/// Nothing was charged, or it was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The queue is full, or the wait would be longer than the policy allows. The decision says
    /// when to come back; it is marked as degraded where the store could not answer.
    #[error("the queue is full, or the wait would be too long: come back after the retry-after")]
    Denied(Decision),
    /// As many wait as this limiter has room for, all keys taken together.
    #[error(
        "{waiters_max} requests wait already: come back later, or give the limiter more \
         `max_waiters`"
    )]
    TooManyWaiters {
        /// How many may wait.
        waiters_max: usize,
    },
    /// The policy of this key has no turns to wait for.
    #[error("nobody waits in `{algorithm}`: use a leaky queue, or `check`")]
    NotAQueue {
        /// The algorithm of the key's policy.
        algorithm: &'static str,
    },
}

impl WaitError {
    /// The store's answer, where that is what kept the request out.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        match self {
            Self::Denied(decision) => Some(*decision),
            Self::TooManyWaiters { .. } | Self::NotAQueue { .. } => None,
        }
    }
}
