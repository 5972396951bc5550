//! What can go wrong on the way to a server, whatever it speaks.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

/// Why a question was not answered, as far as the machinery here knows.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RemoteError {
    /// No connection, or none that answers: the circuit breaker is open.
    #[error("there is no connection to {node} at the moment ({cause})")]
    Disconnected {
        /// The server.
        node: Arc<str>,
        /// What became of the last attempt.
        cause: Arc<str>,
    },
    /// No answer in time. The charge may have been made all the same.
    #[error("no answer within {deadline:?}")]
    DeadlineMissed {
        /// How long was waited.
        deadline: Duration,
    },
    /// As many checks are under way as may be; this one was not sent.
    #[error("{in_flight_max} checks are under way already, and no more are allowed")]
    Overloaded {
        /// How many may be.
        in_flight_max: usize,
    },
}

/// An error of a store across a network.
pub trait Failure: Error + From<RemoteError> + Send + Sync + 'static {
    /// What it means for the connection.
    fn kind(&self) -> FailureKind;
}

/// What an error means for the connection it came over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// There was no connection.
    Disconnected,
    /// No answer came in time. So many in a row open the circuit breaker.
    DeadlineMissed,
    /// Too many checks were under way.
    Overloaded,
    /// The connection is of no more use: the circuit breaker opens.
    Broken,
    /// The server has answered, if only to refuse.
    Refused,
}

impl FailureKind {
    /// True if another attempt over another connection may help.
    #[must_use]
    pub fn is_of_connection(self) -> bool {
        matches!(self, Self::Disconnected | Self::DeadlineMissed | Self::Broken)
    }
}

impl Failure for RemoteError {
    fn kind(&self) -> FailureKind {
        match self {
            Self::Disconnected { .. } => FailureKind::Disconnected,
            Self::DeadlineMissed { .. } => FailureKind::DeadlineMissed,
            Self::Overloaded { .. } => FailureKind::Overloaded,
        }
    }
}
