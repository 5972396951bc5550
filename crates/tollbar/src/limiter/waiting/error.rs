//! Why a request does not wait.

use thiserror::Error;

use crate::{Denied, StoreError};

/// Why waiting has not let a request through. Nothing was charged, or it was given back.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum WaitError {
    /// Waiting would not help: the queue is full, the wait would be longer than the policy allows, the
    /// cost is above the capacity, or the store cannot answer and the outage policy denies.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// As many requests wait as this limiter has room for, all keys taken together.
    #[error(
        "{waiters_max} requests wait already: come back later, or give the limiter more \
         `max_waiters`"
    )]
    TooManyWaiters {
        /// How many may wait.
        waiters_max: usize,
    },
    /// The store cannot count by the policy, or there is an outage and
    /// [`OutagePolicy::Error`](crate::OutagePolicy::Error).
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl WaitError {
    /// The denial, where that is what kept the request out.
    #[must_use]
    pub fn denied(&self) -> Option<Denied> {
        match self {
            Self::Denied(denied) => Some(*denied),
            Self::TooManyWaiters { .. } | Self::Store(_) => None,
        }
    }
}
