//! Every path there is, in one table: it is what requests are sent by, and what the document of the
//! interface is written from, so that neither can have a path, or a field, that the other lacks.

use schemars::JsonSchema;

use super::check_response::{BatchResponse, CheckResponse};
use super::explain_response::ExplainResponse;
use super::holds::{ReleaseResponse, RenewResponse, SettleResponse};
use super::inspect::{DecisionResponse, HealthResponse, ResetResponse, UsageResponse};
use super::request::{BatchRequest, CancelRequest, CommitRequest, LeaseRequest, RequestForm};
use crate::openapi::{SchemaOf, schema_of};

/// One path.
#[derive(Debug)]
pub(crate) struct Route {
    /// With `{id}` for a segment that is anything.
    pub(super) path: &'static str,
    pub(super) operation: Operation,
    pub(super) summary: &'static str,
    /// Whether it is open to whoever has no token.
    pub(super) is_open: bool,
    pub(super) input: RequestInput,
    /// What a 200 has, and how that is written.
    pub(super) answer: SchemaOf,
    pub(super) kinds: &'static [&'static str],
    /// Which statuses besides tell of a verdict, as the 200 does.
    pub(super) verdicts: &'static [u16],
    /// Which statuses are errors of this path's own.
    pub(super) errors: &'static [u16],
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Check,
    CheckBatch,
    Peek,
    Explain,
    Reset,
    Reserve,
    Commit,
    Cancel,
    Release,
    Renew,
    Usage,
    Decision,
    OpenApi,
    Health,
    Metrics,
}

/// What comes with a request. A body goes with POST, anything else with GET.
#[derive(Debug)]
pub(super) enum RequestInput {
    Nothing,
    /// A segment of the path.
    Id,
    /// Attributes, in the query.
    Query,
    /// JSON: some of the fields of a question.
    Check(&'static RequestForm),
    /// JSON of this form, such as this.
    Body(SchemaOf, &'static str),
}

/// Statuses of a verdict that lets nothing pass.
const DENIALS: &[u16] = &[400, 409, 422, 429, 500];

pub(super) const CHECK: RequestForm = RequestForm {
    name: "a check",
    fields: &[
        "method",
        "path",
        "attributes",
        "cost",
        "requestId",
        "criticality",
        "rule",
        "subject",
    ],
    required: &[],
    example: r#"{"method":"GET","path":"/","attributes":{"user":"42"}}"#,
};

pub(super) const PEEK: RequestForm = RequestForm {
    name: "a peek",
    fields: &["method", "path", "attributes", "rule", "subject"],
    required: &[],
    example: CHECK.example,
};

pub(super) const EXPLAIN: RequestForm = RequestForm {
    name: "an explanation",
    fields: &["method", "path", "attributes", "cost", "criticality"],
    required: &[],
    example: CHECK.example,
};

pub(super) const RESET: RequestForm = RequestForm {
    name: "a reset",
    fields: &["rule", "subject", "method", "path", "attributes"],
    required: &["rule"],
    example: r#"{"rule":"per_client","attributes":{"user":"42"}}"#,
};

pub(super) const RESERVE: RequestForm = RequestForm {
    name: "a reservation",
    fields: &["method", "path", "attributes", "cost", "requestId", "criticality", "ttlMs"],
    required: &[],
    example: r#"{"attributes":{"user":"42"},"cost":300,"ttlMs":60000}"#,
};

pub(super) const BATCH_EXAMPLE: &str = r#"{"requests":[{"path":"/","attributes":{"user":"42"}}]}"#;
pub(super) const COMMIT_EXAMPLE: &str = r#"{"receipt":"..","cost":120}"#;
pub(super) const CANCEL_EXAMPLE: &str = r#"{"receipt":".."}"#;
pub(super) const LEASE_EXAMPLE: &str = r#"{"lease":".."}"#;

/// Defines the table: each row has a path, what is done, a summary, what is sent, what a 200 has, and what
/// else differs from [`route`].
macro_rules! routes {
    ($($path:literal $operation:ident $summary:literal $input:expr => $answer:ty
       $(, $field:ident: $value:expr)*;)+) => {
        pub(super) static ROUTES: &[Route] = &[$(Route {
            $($field: $value,)*
            ..route::<$answer>($path, Operation::$operation, $summary, $input)
        }),+];
    };
}

// The one that is asked most comes first.
routes! {
    "/v1/check" Check "May the request pass? Charges it if so"
        RequestInput::Check(&CHECK) => CheckResponse<'_>, verdicts: DENIALS, errors: &[404];
    "/v1/check/batch" CheckBatch "The same for up to 1,000 requests, each decided by itself"
        RequestInput::Body(schema_of::<BatchRequest<'_>>, BATCH_EXAMPLE) => BatchResponse<'_>;
    "/v1/peek" Peek "What is left; charges nothing"
        RequestInput::Check(&PEEK) => CheckResponse<'_>, verdicts: DENIALS, errors: &[404];
    "/v1/explain" Explain "What every rule makes of the request; charges nothing"
        RequestInput::Check(&EXPLAIN) => ExplainResponse<'_>;
    "/v1/reset" Reset "Makes the counters of one subject under one rule fresh"
        RequestInput::Check(&RESET) => ResetResponse<'_>, errors: &[404, 422, 503];
    "/v1/reserve" Reserve "A check whose charge is settled later"
        RequestInput::Check(&RESERVE) => CheckResponse<'_>, verdicts: DENIALS;
    "/v1/commit" Commit "Settles a reservation: what it really came to"
        RequestInput::Body(schema_of::<CommitRequest<'_>>, COMMIT_EXAMPLE) => SettleResponse, errors: &[409, 503];
    "/v1/cancel" Cancel "Gives all of a reservation back"
        RequestInput::Body(schema_of::<CancelRequest<'_>>, CANCEL_EXAMPLE) => SettleResponse, errors: &[409, 503];
    "/v1/release" Release "Gives the permits of a lease back"
        RequestInput::Body(schema_of::<LeaseRequest<'_>>, LEASE_EXAMPLE) => ReleaseResponse, errors: &[503];
    "/v1/renew" Renew "Keeps the permits of a lease for longer"
        RequestInput::Body(schema_of::<LeaseRequest<'_>>, LEASE_EXAMPLE) => RenewResponse, errors: &[503];
    "/v1/rate-limit/usage/me" Usage "What is left to whoever the query names; charges nothing"
        RequestInput::Query => UsageResponse;
    "/v1/decisions/{id}" Decision "Why a request was denied"
        RequestInput::Id => DecisionResponse<'_>, errors: &[404];
    "/openapi.json" OpenApi "This document"
        RequestInput::Nothing => serde_json::Map<String, serde_json::Value>, is_open: true;
    "/healthz" Health "200 while the daemon answers" RequestInput::Nothing => HealthResponse, is_open: true;
    "/readyz" Health "200 while requests can be decided" RequestInput::Nothing => HealthResponse, is_open: true;
    "/metrics" Metrics
        "What is counted, for Prometheus; with exemplars where `Accept` has OpenMetrics"
        RequestInput::Nothing => String, kinds: &["text/plain", "application/openmetrics-text"];
}

const fn route<T: JsonSchema>(
    path: &'static str,
    operation: Operation,
    summary: &'static str,
    input: RequestInput,
) -> Route {
    let (answer, kinds) = (schema_of::<T>, &["application/json"]);
    Route {
        path,
        operation,
        summary,
        is_open: false,
        input,
        answer,
        kinds,
        verdicts: &[],
        errors: &[],
    }
}

impl Route {
    pub(super) fn find(path: &str) -> Option<&'static Self> {
        ROUTES.iter().find(|route| route.is(path))
    }

    pub(super) fn all() -> impl Iterator<Item = &'static str> {
        ROUTES.iter().map(|route| route.path)
    }

    /// The paths that take a body.
    pub(crate) fn with_bodies() -> impl Iterator<Item = &'static str> {
        ROUTES.iter().filter(|route| route.has_body()).map(|route| route.path)
    }

    fn is(&self, path: &str) -> bool {
        match self.path.split_once("{id}") {
            None => self.path == path,
            Some((before, _)) => path.strip_prefix(before).is_some_and(|id| !id.contains('/')),
        }
    }

    /// What stands for `{id}` in a path that is this one.
    pub(super) fn id<'p>(&self, path: &'p str) -> &'p str {
        let before = self.path.split_once("{id}").map_or(self.path, |(before, _)| before);
        path.strip_prefix(before).unwrap_or_default()
    }

    /// True where it takes a body.
    pub(crate) fn has_body(&self) -> bool {
        matches!(self.input, RequestInput::Check(_) | RequestInput::Body(..))
    }

    /// True where it decides and charges, so that what it refuses counts as rejected.
    pub(super) fn is_check(&self) -> bool {
        matches!(self.operation, Operation::Check | Operation::CheckBatch | Operation::Reserve)
    }

    /// True where it changes counters without a charge, or reveals the rules.
    pub(super) fn is_sensitive(&self) -> bool {
        matches!(self.operation, Operation::Explain | Operation::Reset)
    }

    pub(super) fn method(&self) -> &'static str {
        if self.has_body() { "POST" } else { "GET" }
    }

    /// For the header `Allow`.
    pub(super) fn methods(&self) -> &'static str {
        if self.has_body() { "POST, OPTIONS" } else { "GET, HEAD, OPTIONS" }
    }
}
