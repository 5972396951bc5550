//! What a request that does not pass is answered with.
//!
//! JSON; RFC 9457 for those who accept it; trailers for gRPC. Headers about limits are added by
//! [`HeaderStyle`](crate::HeaderStyle).

#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::json;
use thiserror::Error;
use tollbar_rules::{CheckOutcome, DenialCode, Enforcement, InvalidRequest, Verdict};

use crate::TermHeaderError;
use crate::grpc::{self, GrpcCode};
use crate::headers::{name_of, write_retry_after};

/// A request that does not pass, and what may be told about it.
#[derive(Debug)]
pub struct Denial<'a> {
    verdict: &'a Verdict,
    retry_after: Option<Duration>,
}

/// The form in which a client wants to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `{"error", "message", "rule"}`.
    Json,
    /// RFC 9457, `application/problem+json`.
    Problem,
    /// A gRPC status.
    Grpc,
}

/// The content of a denial, whatever the format.
struct DenialContent {
    status: StatusCode,
    code: GrpcCode,
    error: &'static str,
    message: String,
    rule: Option<String>,
    /// The type of the problem, where there is a name for it.
    problem: Option<&'static str>,
    violated: Vec<String>,
    retry_after: Option<Duration>,
}

/// The names that the IETF's draft has registered.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

impl<'a> Denial<'a> {
    /// Of a request that `verdict` denies. `retry_after` is the verdict's, perhaps lengthened.
    #[must_use]
    pub fn new(verdict: &'a Verdict, retry_after: Option<Duration>) -> Self {
        Self { verdict, retry_after }
    }

    /// The verdict.
    #[must_use]
    pub fn verdict(&self) -> &'a Verdict {
        self.verdict
    }

    /// How long the client is told to wait. `None` where nobody can know, and where waiting will
    /// not help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The status of the response: see [`status_of`].
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.content().status
    }

    /// The name of the problem (RFC 9457), where it has one.
    #[must_use]
    pub fn problem_type(&self) -> Option<&'static str> {
        self.content().problem
    }

    /// The limits that deny, by the names that headers use.
    #[must_use]
    pub fn violated_policies(&self) -> Vec<String> {
        violated(self.verdict)
    }

    /// The response, in the form that the client wants.
    #[must_use]
    pub fn response(&self, format: Format) -> Response<Bytes> {
        self.content().response(format)
    }

    fn content(&self) -> DenialContent {
        let rule = self.verdict.rule().map(|rule| rule.name.to_string());
        let code = self.verdict.denial_code().unwrap_or(DenialCode::RateLimitExceeded);
        let problem = match self.verdict.check_outcome() {
            CheckOutcome::Rejected(code) if code.is_mistake() => None,
            CheckOutcome::Degraded(..) if code == DenialCode::RateLimitExceeded => {
                Some(REDUCED_CAPACITY)
            }
            CheckOutcome::Decided(_)
            | CheckOutcome::Degraded(..)
            | CheckOutcome::Rejected(_)
            | CheckOutcome::NoRule => Some(QUOTA_EXCEEDED),
        };
        DenialContent {
            status: status_of(code),
            code: grpc_code_of(code),
            error: code.as_str(),
            message: self.verdict.denial_message().unwrap_or_default().into_owned(),
            rule,
            problem,
            violated: violated(self.verdict),
            retry_after: self.retry_after,
        }
    }
}

/// The status of a response to a request that was denied for this reason: 429 where another time may do,
/// 422 where the cost is above what the limit can ever hold, another 4xx where the request is to be sent
/// otherwise, 500 where the rules or the store do not fit it.
#[must_use]
pub fn status_of(code: DenialCode) -> StatusCode {
    match code {
        DenialCode::RateLimitExceeded | DenialCode::Banned => StatusCode::TOO_MANY_REQUESTS,
        DenialCode::CostExceedsLimit => StatusCode::UNPROCESSABLE_ENTITY,
        DenialCode::MissingAttribute
        | DenialCode::InvalidCost
        | DenialCode::AmbiguousPath
        | DenialCode::ReceiptTooLong => StatusCode::BAD_REQUEST,
        DenialCode::RequestIdReused => StatusCode::CONFLICT,
        DenialCode::TooManyLimits | DenialCode::CrossSlot | DenialCode::Unsupported => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}

fn grpc_code_of(code: DenialCode) -> GrpcCode {
    match code {
        DenialCode::RateLimitExceeded | DenialCode::Banned => GrpcCode::ResourceExhausted,
        DenialCode::CostExceedsLimit
        | DenialCode::MissingAttribute
        | DenialCode::InvalidCost
        | DenialCode::AmbiguousPath
        | DenialCode::ReceiptTooLong
        | DenialCode::RequestIdReused => GrpcCode::InvalidArgument,
        DenialCode::TooManyLimits | DenialCode::CrossSlot | DenialCode::Unsupported => {
            GrpcCode::Internal
        }
    }
}

/// Why a request cannot be checked.
#[derive(Debug, Error)]
#[error(transparent)]
pub(crate) enum RequestError {
    Request(#[from] InvalidRequest),
    Terms(#[from] TermHeaderError),
}

/// The response to a request that rules cannot look at: its path is too long, for instance.
pub(crate) fn refusal(error: &RequestError, format: Format) -> Response<Bytes> {
    let status = match error {
        RequestError::Request(InvalidRequest::PathTooLong { .. }) => StatusCode::URI_TOO_LONG,
        _ => StatusCode::BAD_REQUEST,
    };
    let content = DenialContent {
        status,
        code: GrpcCode::InvalidArgument,
        error: "bad_request",
        message: error.to_string(),
        rule: None,
        problem: None,
        violated: Vec::new(),
        retry_after: None,
    };
    content.response(format)
}

/// The limits that deny, by the names that headers use.
fn violated(verdict: &Verdict) -> Vec<String> {
    let denying = verdict
        .decisions()
        .filter(|decision| decision.enforcement() == Enforcement::Live && decision.denies());
    denying.map(|decision| name_of(&decision)).collect()
}

impl Format {
    /// What a request with these headers wants.
    #[must_use]
    pub fn wanted(headers: &HeaderMap) -> Self {
        let content_type = headers.get(header::CONTENT_TYPE);
        if content_type.is_some_and(|value| grpc::is_grpc(value.as_bytes())) {
            Self::Grpc
        } else if headers.get_all(header::ACCEPT).iter().any(accepts_problems) {
            Self::Problem
        } else {
            Self::Json
        }
    }
}

/// True where `Accept` names problems. A range such as `*/*` accepts anything, also what we send
/// otherwise, so it does not count.
fn accepts_problems(accept: &HeaderValue) -> bool {
    let Ok(accept) = accept.to_str() else {
        return false;
    };
    accept.split(',').any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_named =
            parts.next().is_some_and(|name| name.eq_ignore_ascii_case("application/problem+json"));
        // `q=0`, `q=0.0` and so on refuse it.
        let is_refused = parts.any(|parameter| {
            let weight = parameter.strip_prefix("q=").or_else(|| parameter.strip_prefix("Q="));
            weight.is_some_and(|weight| weight.bytes().all(|byte| matches!(byte, b'0' | b'.')))
        });
        is_named && !is_refused
    })
}

impl DenialContent {
    fn response(self, format: Format) -> Response<Bytes> {
        let retry_after = self.retry_after;
        let mut response = match format {
            Format::Grpc => grpc::trailers_only(self.code, &self.message, retry_after),
            Format::Json => self.json(),
            Format::Problem => self.problem(),
        };
        if let Some(wait) = retry_after {
            write_retry_after(wait, response.headers_mut());
        }
        response
    }

    fn json(self) -> Response<Bytes> {
        let mut body = json!({ "error": self.error, "message": self.message });
        if let Some(rule) = self.rule {
            body["rule"] = rule.into();
        }
        with_body(self.status, "application/json", &body)
    }

    fn problem(self) -> Response<Bytes> {
        let mut body = json!({
            "type": self.problem.unwrap_or("about:blank"),
            "title": self.message,
            "status": self.status.as_u16(),
        });
        if self.problem.is_some() {
            body["violated-policies"] = self.violated.into();
        }
        with_body(self.status, "application/problem+json", &body)
    }
}

fn with_body(
    status: StatusCode,
    content_type: &'static str,
    body: &serde_json::Value,
) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    // What one client was denied is no answer to another.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
