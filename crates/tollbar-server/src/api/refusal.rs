//! Why something was not answered: a status, a word for programs, and a sentence that says what to
//! send instead.

use std::borrow::{Borrow, Cow};

use hyper::StatusCode;
use hyper::header::{ALLOW, CONNECTION, HeaderValue, WWW_AUTHENTICATE};
use schemars::JsonSchema;
use serde::Serialize;
use tollbar_http::Format;
use tollbar_rules::{RequestError, TokenError, UsageError};

use super::answer::{Answer, JSON, PROBLEM, json};
use crate::listener::Unread;

/// A request that is not answered.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    error: &'static str,
    message: Cow<'static, str>,
    allow: Option<&'static str>,
    /// What is left of the body is not read, so the connection is of no more use.
    ends_connection: bool,
}

/// A refusal as clients get it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Error<'a> {
    /// For programs.
    error: &'a str,
    /// For people: what to send instead.
    message: &'a str,
}

/// Any answer but a 200, as RFC 9457 has it, for those who accept `application/problem+json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Problem<'a> {
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
        Self { status, error, message: message.into(), allow: None, ends_connection: false }
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

    pub(super) fn wrong_method(allow: &'static str) -> Self {
        let message = format!("this path takes another method: send {allow}");
        let refusal = Self::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", message);
        Self { allow: Some(allow), ..refusal }
    }

    pub(super) fn unauthorized() -> Self {
        let message = "the token is missing or wrong: send `Authorization: Bearer ` and the token";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(super) fn error(&self) -> Error<'_> {
        Error { error: self.error, message: &self.message }
    }

    pub(super) fn within(self, place: &str) -> Self {
        Self { message: format!("{place}: {}", self.message).into(), ..self }
    }

    pub(crate) fn answer(&self, format: Format) -> Answer {
        let mut answer = match format {
            Format::Problem => {
                let problem = Problem {
                    r#type: "about:blank",
                    title: &self.message,
                    status: self.status.as_u16(),
                    violated_policies: None,
                    decision_id: None,
                };
                json(self.status, PROBLEM, &problem)
            }
            _ => json(self.status, JSON, &self.error()),
        };
        let headers = answer.headers_mut();
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.ends_connection {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}

impl From<Unread> for Refusal {
    fn from(unread: Unread) -> Self {
        let (status, error) = match unread {
            Unread::TooLarge { .. } | Unread::TooManyPieces => {
                (StatusCode::PAYLOAD_TOO_LARGE, "too_large")
            }
            Unread::TooSlow => (StatusCode::REQUEST_TIMEOUT, "too_slow"),
            Unread::CutShort => (StatusCode::BAD_REQUEST, "bad_request"),
        };
        Self { ends_connection: true, ..Self::new(status, error, unread.advice()) }
    }
}

impl From<RequestError> for Refusal {
    fn from(error: RequestError) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<UsageError> for Refusal {
    fn from(error: UsageError) -> Self {
        let (status, word) = match &error {
            UsageError::UnknownRule { .. } => (StatusCode::NOT_FOUND, "unknown_rule"),
            UsageError::Store(_) => (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable"),
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
