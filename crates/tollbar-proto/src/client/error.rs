//! Why a check has no answer, and what may be answered in its place.

use std::time::Duration;

use thiserror::Error;

use crate::v1::{CheckResponse, Outcome};

/// Why a check has no answer.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The request is a mistake: nothing was charged, and sending it again is no use.
    #[error("the request was refused: {message}")]
    Refused {
        /// The status by which gRPC knows it.
        code: tonic::Code,
        /// What to send instead.
        message: String,
    },
    /// As many callers wait as may: nothing was sent.
    #[error("{max_waiting} checks are waiting already: slow down, or raise `max_waiting`")]
    Full {
        /// The bound.
        max_waiting: usize,
    },
    /// The daemon cannot be reached: nothing was sent.
    #[error("the daemon cannot be reached: {reason}")]
    Unavailable {
        /// What the last try said.
        reason: String,
    },
    /// There was no answer in time. The request may have been charged.
    #[error("no answer within {deadline:?}")]
    Deadline {
        /// How long was waited.
        deadline: Duration,
    },
    /// The connection broke after the request was sent. The request may have been charged.
    #[error("the connection broke before the answer came: {reason}")]
    Lost {
        /// How it broke.
        reason: String,
    },
}

/// What becomes of requests for which there is no answer, as in the library. The answer is marked
/// degraded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailurePolicy {
    /// Let them through: limiting is worth less than serving.
    #[default]
    Allow,
    /// Turn them away for a second: passing is worth less than limiting.
    Deny,
}

/// How long a client that was denied unseen is told to wait.
const RETRY_AFTER_S: i64 = 1;

impl CheckError {
    /// The answer where the daemon gives none; a request that was refused stays an error.
    pub fn decide(self, policy: FailurePolicy) -> Result<CheckResponse, Self> {
        if matches!(self, Self::Refused { .. }) {
            return Err(self);
        }
        let blind = CheckResponse { degraded: true, ..CheckResponse::default() };
        Ok(match policy {
            FailurePolicy::Allow => {
                CheckResponse { allowed: true, outcome: Outcome::Allow.into(), ..blind }
            }
            FailurePolicy::Deny => {
                let wait = prost_types::Duration { seconds: RETRY_AFTER_S, nanos: 0 };
                CheckResponse { outcome: Outcome::Deny.into(), retry_after: Some(wait), ..blind }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_answers_for_a_daemon_that_does_not_and_marks_it() {
        let allowed =
            CheckError::Lost { reason: String::new() }.decide(FailurePolicy::Allow).unwrap();
        assert!(allowed.allowed && allowed.degraded && allowed.retry_after.is_none());
        let denied = CheckError::Full { max_waiting: 1 }.decide(FailurePolicy::Deny).unwrap();
        assert!(!denied.allowed && denied.degraded);
        assert_eq!(denied.retry_after.unwrap().seconds, 1);
    }

    #[test]
    fn a_mistake_stays_one() {
        let mistake =
            CheckError::Refused { code: tonic::Code::NotFound, message: "no rule".to_owned() };
        assert!(matches!(mistake.decide(FailurePolicy::Allow), Err(CheckError::Refused { .. })));
    }
}
