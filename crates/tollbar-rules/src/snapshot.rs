//! One version of the rules, compiled: what a check needs, and nothing it has to work out.
//!
//! A version shares with the one before it whatever is the same in both.

mod compiled;
pub(crate) mod counting;
mod index;
pub(crate) mod overrides;
mod recipe;
pub(crate) mod tally;
pub(crate) mod top;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::{Deref, Range};
use std::sync::{Arc, OnceLock};

use arc_swap::Guard;
use smallvec::SmallVec;
use tollbar::{Accuracy, Policy, Timestamp};

use compiled::CompiledRule;
use counting::{CountedPolicies, CountingPlan};
use index::RuleIndex;
use recipe::Recipes;

use crate::matcher::{ItemId, Items, Matcher};
use crate::request::path::PathOptions;
use crate::rule::Tier;
use crate::rule::condition::PathReading;
use crate::snapshot::overrides::{ActiveOverrides, BoostedLimits, Overrides};
use crate::snapshot::tally::Tally;
use crate::{Conditions, Request, Rule, RuleSet};

pub(crate) use compiled::{
    AlternativePlan, NewKeyPolicies, RuleCore, RuleFlags, RulePlan, VISITS_MAX,
};
pub(crate) use recipe::{Recipe, RecipeId};

/// Lists longer than this are looked up and not gone through.
const LISTED_MAX: usize = 8;

/// A version of the rules. Checks hold on to one while they last, so none sees half of two.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) rules: RuleSet,
    /// Counts up with every change.
    pub(crate) version: u64,
    /// The counters are in this process, and exact whatever the rules say.
    pub(crate) is_in_process: bool,
    index: Arc<RuleIndex>,
    compiled: Vec<Arc<CompiledRule>>,
    /// Bans and boosts; almost always none.
    pub(crate) overrides: Option<Arc<Overrides>>,
    /// Limits of each rule, multiplied by each factor that somebody has; worked out when they are first
    /// asked for.
    boosts: Box<[OnceLock<Box<[BoostedLimits]>>]>,
}

/// A version that somebody holds on to. Those who check at the same time do not pass a count of
/// holders from core to core, as clones of an `Arc` would.
#[derive(Debug)]
pub(crate) struct PinnedSnapshot(Guard<Arc<Snapshot>>);

impl Snapshot {
    /// The first version, over counters in this process or elsewhere.
    pub(crate) fn first(rules: RuleSet, is_in_process: bool) -> Self {
        Self::build(rules, 1, None, is_in_process)
    }

    pub(crate) fn new(rules: RuleSet, version: u64, before: Option<&Self>) -> Self {
        let is_in_process = before.is_some_and(|before| before.is_in_process);
        Self::build(rules, version, before, is_in_process)
    }

    fn build(rules: RuleSet, version: u64, before: Option<&Self>, is_in_process: bool) -> Self {
        let places = match before {
            Some(before) => rules.places_in(&before.rules),
            None => vec![None; rules.len()],
        };
        let index = match before {
            Some(before) if RuleIndex::serves(&before.rules, &rules, &places) => {
                Arc::clone(&before.index)
            }
            _ => {
                let path_options = rules.path_options().unwrap_or_default();
                Arc::new(RuleIndex::new(rules.rules(), path_options))
            }
        };
        let overrides = match before {
            Some(before) if rules.shares_overrides_with(&before.rules) => before.overrides.clone(),
            _ => Overrides::new(rules.overrides_shared()),
        };
        let has_boosts = overrides.as_ref().is_some_and(|overrides| overrides.has_boosts());
        let boosted = if has_boosts { rules.len() } else { 0 };
        Self {
            version,
            is_in_process,
            index,
            compiled: compile(&rules, &places, before, is_in_process),
            overrides,
            boosts: (0..boosted).map(|_| OnceLock::new()).collect(),
            rules,
        }
    }

    pub(crate) fn rule(&self, at: ItemId) -> &Rule {
        &self.rules.rules()[at as usize]
    }

    #[inline]
    pub(crate) fn core(&self, at: ItemId) -> &RuleCore {
        &self.compiled[at as usize].core
    }

    #[inline]
    pub(crate) fn plan(&self, at: ItemId) -> &RulePlan {
        &self.compiled[at as usize].plan
    }

    /// The places of the rules that a rule replaces.
    pub(crate) fn replaced_by(&self, at: ItemId) -> &[ItemId] {
        self.index.replaced_by(at)
    }

    /// Limits of a rule, multiplied.
    fn boosts(&self, at: ItemId) -> &[BoostedLimits] {
        let Some((overrides, boosts)) = self.overrides.as_ref().zip(self.boosts.get(at as usize))
        else {
            return &[];
        };
        boosts.get_or_init(|| overrides.boosts_of(self.rule(at)))
    }

    /// The place of the rule of that name.
    pub(crate) fn find(&self, name: &str) -> Option<ItemId> {
        self.rules.rules().iter().position(|rule| *rule.name == *name).map(|at| at as ItemId)
    }

    /// The request with its path as the rules compare it.
    #[inline]
    pub(crate) fn fold<'r, 'a>(&self, request: &'r Request<'a>) -> Cow<'r, Request<'a>> {
        match self.rules.path_options() {
            Some(options) if options.folds() && request.path_options() != options => {
                Cow::Owned(request.folded(options))
            }
            _ => Cow::Borrowed(request),
        }
    }

    /// True for a request whose path no two servers read alike, unless the rules allow that.
    #[inline]
    pub(crate) fn refuses_path_of(&self, request: &Request<'_>) -> bool {
        let is_allowed = |options: PathOptions| options.allows_ambiguous;
        request.has_ambiguous_path() && !self.rules.path_options().is_some_and(is_allowed)
    }

    /// True where a rule takes its cost from an attribute that is no number.
    #[inline]
    pub(crate) fn has_invalid_cost(&self, at: ItemId, request: &Request<'_>) -> bool {
        self.core(at).flags.has_costs && self.rule(at).costs.is_invalid_for(request)
    }

    /// The rules that match, the first to be looked at first.
    #[inline]
    pub(crate) fn matching<'f>(
        &'f self,
        request: &Request<'_>,
        found: &'f mut Items,
    ) -> &'f [ItemId] {
        self.index.matcher.matching(request, |at| &self.rule(at).conditions, found)
    }

    /// The rules that match in one reading of the path, the first to be looked at first.
    pub(crate) fn matching_as<'f>(
        &'f self,
        request: &Request<'_>,
        reading: PathReading,
        found: &'f mut Items,
    ) -> &'f [ItemId] {
        self.index.matcher.matching_as(request, reading, |at| &self.rule(at).conditions, found)
    }

    /// The first exemption of a rule that covers the request in one reading of its path.
    pub(crate) fn exemption_as(
        &self,
        at: ItemId,
        request: &Request<'_>,
        reading: PathReading,
        now: impl FnOnce() -> Timestamp,
    ) -> Option<usize> {
        if !self.core(at).flags.has_exemptions {
            return None;
        }
        let rule = self.rule(at);
        let all = 0..rule.exemptions.len();
        let index = self.plan(at).exemptions.as_ref();
        let candidates =
            proposed(index, all, request, reading, |at| &rule.exemptions[at].conditions);
        let now = now();
        candidates.into_iter().find(|at| rule.exemptions[*at].covers_as(request, reading, now))
    }

    /// What a request costs under a rule: the most that any reading of its path costs.
    #[inline]
    pub(crate) fn cost(&self, at: ItemId, request: &Request<'_>) -> u64 {
        if !self.core(at).flags.has_costs {
            return request.cost().saturating_mul(self.core(at).cost);
        }
        let costs = &self.rule(at).costs;
        let Some(index) = &self.plan(at).costs else {
            return costs.of(request);
        };
        costs.in_dearest_reading(request, |reading| {
            let all = 0..costs.by_condition.len();
            let conditions = |at: usize| &costs.by_condition[at].0;
            let found = proposed(Some(index), all, request, reading, conditions);
            found.into_iter().map(|at| costs.by_condition[at].1).max()
        })
    }
}

impl Snapshot {
    /// Which limits of a rule a request is under.
    #[inline]
    pub(crate) fn tier(&self, at: ItemId, request: &Request<'_>) -> Tier {
        if !self.core(at).flags.has_tiers {
            return Tier::Rule;
        }
        let tiers = &self.rule(at).tiers.limits;
        let of_name = |name: &str| tiers.iter().position(|(known, _)| **known == *name);
        let named = request.attribute("tier").and_then(of_name);
        named.or(self.plan(at).default_tier).map_or(Tier::Rule, Tier::At)
    }

    /// What a tier of a rule has decided.
    #[inline]
    pub(crate) fn tally(&self, at: ItemId, tier: Tier) -> &Tally {
        match tier {
            Tier::Rule => &self.core(at).tally,
            Tier::At(tier) => &self.plan(at).tallies[tier],
        }
    }

    /// Returns the ban and the boost of a subject of a rule, and which of the rule's boosts that makes it.
    #[cold]
    pub(crate) fn active_overrides(
        &self,
        overrides: &Overrides,
        at: ItemId,
        key: &[u8],
        request: &Request<'_>,
        now: Timestamp,
    ) -> (ActiveOverrides, u32) {
        let active = overrides.active_for_subject(self.rule(at), key, request, now);
        (active, active.boost.map_or(0, |boost| overrides.place_of(boost, self.boosts(at))) as u32)
    }

    /// The limits of a tier, multiplied by a boost if that is not 0; `None` is unlimited.
    #[inline]
    pub(crate) fn policies(&self, at: ItemId, tier: Tier, boost: u32) -> Option<&[Policy]> {
        if boost > 0
            && let Some(boosted) = self.boosts(at).get(boost as usize - 1)
        {
            // An unlimited tier stays so.
            if let Tier::At(tier) = tier {
                self.plan(at).tiers[tier].as_ref()?;
            }
            return Some(self.boosted(at, tier, boosted).map_or(&[], |limits| &limits.policies));
        }
        match tier {
            Tier::Rule => Some(&self.core(at).limits),
            Tier::At(tier) => self.plan(at).tiers[tier].as_ref().map(|policies| &*policies.whole),
        }
    }

    /// How exactly each limit of a tier is counted, multiplied by a boost if that is not 0. Empty where all are
    /// counted exactly.
    #[inline]
    pub(crate) fn accuracies(&self, at: ItemId, tier: Tier, boost: u32) -> &[Accuracy] {
        if self.core(at).flags.is_exact {
            return &[];
        }
        let boosted = (boost as usize).checked_sub(1).and_then(|boost| self.boosts(at).get(boost));
        match boosted {
            Some(boosted) => {
                self.boosted(at, tier, boosted).map_or(&[], |limits| &limits.accuracies)
            }
            None => self.plan(at).accuracies(tier),
        }
    }

    fn boosted<'s>(
        &'s self,
        at: ItemId,
        tier: Tier,
        boosted: &'s BoostedLimits,
    ) -> Option<&'s CountedPolicies> {
        let tier_at = match tier {
            Tier::Rule => None,
            Tier::At(tier) => Some(tier),
        };
        boosted.limits(self.rule(at), self.plan(at).counting, tier_at)
    }
}

impl PinnedSnapshot {
    pub(crate) fn to_arc(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0)
    }
}

impl From<Guard<Arc<Snapshot>>> for PinnedSnapshot {
    #[inline]
    fn from(guard: Guard<Arc<Snapshot>>) -> Self {
        Self(guard)
    }
}

impl From<Arc<Snapshot>> for PinnedSnapshot {
    fn from(snapshot: Arc<Snapshot>) -> Self {
        Self(Guard::from_inner(snapshot))
    }
}

impl Clone for PinnedSnapshot {
    fn clone(&self) -> Self {
        Self::from(self.to_arc())
    }
}

impl Deref for PinnedSnapshot {
    type Target = Snapshot;

    #[inline]
    fn deref(&self) -> &Snapshot {
        &self.0
    }
}

/// Compiles the rules that are not the very same as in the version before. What belongs to a rule and
/// not to its version goes on.
fn compile(
    rules: &RuleSet,
    places: &[Option<ItemId>],
    before: Option<&Snapshot>,
    is_in_process: bool,
) -> Vec<Arc<CompiledRule>> {
    let of_all = |rules: &RuleSet| (rules.node_count(), rules.accuracy(), rules.path_options());
    let shared = before.filter(|before| of_all(&before.rules) == of_all(rules));
    let mut is_shared = vec![false; before.map_or(0, |before| before.rules.len())];
    if shared.is_some() {
        places.iter().flatten().for_each(|at| is_shared[*at as usize] = true);
    }
    let known: HashMap<&str, (&Snapshot, ItemId)> = before
        .into_iter()
        .flat_map(|before| before.rules.rules().iter().zip(0..).map(move |entry| (before, entry)))
        .filter(|(_, (_, at))| !is_shared[*at as usize])
        .map(|(before, (rule, at))| (&**rule.identity(), (before, at)))
        .collect();
    let mut recipes = None;
    let compile = |(rule, place): (&Arc<Rule>, &Option<ItemId>)| {
        if let (Some(shared), Some(at)) = (shared, place) {
            return Arc::clone(&shared.compiled[*at as usize]);
        }
        let known = known.get(&**rule.identity()).copied();
        let recipe = known.map(|(before, at)| &before.core(at).recipe);
        let recipe = recipe.filter(|recipe| recipe.is_for(rule)).cloned().unwrap_or_else(|| {
            let all = before.into_iter().flat_map(|before| &before.compiled);
            let all = || Recipes::new(all.map(|compiled| &compiled.core.recipe));
            recipes.get_or_insert_with(all).get_or_insert(rule)
        });
        let counting = CountingPlan::new(rule, rules, is_in_process);
        Arc::new(CompiledRule::new(rule, recipe, rules, counting, known))
    };
    rules.rules().iter().zip(places).map(compile).collect()
}

/// The places of a list whose conditions may hold: by the index where there is one, else all.
fn proposed<'c>(
    index: Option<&Matcher>,
    all: Range<usize>,
    request: &Request<'_>,
    reading: PathReading,
    conditions: impl Fn(usize) -> &'c Conditions,
) -> SmallVec<[usize; LISTED_MAX]> {
    let Some(index) = index else {
        return all.collect();
    };
    let mut found = Items::new();
    let found = index.matching_as(request, reading, |at| conditions(at as usize), &mut found);
    found.iter().map(|at| *at as usize).collect()
}
