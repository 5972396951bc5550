//! What hangs on the places of rules: which of them match a request, and which replace which.

use std::collections::HashMap;
use std::sync::Arc;

use crate::matcher::{ItemId, Matcher};
use crate::request::path::PathOptions;
use crate::{Rule, RuleSet};

/// Rules by their places.
#[derive(Debug)]
pub(super) struct RuleIndex {
    pub(super) matcher: Matcher,
    /// Few rules replace any.
    replaces: HashMap<ItemId, Box<[ItemId]>>,
}

impl RuleIndex {
    pub(super) fn new(rules: &[Arc<Rule>], path_options: PathOptions) -> Self {
        let matcher = Matcher::new(rules.iter().map(|rule| &rule.conditions), path_options);
        Self { matcher, replaces: replaces(rules) }
    }

    pub(super) fn replaced_by(&self, at: ItemId) -> &[ItemId] {
        self.replaces.get(&at).map_or(&[], |rules| rules)
    }

    /// True where the index of `before` serves `after`, of whose rules `places` tells which are the very
    /// same. So it is after a change of limits, as most are.
    pub(super) fn serves(before: &RuleSet, after: &RuleSet, places: &[Option<ItemId>]) -> bool {
        let is_alike = |(at, (old, new)): (ItemId, (&Arc<Rule>, &Arc<Rule>))| {
            places[at as usize] == Some(at)
                || old.name == new.name
                    && old.conditions == new.conditions
                    && old.replaces == new.replaces
        };
        let both = before.rules().iter().zip(after.rules());
        before.len() == after.len()
            && before.path_options() == after.path_options()
            && (0..).zip(both).all(is_alike)
    }
}

fn replaces(rules: &[Arc<Rule>]) -> HashMap<ItemId, Box<[ItemId]>> {
    let replacing = || (0..).zip(rules).filter(|(_, rule)| !rule.replaces.is_empty());
    if replacing().next().is_none() {
        return HashMap::new();
    }
    let places: HashMap<&str, ItemId> = rules.iter().map(|rule| &*rule.name).zip(0..).collect();
    let replaced = |rule: &Rule| {
        let names = rule.replaces.iter();
        names.filter_map(|name| places.get(&**name).copied()).collect()
    };
    replacing().map(|(at, rule)| (at, replaced(rule))).collect()
}
