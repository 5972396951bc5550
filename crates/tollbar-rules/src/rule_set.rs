//! A set of rules that fit together, checked once and trusted from then on.

use std::collections::{HashMap, HashSet};
use std::fmt;

use thiserror::Error;

use crate::{Limit, Rule};

/// The most rules of a set.
pub(crate) const RULES_MAX: usize = 100_000;

/// The most limits of one rule, and of one tier.
pub(crate) const LIMITS_PER_RULE_MAX: usize = 8;

/// The most policies that one request may be checked against: what stores take in one batch.
pub(crate) const POLICIES_PER_REQUEST_MAX: usize = 32;

/// The longest name of a rule.
const NAME_BYTES_MAX: usize = 128;

/// Rules that fit together, in the order in which they are looked at: by priority, then by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleSet {
    rules: Vec<Rule>,
    node_count: u64,
}

/// What is wrong with one rule of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleError {
    /// Which, in the order in which they were given.
    pub rule: usize,
    /// Its name.
    pub name: String,
    /// The field to be changed.
    pub field: &'static str,
    /// What is wrong, and what to write instead.
    pub problem: RuleProblem,
}

/// Everything that is wrong with a set of rules.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{} of the rules cannot be used: {}", errors.len(), first(errors))]
pub struct RuleSetError {
    /// At least one.
    pub errors: Vec<RuleError>,
}

/// What may be wrong with a rule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RuleProblem {
    /// A name that cannot stand in a header.
    #[error(
        "a name has 1 to {NAME_BYTES_MAX} letters, digits and `_ - . : /`: write one such as \
         `per_client`"
    )]
    Name,
    /// Two rules of one name.
    #[error("another rule has the name `{name}`: counters are kept by name, so write another one")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// Two rules of one identity.
    #[error(
        "another rule has the id or the name `{id}`: counters are kept by it, so write another one"
    )]
    DuplicateId {
        /// The id.
        id: String,
    },
    /// Neither limits nor a reason for none.
    #[error("the rule has no limit: write one such as `limit: 10/s`, or `unlimited: true`")]
    NoLimit,
    /// Limits that would never be looked at.
    #[error("an unlimited rule has no limits: leave out `{field}`, or `unlimited`")]
    LimitsOfUnlimited {
        /// What it has.
        field: &'static str,
    },
    /// Too many limits.
    #[error("{count} limits are too many: write at most {LIMITS_PER_RULE_MAX}")]
    TooManyLimits {
        /// How many there are.
        count: usize,
    },
    /// Two limits that would count in one counter.
    #[error(
        "`{one}` and `{other}` have the same algorithm and window, so they would count together: keep the lower one"
    )]
    SameCounter {
        /// One of them.
        one: String,
        /// The other.
        other: String,
    },
    /// A default tier that is none.
    #[error("there is no tier `{tier}`: write one of {known}")]
    UnknownTier {
        /// The name.
        tier: String,
        /// The names there are.
        known: String,
    },
    /// Requests without a tier would have no limit.
    #[error(
        "requests of another tier have no limit: write `default: {suggestion}` among the tiers, or a `limit`"
    )]
    NoDefaultTier {
        /// A name there is.
        suggestion: String,
    },
    /// A cost that can never be paid.
    #[error(
        "a cost of {cost} can never be paid under `{limit}`, which holds {capacity}: write a lower cost, or a larger limit or burst"
    )]
    CostAboveCapacity {
        /// The cost.
        cost: u64,
        /// The limit.
        limit: String,
        /// The most it can hold.
        capacity: u64,
    },
    /// A rule that is to be replaced and is not there.
    #[error("there is no rule `{name}` to be replaced: write the name of another rule")]
    UnknownReplaced {
        /// The name.
        name: String,
    },
    /// A rule that replaces itself.
    #[error("a rule cannot replace itself: write the name of another rule")]
    ReplacesItself,
    /// A fallback that is meant to keep others from applying.
    #[error(
        "a fallback applies only where no other rule does, so it can keep none from applying: leave out `{field}`"
    )]
    FallbackAgainstOthers {
        /// What it has.
        field: &'static str,
    },
    /// Too many limits on one request.
    #[error(
        "with this rule, {count} limits apply to every request: stores check at most {POLICIES_PER_REQUEST_MAX} at once; merge or narrow some rules"
    )]
    TooManyForEveryRequest {
        /// How many there are.
        count: usize,
    },
    /// Too many rules.
    #[error("{count} rules are too many: write at most {RULES_MAX}")]
    TooManyRules {
        /// How many there are.
        count: usize,
    },
}

impl RuleSet {
    /// The rules, if they fit together; otherwise everything that is wrong with them.
    pub fn new(rules: Vec<Rule>) -> Result<Self, RuleSetError> {
        let errors = Checking::of(&rules);
        if !errors.is_empty() {
            return Err(RuleSetError { errors });
        }
        let mut rules = rules;
        rules.sort_by(|a, b| b.priority.cmp(&a.priority).then_with(|| a.name.cmp(&b.name)));
        Ok(Self { rules, node_count: 1 })
    }

    /// No rules: everything is allowed.
    #[must_use]
    pub fn empty() -> Self {
        Self { rules: Vec::new(), node_count: 1 }
    }

    /// The same rules in a fleet of so many nodes, each of which has its share of a limit while
    /// the store cannot answer. At least 1.
    #[must_use]
    pub fn with_node_count(self, node_count: u64) -> Self {
        Self { node_count: node_count.max(1), ..self }
    }

    /// How many nodes share the limits.
    #[must_use]
    pub fn node_count(&self) -> u64 {
        self.node_count
    }

    /// The rules, in the order in which they are looked at.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| *rule.name == *name)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// True where there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

struct Checking<'r> {
    rule: &'r Rule,
    at: usize,
    errors: Vec<RuleError>,
}

impl<'r> Checking<'r> {
    fn of(rules: &'r [Rule]) -> Vec<RuleError> {
        let Some(first) = rules.first() else {
            return Vec::new();
        };
        let mut checking = Checking { rule: first, at: 0, errors: Vec::new() };
        if rules.len() > RULES_MAX {
            checking.refuse("name", RuleProblem::TooManyRules { count: rules.len() });
            return checking.errors;
        }
        for (at, rule) in rules.iter().enumerate() {
            (checking.at, checking.rule) = (at, rule);
            checking.check_limits();
            checking.check_tiers();
            checking.check_costs();
        }
        checking.check_names(rules);
        checking.check_every_request(rules);
        checking.errors.sort_by_key(|error| error.rule);
        checking.errors
    }

    fn refuse(&mut self, field: &'static str, problem: RuleProblem) {
        let name = self.rule.name.to_string();
        self.errors.push(RuleError { rule: self.at, name, field, problem });
    }

    fn check_names(&mut self, rules: &'r [Rule]) {
        let names: HashSet<&str> = rules.iter().map(|rule| &*rule.name).collect();
        let mut seen: HashSet<&str> = HashSet::new();
        let mut ids: HashMap<&str, usize> = HashMap::new();
        for (at, rule) in rules.iter().enumerate() {
            (self.at, self.rule) = (at, rule);
            if !is_name(&rule.name) {
                self.refuse("name", RuleProblem::Name);
            }
            if let Some(id) = &rule.id
                && !is_name(id)
            {
                self.refuse("id", RuleProblem::Name);
            }
            if !seen.insert(&rule.name) {
                let name = rule.name.to_string();
                self.refuse("name", RuleProblem::DuplicateName { name });
            } else if ids.insert(rule.identity(), at).is_some() {
                let id = rule.identity().to_string();
                let field = if rule.id.is_some() { "id" } else { "name" };
                self.refuse(field, RuleProblem::DuplicateId { id });
            }
            for replaced in &rule.replaces {
                if **replaced == *rule.name {
                    self.refuse("replaces", RuleProblem::ReplacesItself);
                } else if !names.contains(&**replaced) {
                    let name = replaced.to_string();
                    self.refuse("replaces", RuleProblem::UnknownReplaced { name });
                }
            }
        }
    }

    fn check_limits(&mut self) {
        let rule = self.rule;
        let tiers = &rule.tiers.limits;
        if rule.unlimited {
            let fields = [
                ("limit", rule.limits.is_empty()),
                ("tiers", tiers.is_empty()),
                ("candidate", rule.candidate.is_empty()),
            ];
            for (field, _) in fields.iter().filter(|(_, is_empty)| !is_empty) {
                self.refuse(field, RuleProblem::LimitsOfUnlimited { field });
            }
        } else if rule.limits.is_empty() && tiers.is_empty() {
            self.refuse("limit", RuleProblem::NoLimit);
        }
        if rule.fallback {
            let fields = [
                ("stop", !rule.stop),
                ("replaces", rule.replaces.is_empty()),
                ("unlimited", !rule.unlimited),
            ];
            for (field, _) in fields.iter().filter(|(_, is_absent)| !is_absent) {
                self.refuse(field, RuleProblem::FallbackAgainstOthers { field });
            }
        }
        self.check_list("limit", &rule.limits);
        self.check_list("candidate", &rule.candidate);
        for (_, limits) in tiers {
            self.check_list("tiers", limits.limits());
        }
    }

    fn check_list(&mut self, field: &'static str, limits: &[Limit]) {
        if limits.len() > LIMITS_PER_RULE_MAX {
            self.refuse(field, RuleProblem::TooManyLimits { count: limits.len() });
            return;
        }
        let counter = |limit: &Limit| {
            let algorithm = limit.policy().algorithm();
            (algorithm.name(), algorithm.window_us(), algorithm.variant())
        };
        for (at, one) in limits.iter().enumerate() {
            if let Some(other) = limits[..at].iter().find(|other| counter(other) == counter(one)) {
                let (one, other) = (other.text().to_owned(), one.text().to_owned());
                self.refuse(field, RuleProblem::SameCounter { one, other });
            }
        }
    }

    fn check_tiers(&mut self) {
        let tiers = &self.rule.tiers;
        let known: Vec<&str> = tiers.limits.iter().map(|(name, _)| &**name).collect();
        match &tiers.default {
            Some(default) if !known.contains(&&**default) => {
                let known = known.iter().map(|it| format!("`{it}`")).collect::<Vec<_>>().join(", ");
                let tier = default.to_string();
                self.refuse("tiers", RuleProblem::UnknownTier { tier, known });
            }
            None if !known.is_empty() && self.rule.limits.is_empty() && !self.rule.unlimited => {
                let suggestion = known[0].to_owned();
                self.refuse("tiers", RuleProblem::NoDefaultTier { suggestion });
            }
            _ => {}
        }
    }

    fn check_costs(&mut self) {
        let cost = self.rule.costs.highest();
        let least = self.rule.live_limits().min_by_key(|limit| limit.policy().capacity());
        if let Some(limit) = least
            && limit.policy().capacity() < cost
        {
            let capacity = limit.policy().capacity();
            let limit = limit.text().to_owned();
            self.refuse("cost", RuleProblem::CostAboveCapacity { cost, limit, capacity });
        }
    }

    /// What applies to every request can be counted here; what some requests meet, only there.
    fn check_every_request(&mut self, rules: &'r [Rule]) {
        let mut count = 0;
        for (at, rule) in rules.iter().enumerate() {
            if !rule.enabled || rule.fallback || !rule.conditions.all().is_empty() {
                continue;
            }
            let of_tiers = rule.tiers.limits.iter().map(|(_, it)| it.limits().len()).max();
            count += rule.limits.len().max(of_tiers.unwrap_or(0)) + rule.candidate.len();
            if count > POLICIES_PER_REQUEST_MAX {
                (self.at, self.rule) = (at, rule);
                self.refuse("limit", RuleProblem::TooManyForEveryRequest { count });
                return;
            }
        }
    }
}

fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_part)
}

fn first(errors: &[RuleError]) -> String {
    errors.first().map(ToString::to_string).unwrap_or_default()
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` of rule `{}`: {}", self.field, self.name, self.problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Costs, LimitOptions, Test, TierLimits, Tiers};

    fn rule(name: &str, limits: &[&str]) -> Rule {
        let limits = limits.iter().map(|text| Limit::of(text).unwrap()).collect();
        Rule { limits, ..Rule::new(name) }
    }

    #[track_caller]
    fn refused(rules: Vec<Rule>, messages: &[&str]) {
        let errors = RuleSet::new(rules).expect_err("these do not fit together").errors;
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), messages);
    }

    #[test]
    fn rules_are_looked_at_by_priority_and_then_by_name() {
        let high = Rule { priority: 5, ..rule("z", &["1/s"]) };
        let set = RuleSet::new(vec![rule("b", &["1/s"]), high, rule("a", &["1/s"])]).unwrap();
        let names: Vec<&str> = set.rules().iter().map(|rule| &*rule.name).collect();
        assert_eq!(names, ["z", "a", "b"]);
    }

    #[test]
    fn names_are_identities() {
        refused(
            vec![rule("a", &["1/s"]), rule("a", &["2/s"])],
            &[
                "`name` of rule `a`: another rule has the name `a`: counters are kept by name, so write another one",
            ],
        );
        let with_id = Rule { id: Some("a".into()), ..rule("b", &["1/s"]) };
        refused(
            vec![rule("a", &["1/s"]), with_id],
            &[
                "`id` of rule `b`: another rule has the id or the name `a`: counters are kept by it, so write another one",
            ],
        );
        refused(
            vec![rule("a#b", &["1/s"])],
            &[
                "`name` of rule `a#b`: a name has 1 to 128 letters, digits and `_ - . : /`: write one such as `per_client`",
            ],
        );
    }

    #[test]
    fn a_rule_has_limits_that_can_be_told_apart() {
        refused(
            vec![rule("a", &[])],
            &[
                "`limit` of rule `a`: the rule has no limit: write one such as `limit: 10/s`, or `unlimited: true`",
            ],
        );
        refused(
            vec![Rule { unlimited: true, ..rule("a", &["1/s"]) }],
            &[
                "`limit` of rule `a`: an unlimited rule has no limits: leave out `limit`, or `unlimited`",
            ],
        );
        refused(
            vec![rule("a", &["10/min", "20/60s"])],
            &[
                "`limit` of rule `a`: `10/min` and `20/60s` have the same algorithm and window, so they would count together: keep the lower one",
            ],
        );
        let nine: Vec<String> = (1..=9).map(|n| format!("1/{n}s")).collect();
        let nine: Vec<&str> = nine.iter().map(String::as_str).collect();
        refused(
            vec![rule("a", &nine)],
            &["`limit` of rule `a`: 9 limits are too many: write at most 8"],
        );
        let bucket =
            Limit::new("10/min", LimitOptions { burst: Some(9), ..LimitOptions::default() });
        let mut both = rule("a", &["10/min"]);
        both.limits.push(bucket.unwrap());
        assert!(RuleSet::new(vec![both]).is_ok());
    }

    #[test]
    fn tiers_cover_every_request() {
        let tier =
            |name: &str| (Box::from(name), TierLimits::Limits(vec![Limit::of("9/s").unwrap()]));
        let tiers = Tiers { limits: vec![tier("free"), tier("paid")], default: None };
        let without = Rule { tiers: tiers.clone(), ..Rule::new("a") };
        refused(
            vec![without],
            &[
                "`tiers` of rule `a`: requests of another tier have no limit: write `default: free` among the tiers, or a `limit`",
            ],
        );
        let wrong = Tiers { default: Some("fre".into()), ..tiers.clone() };
        refused(
            vec![Rule { tiers: wrong, ..Rule::new("a") }],
            &["`tiers` of rule `a`: there is no tier `fre`: write one of `free`, `paid`"],
        );
        let right = Tiers { default: Some("free".into()), ..tiers.clone() };
        assert!(RuleSet::new(vec![Rule { tiers: right, ..Rule::new("a") }]).is_ok());
        assert!(RuleSet::new(vec![Rule { tiers, ..rule("a", &["1/s"]) }]).is_ok());
    }

    #[test]
    fn a_cost_that_can_never_be_paid_is_refused() {
        let costly = |cost| Rule { costs: Costs::fixed(cost), ..rule("a", &["10/s", "9/min"]) };
        assert!(RuleSet::new(vec![costly(9)]).is_ok());
        refused(
            vec![costly(10)],
            &[
                "`cost` of rule `a`: a cost of 10 can never be paid under `9/min`, which holds 9: write a lower cost, or a larger limit or burst",
            ],
        );
    }

    #[test]
    fn rules_replace_others_that_exist() {
        let replacing = |name: &str| Rule { replaces: vec![name.into()], ..rule("a", &["1/s"]) };
        refused(
            vec![replacing("b")],
            &[
                "`replaces` of rule `a`: there is no rule `b` to be replaced: write the name of another rule",
            ],
        );
        refused(
            vec![replacing("a")],
            &[
                "`replaces` of rule `a`: a rule cannot replace itself: write the name of another rule",
            ],
        );
        assert!(RuleSet::new(vec![replacing("b"), rule("b", &["1/s"])]).is_ok());
        let fallback = Rule { fallback: true, stop: true, ..rule("a", &["1/s"]) };
        refused(
            vec![fallback],
            &[
                "`stop` of rule `a`: a fallback applies only where no other rule does, so it can keep none from applying: leave out `stop`",
            ],
        );
    }

    #[test]
    fn more_limits_on_every_request_than_a_store_takes_are_refused() {
        let mut rules: Vec<Rule> = (0..33).map(|n| rule(&format!("r{n}"), &["1/s"])).collect();
        let errors = RuleSet::new(rules.clone()).unwrap_err().errors;
        assert_eq!((errors.len(), errors[0].rule), (1, 32));
        assert!(errors[0].to_string().contains("33 limits apply to every request"));
        rules[0].conditions = rules[0].conditions.clone().and("tenant", Test::equal("acme"));
        assert!(RuleSet::new(rules).is_ok());
    }
}
