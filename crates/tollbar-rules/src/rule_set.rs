//! A set of rules that fit together, checked once and trusted from then on.

mod checking;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use checking::Checking;

use crate::overrides::OVERRIDES_MAX;
use crate::permits::is_unleased;
use crate::{Override, Rule};

/// The most rules of a set.
pub(crate) const RULES_MAX: usize = 100_000;

/// The most limits of one rule, and of one tier.
pub(crate) const LIMITS_PER_RULE_MAX: usize = 8;

/// The most policies that one request may be checked against: what stores take in one batch.
pub(crate) const POLICIES_PER_REQUEST_MAX: usize = 32;

/// The most nodes that share limits.
pub(crate) const NODES_MAX: u64 = 1_000_000;

/// The longest name of a rule.
const NAME_BYTES_MAX: usize = 128;

/// Rules that fit together, in the order in which they are looked at: by priority, then by name. Clones
/// share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleSet {
    rules: Arc<[Rule]>,
    overrides: Arc<[Override]>,
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
        "`{one}` and `{other}` have the same algorithm and window, so they would count together: \
         keep the lower one"
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
        "requests of another tier have no limit: write `default: {suggestion}` among the tiers, \
         or a `limit`"
    )]
    NoDefaultTier {
        /// A name there is.
        suggestion: String,
    },
    /// A cost that can never be paid.
    #[error(
        "a cost of {cost} can never be paid under `{limit}`, which holds {capacity}: write a \
         lower cost, or a larger limit or burst"
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
        "a fallback applies only where no other rule does, so it can keep none from applying: \
         leave out `{field}`"
    )]
    FallbackAgainstOthers {
        /// What it has.
        field: &'static str,
    },
    /// Too many limits on one request.
    #[error(
        "with this rule, {count} limits apply to every request: stores check at most \
         {POLICIES_PER_REQUEST_MAX} at once; merge or narrow some rules"
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
        Ok(Self { rules: rules.into(), overrides: Arc::default(), node_count: 1 })
    }

    /// No rules: everything is allowed.
    #[must_use]
    pub fn empty() -> Self {
        Self { rules: Arc::default(), overrides: Arc::default(), node_count: 1 }
    }

    /// The same rules in a fleet of so many nodes, each of which has its share of a limit while
    /// the store cannot answer. At least 1, at most a million.
    #[must_use]
    pub fn with_node_count(self, node_count: u64) -> Self {
        Self { node_count: node_count.clamp(1, NODES_MAX), ..self }
    }

    /// The same rules, and beside them bans and boosts of single subjects: at most 100,000, and of boosts
    /// under every rule at most 64 different factors. What is beyond that is left out.
    #[must_use]
    pub fn with_overrides(self, mut overrides: Vec<Override>) -> Self {
        overrides.truncate(OVERRIDES_MAX);
        Self { overrides: overrides.into(), ..self }
    }

    /// Bans and boosts of single subjects.
    #[must_use]
    pub fn overrides(&self) -> &[Override] {
        &self.overrides
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

    /// The first rule with a limit on concurrency that has no lease: its permits are lost with whoever
    /// forgets to return them. For those who hand permits to others, and refuse such rules.
    #[must_use]
    pub fn rule_with_unleased_permits(&self) -> Option<&Rule> {
        let is_unleased = |rule: &&Rule| rule.all_limits().any(|it| is_unleased(it.policy()));
        self.rules.iter().find(is_unleased)
    }

    /// The rules with a limit on concurrency, in shadow mode and candidates too. For those whose clients
    /// give nothing back, and who refuse or tell of such rules.
    pub fn rules_with_permits(&self) -> impl Iterator<Item = &Rule> {
        let has_permits = |rule: &&Rule| rule.all_limits().any(|it| it.policy().has_permits());
        self.rules.iter().filter(has_permits)
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

fn first(errors: &[RuleError]) -> String {
    errors.first().map(ToString::to_string).unwrap_or_default()
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` of rule `{}`: {}", self.field, self.name, self.problem)
    }
}
