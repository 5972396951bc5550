//! Why something was not done, as RFC 9457 has it: a status, a word for programs, a sentence that says
//! what to send instead, and the fields it is about.

use std::borrow::Cow;

use aide::OperationOutput;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{
    ALLOW, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use schemars::JsonSchema;
use serde::Serialize;
use tollbar::Timestamp;
use tollbar_http::{HeaderStyle, retry_after_s};
use tollbar_rules::admin::FormError;
use tollbar_rules::{InvalidRequest, RuleSetError, UsageError, Verdict};

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub status: StatusCode,
    /// For programs.
    pub(crate) code: &'static str,
    /// For people.
    pub detail: Cow<'static, str>,
    pub fields: Vec<FieldError>,
    /// After how many seconds it is worth trying again, where that is known.
    pub retry_after_s: Option<u64>,
    /// Headers about the limit that was exceeded; `None` for all other problems.
    pub headers: Option<Box<HeaderMap>>,
    /// The methods that the path takes, where the method was wrong.
    pub(crate) allow: Option<String>,
    /// What is left of the body is not read, so the connection is of no more use.
    pub(crate) ends_connection: bool,
}

/// A field to be changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Wrong")]
pub struct FieldError {
    /// Which; empty where it is the whole.
    pub field: String,
    /// What is wrong with it, and what to send instead.
    pub detail: String,
}

/// A problem as it is sent.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub struct ProblemJson<'p> {
    r#type: &'static str,
    /// The status in words.
    title: &'static str,
    /// The response's status.
    status: u16,
    /// What is wrong, and what to send instead.
    detail: &'p str,
    /// The same for programs.
    code: &'static str,
    /// Which fields it is about.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'p [FieldError],
}

/// How many mistakes are told at once.
const FIELD_ERRORS_MAX: usize = 50;

impl Problem {
    pub fn new(
        status: StatusCode,
        code: &'static str,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
            fields: Vec::new(),
            retry_after_s: None,
            headers: None,
            allow: None,
            ends_connection: false,
        }
    }

    /// What was sent cannot be read.
    pub fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", detail)
    }

    /// A parameter of the query cannot be used.
    pub fn bad_parameter(name: &str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        let message = format!("`{name}` in the query: {detail}");
        Self {
            fields: vec![FieldError { field: name.to_owned(), detail }],
            ..Self::bad_request(message)
        }
    }

    /// What was sent can be read, and cannot be meant.
    pub fn invalid(fields: Vec<FieldError>) -> Self {
        let first = fields.first().map(|error| match error.field.as_str() {
            "" => error.detail.clone(),
            field => format!("{field}: {}", error.detail),
        });
        let detail = match (first.unwrap_or_default(), fields.len()) {
            (first, 0 | 1) => first,
            (first, count) => format!("{first} (and {} more)", count - 1),
        };
        let problem = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail);
        Self { fields: fields.into_iter().take(FIELD_ERRORS_MAX).collect(), ..problem }
    }

    pub fn invalid_field(field: &str, detail: impl Into<String>) -> Self {
        Self::invalid(vec![FieldError { field: field.to_owned(), detail: detail.into() }])
    }

    /// Nobody has said who asks, or nobody is known by that token.
    pub fn unauthorized(detail: &'static str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
    }

    /// It is known who asks, and they may not.
    pub fn forbidden(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    pub fn forbidden_field(field: &str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        let message = format!("{field}: {detail}");
        Self {
            fields: vec![FieldError { field: field.to_owned(), detail }],
            ..Self::forbidden(message)
        }
    }

    /// A rule of the file, which is changed there.
    pub fn read_only(rule: &str) -> Self {
        let detail = format!("rule `{rule}` is in the file of rules: change it there");
        Self::new(StatusCode::FORBIDDEN, "read_only", detail)
    }

    pub fn not_found(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("there is no such {what}"))
    }

    /// Returns the problem, or if something else was not found, that there is no such `what`.
    #[must_use]
    pub fn or_not_found(self, what: &str) -> Self {
        if self.status == StatusCode::NOT_FOUND { Self::not_found(what) } else { self }
    }

    pub fn wrong_method(allow: String) -> Self {
        let detail = format!("this path takes another method: send {allow}");
        let problem = Self::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", detail);
        Self { allow: Some(allow), ..problem }
    }

    /// It is there already.
    pub fn exists(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::CONFLICT, "exists", detail)
    }

    /// Somebody else was faster.
    pub fn conflict(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::PRECONDITION_FAILED, "conflict", detail)
    }

    /// A change that does not say what it changes.
    pub fn precondition_required() -> Self {
        let detail = "say which version is changed: send `If-Match` with the ETag that a GET gives";
        Self::new(StatusCode::PRECONDITION_REQUIRED, "precondition_required", detail)
    }

    /// Too many wrong tokens.
    pub fn too_many_failures(retry_after_s: u64) -> Self {
        let detail =
            format!("too many wrong tokens came from this address: try again in {retry_after_s} s");
        let problem = Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_failures", detail);
        Self { retry_after_s: Some(retry_after_s), ..problem }
    }

    /// A tenant writes more often than the rule of `verdict` allows.
    pub fn too_many_writes(verdict: &Verdict, now: Timestamp) -> Self {
        let retry_after_s = retry_after_s(verdict.retry_after().unwrap_or_default());
        let limit = verdict.binding().map_or("", |binding| binding.limit().text());
        let detail = format!(
            "this tenant may write {limit} through this node: try again in {retry_after_s} s"
        );
        let mut problem = Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_writes", detail);
        problem.retry_after_s = Some(retry_after_s);
        let headers = problem.headers.get_or_insert_default();
        HeaderStyle::default().write(verdict, verdict.retry_after(), now, headers);
        problem
    }

    pub fn unavailable(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
    }

    /// Writes the headers that go with it.
    pub fn write_headers(&self, headers: &mut HeaderMap) {
        if let Some(own) = &self.headers {
            headers.extend((**own).clone());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if let Some(Ok(allow)) = self.allow.as_deref().map(HeaderValue::from_str) {
            headers.insert(ALLOW, allow);
        }
        if self.ends_connection {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// As the admin API sends it.
    pub fn to_json(&self) -> ProblemJson<'_> {
        ProblemJson {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
            code: self.code,
            errors: &self.fields,
        }
    }
}

impl From<FormError> for Problem {
    fn from(error: FormError) -> Self {
        let wrong = |problem: tollbar_rules::admin::Problem| FieldError {
            field: problem.field,
            detail: problem.message,
        };
        Self::invalid(error.problems.into_iter().map(wrong).collect())
    }
}

impl From<RuleSetError> for Problem {
    fn from(error: RuleSetError) -> Self {
        let wrong = |error: tollbar_rules::RuleError| FieldError {
            field: error.field.to_owned(),
            detail: format!("rule `{}`: {}", error.name, error.problem),
        };
        Self::invalid(error.errors.into_iter().map(wrong).collect())
    }
}

impl From<UsageError> for Problem {
    fn from(error: UsageError) -> Self {
        match &error {
            UsageError::UnknownRule { .. } => Self::not_found("rule"),
            UsageError::Store(error) => {
                tracing::error!(%error, "the admin API has no answer from the store");
                Self::unavailable("the store of counters does not answer: try again later")
            }
            UsageError::EmptySubject { .. }
            | UsageError::SubjectValues { .. }
            | UsageError::SubjectTwice { .. } => Self::invalid_field("subject", error.to_string()),
            UsageError::Incomplete { .. } => Self::invalid_field("attributes", error.to_string()),
            _ => Self::invalid_field("", error.to_string()),
        }
    }
}

impl From<InvalidRequest> for Problem {
    fn from(error: InvalidRequest) -> Self {
        Self::invalid_field("attributes", error.to_string())
    }
}

/// The problem as the admin API sends it, as `application/problem+json`.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = serde_json::to_vec(&self.to_json()).unwrap_or_default();
        body.push(b'\n');
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let content_type = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        self.write_headers(response.headers_mut());
        response
    }
}

/// The arguments of an operation decide which problems it has, and its route documents them.
impl OperationOutput for Problem {
    type Inner = Self;
}
