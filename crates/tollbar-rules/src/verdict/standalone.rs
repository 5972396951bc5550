//! Limits that stand in no rule, and verdicts by them.

use std::sync::Arc;

use tollbar::{Decision, Policy, Source};

use crate::rule_set::RuleSet;
use crate::snapshot::Snapshot;
use crate::verdict::{Enforcement, LimitDecision, StoredReason, Verdict};
use crate::{Limit, Rule};

/// A limit that stands in no rule, such as one of Envoy's files or of `CL.THROTTLE`.
///
/// It turns decisions that were made by it elsewhere into verdicts, so that logs, traces and dashboards read
/// them as they read those of rules. It decides and counts nothing.
#[derive(Debug, Clone)]
pub struct StandaloneLimit(Arc<Snapshot>);

impl StandaloneLimit {
    /// Returns the limit `policy`, under a name and a text for people.
    #[must_use]
    pub fn new(name: &str, text: &str, policy: &Policy) -> Self {
        let mut rule = Rule::new(name);
        rule.limits = vec![Limit::of_policy(text, policy.clone())];
        Self(Arc::new(Snapshot::new(RuleSet::of_one(rule), 0, None)))
    }

    /// Returns the verdict that `decision` is on a request of this cost.
    #[must_use]
    pub fn verdict(&self, cost: u64, decision: Decision) -> Verdict {
        let mut verdict = Verdict::undecided(Arc::clone(&self.0));
        verdict.outcome = decision.outcome();
        verdict.reason = StoredReason::Limits;
        verdict.binding = Some(0);
        let (enforcement, source) = (Enforcement::Live, Source::Store);
        let (rule, tier, limit) = (0, u32::MAX, 0);
        let (alternative, pays) = (None, decision.is_allowed());
        let limit = LimitDecision {
            rule,
            tier,
            limit,
            enforcement,
            source,
            cost,
            decision,
            alternative,
            pays,
        };
        verdict.decisions.push(limit);
        verdict
    }
}

#[cfg(test)]
mod tests {
    use tollbar::{Outcome, Timestamp};

    use super::*;
    use crate::{CheckOutcome, DenialCode};

    #[test]
    fn a_decision_made_elsewhere_reads_like_that_of_a_rule() {
        let policy = Policy::fixed_window("10/min").unwrap();
        let limit = StandaloneLimit::new("Envoy's edge: user", "10/minute", &policy);
        let at = Timestamp::from_micros(60_000_000);
        let denied = Outcome::Deny { retry_after_us: 5 };
        let verdict = limit.verdict(3, Decision::new(denied, 10, 2, at));
        assert!(!verdict.is_allowed() && verdict.rules_version() == 0);
        assert!(matches!(verdict.check_outcome(), CheckOutcome::Decided(_)));
        assert_eq!(verdict.denial_code(), Some(DenialCode::RateLimitExceeded));
        assert_eq!(&*verdict.rule().unwrap().name, "Envoy's edge: user");
        let binding = verdict.binding().unwrap();
        assert_eq!((binding.limit().text(), binding.cost()), ("10/minute", 3));
        assert_eq!((binding.remaining(), binding.reset_at()), (Some(2), Some(at)));
        let allowed = limit.verdict(1, Decision::new(Outcome::Allow, 10, 9, at));
        assert!(allowed.is_allowed() && allowed.denial_code().is_none());
    }
}
