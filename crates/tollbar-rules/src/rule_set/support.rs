//! Whether a store can count what rules say.

use tollbar::{Feature, Policy, Store, StoreError};

use super::{RuleError, RuleProblem, RuleSet, RuleSetError};
use crate::{Limit, Rule, TierLimits};

impl RuleSet {
    /// Checks that `store` can count every rule that is enabled. Otherwise the error names each rule
    /// that it cannot count, and says what to write instead.
    ///
    /// Requests that several rules match need a store that can charge several counters; whether there
    /// will be such requests cannot be seen in the rules.
    pub fn check_support(&self, store: &dyn Store) -> Result<(), RuleSetError> {
        let enabled = self.iter().enumerate().filter(|(_, rule)| rule.enabled);
        let errors: Vec<RuleError> = enabled
            .flat_map(|(at, rule)| unsupported(rule, store).map(move |problem| (at, rule, problem)))
            .map(|(rule, Rule { name, .. }, (field, error))| RuleError {
                rule,
                name: name.to_string(),
                field,
                problem: RuleProblem::Unsupported { detail: error.to_string() },
            })
            .collect();
        if errors.is_empty() { Ok(()) } else { Err(RuleSetError { errors }) }
    }
}

/// What of a rule `store` cannot count: the field, and why.
fn unsupported<'a>(
    rule: &'a Rule,
    store: &'a dyn Store,
) -> impl Iterator<Item = (&'static str, StoreError)> + 'a {
    let tiers = rule.tiers.limits.iter().filter_map(|(_, limits)| match limits {
        TierLimits::Limits(limits) => Some(("tiers", limits.as_slice())),
        TierLimits::Unlimited => None,
    });
    let groups = [("limit", rule.limits.as_slice()), ("candidate", rule.candidate.as_slice())];
    groups.into_iter().chain(tiers).filter_map(move |(field, limits)| {
        let needs = limits.iter().map(Limit::policy).flat_map(needs);
        // A candidate is counted beside the rule's own limits.
        let is_beside_others = limits.len() > 1 || field == "candidate" && !limits.is_empty();
        let several = is_beside_others.then_some(Feature::SeveralCounters);
        let is_split = |limit: &Limit| rule.own_per(limit).is_some();
        let split = limits.iter().any(is_split).then_some(Feature::SplitAlternatives);
        let missing =
            needs.chain(several).chain(split).find_map(|feature| store.supports(feature).err());
        missing.map(|error| (field, error))
    })
}

fn needs(policy: &Policy) -> impl Iterator<Item = Feature<'_>> {
    let refunds = policy.has_permits().then_some(Feature::Refunds);
    let renewals = policy.lease_ttl().map(|_| Feature::LeaseRenewals);
    [Feature::Policy(policy)].into_iter().chain(refunds).chain(renewals)
}

#[cfg(test)]
mod tests {
    use tollbar::{Batch, MemoryStore, Reply};

    use super::*;
    use crate::RuleFile;

    /// A store that counts one counter at a time, and gives nothing back.
    #[derive(Debug)]
    struct SingleCounterStore(MemoryStore);

    impl Store for SingleCounterStore {
        fn supports(&self, feature: Feature<'_>) -> Result<(), StoreError> {
            match feature {
                Feature::Policy(policy) if !policy.has_permits() => Ok(()),
                missing => Err(missing.unsupported()),
            }
        }

        fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
            self.0.decide(batch)
        }
    }

    const RULES: &str = "
rules:
  - { name: plain, limit: 10/s }
  - { name: off, enabled: false, limit: [10/s, 100/min] }
  - { name: two, limit: [10/s, 100/min] }
  - { name: trial, limit: 10/s, candidate: { limit: 100/min } }
  - { name: tiered, limit: 10/s, tiers: { gold: [20/s, 100/min] } }
  - { name: in_flight, algorithm: concurrency, limit: 5, lease: 30s }
";

    /// A store that cannot decide under several keys at once, such as a Redis Cluster.
    #[derive(Debug)]
    struct SlotStore(MemoryStore);

    impl Store for SlotStore {
        fn supports(&self, feature: Feature<'_>) -> Result<(), StoreError> {
            match feature {
                Feature::SplitAlternatives => Err(feature.unsupported()),
                feature => self.0.supports(feature),
            }
        }

        fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
            self.0.decide(batch)
        }
    }

    #[test]
    fn alternatives_under_several_keys_need_a_store_that_decides_them() {
        let text = "
rules:
  - { name: month, limit: { any_of: [20/s, 1000 per calendar month] } }
  - { name: pool, limit: { any_of: [20/s, { limit: 1000/min, per: [] }] } }
  - { name: same, limit: { any_of: [20/s, { limit: 1000/min, per: [client] }] } }
";
        let rules = RuleFile::parse("rules.yaml", text).unwrap().rules;
        let memory = || MemoryStore::builder().max_keys(1).build();
        rules.check_support(&memory()).unwrap();
        let errors = rules.check_support(&SlotStore(memory())).unwrap_err().errors;
        let found: Vec<(&str, &str)> =
            errors.iter().map(|error| (error.name.as_str(), error.field)).collect();
        assert_eq!(found, [("pool", "limit")]);
        assert!(errors[0].problem.to_string().contains("without a `per` of their own"));
    }

    #[test]
    fn each_rule_that_a_store_cannot_count_is_named_with_what_to_write() {
        let rules = RuleFile::parse("rules.yaml", RULES).unwrap().rules;
        rules.check_support(&MemoryStore::builder().max_keys(1).build()).unwrap();
        let store = SingleCounterStore(MemoryStore::builder().max_keys(1).build());
        let errors = rules.check_support(&store).unwrap_err().errors;
        let found: Vec<(&str, &str)> =
            errors.iter().map(|error| (error.name.as_str(), error.field)).collect();
        let expected =
            [("in_flight", "limit"), ("tiered", "tiers"), ("trial", "candidate"), ("two", "limit")];
        assert_eq!(found, expected);
        for error in errors {
            let text = error.problem.to_string();
            assert!(text.contains("this store cannot") && text.contains(": "), "{text}");
        }
    }
}
