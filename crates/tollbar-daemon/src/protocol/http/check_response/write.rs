//! The answer to a check, written by hand: what serde writes, in a third of the instructions, because
//! names of fields are not searched for characters to escape. A test compares the two.

use super::{CapacityName, CheckResponse, Decision, ReasonName};
use crate::rfc3339::Rfc3339;

/// JSON in the making.
struct JsonWriter<'b>(&'b mut Vec<u8>);

impl JsonWriter<'_> {
    fn put(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    fn boolean(&mut self, value: bool) {
        self.put(if value { "true" } else { "false" });
    }

    fn number(&mut self, number: u64) {
        self.put(itoa::Buffer::new().format(number));
    }

    fn number_or_null(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.number(number),
            None => self.put("null"),
        }
    }

    fn text(&mut self, text: &str) {
        if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
            self.put("\"");
            self.put(text);
            self.put("\"");
        } else {
            // A text can always be written.
            #[expect(clippy::let_underscore_must_use, reason = "a `Vec` takes every write")]
            let _ = serde_json::to_writer(&mut *self.0, text);
        }
    }

    fn text_or_null(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.put("null"),
        }
    }

    fn instant(&mut self, instant: Rfc3339) {
        self.put("\"");
        self.put(instant.text().as_str());
        self.put("\"");
    }

    fn instant_or_null(&mut self, instant: Option<Rfc3339>) {
        match instant {
            Some(instant) => self.instant(instant),
            None => self.put("null"),
        }
    }
}

pub(super) fn response(response: &CheckResponse<'_>, to: &mut Vec<u8>) {
    let mut out = JsonWriter(to);
    out.put("{\"allowed\":");
    out.boolean(response.allowed);
    out.put(",\"degraded\":");
    out.boolean(response.degraded);
    out.put(",\"reason\":\"");
    out.put(response.reason.name());
    out.put("\"");
    if let Some(error) = response.error {
        out.put(",\"error\":");
        out.text(error);
    }
    if let Some(message) = &response.message {
        out.put(",\"message\":");
        out.text(message);
    }
    out.put(",\"rule\":");
    out.text_or_null(response.rule);
    out.put(",\"limit\":");
    out.number_or_null(response.limit);
    out.put(",\"remaining\":");
    out.number_or_null(response.remaining);
    out.put(",\"retryAfterMs\":");
    out.number_or_null(response.retry_after_ms);
    out.put(",\"delayMs\":");
    out.number(response.delay_ms);
    out.put(",\"resetAt\":");
    out.instant_or_null(response.reset_at);
    out.put(",\"decisionId\":\"");
    out.0.extend_from_slice(&response.decision_id.digits());
    out.put("\"");
    if let Some(lease) = response.lease {
        out.put(",\"lease\":");
        out.text(lease);
    }
    if let Some(ends_at) = response.lease_ends_at {
        out.put(",\"leaseEndsAt\":");
        out.instant(ends_at);
    }
    if let Some(receipt) = response.receipt {
        out.put(",\"receipt\":");
        out.text(receipt);
    }
    if let Some(status) = response.status {
        out.put(",\"status\":");
        out.number(status.into());
    }
    out.put(",\"decisions\":[");
    for (at, rule_decision) in response.decisions.0.decisions().enumerate() {
        if at > 0 {
            out.put(",");
        }
        decision(&Decision::from_rule_decision(&rule_decision), &mut out);
    }
    out.put("]}");
}

fn decision(decision: &Decision<'_>, out: &mut JsonWriter<'_>) {
    out.put("{\"rule\":");
    out.text(decision.rule);
    out.put(",\"limitText\":");
    out.text(decision.limit_text);
    out.put(",\"tier\":");
    out.text_or_null(decision.tier);
    out.put(",\"capacity\":\"");
    out.put(decision.capacity.name());
    out.put("\",\"allowed\":");
    out.boolean(decision.allowed);
    out.put(",\"degraded\":");
    out.boolean(decision.degraded);
    out.put(",\"source\":");
    out.text_or_null(decision.source);
    out.put(",\"cost\":");
    out.number(decision.cost);
    out.put(",\"limit\":");
    out.number(decision.limit);
    out.put(",\"remaining\":");
    out.number_or_null(decision.remaining);
    out.put(",\"retryAfterMs\":");
    out.number_or_null(decision.retry_after_ms);
    out.put(",\"resetAt\":");
    out.instant_or_null(decision.reset_at);
    if let Some(alternative) = decision.alternative {
        out.put(",\"alternative\":");
        out.number(alternative.into());
    }
    if let Some(paid) = decision.paid {
        out.put(",\"paid\":");
        out.boolean(paid);
    }
    out.put("}");
}

impl ReasonName {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Limits => "limits",
            Self::NoRule => "no_rule",
            Self::Unlimited => "unlimited",
            Self::Exempt => "exempt",
            Self::MissingAttribute => "missing_attribute",
            Self::InvalidCost => "invalid_cost",
            Self::AmbiguousPath => "ambiguous_path",
            Self::Banned => "banned",
            Self::TooManyLimits => "too_many_limits",
            Self::RequestIdReused => "request_id_reused",
            Self::ReceiptTooLong => "receipt_too_long",
            Self::CrossSlot => "cross_slot",
            Self::Unsupported => "unsupported",
        }
    }
}

impl CapacityName {
    fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Shadow => "shadow",
            Self::Candidate => "candidate",
        }
    }
}

#[cfg(test)]
mod tests {
    use tollbar_rules::{Admission, Engine, Request, RuleFile};

    use super::*;
    use crate::daemon::{CheckAnswer, Lease};
    use crate::decision_log::DecisionId;

    const RULES: &str = "
rules:
  - name: tiered
    match: { path: /tiers }
    limit: 5/day
    tiers: { 'a\"b': [2/day, 9/h], 'c\\d': 3/day, staff: unlimited }
    candidate: { limit: 1/day }
  - { name: shadow, match: { path: /tiers }, mode: shadow, limit: 1/day }
  - { name: open, match: { path: /open }, unlimited: true }
  - { name: lacking, match: { path: /lacking }, per: [tenant], missing: deny, limit: 1/day }
  - { name: exempting, match: { path: /exempt }, exempt: [{ user: '7' }], limit: 1/day }
  - { name: pooled, match: { path: /pooled }, limit: { any_of: [1/day, { limit: 9/day, per: [] }] } }
  - { name: jobs, match: { path: /j }, algorithm: concurrency, limit: 1, lease: 30s }
";

    #[test]
    fn what_is_written_by_hand_is_what_serde_writes() {
        let engine = Engine::new(RuleFile::parse("rules.yaml", RULES).unwrap().rules);
        let mut seen = 0;
        let mut words = String::new();
        for path in ["/tiers", "/open", "/lacking", "/exempt", "/j", "/pooled", "/none"] {
            for tier in ["a\"b", "c\\d", "staff", "other"] {
                for cost in [0, 1, 1, 1, 100] {
                    let attributes = [("user", "7"), ("tier", tier)];
                    let request = Request::new("GET", path).unwrap();
                    let request = request.with_attributes(&attributes).unwrap().with_cost(cost);
                    let Admission { verdict, hold } = engine.admit(&request, None);
                    let lease = hold.and_then(|hold| {
                        let ends_at = hold.lease_ends_at();
                        Some(Lease { text: engine.token(hold)?, ends_at })
                    });
                    let receipt = (cost == 0).then(|| "a\n\u{1}b".to_owned());
                    let decision_id = DecisionId::random();
                    let answer = CheckAnswer { verdict, decision_id, lease, receipt };
                    for check_response in [
                        CheckResponse::from_answer(answer.as_ref()),
                        CheckResponse::in_batch(answer.as_ref()),
                    ] {
                        let mut by_hand = Vec::new();
                        response(&check_response, &mut by_hand);
                        let by_hand = String::from_utf8(by_hand).unwrap();
                        assert_eq!(by_hand, serde_json::to_string(&check_response).unwrap());
                        seen += by_hand.len();
                        words += &by_hand;
                    }
                }
            }
        }
        assert!(seen > 10_000);
        for paid in [
            "\"alternative\":1,\"paid\":true},",
            "\"alternative\":1,\"paid\":false},",
            "\"alternative\":2,\"paid\":true}]",
            "\"alternative\":2,\"paid\":false}]",
        ] {
            assert!(words.contains(paid), "{paid}");
        }
    }

    #[test]
    fn every_word_is_serdes() {
        for reason in [
            ReasonName::Limits,
            ReasonName::NoRule,
            ReasonName::Unlimited,
            ReasonName::Exempt,
            ReasonName::MissingAttribute,
            ReasonName::InvalidCost,
            ReasonName::AmbiguousPath,
            ReasonName::Banned,
            ReasonName::TooManyLimits,
            ReasonName::RequestIdReused,
            ReasonName::ReceiptTooLong,
            ReasonName::CrossSlot,
            ReasonName::Unsupported,
        ] {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.name());
        }
        for capacity in [CapacityName::Live, CapacityName::Shadow, CapacityName::Candidate] {
            assert_eq!(serde_json::to_value(capacity).unwrap(), capacity.name());
        }
    }
}
