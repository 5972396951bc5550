//! How the limits of a rule are counted: exactly, from loans, or each node's own part. Worked out once.

use tollbar::{Accuracy, Policy};

use crate::{Limit, Reserve, Rule, RuleAccuracy, RuleSet};

/// How one rule is to be counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountingPlan {
    accuracy: RuleAccuracy,
    node_count: u64,
}

/// Policies as they are counted, and how each is.
#[derive(Debug, Default)]
pub(crate) struct CountedPolicies {
    pub(crate) policies: Box<[Policy]>,
    pub(crate) accuracies: Box<[Accuracy]>,
}

impl CountingPlan {
    /// Counters in this process are exact, and no other node has them.
    pub(crate) fn new(rule: &Rule, rules: &RuleSet, is_in_process: bool) -> Self {
        let accuracy = if is_in_process { RuleAccuracy::Exact } else { rules.accuracy_of(rule) };
        Self { accuracy, node_count: rules.node_count() }
    }

    pub(crate) fn is_exact(self) -> bool {
        self.accuracy == RuleAccuracy::Exact
    }

    pub(crate) fn node_count(self) -> u64 {
        self.node_count
    }

    /// How alternatives are counted: exactly, because which of them pays is decided in one place.
    pub(super) fn exact(self) -> Self {
        Self { accuracy: RuleAccuracy::Exact, ..self }
    }

    /// Returns how a policy is counted, and the policy that is: this node's part where each has one. What cannot be
    /// counted as the rule says is counted exactly.
    fn counted(self, policy: Policy, reserve: Option<Reserve>) -> (Policy, Accuracy) {
        match self.accuracy.of_limit(&policy, reserve, self.node_count).unwrap_or_default() {
            Accuracy::Local => {
                (policy.share(self.accuracy.nodes(self.node_count)), Accuracy::Local)
            }
            accuracy => (policy, accuracy),
        }
    }
}

impl CountedPolicies {
    /// Counts the limits of a rule or of a tier. `policy_of` makes the policy of a limit, without a name. The counters are
    /// kept under `base`, but for limits with a `per` of their own.
    pub(crate) fn new(
        rule: &Rule,
        limits: &[Limit],
        base: &str,
        policy_of: impl Fn(&Limit) -> Policy,
        plan: CountingPlan,
    ) -> Self {
        let is_plain = limits.iter().all(|limit| limit.alternative().is_none());
        let plan = if is_plain { plan } else { plan.exact() };
        let counted = |limit: &Limit| {
            let policy = policy_of(limit).with_name(&rule.counter_name(base, limit));
            plan.counted(policy, limit.options().reserve)
        };
        let (policies, accuracies): (Vec<Policy>, Vec<Accuracy>) =
            limits.iter().map(counted).unzip();
        Self { policies: policies.into(), accuracies: accuracies.into() }
    }
}
