//! What a change of rules changes.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::{Limit, Per, Rule, RuleSet};

/// What became of the rules of one version in the next. Rules are the same if their identity is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Diff {
    /// Rules that were not there.
    pub added: Vec<Arc<str>>,
    /// Rules that are gone.
    pub removed: Vec<Arc<str>>,
    /// Rules that say something else.
    pub changed: Vec<RuleChange>,
    /// How many say what they said.
    pub unchanged: usize,
}

/// A rule that says something else than it did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleChange {
    /// Its name, the new one.
    pub rule: Arc<str>,
    /// Which of its fields.
    pub fields: Vec<&'static str>,
    /// Limits whose counters start fresh, because no limit before had their algorithm and window.
    pub starts_fresh: Vec<String>,
}

impl Diff {
    /// From `before` to `after`.
    #[must_use]
    pub fn between(before: &RuleSet, after: &RuleSet) -> Self {
        let places = after.places_in(before);
        let mut is_shared = vec![false; before.len()];
        places.iter().flatten().for_each(|at| is_shared[*at as usize] = true);
        let others = || before.rules().iter().zip(&is_shared).filter(|(_, is)| !**is);
        let mut old: HashMap<&str, &Rule> =
            others().map(|(rule, _)| (&**rule.identity(), &**rule)).collect();
        let mut diff = Self::default();
        for (rule, place) in after.rules().iter().zip(&places) {
            if place.is_some() {
                diff.unchanged += 1;
                continue;
            }
            match old.remove(&**rule.identity()) {
                None => diff.added.push(Arc::clone(&rule.name)),
                Some(same) if *same == **rule => diff.unchanged += 1,
                Some(other) => diff.changed.push(RuleChange::between(other, rule)),
            }
        }
        let gone = others().filter(|(rule, _)| old.contains_key(&**rule.identity()));
        diff.removed = gone.map(|(rule, _)| Arc::clone(&rule.name)).collect();
        diff
    }

    /// True where nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

impl RuleChange {
    fn between(before: &Rule, after: &Rule) -> Self {
        let pairs = [
            ("name", before.name == after.name),
            ("description", before.description == after.description),
            ("enabled", before.enabled == after.enabled),
            ("match", before.conditions == after.conditions),
            ("criticality", before.criticality == after.criticality),
            ("per", before.per == after.per),
            ("missing", before.missing == after.missing),
            ("new_keys", before.new_keys == after.new_keys),
            ("limit", before.limits == after.limits),
            ("tiers", before.tiers == after.tiers),
            ("cost", before.costs == after.costs),
            ("priority", before.priority == after.priority),
            ("stop", before.stop == after.stop),
            ("replaces", before.replaces == after.replaces),
            ("fallback", before.fallback == after.fallback),
            ("unlimited", before.unlimited == after.unlimited),
            ("mode", before.mode == after.mode),
            ("candidate", before.candidate == after.candidate),
            ("accuracy", before.accuracy == after.accuracy),
            ("on_store_failure", before.on_store_failure == after.on_store_failure),
            ("exempt", before.exemptions == after.exemptions),
        ];
        let old: Vec<_> = before.live_limits().map(|limit| counter(before, limit)).collect();
        let is_fresh = |limit: &&Limit| !old.contains(&counter(after, limit));
        Self {
            rule: Arc::clone(&after.name),
            fields: pairs.iter().filter(|(_, same)| !same).map(|(field, _)| *field).collect(),
            starts_fresh: after
                .live_limits()
                .filter(is_fresh)
                .map(|limit| limit.text().to_owned())
                .collect(),
        }
    }
}

/// What tells counters of a rule apart. Another `per` is another key, and so another counter.
fn counter<'l>(rule: &'l Rule, limit: &'l Limit) -> (&'l [Per], (&'l str, u64, u64)) {
    (limit.per().unwrap_or(&rule.per), limit.counter_kind())
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rule in &self.added {
            writeln!(f, "+ {rule}")?;
        }
        for rule in &self.removed {
            writeln!(f, "- {rule}")?;
        }
        for RuleChange { rule, fields, starts_fresh } in &self.changed {
            write!(f, "~ {rule}: {}", fields.join(", "))?;
            match starts_fresh.as_slice() {
                [] => writeln!(f)?,
                fresh => writeln!(f, " (counters start fresh: {})", fresh.join(", "))?,
            }
        }
        write!(f, "{} unchanged", self.unchanged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuleFile;

    fn rules(text: &str) -> RuleSet {
        RuleFile::parse("r", text).unwrap().rules
    }

    #[test]
    fn a_change_is_told_field_by_field() {
        let before = rules(
            "rules: [{name: a, limit: 1/s}, {name: b, limit: [1/s, 9/h]}, {name: c, limit: 1/s}, {name: e, id: x, limit: 1/s}]",
        );
        let after = rules(
            "rules: [{name: b, limit: [2/s, 9/day], mode: shadow}, {name: c, limit: 1/s, accuracy: local}, {name: d, limit: 1/s}, {name: f, id: x, limit: 1/s, per: user}]",
        );
        let diff = Diff::between(&before, &after);
        assert_eq!(
            diff.to_string(),
            "+ d\n- a\n~ b: limit, mode (counters start fresh: 9/day)\n~ c: accuracy\n~ f: name, per \
             (counters start fresh: 1/s)\n0 unchanged"
        );
        assert!(!diff.is_empty() && Diff::between(&before, &before).is_empty());
    }

    #[test]
    fn alternatives_that_count_by_another_per_start_fresh() {
        let before = rules("rules: [{ name: a, limit: [1/s, 9/h] }]");
        let any_of =
            rules("rules: [{ name: a, limit: { any_of: [1/s, { limit: 9/h, per: [] }] } }]");
        let diff = Diff::between(&before, &any_of);
        assert_eq!(diff.to_string(), "~ a: limit (counters start fresh: 9/h)\n0 unchanged");
        let other =
            rules("rules: [{ name: a, limit: { any_of: [{ limit: 9/h, per: [] }, 1/s] } }]");
        let diff = Diff::between(&any_of, &other);
        assert_eq!(diff.to_string(), "~ a: limit\n0 unchanged", "in another order");
    }
}
