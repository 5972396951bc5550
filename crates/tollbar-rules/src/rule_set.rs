//! A set of rules that fit together, checked once and trusted from then on.

pub(crate) mod diff;
pub(crate) mod overrides;
mod support;
mod validation;

#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use overrides::OVERRIDES_MAX;
use validation::{RuleDigest, Validator};

use crate::hash::hash_text;
use crate::request::path::PathOptions;
use crate::rule::accuracy::NODES_MAX;
use crate::rule::limit;
use crate::{LimitAccuracyError, Mode, Override, PathPattern, Rule, RuleAccuracy};

/// The most rules of a set.
pub(crate) const RULES_MAX: usize = 100_000;

/// The most limits of one rule, and of one tier.
pub(crate) const LIMITS_PER_RULE_MAX: usize = 8;

/// The most policies that one request may be checked against: what stores take in one batch.
pub(crate) const POLICIES_PER_REQUEST_MAX: usize = 32;

/// The longest name of a rule.
const NAME_BYTES_MAX: usize = 128;

/// Rules that fit together, in the order in which they are looked at: by priority, then by name. Clones
/// share them, and so do sets that were made out of each other by [`changed`](Self::changed).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleSet {
    rules: Arc<[Arc<Rule>]>,
    /// Of each rule, in the same order.
    digests: Arc<[RuleDigest]>,
    overrides: Arc<[Override]>,
    node_count: u64,
    /// Of rules that do not say it themselves.
    accuracy: RuleAccuracy,
    path_options: Option<PathOptions>,
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
    /// New keys where there is one key.
    #[error(
        "the rule has one counter for all, so no key of it is new: leave out `new_keys`, or write whom it counts apart, \
         such as `per: [client]`"
    )]
    NewKeysOfOneCounter,
    /// New keys that are not counted by a plain rate.
    #[error(
        "`{limit}` does not count new keys: write a rate such as `100/min`, or `{{ limit: 100/min, burst: 1000 }}`, \
         without a warm-up or a reserve"
    )]
    NewKeysAlgorithm {
        /// The limit as it was written.
        limit: String,
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
    /// Two limits in different alternatives that would count in one counter by different numbers.
    #[error(
        "`{one}` and `{other}` are in different alternatives and would count in one counter, because they have the same \
         algorithm, window and `per`: write one of them with another window, or with a `per` of its own"
    )]
    SameCounterInAlternatives {
        /// One of them.
        one: String,
        /// The other.
        other: String,
    },
    /// Alternatives among limits that hold by themselves.
    #[error(
        "`any_of` holds by itself: write the limits that stand beside it into each of its alternatives, or into a rule of \
         their own"
    )]
    AlternativesBesideLimits,
    /// One alternative is none.
    #[error("`any_of` has one alternative: write a second one, or the limits without `any_of`")]
    SingleAlternative,
    /// An alternative counts by an attribute that the rule does not wait for.
    #[error(
        "an alternative counts per `{attribute}`, which the rule does not: `missing: {missing}` is about the rule's `per` \
         only, so write `{attribute}` there too, or `missing: shared`"
    )]
    MissingOfAlternative {
        /// The attribute.
        attribute: String,
        /// What the rule says of missing attributes.
        missing: &'static str,
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
    /// A limit that cannot be counted as the rule says.
    #[error("`{limit}`: {source}")]
    Accuracy {
        /// The limit as it was written.
        limit: String,
        /// Why not, and what to write instead.
        source: LimitAccuracyError,
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
    /// Something that the store cannot count.
    #[error("{detail}")]
    Unsupported {
        /// What it cannot do, and what to use instead.
        detail: String,
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
        Self::of_shared(rules.into_iter().map(Arc::new).collect())
    }

    /// The same of rules that others may hold as well.
    pub fn of_shared(rules: Vec<Arc<Rule>>) -> Result<Self, RuleSetError> {
        Self::of_shared_nodes(rules, 1)
    }

    /// The rules of a fleet of so many nodes, if they fit together and each node has a part of every limit that is
    /// counted by nodes.
    pub(crate) fn of_nodes(rules: Vec<Rule>, node_count: u64) -> Result<Self, RuleSetError> {
        Self::of_shared_nodes(rules.into_iter().map(Arc::new).collect(), node_count)
    }

    fn of_shared_nodes(mut rules: Vec<Arc<Rule>>, node_count: u64) -> Result<Self, RuleSetError> {
        let digests: Vec<RuleDigest> = rules.iter().map(|rule| RuleDigest::new(rule)).collect();
        Validator::check_new(&rules, &digests, node_count)?;
        rules.sort_by(|a, b| order(a, b));
        let digests = rules.iter().map(|rule| RuleDigest::new(rule)).collect();
        Ok(Self { rules: rules.into(), digests, ..Self::empty() }.with_node_count(node_count))
    }

    /// This set without the rules of some [identities](Rule::identity), and with other rules: as
    /// [`new`](Self::new) would make it of the rules that stay, in their order, and then the others. It
    /// refuses what `new` refuses, in the same words.
    ///
    /// For a few changes of many rules: those that stay are shared, and of them only that is checked
    /// which others can make wrong.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollbar_rules::{Limit, Rule, RuleSet};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rule = |name, limit| -> Result<Rule, Box<dyn std::error::Error>> {
    ///     let mut rule = Rule::new(name);
    ///     rule.limits = vec![Limit::parse(limit)?];
    ///     Ok(rule)
    /// };
    /// let before = RuleSet::new(vec![rule("reads", "10/s")?, rule("writes", "1/s")?])?;
    /// let after = before.changed(&["reads"], vec![Arc::new(rule("reads", "20/s")?)])?;
    /// assert_eq!(after.get("reads").unwrap().limits[0].text(), "20/s");
    /// assert!(Arc::ptr_eq(&before.rules()[1], &after.rules()[1]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn changed(&self, without: &[&str], with: Vec<Arc<Rule>>) -> Result<Self, RuleSetError> {
        let hashes: Vec<u64> = without.iter().map(|identity| hash_text(identity)).collect();
        let is_gone = |digest: &RuleDigest, rule: &Rule| {
            hashes.contains(&digest.identity) && without.contains(&&**rule.identity())
        };
        let mut gone = Vec::new();
        let mut rules = Vec::with_capacity(self.rules.len() + with.len());
        let mut digests = Vec::with_capacity(rules.capacity());
        for (rule, digest) in self.rules.iter().zip(&*self.digests) {
            if is_gone(digest, rule) {
                gone.push(&**rule);
            } else {
                rules.push(Arc::clone(rule));
                digests.push(*digest);
            }
        }
        let kept = rules.len();
        digests.extend(with.iter().map(|rule| RuleDigest::new(rule)));
        rules.extend(with);
        Validator::check_changed(&rules, &digests, kept, &gone, self.node_count)?;
        for (rule, digest) in rules.split_off(kept).into_iter().zip(digests.split_off(kept)) {
            let at = rules.partition_point(|other| order(other, &rule).is_lt());
            rules.insert(at, rule);
            digests.insert(at, digest);
        }
        Ok(Self { rules: rules.into(), digests: digests.into(), ..self.clone() })
    }

    /// Returns the set of one rule that is not looked at by checks, so that it may have any name.
    pub(crate) fn of_one(rule: Rule) -> Self {
        let digests = [RuleDigest::new(&rule)].into();
        Self { rules: [Arc::new(rule)].into(), digests, ..Self::empty() }
    }

    /// No rules: everything is allowed.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            rules: Arc::default(),
            digests: Arc::default(),
            overrides: Arc::default(),
            node_count: 1,
            accuracy: RuleAccuracy::Exact,
            path_options: None,
        }
    }

    /// The same rules in a fleet of so many nodes, each of which has its share of a limit while
    /// the store cannot answer, and of a limit that is [counted by nodes](RuleAccuracy::Local). At least 1, at most a million.
    #[must_use]
    pub fn with_node_count(self, node_count: u64) -> Self {
        Self { node_count: node_count.clamp(1, NODES_MAX), ..self }
    }

    /// Sets how exactly those rules count that do not say it themselves.
    #[must_use]
    pub fn with_accuracy(self, accuracy: RuleAccuracy) -> Self {
        Self { accuracy, ..self }
    }

    /// How exactly those rules count that do not say it themselves.
    #[must_use]
    pub fn accuracy(&self) -> RuleAccuracy {
        self.accuracy
    }

    /// How exactly a rule of this set is to count.
    #[must_use]
    pub fn accuracy_of(&self, rule: &Rule) -> RuleAccuracy {
        rule.accuracy.unwrap_or(self.accuracy)
    }

    /// Sets how paths are compared; `None` if nobody has said it, which means the default.
    #[must_use]
    pub fn with_path_options(self, path_options: Option<PathOptions>) -> Self {
        Self { path_options, ..self }
    }

    /// How paths are compared, if somebody has said it.
    #[must_use]
    #[inline]
    pub fn path_options(&self) -> Option<PathOptions> {
        self.path_options
    }

    /// Returns the path of a rule that looks like a login, if nobody has said how paths are compared: the server
    /// behind may answer it under other spellings, which the rule does not match.
    #[must_use]
    pub fn login_path_without_options(&self) -> Option<&PathPattern> {
        self.iter().find_map(Rule::login_path).filter(|_| self.path_options.is_none())
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
    pub fn rules(&self) -> &[Arc<Rule>] {
        &self.rules
    }

    /// The rule of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Rule> {
        self.iter().find(|rule| *rule.name == *name)
    }

    /// The first rule with a limit on concurrency that has no lease: its permits are lost with whoever
    /// forgets to return them. For those who hand permits to others, and refuse such rules.
    #[must_use]
    pub fn rule_with_unleased_permits(&self) -> Option<&Rule> {
        self.iter().find(|rule| rule.has_unleased_permits())
    }

    /// The rules with a limit on concurrency, in shadow mode and candidates too. For those whose clients
    /// give nothing back, and who refuse or tell of such rules.
    pub fn rules_with_permits(&self) -> impl Iterator<Item = &Rule> {
        let has_permits =
            |rule: &&Rule| rule.all_limits().any(|limit| limit.policy().has_permits());
        self.iter().filter(has_permits)
    }

    /// Why no request can be denied by any of the rules; `None` where one can.
    ///
    /// ```
    /// use tollbar_rules::RuleFile;
    /// # fn main() -> Result<(), tollbar_rules::FileError> {
    /// let text = "rules: [{ name: a, limit: 5/h, mode: shadow }, { name: b, limit: 1/s, enabled: false }]";
    /// let rules = RuleFile::parse("rules.yaml", text)?.rules;
    /// assert_eq!(
    ///     rules.idle_reason().as_deref(),
    ///     Some("nothing is limited: of 2 rules, 1 is disabled and 1 is in shadow mode")
    /// );
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn idle_reason(&self) -> Option<String> {
        if self.iter().any(Rule::limits_something) {
            return None;
        }
        if self.is_empty() {
            return Some("nothing is limited: there are no rules".to_owned());
        }
        let is_shadow = |rule: &&Rule| rule.enabled && rule.mode == Mode::Shadow;
        let disabled = self.iter().filter(|rule| !rule.enabled).count();
        let shadow = self.iter().filter(is_shadow).count();
        let is_classifier =
            |rule: &&Rule| rule.enabled && rule.mode == Mode::Enforce && rule.only_classifies();
        let classifiers = self.iter().filter(is_classifier).count();
        let without_limit = self.len() - disabled - shadow - classifiers;
        let counted = [
            (disabled, "disabled"),
            (shadow, "in shadow mode"),
            (classifiers, "without a limit"),
            (without_limit, "unlimited or free of cost"),
        ];
        let parts = counted.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| {
            format!("{count} {} {what}", if count == 1 { "is" } else { "are" })
        });
        let parts: Vec<String> = parts.collect();
        let rules =
            if self.len() == 1 { "1 rule".to_owned() } else { format!("{} rules", self.len()) };
        Some(format!("nothing is limited: of {rules}, {}", parts.join(" and ")))
    }

    /// The rules whose counters matter for an hour or longer: calendar windows, windows of an hour or more, and
    /// buckets that take that long to fill. A store that forgets its counters at a restart gives such a limit away
    /// once more. Rules that deny nothing are left out.
    pub fn rules_with_long_windows(&self) -> impl Iterator<Item = &Rule> {
        self.iter()
            .filter(|rule| rule.enabled && rule.mode == Mode::Enforce)
            .filter(|rule| rule.live_limits().any(|limit| limit::has_long_window(limit.policy())))
    }

    fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|rule| &**rule)
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

    /// For each rule, its place in `before` if it is the very same one. Both sets are in one order, so
    /// one walk along both finds all, and looks into none that is the same.
    pub(crate) fn places_in(&self, before: &Self) -> Vec<Option<u32>> {
        let mut rest = before.rules.iter().zip(0..).peekable();
        let mut place_of = |rule| {
            while let Some((old, at)) = rest.peek().copied() {
                if Arc::ptr_eq(old, rule) {
                    rest.next();
                    return Some(at);
                }
                if order(old, rule).is_ge() {
                    break;
                }
                rest.next();
            }
            None
        };
        self.rules.iter().map(&mut place_of).collect()
    }

    pub(crate) fn overrides_shared(&self) -> Arc<[Override]> {
        Arc::clone(&self.overrides)
    }

    /// True where nobody is banned or boosted otherwise than in `before`, as can be seen at once.
    pub(crate) fn shares_overrides_with(&self, before: &Self) -> bool {
        Arc::ptr_eq(&self.overrides, &before.overrides)
    }
}

/// Which is looked at first. No two of a set are equal.
fn order(a: &Rule, b: &Rule) -> Ordering {
    b.priority.cmp(&a.priority).then_with(|| a.name.cmp(&b.name))
}

fn first(errors: &[RuleError]) -> String {
    errors.first().map(ToString::to_string).unwrap_or_default()
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` of rule `{}`: {}", self.field, self.name, self.problem)
    }
}
