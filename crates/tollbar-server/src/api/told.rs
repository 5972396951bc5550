//! A verdict as clients get it: JSON, and the headers that go with it.

mod write;

use std::borrow::Cow;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{HeaderValue, RETRY_AFTER};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tollbar::{Degraded, Outcome, Timestamp};
use tollbar_http::{Denial, Format, HeaderStyle, retry_after_s};
use tollbar_rules::{Capacity, Reason, RuleDecision, Verdict};

use super::answer::{Answer, JSON, PROBLEM, body, json};
use super::refusal::{Problem, Refusal};
use crate::daemon::{Answered, Shown};
use crate::rfc3339::Instant;

/// What was decided about a request.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Told<'v> {
    /// Whether it may pass; then it has paid.
    allowed: bool,
    /// Whether the store could not answer, and the rules' failure policies did in its place.
    degraded: bool,
    /// Why.
    reason: Why,
    /// Where it may not pass: why, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    /// The same for people.
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
    /// The window's end; for a bucket, when it is full again.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    reset_at: Option<Instant>,
    /// For `/v1/decisions/{id}`, where the request was denied.
    #[schemars(with = "String", length(equal = 32))]
    decision_id: crate::daemon::DecisionId,
    /// For `/v1/renew` and `/v1/release`: the permits that the request holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<&'v str>,
    /// When the first of them comes back by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    lease_ends_at: Option<Instant>,
    /// For `/v1/commit` and `/v1/cancel`: what the request has paid.
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<&'v str>,
    /// In a batch: the status that the request would have had by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// Every limit that was looked at.
    #[schemars(with = "Vec<Decision<'v>>")]
    decisions: Decisions<'v>,
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
    capacity: Standing,
    /// Whether it lets the request pass.
    allowed: bool,
    /// Whether it was decided without the store.
    degraded: bool,
    /// What the request costs under it.
    cost: u64,
    /// Tokens a window.
    limit: u64,
    /// What is left; null where no counter was read.
    remaining: Option<u64>,
    /// After which the same request passes it.
    retry_after_ms: Option<u64>,
    /// The window's end; for a bucket, when it is full again.
    #[schemars(with = "String", extend("format" = "date-time"))]
    reset_at: Instant,
}

/// Why a verdict is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Why {
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
    /// The subject is banned.
    Banned,
    /// More limits apply than can be checked at once.
    TooManyLimits,
    /// The request's id came with something else before.
    RequestIdReused,
    /// What the rules count by is too long for a receipt.
    ReceiptTooLong,
    /// Something newer than this document.
    Other,
}

/// In what capacity a limit was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Standing {
    /// It may deny.
    Live,
    /// Its rule is in shadow mode: it only reports.
    Shadow,
    /// It is tried out: it only reports.
    Candidate,
}

/// The decisions of a verdict, written one by one.
#[derive(Debug)]
struct Decisions<'v>(&'v Verdict);

/// What a verdict comes to over HTTP.
struct Conclusion {
    status: StatusCode,
    error: Option<&'static str>,
    message: Option<Cow<'static, str>>,
}

/// The answers to a batch, in its order.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Batched<'v> {
    results: Vec<InBatch<'v>>,
}

/// One of a batch.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum InBatch<'v> {
    Told(Told<'v>),
    Refused(Refused<'v>),
}

/// One of a batch that could not be decided: there is no such rule, for instance.
#[derive(Debug, Serialize, JsonSchema)]
struct Refused<'v> {
    /// The status that the request would have had by itself.
    status: u16,
    #[serde(flatten)]
    error: super::refusal::Error<'v>,
}

impl<'v> Batched<'v> {
    pub(super) fn of(answers: &'v [Result<Answered, Refusal>]) -> Self {
        let one = |it: &'v Result<Answered, Refusal>| match it {
            Ok(answered) => InBatch::Told(Told::in_batch(answered.shown())),
            Err(refusal) => InBatch::Refused(Refused {
                status: refusal.status().as_u16(),
                error: refusal.error(),
            }),
        };
        Self { results: answers.iter().map(one).collect() }
    }
}

impl<'v> Told<'v> {
    pub(super) fn of(shown: Shown<'v>) -> Self {
        Self::concluded(shown, Conclusion::of(shown.verdict))
    }

    /// One of a batch, with its status.
    pub(super) fn in_batch(shown: Shown<'v>) -> Self {
        let conclusion = Conclusion::of(shown.verdict);
        let status = Some(conclusion.status.as_u16());
        Self { status, ..Self::concluded(shown, conclusion) }
    }

    fn concluded(shown: Shown<'v>, conclusion: Conclusion) -> Self {
        let Shown { verdict, decision_id, lease, receipt } = shown;
        let binding = verdict.binding();
        let decision = binding.map(|it| it.decision());
        Self {
            allowed: verdict.is_allowed(),
            degraded: verdict.degraded().is_some(),
            reason: Why::of(verdict),
            error: conclusion.error,
            message: conclusion.message,
            rule: verdict.rule().map(|rule| &*rule.name),
            limit: decision.map(|it| it.limit()),
            remaining: binding.and_then(|it| remaining(&it)),
            retry_after_ms: verdict.retry_after().map(millis),
            delay_ms: millis(verdict.delay()),
            reset_at: decision.map(|it| Instant(it.reset_at())),
            decision_id,
            lease: lease.map(|it| &*it.text),
            lease_ends_at: lease.and_then(|it| it.ends_at).map(Instant),
            receipt,
            status: None,
            decisions: Decisions(verdict),
        }
    }
}

/// The whole answer to a check.
pub(super) fn answer(shown: Shown<'_>, now: Timestamp, format: impl Fn() -> Format) -> Answer {
    let Shown { verdict, decision_id, .. } = shown;
    let conclusion = Conclusion::of(verdict);
    let status = conclusion.status;
    let mut answer = if verdict.is_allowed() || format() != Format::Problem {
        let told = Told::concluded(shown, conclusion);
        body(status, JSON, |to| write::told(&told, to))
    } else {
        let denial = Denial::new(verdict, verdict.retry_after());
        let problem = Problem {
            r#type: denial.problem_type().unwrap_or("about:blank"),
            title: conclusion.message.as_deref().unwrap_or_default(),
            status: status.as_u16(),
            violated_policies: denial.problem_type().map(|_| denial.violated_policies()),
            decision_id: Some(decision_id.to_string()),
        };
        json(status, PROBLEM, &problem)
    };
    let headers = answer.headers_mut();
    HeaderStyle::default().write(verdict, now, headers);
    if let Some(wait) = verdict.retry_after() {
        headers.insert(RETRY_AFTER, HeaderValue::from(retry_after_s(wait)));
    }
    answer
}

impl Conclusion {
    /// 200 where the request may pass, 429 where it may not now, 422 where it never will.
    ///
    /// A denial for want of an attribute is a 429 as well: whoever takes other statuses for trouble
    /// of the daemon's, and lets requests pass then, must not be fooled by a client that leaves a
    /// header out.
    fn of(verdict: &Verdict) -> Self {
        let denied = |status, error, message: Cow<'static, str>| Self {
            status,
            error: Some(error),
            message: Some(message),
        };
        match (verdict.reason(), verdict.outcome()) {
            (_, Outcome::Allow) => Self { status: StatusCode::OK, error: None, message: None },
            (Reason::MissingAttribute { attribute, .. }, _) => denied(
                StatusCode::TOO_MANY_REQUESTS,
                "missing_attribute",
                format!("This request lacks `{attribute}`, which its rule counts by").into(),
            ),
            // Why somebody is banned is for those who did it, and not for them.
            (Reason::Banned { .. }, _) => {
                denied(StatusCode::TOO_MANY_REQUESTS, "banned", "This client is banned".into())
            }
            (Reason::TooManyLimits { count }, _) => denied(
                StatusCode::TOO_MANY_REQUESTS,
                "too_many_limits",
                format!("{count} limits apply to this request, more than can be checked").into(),
            ),
            (Reason::RequestIdReused, _) => denied(
                StatusCode::CONFLICT,
                "request_id_reused",
                "This request id came with another cost or under other limits: send a new one"
                    .into(),
            ),
            (Reason::ReceiptTooLong, _) => denied(
                StatusCode::BAD_REQUEST,
                "receipt_too_long",
                "What the rules count by is too long for a receipt: send shorter attributes".into(),
            ),
            (_, Outcome::Never) => denied(
                StatusCode::UNPROCESSABLE_ENTITY,
                "cost_exceeds_limit",
                "This request costs more than its limit can ever hold".into(),
            ),
            _ => denied(
                StatusCode::TOO_MANY_REQUESTS,
                "rate_limit_exceeded",
                "Too many requests".into(),
            ),
        }
    }
}

impl Why {
    pub(crate) fn of(verdict: &Verdict) -> Self {
        match verdict.reason() {
            Reason::Limits => Self::Limits,
            Reason::NoRule => Self::NoRule,
            Reason::Unlimited(_) => Self::Unlimited,
            Reason::Exempt(..) => Self::Exempt,
            Reason::MissingAttribute { .. } => Self::MissingAttribute,
            Reason::Banned { .. } => Self::Banned,
            Reason::TooManyLimits { .. } => Self::TooManyLimits,
            Reason::RequestIdReused => Self::RequestIdReused,
            Reason::ReceiptTooLong => Self::ReceiptTooLong,
            _ => Self::Other,
        }
    }
}

impl From<Capacity> for Standing {
    fn from(capacity: Capacity) -> Self {
        match capacity {
            Capacity::Live => Self::Live,
            Capacity::Shadow => Self::Shadow,
            Capacity::Candidate => Self::Candidate,
        }
    }
}

impl Serialize for Decisions<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.decisions().map(|it| Decision::of(&it)))
    }
}

impl<'v> Decision<'v> {
    fn of(it: &RuleDecision<'v>) -> Self {
        let decision = it.decision();
        Self {
            rule: &it.rule().name,
            limit_text: it.limit().text(),
            tier: it.tier(),
            capacity: it.capacity().into(),
            allowed: decision.is_allowed(),
            degraded: it.degraded().is_some(),
            cost: it.cost(),
            limit: decision.limit(),
            remaining: remaining(it),
            retry_after_ms: decision.retry_after().map(millis),
            reset_at: Instant(decision.reset_at()),
        }
    }
}

/// What is left, where a counter was read.
pub(super) fn remaining(it: &RuleDecision<'_>) -> Option<u64> {
    match it.degraded() {
        Some(Degraded::Allowed | Degraded::Denied) => None,
        Some(Degraded::Fallback) | None => Some(it.decision().remaining()),
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
