//! What clients get: a status, headers and JSON.

use std::time::Duration;

use serde_json::{Value, json};
use tollbar::{Outcome, Timestamp};
use tollbar_rules::{Capacity, Reason, RuleDecision, Verdict};

use crate::daemon::Answered;
use crate::rfc3339;

/// An answer, before it is bytes.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Value,
}

impl Answer {
    pub(super) fn new(status: u16, body: Value) -> Self {
        Self { status, headers: Vec::new(), body }
    }

    pub(super) fn error(status: u16, error: &str, message: &str) -> Self {
        Self::new(status, json!({ "error": error, "message": message }))
    }

    pub(super) fn bad_request(message: &str) -> Self {
        Self::error(400, "bad_request", message)
    }

    pub(super) fn unknown_path(paths: impl Iterator<Item = &'static str>) -> Self {
        let paths = paths.collect::<Vec<_>>().join(", ");
        Self::error(404, "unknown_path", &format!("there is no such path: ask one of {paths}"))
    }

    pub(super) fn wrong_method(method: &str) -> Self {
        let message = format!("this path takes another method: send {method}");
        let mut answer = Self::error(405, "wrong_method", &message);
        answer.headers.push(("allow", method.to_owned()));
        answer
    }

    pub(super) fn unauthorized() -> Self {
        let message = "the token is missing or wrong: send `Authorization: Bearer ` and the token";
        let mut answer = Self::error(401, "unauthorized", message);
        answer.headers.push(("www-authenticate", "Bearer".to_owned()));
        answer
    }

    pub(crate) fn too_large() -> Self {
        let bytes_max = super::BODY_BYTES_MAX;
        let message = format!("the body is too large: send at most {bytes_max} bytes");
        Self::closing(Self::error(413, "too_large", &message))
    }

    pub(crate) fn too_slow() -> Self {
        let message = "the body did not come in time: send it at once";
        Self::closing(Self::error(408, "too_slow", message))
    }

    pub(crate) fn cut_short() -> Self {
        Self::closing(Self::bad_request("the body ended early: send all that was announced"))
    }

    /// What is left of the body is not read, so the connection is of no more use.
    fn closing(mut self) -> Self {
        self.headers.push(("connection", "close".to_owned()));
        self
    }

    /// 200 where the request may pass, 429 where it may not now, 422 where it never will.
    pub(super) fn of_verdict(answered: &Answered, now: Timestamp) -> Self {
        let verdict = &answered.verdict;
        let status = match verdict.outcome() {
            Outcome::Allow => 200,
            Outcome::Deny { .. } | Outcome::Busy => 429,
            Outcome::Never => 422,
        };
        let binding = verdict.binding();
        let decision = binding.map(|it| it.decision());
        let decisions: Vec<Value> = verdict.decisions().map(|it| decision_json(&it)).collect();
        let body = json!({
            "allowed": verdict.is_allowed(),
            "degraded": verdict.degraded().is_some(),
            "reason": reason(verdict),
            "rule": verdict.rule().map(|rule| &*rule.name),
            "limit": decision.map(|it| it.limit()),
            "remaining": decision.map(|it| it.remaining()),
            "retryAfterMs": verdict.retry_after().map(millis),
            "delayMs": millis(verdict.delay()),
            "resetAt": decision.map(|it| rfc3339::text(it.reset_at())),
            "decisionId": answered.decision_id.to_string(),
            "decisions": decisions,
        });
        let mut answer = Self::new(status, body);
        if let Some(binding) = binding {
            answer.limit_headers(&binding, now);
        }
        if let Some(wait) = verdict.retry_after() {
            answer.headers.push(("retry-after", seconds(wait).max(1).to_string()));
        }
        answer
    }

    /// Both families of headers, of the limit that binds.
    fn limit_headers(&mut self, binding: &RuleDecision<'_>, now: Timestamp) {
        let decision = binding.decision();
        let (limit, remaining) = (decision.limit(), decision.remaining());
        let reset_at_s = decision.reset_at().as_micros().div_ceil(1_000_000);
        let reset_s = seconds(decision.reset_at().since(now));
        let window_s = seconds(binding.limit().policy().window());
        let name = quoted(&binding.rule().name);
        self.headers.extend([
            ("x-ratelimit-limit", limit.to_string()),
            ("x-ratelimit-remaining", remaining.to_string()),
            ("x-ratelimit-reset", reset_at_s.to_string()),
            ("ratelimit-policy", format!("{name};q={limit};w={window_s}")),
            ("ratelimit", format!("{name};r={remaining};t={reset_s}")),
        ]);
    }
}

fn decision_json(it: &RuleDecision<'_>) -> Value {
    let decision = it.decision();
    json!({
        "rule": &*it.rule().name,
        "limitText": it.limit().text(),
        "tier": it.tier(),
        "capacity": match it.capacity() {
            Capacity::Live => "live",
            Capacity::Shadow => "shadow",
            Capacity::Candidate => "candidate",
        },
        "allowed": decision.is_allowed(),
        "degraded": it.degraded().is_some(),
        "cost": it.cost(),
        "limit": decision.limit(),
        "remaining": decision.remaining(),
        "retryAfterMs": decision.retry_after().map(millis),
        "resetAt": rfc3339::text(decision.reset_at()),
    })
}

fn reason(verdict: &Verdict) -> &'static str {
    match verdict.reason() {
        Reason::Limits => "limits",
        Reason::NoRule => "no_rule",
        Reason::Unlimited(_) => "unlimited",
        Reason::Exempt(..) => "exempt",
        Reason::MissingAttribute { .. } => "missing_attribute",
        Reason::TooManyLimits { .. } => "too_many_limits",
        _ => "other",
    }
}

/// Up, so that who waits as long gets through.
fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// Up, likewise.
fn seconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_micros().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A string of RFC 9651, which has printable ASCII only: other characters become `?`.
fn quoted(name: &str) -> String {
    let mut quoted = String::from("\"");
    for it in name.chars() {
        match it {
            '"' | '\\' => quoted.extend(['\\', it]),
            ' '..='~' => quoted.push(it),
            _ => quoted.push('?'),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_makes_a_header() {
        assert_eq!(quoted("per_client"), r#""per_client""#);
        assert_eq!(quoted("a\"\\\r\né"), r#""a\"\\???""#);
    }

    #[test]
    fn waits_round_up() {
        let wait = Duration::from_micros(1_000_001);
        assert_eq!((millis(wait), seconds(wait)), (1_001, 2));
    }
}
