//! Verdicts, explanations and settlements as messages of `tollbar.v1`. Times are exact.

use std::time::Duration;

use tollbar::{Outcome, Timestamp};
use tollbar_proto::v1;
use tollbar_rules::{
    Enforcement, Explanation, LimitExplanation, Reason, RuleDecision, RuleExplanation, RuleFate,
    RuleSettlement, Summary,
};

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
        delay: Some(delay).filter(|it| !it.is_zero()).map(duration),
        reset_at: reset_at.map(timestamp),
        decision_id: decision_id.to_string(),
        lease: lease.map(|it| it.text.clone()).unwrap_or_default(),
        lease_ends_at: lease.and_then(|it| it.ends_at).map(timestamp),
        decisions: verdict.decisions().map(|it| decision(&it)).collect(),
    }
}

fn decision(it: &RuleDecision<'_>) -> v1::Decision {
    let decision = it.decision();
    v1::Decision {
        rule: it.rule().name.to_string(),
        limit_text: it.limit().text().to_owned(),
        tier: it.tier().unwrap_or_default().to_owned(),
        capacity: capacity(it.enforcement()).into(),
        allowed: decision.is_allowed(),
        degraded: it.degraded().is_some(),
        cost: it.cost(),
        limit: decision.limit(),
        remaining: it.remaining(),
        retry_after: decision.denied().and_then(|it| it.retry_after()).map(duration),
        reset_at: it.reset_at().map(timestamp),
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
        capacity: capacity(limit.capacity).into(),
        limit: limit.limit,
        remaining: limit.remaining,
        reset_at: limit.reset_at.map(timestamp),
        would_pass: limit.would_pass,
        binds: limit.binds,
    }
}

pub(super) fn settle_response(settlement: RuleSettlement) -> v1::SettleResponse {
    let charges = settlement.limits.into_iter().map(|it| v1::SettledLimit {
        rule: it.rule,
        reserved: it.reserved,
        spent: it.spent,
        refunded: it.refunded,
        overdrawn: it.overdrawn,
    });
    let permits_returned = settlement.permits_returned;
    v1::SettleResponse { charges: charges.collect(), permits_returned }
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
        // These are answered with a status instead: see refusal.rs.
        Reason::RequestIdReused | Reason::ReceiptTooLong => v1::Reason::Unspecified,
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
