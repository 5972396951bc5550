//! Why a check has no answer, and what may be answered in its place.

use std::time::Duration;

use thiserror::Error;
use tonic::{Code, Status};

use crate::v1::{CheckResponse, Outcome};

/// Why a check has no answer.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The request is a mistake, or the client is: its token is wrong, for instance. Nothing was charged, and
    /// sending it again is no use.
    #[error("refused, {code:?}: {message}")]
    Refused {
        /// The status by which gRPC knows it.
        code: Code,
        /// What to send instead.
        message: String,
    },
    /// As many callers wait as may: nothing was sent. No outage is to blame, so no failure policy answers:
    /// to send more requests must not be a way past the limits.
    #[error("{max_waiting} checks are waiting already: slow down, or raise `max_waiting`")]
    Overloaded {
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

/// Why a client cannot send checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The daemon cannot be reached, or does not answer: that may pass.
    Outage(String),
    /// The daemon wants nothing from this client until somebody changes something.
    Refusal { code: Code, message: String },
}

impl Fault {
    pub(super) fn from_status(status: &Status) -> Self {
        let (code, message) = (status.code(), status.message());
        if is_mistake(code) {
            Self::Refusal { code, message: message.to_owned() }
        } else {
            Self::Outage(format!("{code:?}: {message}"))
        }
    }

    /// What callers are told whose checks were not sent.
    pub(super) fn to_error(&self) -> CheckError {
        match self.clone() {
            Self::Outage(reason) => CheckError::Unavailable { reason },
            Self::Refusal { code, message } => CheckError::Refused { code, message },
        }
    }

    /// What callers are told whose checks were sent.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Outage(reason) => reason.clone(),
            Self::Refusal { code, message } => format!("{code:?}: {message}"),
        }
    }
}

/// True for the codes that no retry changes.
fn is_mistake(code: Code) -> bool {
    match code {
        Code::Unauthenticated
        | Code::PermissionDenied
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => true,
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::ResourceExhausted
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => false,
    }
}

impl CheckError {
    /// True where the daemon gave no answer, which a [`FailurePolicy`] may give in its place. False for
    /// mistakes and overload, which do not heal by themselves.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Deadline { .. } | Self::Lost { .. } => true,
            Self::Refused { .. } | Self::Overloaded { .. } => false,
        }
    }

    /// The answer where the daemon gives none. What is no [outage](Self::is_outage) stays an error.
    pub fn decide(self, policy: FailurePolicy) -> Result<CheckResponse, Self> {
        if !self.is_outage() {
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
        let denied = CheckError::Unavailable { reason: String::new() };
        let denied = denied.decide(FailurePolicy::Deny).unwrap();
        assert!(!denied.allowed && denied.degraded);
        assert_eq!(denied.retry_after.unwrap().seconds, 1);
    }

    /// A wrong token, and a full queue of the client's own, were answered by the policy: allowed, for ever.
    #[test]
    fn what_does_not_heal_by_itself_is_never_allowed() {
        let wrong_token = Status::unauthenticated("the token is missing or wrong");
        let refused = Fault::from_status(&wrong_token).to_error();
        let mistake = CheckError::Refused { code: Code::NotFound, message: "no rule".to_owned() };
        for error in [refused, mistake, CheckError::Overloaded { max_waiting: 1 }] {
            for policy in [FailurePolicy::Allow, FailurePolicy::Deny] {
                assert!(error.clone().decide(policy).is_err(), "{error}");
            }
        }
    }

    #[test]
    fn an_outage_is_told_from_a_mistake_by_its_code() {
        for code in (0..=16).map(Code::from_i32) {
            let error = Fault::from_status(&Status::new(code, "why")).to_error();
            assert_eq!(error.is_outage(), !is_mistake(code), "{code:?}");
            assert!(error.to_string().contains(&format!("{code:?}: why")), "{error}");
        }
        assert!(is_mistake(Code::Unauthenticated) && is_mistake(Code::PermissionDenied));
        assert!(!is_mistake(Code::Unavailable) && !is_mistake(Code::ResourceExhausted));
    }
}
