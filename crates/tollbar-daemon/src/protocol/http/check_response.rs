//! The responses to checks: JSON, and the headers that go with it.

mod write;

use std::borrow::Cow;
use std::time::Duration;

use hyper::StatusCode;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tollbar::Source;
use tollbar::Timestamp;
use tollbar_http::{Denial, Format};
use tollbar_rules::{DenialCode, Enforcement, Reason, RuleDecision, Summary, Verdict};

use super::refusal::{ProblemBody, Refusal};
use super::response::{ApiResponse, JSON, PROBLEM, body, json};
use crate::daemon::{AnswerRef, CheckAnswer};
use crate::header_flags::ClientHeaders;
use crate::rfc3339::Rfc3339;

/// The JSON body of `POST /v1/check`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CheckResponse<'v> {
    /// Whether it may pass; then it has paid.
    allowed: bool,
    /// Whether the store could not answer, and the rules' failure policies did in its place.
    degraded: bool,
    /// Why.
    reason: ReasonName,
    /// Where it may not pass: why, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    /// The reason as a sentence for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Cow<'static, str>>,
    /// The rule that binds, or that lets the request pass.
    rule: Option<&'v str>,
    /// Tokens a window, of the limit that binds; null where no limit was enforced.
    limit: Option<u64>,
    /// What is left of it; null where no counter was read.
    remaining: Option<u64>,
    /// After which the same request passes, if nobody else asks; null where no wait is known to help.
    retry_after_ms: Option<u64>,
    /// How long an allowed request of a queue waits for its turn.
    delay_ms: u64,
    /// The window's end; for a bucket, when it is full again. If nobody else asks, the same request passes then: it is
    /// never before `retryAfterMs` is over. Null where no counter was read, in a degraded answer, and for permits.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    reset_at: Option<Rfc3339>,
    /// For `/v1/decisions/{id}`, where the request was denied.
    #[schemars(with = "String", length(equal = 32))]
    decision_id: crate::decision_log::DecisionId,
    /// For `/v1/renew` and `/v1/release`: the permits that the request holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<&'v str>,
    /// When the first of them comes back by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    lease_ends_at: Option<Rfc3339>,
    /// For `/v1/commit` and `/v1/cancel`: what the request has paid.
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<&'v str>,
    /// In a batch: the status that the request would have had by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// Every limit that was looked at.
    #[schemars(with = "Vec<Decision<'v>>")]
    decisions: DecisionList<'v>,
}

/// What one limit said.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Decision<'v> {
    /// Whose limit it is.
    rule: &'v str,
    /// The limit as it was written.
    limit_text: &'v str,
    /// The tier whose limit it is, where it is one's.
    tier: Option<&'v str>,
    /// Whether it may deny.
    capacity: CapacityName,
    /// Whether it lets the request pass.
    allowed: bool,
    /// Whether it was decided without the store.
    degraded: bool,
    /// Where it comes from: the counter in the store, tokens that this node has borrowed, or this node's own part of
    /// the limit. Null in a degraded answer. Under a loan, `remaining` and `resetAt` are estimates.
    #[schemars(with = "Option<String>", extend("enum" = ["store", "loan", "local", null]))]
    source: Option<&'static str>,
    /// What the request costs under it.
    cost: u64,
    /// Tokens a window.
    limit: u64,
    /// What is left; null where no counter was read.
    remaining: Option<u64>,
    /// After which the same request passes it.
    retry_after_ms: Option<u64>,
    /// The window's end; for a bucket, when it is full again. Null where no counter was read, in a degraded answer, and
    /// for permits.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    reset_at: Option<Rfc3339>,
    /// Which alternative of its rule the limit belongs to, counted from 1. Absent for a limit that holds by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    alternative: Option<u32>,
    /// Whether the request has paid this alternative. Absent for a limit that holds by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    paid: Option<bool>,
}

/// The reason of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReasonName {
    /// Limits were checked.
    Limits,
    /// No rule applies.
    NoRule,
    /// A rule, or a tier, sets no limit.
    Unlimited,
    /// The request is exempt.
    Exempt,
    /// A rule cannot do without an attribute that the request lacks.
    MissingAttribute,
    /// The attribute from which a rule takes the cost is no number.
    InvalidCost,
    /// The path has a backslash or a NUL in it, which servers read in different ways.
    AmbiguousPath,
    /// The subject is banned.
    Banned,
    /// More limits apply than can be checked at once.
    TooManyLimits,
    /// The request's id came with something else before.
    RequestIdReused,
    /// What the rules count by is too long for a receipt.
    ReceiptTooLong,
    /// The counters of a request that must be remembered lie in several slots of a cluster.
    CrossSlot,
    /// The store cannot do what the request asks of it.
    Unsupported,
}

/// How a limit was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CapacityName {
    /// It may deny.
    Live,
    /// Its rule is in shadow mode: it only reports.
    Shadow,
    /// It is tried out: it only reports.
    Candidate,
}

/// The decisions of a verdict, written one by one.
#[derive(Debug)]
struct DecisionList<'v>(&'v Verdict);

/// The JSON body of `POST /v1/check/batch`: the answers in the order of the requests.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct BatchResponse<'v> {
    results: Vec<BatchItem<'v>>,
}

/// The answer to one request of a batch.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum BatchItem<'v> {
    Answer(CheckResponse<'v>),
    Error(BatchError<'v>),
}

/// A request of a batch that could not be decided: there is no such rule, for instance.
#[derive(Debug, Serialize, JsonSchema)]
struct BatchError<'v> {
    /// The status that the request would have had by itself.
    status: u16,
    #[serde(flatten)]
    error: super::refusal::ErrorBody<'v>,
}

impl<'v> BatchResponse<'v> {
    pub(super) fn from_answers(answers: &'v [Result<CheckAnswer, Refusal>]) -> Self {
        let item = |result: &'v Result<CheckAnswer, Refusal>| match result {
            Ok(answer) => BatchItem::Answer(CheckResponse::in_batch(answer.as_ref())),
            Err(refusal) => BatchItem::Error(BatchError {
                status: refusal.status().as_u16(),
                error: refusal.error(),
            }),
        };
        Self { results: answers.iter().map(item).collect() }
    }
}

impl<'v> CheckResponse<'v> {
    /// Returns the answer to a request of a batch, with its status.
    pub(super) fn in_batch(answer: AnswerRef<'v>) -> Self {
        let status = Some(status_of(answer.verdict).as_u16());
        Self { status, ..Self::from_answer(answer) }
    }

    pub(super) fn from_answer(answer: AnswerRef<'v>) -> Self {
        let AnswerRef { verdict, decision_id, lease, receipt } = answer;
        let Summary {
            is_allowed,
            check,
            // Over HTTP the status says it.
            outcome: _,
            reason,
            denial,
            rule,
            limit,
            remaining,
            reset_at,
            retry_after,
            delay,
        } = verdict.summary();
        Self {
            allowed: is_allowed,
            degraded: check.is_degraded(),
            reason: reason.into(),
            error: denial.map(DenialCode::as_str),
            message: verdict.denial_message(),
            rule: rule.map(|rule| &*rule.name),
            limit,
            remaining,
            retry_after_ms: retry_after.map(millis),
            delay_ms: millis(delay),
            reset_at: reset_at.map(Rfc3339),
            decision_id,
            lease: lease.map(|lease| &*lease.text),
            lease_ends_at: lease.and_then(|lease| lease.ends_at).map(Rfc3339),
            receipt,
            status: None,
            decisions: DecisionList(verdict),
        }
    }
}

/// Returns the whole response to a check. The body is exact; headers lengthen the wait of a denied client.
pub(super) fn response(
    answer: AnswerRef<'_>,
    client_headers: ClientHeaders,
    now: Timestamp,
    format: impl Fn() -> Format,
) -> ApiResponse {
    let AnswerRef { verdict, decision_id, .. } = answer;
    let status = status_of(verdict);
    let mut response = if verdict.is_allowed() || format() != Format::Problem {
        let response = CheckResponse::from_answer(answer);
        body(status, JSON, |to| write::response(&response, to))
    } else {
        let denial = Denial::new(verdict, verdict.retry_after());
        let problem = ProblemBody {
            r#type: denial.problem_type().unwrap_or("about:blank"),
            title: &verdict.denial_message().unwrap_or_default(),
            status: status.as_u16(),
            violated_policies: denial.problem_type().map(|_| denial.violated_policies()),
            decision_id: Some(decision_id.to_string()),
        };
        json(status, PROBLEM, &problem)
    };
    let ClientHeaders { http: style, jitter, .. } = client_headers;
    style.write(verdict, jitter.lengthen(verdict), now, response.headers_mut());
    response
}

/// The status of the answer to a check.
fn status_of(verdict: &Verdict) -> StatusCode {
    verdict.denial_code().map_or(StatusCode::OK, tollbar_http::status_of)
}

impl From<Reason<'_>> for ReasonName {
    fn from(reason: Reason<'_>) -> Self {
        match reason {
            Reason::Limits => Self::Limits,
            Reason::NoRule => Self::NoRule,
            Reason::Unlimited(_) => Self::Unlimited,
            Reason::Exempt(..) => Self::Exempt,
            Reason::MissingAttribute { .. } => Self::MissingAttribute,
            Reason::InvalidCost { .. } => Self::InvalidCost,
            Reason::AmbiguousPath => Self::AmbiguousPath,
            Reason::Banned { .. } => Self::Banned,
            Reason::TooManyLimits { .. } => Self::TooManyLimits,
            Reason::RequestIdReused => Self::RequestIdReused,
            Reason::ReceiptTooLong => Self::ReceiptTooLong,
            Reason::CrossSlot => Self::CrossSlot,
            Reason::Unsupported => Self::Unsupported,
        }
    }
}

impl From<Enforcement> for CapacityName {
    fn from(capacity: Enforcement) -> Self {
        match capacity {
            Enforcement::Live => Self::Live,
            Enforcement::Shadow => Self::Shadow,
            Enforcement::Candidate => Self::Candidate,
        }
    }
}

impl Serialize for DecisionList<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(
            self.0.decisions().map(|rule_decision| Decision::from_rule_decision(&rule_decision)),
        )
    }
}

impl<'v> Decision<'v> {
    fn from_rule_decision(rule_decision: &RuleDecision<'v>) -> Self {
        let decision = rule_decision.decision();
        Self {
            rule: &rule_decision.rule().name,
            limit_text: rule_decision.limit().text(),
            tier: rule_decision.tier(),
            capacity: rule_decision.enforcement().into(),
            allowed: decision.is_allowed(),
            degraded: rule_decision.degraded().is_some(),
            source: rule_decision.source().map(Source::name),
            cost: rule_decision.cost(),
            limit: decision.limit(),
            remaining: rule_decision.remaining(),
            retry_after_ms: decision.denied().and_then(|denial| denial.retry_after()).map(millis),
            reset_at: rule_decision.reset_at().map(Rfc3339),
            alternative: rule_decision.alternative(),
            paid: rule_decision.alternative().map(|_| rule_decision.is_paid()),
        }
    }
}

/// Up, so that who waits as long gets through.
pub(crate) fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_round_up() {
        assert_eq!(millis(Duration::from_micros(1_000_001)), 1_001);
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }
}
