//! Whether rules fit together: everything that is wrong with them, at once.

use std::collections::HashSet;
use std::sync::Arc;

use super::{
    LIMITS_PER_RULE_MAX, NAME_BYTES_MAX, POLICIES_PER_REQUEST_MAX, RULES_MAX, RuleError,
    RuleProblem, RuleSetError,
};
use crate::hash::{HashedSet, hash_text};
use crate::rule::alternative::{alternatives, least_limit};
use crate::{Limit, LimitAccuracyError, OnMissing, Rule, RuleAccuracy};

/// Checks one rule after the other.
pub(super) struct Validator<'r> {
    rule: &'r Rule,
    at: usize,
    errors: Vec<RuleError>,
}

impl<'r> Validator<'r> {
    /// Refuses rules that do not fit together, with what is wrong in their order.
    pub(super) fn check_new(
        rules: &'r [Arc<Rule>],
        digests: &[RuleDigest],
        node_count: u64,
    ) -> Result<(), RuleSetError> {
        Self::check_changed(rules, digests, 0, &[], node_count)
    }

    /// Refuses rules that do not fit together, of which the first `kept` did before, and `gone` with them.
    pub(super) fn check_changed(
        rules: &'r [Arc<Rule>],
        digests: &[RuleDigest],
        kept: usize,
        gone: &[&Rule],
        node_count: u64,
    ) -> Result<(), RuleSetError> {
        let Some(first) = rules.first() else {
            return Ok(());
        };
        let mut validator = Validator { rule: first, at: 0, errors: Vec::new() };
        if rules.len() > RULES_MAX {
            validator.refuse("name", RuleProblem::TooManyRules { count: rules.len() });
        } else {
            let (kept, new) = rules.split_at(kept);
            for (at, rule) in (kept.len()..).zip(new) {
                (validator.at, validator.rule) = (at, rule);
                validator.check_limits();
                validator.check_new_keys();
                validator.check_tiers();
                validator.check_costs();
                validator.check_accuracy(node_count);
            }
            validator.check_gone(kept, digests, new, gone);
            validator.check_names(kept, digests, new);
            validator.check_every_request(rules, digests);
        }
        let mut errors = validator.errors;
        errors.sort_by_key(|error| error.rule);
        if errors.is_empty() { Ok(()) } else { Err(RuleSetError { errors }) }
    }

    fn refuse(&mut self, field: &'static str, problem: RuleProblem) {
        let name = self.rule.name.to_string();
        self.errors.push(RuleError { rule: self.at, name, field, problem });
    }

    /// Those that stay may replace one that is gone.
    fn check_gone(
        &mut self,
        kept: &'r [Arc<Rule>],
        digests: &[RuleDigest],
        new: &[Arc<Rule>],
        gone: &[&Rule],
    ) {
        let is_there = |name: &str| new.iter().any(|rule| *rule.name == *name);
        let names: Vec<&str> = gone.iter().map(|rule| &*rule.name).collect();
        let names: Vec<&str> = names.into_iter().filter(|name| !is_there(name)).collect();
        if names.is_empty() {
            return;
        }
        let replacing =
            kept.iter().zip(digests).enumerate().filter(|(_, (_, digest))| digest.replaces);
        for (at, (rule, _)) in replacing {
            (self.at, self.rule) = (at, rule);
            for replaced in rule.replaces.iter().filter(|name| names.contains(&&***name)) {
                let name = replaced.to_string();
                self.refuse("replaces", RuleProblem::UnknownReplaced { name });
            }
        }
    }

    fn check_names(&mut self, kept: &'r [Arc<Rule>], digests: &[RuleDigest], new: &'r [Arc<Rule>]) {
        let mut known = ReservedNames::collect(kept, digests, new);
        let is_of_new: HashSet<&str> = new.iter().map(|rule| &*rule.name).collect();
        for (at, rule) in (kept.len()..).zip(new) {
            (self.at, self.rule) = (at, rule);
            if !is_name(&rule.name) {
                self.refuse("name", RuleProblem::Name);
            }
            if let Some(id) = &rule.id
                && !is_name(id)
            {
                self.refuse("id", RuleProblem::Name);
            }
            if !known.names.insert(&rule.name) {
                let name = rule.name.to_string();
                self.refuse("name", RuleProblem::DuplicateName { name });
            } else if !known.ids.insert(rule.identity()) {
                let id = rule.identity().to_string();
                let field = if rule.id.is_some() { "id" } else { "name" };
                self.refuse(field, RuleProblem::DuplicateId { id });
            }
            for replaced in &rule.replaces {
                let is_known = |name: &str| known.names.contains(name) || is_of_new.contains(name);
                if **replaced == *rule.name {
                    self.refuse("replaces", RuleProblem::ReplacesItself);
                } else if !is_known(replaced) {
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
                ("new_keys", rule.new_keys.is_none()),
            ];
            for (field, _) in fields.iter().filter(|(_, is_empty)| !is_empty) {
                self.refuse(field, RuleProblem::LimitsOfUnlimited { field });
            }
        } else if rule.limits.is_empty() && tiers.is_empty() && !rule.only_classifies() {
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

    fn check_new_keys(&mut self) {
        let Some(limit) = &self.rule.new_keys else {
            return;
        };
        if self.rule.per.is_empty() {
            self.refuse("new_keys", RuleProblem::NewKeysOfOneCounter);
        }
        let algorithm = limit.policy().algorithm().name();
        let is_simple = matches!(algorithm, "sliding_window_counter" | "token_bucket");
        if !is_simple || limit.options().warm_up.is_some() || limit.options().reserve.is_some() {
            let limit = limit.text().to_owned();
            self.refuse("new_keys", RuleProblem::NewKeysAlgorithm { limit });
        }
    }

    fn check_list(&mut self, field: &'static str, limits: &[Limit]) {
        if limits.len() > LIMITS_PER_RULE_MAX {
            self.refuse(field, RuleProblem::TooManyLimits { count: limits.len() });
            return;
        }
        self.check_alternatives(field, limits);
        let rule = self.rule;
        let counter = |limit: &Limit| {
            let algorithm = limit.policy().algorithm();
            let kind = (algorithm.name(), algorithm.window_us(), algorithm.variant());
            (kind, rule.own_per(limit).map(<[_]>::to_vec))
        };
        // Several alternatives may have one limit in common.
        let is_common = |one: &Limit, other: &Limit| {
            one.alternative() != other.alternative() && one.policy() == other.policy()
        };
        for (at, one) in limits.iter().enumerate() {
            let is_same = |other: &&Limit| counter(other) == counter(one) && !is_common(one, other);
            if let Some(other) = limits[..at].iter().find(is_same) {
                let is_among_alternatives = one.alternative() != other.alternative();
                let (one, other) = (other.text().to_owned(), one.text().to_owned());
                self.refuse(
                    field,
                    if is_among_alternatives {
                        RuleProblem::SameCounterInAlternatives { one, other }
                    } else {
                        RuleProblem::SameCounter { one, other }
                    },
                );
            }
        }
    }

    fn check_alternatives(&mut self, field: &'static str, limits: &[Limit]) {
        let rule = self.rule;
        let is_one = |limit: &Limit| limit.alternative().is_some();
        if !limits.iter().any(is_one) {
            return;
        }
        let orders = alternatives(limits).map(|limits| limits[0].alternative().map(usize::from));
        if !limits.iter().all(is_one) || !orders.enumerate().all(|(at, order)| order == Some(at)) {
            self.refuse(field, RuleProblem::AlternativesBesideLimits);
        } else if alternatives(limits).nth(1).is_none() {
            self.refuse(field, RuleProblem::SingleAlternative);
        }
        if !matches!(rule.missing, OnMissing::Skip | OnMissing::Deny) {
            return;
        }
        let own = limits.iter().filter_map(Limit::per).flatten();
        if let Some(per) = { own }.find(|per| !rule.per.contains(per)) {
            let (attribute, missing) = (per.name().to_owned(), rule.missing.name());
            self.refuse(field, RuleProblem::MissingOfAlternative { attribute, missing });
        }
    }

    fn check_tiers(&mut self) {
        let tiers = &self.rule.tiers;
        let known: Vec<&str> = tiers.limits.iter().map(|(name, _)| &**name).collect();
        match &tiers.default {
            Some(default) if !known.contains(&&**default) => {
                let known =
                    known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
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
        let rule = self.rule;
        let lists = rule.all_tiers().filter_map(|tier| least_limit(rule.limits_of(tier)));
        let least = lists.min_by_key(|limit| limit.policy().capacity());
        if let Some(limit) = least
            && limit.policy().capacity() < cost
        {
            let capacity = limit.policy().capacity();
            let limit = limit.text().to_owned();
            self.refuse("cost", RuleProblem::CostAboveCapacity { cost, limit, capacity });
        }
    }

    /// What the rule says itself has to hold for each of its limits. What it inherits holds for those that can.
    fn check_accuracy(&mut self, node_count: u64) {
        let rule = self.rule;
        let Some(accuracy) = rule.accuracy else {
            return;
        };
        if rule.has_alternatives() && accuracy != RuleAccuracy::Exact {
            let source = LimitAccuracyError::Alternatives;
            let limit = rule.all_limits().find(|limit| limit.alternative().is_some());
            let limit = limit.map_or("any_of", Limit::text).to_owned();
            self.refuse("accuracy", RuleProblem::Accuracy { limit, source });
            return;
        }
        for limit in rule.all_limits() {
            if let Err(source) =
                accuracy.of_limit(limit.policy(), limit.options().reserve, node_count)
            {
                let limit = limit.text().to_owned();
                self.refuse("accuracy", RuleProblem::Accuracy { limit, source });
            }
        }
    }

    fn check_every_request(&mut self, rules: &'r [Arc<Rule>], digests: &[RuleDigest]) {
        let mut count = 0;
        for (at, digest) in digests.iter().enumerate() {
            count += digest.on_every_request as usize;
            if count > POLICIES_PER_REQUEST_MAX {
                (self.at, self.rule) = (at, &rules[at]);
                self.refuse("limit", RuleProblem::TooManyForEveryRequest { count });
                return;
            }
        }
    }
}

/// Names and identities that other rules have.
struct ReservedNames<'r> {
    names: HashSet<&'r str>,
    ids: HashSet<&'r str>,
}

impl<'r> ReservedNames<'r> {
    /// Those of the rules that stay, as far as the new ones may ask for them: of thousands, a few.
    fn collect(kept: &'r [Arc<Rule>], digests: &[RuleDigest], new: &[Arc<Rule>]) -> Self {
        let (mut names, mut ids) = (HashSet::new(), HashSet::new());
        let mut asked = HashedSet::default();
        for rule in new {
            let texts = [&*rule.name, &**rule.identity()];
            let texts = texts.into_iter().chain(rule.replaces.iter().map(|name| &**name));
            asked.extend(texts.map(hash_text));
        }
        // By a quick hash; what else has the same does not matter.
        for (rule, digest) in kept.iter().zip(digests) {
            if asked.contains(&digest.name) {
                names.insert(&*rule.name);
            }
            if asked.contains(&digest.identity) {
                ids.insert(&**rule.identity());
            }
        }
        Self { names, ids }
    }
}

fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_part)
}

/// A rule in a few numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RuleDigest {
    /// The hash of its name. Others may have the same.
    pub(super) name: u64,
    /// That of its identity.
    pub(super) identity: u64,
    /// How many limits it has on every request.
    pub(super) on_every_request: u32,
    /// Whether it replaces others.
    pub(super) replaces: bool,
}

impl RuleDigest {
    pub(super) fn new(rule: &Rule) -> Self {
        Self {
            name: hash_text(&rule.name),
            identity: hash_text(rule.identity()),
            on_every_request: on_every_request(rule) as u32,
            replaces: !rule.replaces.is_empty(),
        }
    }
}

/// What applies to every request can be counted; what some requests meet, only when they come.
fn on_every_request(rule: &Rule) -> usize {
    if !rule.enabled || rule.fallback || !rule.conditions.all().is_empty() {
        return 0;
    }
    let of_tiers = rule.tiers.limits.iter().map(|(_, tier)| tier.limits().len()).max();
    rule.limits.len().max(of_tiers.unwrap_or(0)) + rule.candidate.len()
}
