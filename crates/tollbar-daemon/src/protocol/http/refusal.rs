//! A [`Problem`] as the interface for checks tells it: with statuses and words of its own, which clients go
//! by, and in the format that they accept.

use std::borrow::{Borrow, Cow};

use hyper::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;
use tollbar_http::Format;
use tollbar_rules::{InvalidRequest, TokenError, UnknownRule, UsageError};

use super::response::{ApiResponse, JSON, PROBLEM, json};
use crate::auth_failures::WrongToken;
use crate::daemon::EXPOSED;
use crate::net::BodyError;
use crate::problem::Problem;

/// A request that is not answered.
#[derive(Debug)]
pub struct Refusal(pub(crate) Problem);

/// A refusal as clients get it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(crate) struct ErrorBody<'a> {
    /// For programs.
    error: &'a str,
    /// For people: what to send instead.
    message: &'a str,
}

/// Any answer but a 200, as RFC 9457 has it, for those who accept `application/problem+json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub(crate) struct ProblemBody<'a> {
    /// What kind of problem it is.
    pub(super) r#type: &'a str,
    /// What it comes to, for people.
    pub(super) title: &'a str,
    /// The response's status.
    pub(super) status: u16,
    /// The limits that deny, by the names that the headers use.
    #[serde(rename = "violated-policies", skip_serializing_if = "Option::is_none")]
    pub(super) violated_policies: Option<Vec<String>>,
    /// For `/v1/decisions/{id}`.
    #[serde(rename = "decisionId", skip_serializing_if = "Option::is_none")]
    pub(super) decision_id: Option<String>,
}

impl Refusal {
    fn new(status: StatusCode, error: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Problem::new(status, error, message))
    }

    pub(crate) fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    pub(crate) fn unknown_path(paths: impl Iterator<Item = impl Borrow<str>>) -> Self {
        let paths = paths.collect::<Vec<_>>().join(", ");
        let message = format!("there is no such path: ask one of {paths}");
        Self::new(StatusCode::NOT_FOUND, "unknown_path", message)
    }

    pub(super) fn unknown_decision() -> Self {
        let message = "no denial is remembered under this id: only denials are, the latest of them";
        Self::new(StatusCode::NOT_FOUND, "unknown_decision", message)
    }

    pub(super) fn wrong_method(allow: &str) -> Self {
        Self(Problem::wrong_method(allow.to_owned()))
    }

    pub(super) fn foreign(message: &'static str) -> Self {
        Self(Problem::forbidden(message))
    }

    pub(super) fn no_json() -> Self {
        let message = "this changes or reveals limits, and its body must be JSON: send `Content-Type: application/json`";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    pub(super) fn exposed() -> Self {
        Self(Problem::unauthorized(EXPOSED))
    }

    pub(super) fn unauthorized(wrong: WrongToken) -> Self {
        if let Some(retry_after_s) = wrong.retry_after_s {
            return Self(Problem::too_many_failures(retry_after_s));
        }
        let message = "the token is missing or wrong: send `Authorization: Bearer ` and the token";
        Self(Problem::unauthorized(message))
    }

    pub(super) fn status(&self) -> StatusCode {
        self.0.status
    }

    pub(super) fn error(&self) -> ErrorBody<'_> {
        ErrorBody { error: self.0.code, message: &self.0.detail }
    }

    pub(super) fn within(self, place: &str) -> Self {
        Self(Problem { detail: format!("{place}: {}", self.0.detail).into(), ..self.0 })
    }

    pub(crate) fn answer(&self, format: Format) -> ApiResponse {
        let status = self.0.status;
        let mut answer = match format {
            Format::Problem => {
                let problem = ProblemBody {
                    r#type: "about:blank",
                    title: &self.0.detail,
                    status: status.as_u16(),
                    violated_policies: None,
                    decision_id: None,
                };
                json(status, PROBLEM, &problem)
            }
            _ => json(status, JSON, &self.error()),
        };
        self.0.write_headers(answer.headers_mut());
        answer
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        refusal.0
    }
}

impl From<BodyError> for Refusal {
    fn from(error: BodyError) -> Self {
        Self(error.into())
    }
}

impl From<InvalidRequest> for Refusal {
    fn from(error: InvalidRequest) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<UnknownRule> for Refusal {
    fn from(error: UnknownRule) -> Self {
        UsageError::from(error).into()
    }
}

impl From<UsageError> for Refusal {
    fn from(error: UsageError) -> Self {
        let (status, word) = match &error {
            UsageError::UnknownRule { .. } => (StatusCode::NOT_FOUND, "unknown_rule"),
            UsageError::Store(_) => (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable"),
            error if error.is_incomplete() => {
                (StatusCode::UNPROCESSABLE_ENTITY, "incomplete_subject")
            }
            _ => (StatusCode::BAD_REQUEST, "bad_request"),
        };
        Self::new(status, word, error.to_string())
    }
}

impl From<TokenError> for Refusal {
    fn from(error: TokenError) -> Self {
        let (status, word) = match &error {
            TokenError::NotOpen => (StatusCode::CONFLICT, "not_open"),
            TokenError::Store(_) => (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable"),
            _ => (StatusCode::BAD_REQUEST, "not_accepted"),
        };
        Self::new(status, word, error.to_string())
    }
}
