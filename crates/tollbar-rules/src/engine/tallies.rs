//! Counting what a check has decided, and reading the counts of all rules.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::AsyncEngine;
use crate::matcher::ItemId;
use crate::rule::Tier;
use crate::snapshot::Snapshot;
use crate::snapshot::tally::{Counts, TallyId, add, is_near};
use crate::verdict::{Enforcement, LimitDecision};
use crate::{Limit, Rule, RuleAccuracy};

/// The counts of all rules at one moment.
#[derive(Debug, Clone)]
pub struct Tallies(Arc<Snapshot>);

/// The counts of one rule, or of one tier of it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RuleTally<'t> {
    /// The same for all tiers of a rule.
    pub id: TallyId,
    /// The rule.
    pub rule: &'t Rule,
    /// The tier, where it is one's.
    pub tier: Option<&'t str>,
    /// Its limits.
    pub limits: &'t [Limit],
    /// What it has decided.
    pub counts: Counts,
}

impl AsyncEngine {
    /// What the rules have decided so far.
    ///
    /// ```
    /// use tollbar_rules::{Engine, Request, RuleFile};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let file = RuleFile::parse("rules.yaml", "rules: [{ name: per_client, limit: 1/min }]")?;
    /// let engine = Engine::new(file.rules);
    /// let request = Request::new("GET", "/")?.with_attributes(&[("user", "42")])?;
    /// let _ = (engine.check(&request), engine.check(&request));
    ///
    /// let tallies = engine.tallies();
    /// let counts = tallies.iter().next().unwrap().counts;
    /// assert_eq!((counts.allowed, counts.denied), (1, 1));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn tallies(&self) -> Tallies {
        Tallies(self.snapshot())
    }
}

impl Tallies {
    /// By how many tokens a rule exceeds exact counting at most, and by how many it stays below. `None` where it
    /// counts exactly.
    #[must_use]
    pub fn accuracy_bounds(&self, rule: &Rule) -> Option<(u64, u64)> {
        let rules = &self.0.rules;
        let is_exact = self.0.is_in_process || rules.accuracy_of(rule) == RuleAccuracy::Exact;
        (!is_exact).then(|| rules.accuracy_bounds(rule))
    }

    /// Each rule, and each tier of it that has limits, in the order in which rules are looked at.
    pub fn iter(&self) -> impl Iterator<Item = RuleTally<'_>> {
        (0..self.0.rules.len()).flat_map(|at| self.of_rule(at))
    }

    /// Those of `before` that are not here any more.
    ///
    /// ```
    /// # use tollbar_rules::{Engine, RuleFile};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = |text| RuleFile::parse("rules.yaml", text).map(|file| file.rules);
    /// let engine = Engine::new(rules("rules: [{ name: a, limit: 1/s }, { name: b, limit: 1/s }]")?);
    /// let before = engine.tallies();
    /// engine.replace(rules("rules: [{ name: b, limit: 2/s }]")?);
    /// let after = engine.tallies();
    /// let gone = after.gone_since(&before);
    /// let gone: Vec<&str> = gone.iter().map(|tally| &*tally.rule.name).collect();
    /// assert_eq!(gone, ["a"]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn gone_since<'b>(&self, before: &'b Self) -> Vec<RuleTally<'b>> {
        let (then, now) = (&before.0.rules, &self.0.rules);
        let here = self.but(now.places_in(then));
        let here: HashSet<_> = here.map(|tally| (&**tally.rule.identity(), tally.tier)).collect();
        let others = before.but(then.places_in(now));
        others.filter(|tally| !here.contains(&(&**tally.rule.identity(), tally.tier))).collect()
    }

    /// Those of rules that have no place elsewhere.
    fn but(&self, places: Vec<Option<ItemId>>) -> impl Iterator<Item = RuleTally<'_>> {
        let others = places.into_iter().enumerate().filter(|(_, place)| place.is_none());
        others.flat_map(|(at, _)| self.of_rule(at))
    }

    /// Those of the rule in this place.
    fn of_rule(&self, at: usize) -> impl Iterator<Item = RuleTally<'_>> {
        let snapshot = &*self.0;
        let rule = &*snapshot.rules.rules()[at];
        let id = snapshot.tally(at as ItemId, Tier::Rule).id();
        let tiers = rule.tiers.limits.iter().enumerate();
        let tiers = tiers.map(|(tier, (name, _))| (Tier::At(tier), Some(&**name)));
        [(Tier::Rule, None)].into_iter().chain(tiers).filter_map(move |(tier, name)| {
            let limits = rule.limits_of(tier);
            let mut counts = snapshot.tally(at as ItemId, tier).counts();
            if tier == Tier::Rule {
                let top = &snapshot.plan(at as ItemId).top;
                counts.ahead_of_clock = top.ahead_of_clock.load(Ordering::Relaxed);
                counts.new_keys_limited = top.new_keys_limited.load(Ordering::Relaxed);
            }
            let is_silent = limits.is_empty() && counts == Counts::default();
            (!is_silent).then_some(RuleTally { id, rule, tier: name, limits, counts })
        })
    }

    /// Which version of the rules it is; counts up with every change.
    #[must_use]
    pub fn rules_version(&self) -> u64 {
        self.0.version
    }

    /// How many rules there are.
    #[must_use]
    pub fn rule_count(&self) -> usize {
        self.0.rules.len()
    }
}

/// Counts all decisions of a check, each rule once.
pub(crate) fn count(snapshot: &Snapshot, decisions: &[LimitDecision]) {
    let is_admitted = !decisions.iter().any(|limit| limit.denies_live(decisions));
    // Those of one rule follow each other, its candidate's last.
    for these in decisions.chunk_by(LimitDecision::is_of_same_rule) {
        let [first, ..] = these else {
            continue;
        };
        if first.cost == 0 {
            continue;
        }
        let line = snapshot.tally(first.rule, first.tier()).line();
        let is_allowed = !these.iter().any(|limit| limit.denies(these));
        let counter = match (first.enforcement, first.decision.degraded().is_some(), is_allowed) {
            (Enforcement::Live, false, true) => &line.allowed,
            (Enforcement::Live, false, false) => &line.denied,
            (Enforcement::Live, true, true) => &line.degraded_allowed,
            (Enforcement::Live, true, false) => &line.degraded_denied,
            // What it would have said, it can say only by a counter.
            (_, true, _) => continue,
            (_, false, true) => &line.shadow_allowed,
            (_, false, false) => &line.shadow_denied,
        };
        add(counter, 1);
        let is_counted =
            first.enforcement == Enforcement::Live && first.decision.degraded().is_none();
        if !(is_counted && is_allowed) {
            continue;
        }
        // Another rule may deny what this one allows: then nothing is paid.
        let paid = if is_admitted { first.cost } else { 0 };
        if paid != 1 {
            add(&line.extra_tokens, paid.wrapping_sub(1));
        }
        let limits = snapshot.policies(first.rule, first.tier(), 0).unwrap_or_default();
        let is_near = |decision: &LimitDecision| {
            let capacity = limits.get(decision.limit as usize).map_or(0, tollbar::Policy::capacity);
            is_near(&decision.decision, capacity)
        };
        let is_near = match first.alternative {
            None => these.iter().any(is_near),
            // As long as one of them has room, the rule has.
            Some(_) => these
                .chunk_by(|a, b| a.alternative == b.alternative)
                .all(|limits| limits.iter().any(is_near)),
        };
        if is_admitted && is_near {
            add(&line.near_limit, 1);
        }
    }
}
