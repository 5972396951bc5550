//! Verdicts, explanations and settlements as messages of `tollbar.v1`, and errors as statuses of gRPC. Times are exact.

use std::time::Duration;

use tollbar::{Outcome, Source, Timestamp};
use tollbar_proto::v1;
use tollbar_rules::{
    DenialCode, Enforcement, Explanation, LimitAccuracy, LimitExplanation, Reason, RuleDecision,
    RuleExplanation, RuleFate, RuleSettlement, Summary, TokenError, UsageError, Verdict,
};
use tonic::Status;

use crate::daemon::AnswerRef;

pub(super) fn check_response(answer: AnswerRef<'_>) -> v1::CheckResponse {
    let AnswerRef { verdict, decision_id, lease, .. } = answer;
    let Summary {
        is_allowed,
        check,
        outcome,
        reason,
        // The reason says it.
        denial: _,
        rule,
        limit,
        remaining,
        reset_at,
        retry_after,
        delay,
    } = verdict.summary();
    v1::CheckResponse {
        allowed: is_allowed,
        degraded: check.is_degraded(),
        outcome: outcome_code(outcome).into(),
        reason: reason_code(reason).into(),
        rule: rule.map(|rule| rule.name.to_string()).unwrap_or_default(),
        limit,
        remaining,
        retry_after: retry_after.map(duration),
        delay: Some(delay).filter(|delay| !delay.is_zero()).map(duration),
        reset_at: reset_at.map(timestamp),
        decision_id: decision_id.to_string(),
        lease: lease.map(|lease| lease.text.clone()).unwrap_or_default(),
        lease_ends_at: lease.and_then(|lease| lease.ends_at).map(timestamp),
        decisions: verdict.decisions().map(|rule_decision| decision(&rule_decision)).collect(),
    }
}

fn decision(rule_decision: &RuleDecision<'_>) -> v1::Decision {
    let decision = rule_decision.decision();
    v1::Decision {
        rule: rule_decision.rule().name.to_string(),
        limit_text: rule_decision.limit().text().to_owned(),
        tier: rule_decision.tier().unwrap_or_default().to_owned(),
        capacity: capacity(rule_decision.enforcement()).into(),
        allowed: decision.is_allowed(),
        degraded: rule_decision.degraded().is_some(),
        cost: rule_decision.cost(),
        limit: decision.limit(),
        remaining: rule_decision.remaining(),
        retry_after: decision.denied().and_then(|denial| denial.retry_after()).map(duration),
        reset_at: rule_decision.reset_at().map(timestamp),
        source: source(rule_decision.source()).into(),
        alternative: rule_decision.alternative().unwrap_or_default(),
        paid: rule_decision.alternative().is_some() && rule_decision.is_paid(),
    }
}

fn source(source: Option<Source>) -> v1::Source {
    match source {
        Some(Source::Store) => v1::Source::Store,
        Some(Source::Loan) => v1::Source::Loan,
        Some(Source::Local) => v1::Source::Local,
        _ => v1::Source::Unspecified,
    }
}

pub(super) fn explain_response(explanation: Explanation) -> v1::ExplainResponse {
    v1::ExplainResponse {
        allowed: explanation.is_allowed,
        summary: explanation.summary,
        method: explanation.method,
        path: explanation.path,
        rules: explanation.rules.into_iter().map(explained_rule).collect(),
        store_error: explanation.store_error.unwrap_or_default(),
    }
}

fn explained_rule(rule: RuleExplanation) -> v1::ExplainedRule {
    v1::ExplainedRule {
        name: rule.name,
        applied: rule.fate == RuleFate::Applied,
        why: rule.why,
        tier: rule.tier.unwrap_or_default(),
        cost: rule.cost,
        subject: rule.subject.unwrap_or_default(),
        limits: rule.limits.into_iter().map(explained_limit).collect(),
    }
}

fn explained_limit(limit: LimitExplanation) -> v1::ExplainedLimit {
    v1::ExplainedLimit {
        text: limit.text,
        algorithm: limit.algorithm.to_owned(),
        capacity: capacity(limit.enforcement).into(),
        limit: limit.limit,
        remaining: limit.remaining,
        reset_at: limit.reset_at.map(timestamp),
        would_pass: limit.would_pass,
        binds: limit.binds,
        accuracy: Some(limit_accuracy(&limit.accuracy, limit.held_tokens)),
        alternative: limit.alternative.unwrap_or_default(),
        would_pay: limit.would_pay,
        subject: limit.subject.unwrap_or_default(),
    }
}

fn limit_accuracy(accuracy: &LimitAccuracy, held_tokens: Option<u64>) -> v1::LimitAccuracy {
    v1::LimitAccuracy {
        mode: accuracy.written.to_string(),
        exact_because: accuracy.exact_because.clone().unwrap_or_default(),
        nodes: accuracy.nodes,
        term: accuracy.loan_terms().map(|terms| duration(terms.term)),
        cut: accuracy.loan_terms().map(|terms| duration(terms.cut)),
        over_tokens: accuracy.over_tokens,
        under_tokens: accuracy.under_tokens,
        held_tokens,
    }
}

pub(super) fn settle_response(settlement: RuleSettlement) -> v1::SettleResponse {
    let charges = settlement.limits.into_iter().map(|limit| v1::SettledLimit {
        rule: limit.rule,
        reserved: limit.reserved,
        spent: limit.spent,
        refunded: limit.refunded,
        overdrawn: limit.overdrawn,
    });
    let permits_returned = settlement.permits_returned;
    v1::SettleResponse { charges: charges.collect(), permits_returned }
}

/// Returns the status of a call that a rule cannot answer.
pub(super) fn usage_error_status(error: &UsageError) -> Status {
    let message = error.to_string();
    match error {
        UsageError::UnknownRule { .. } => Status::not_found(message),
        UsageError::Store(_) => Status::unavailable(message),
        _ => Status::invalid_argument(message),
    }
}

/// Returns the status of a call whose receipt or lease cannot be settled, released or renewed.
pub(super) fn token_error_status(error: &TokenError) -> Status {
    let message = error.to_string();
    match error {
        TokenError::NotOpen => Status::failed_precondition(message),
        TokenError::Store(_) => Status::unavailable(message),
        _ => Status::invalid_argument(message),
    }
}

/// Refuses a verdict that says nothing about limits, but that the caller has to send another request.
pub(super) fn refuse_unanswerable(verdict: &Verdict) -> Result<(), Status> {
    let message = || verdict.denial_message().unwrap_or_default();
    match verdict.denial_code() {
        Some(DenialCode::RequestIdReused) => Err(Status::already_exists(message())),
        Some(DenialCode::ReceiptTooLong | DenialCode::InvalidCost | DenialCode::AmbiguousPath) => {
            Err(Status::invalid_argument(message()))
        }
        _ => Ok(()),
    }
}

fn outcome_code(outcome: Outcome) -> v1::Outcome {
    match outcome {
        Outcome::Allow => v1::Outcome::Allow,
        Outcome::Deny { .. } => v1::Outcome::Deny,
        Outcome::Busy => v1::Outcome::Busy,
        Outcome::Never => v1::Outcome::Never,
    }
}

fn reason_code(reason: Reason<'_>) -> v1::Reason {
    match reason {
        Reason::Limits => v1::Reason::Limits,
        Reason::NoRule => v1::Reason::NoRule,
        Reason::Unlimited(_) => v1::Reason::Unlimited,
        Reason::Exempt(..) => v1::Reason::Exempt,
        Reason::MissingAttribute { .. } => v1::Reason::MissingAttribute,
        Reason::TooManyLimits { .. } => v1::Reason::TooManyLimits,
        Reason::Banned { .. } => v1::Reason::Banned,
        Reason::CrossSlot => v1::Reason::CrossSlot,
        Reason::Unsupported => v1::Reason::Unsupported,
        // These are answered with a status instead: see `refuse_unanswerable`.
        Reason::RequestIdReused
        | Reason::ReceiptTooLong
        | Reason::InvalidCost { .. }
        | Reason::AmbiguousPath => v1::Reason::Unspecified,
    }
}

fn capacity(capacity: Enforcement) -> v1::Capacity {
    match capacity {
        Enforcement::Live => v1::Capacity::Live,
        Enforcement::Shadow => v1::Capacity::Shadow,
        Enforcement::Candidate => v1::Capacity::Candidate,
    }
}

pub(super) fn timestamp(instant: Timestamp) -> prost_types::Timestamp {
    let (seconds, nanos) = seconds_and_nanos(instant.as_micros());
    prost_types::Timestamp { seconds, nanos }
}

fn duration(wait: Duration) -> prost_types::Duration {
    let micros = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
    let (seconds, nanos) = seconds_and_nanos(micros);
    prost_types::Duration { seconds, nanos }
}

/// 1,500,000 is 1 s and 500,000,000 ns. Down: the rest is in the nanoseconds.
fn seconds_and_nanos(micros: u64) -> (i64, i32) {
    let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
    (i64::try_from(seconds).unwrap_or(i64::MAX), i32::try_from(rest * 1_000).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact() {
        let at = timestamp(Timestamp::from_micros(1_735_689_599_500_001));
        assert_eq!((at.seconds, at.nanos), (1_735_689_599, 500_001_000));
        let wait = duration(Duration::from_micros(2_000_001));
        assert_eq!((wait.seconds, wait.nanos), (2, 1_000));
        assert_eq!(duration(Duration::MAX).seconds, i64::try_from(u64::MAX / 1_000_000).unwrap());
    }
}
