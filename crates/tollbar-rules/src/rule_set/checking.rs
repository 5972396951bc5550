//! Whether rules fit together: everything that is wrong with them, at once.

use std::collections::{HashMap, HashSet};

use super::{
    LIMITS_PER_RULE_MAX, NAME_BYTES_MAX, POLICIES_PER_REQUEST_MAX, RULES_MAX, RuleError,
    RuleProblem,
};
use crate::{Limit, Rule};

/// Looks at one rule after the other.
pub(super) struct Checking<'r> {
    rule: &'r Rule,
    at: usize,
    errors: Vec<RuleError>,
}

impl<'r> Checking<'r> {
    /// What is wrong with `rules`, in their order.
    pub(super) fn of(rules: &'r [Rule]) -> Vec<RuleError> {
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
