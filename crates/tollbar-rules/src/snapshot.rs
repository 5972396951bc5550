//! One version of the rules, compiled: what a check needs, and nothing it has to work out.

use std::collections::HashMap;
use std::ops::{Deref, Range};
use std::sync::Arc;

use arc_swap::Guard;
use smallvec::SmallVec;
use tollbar::{Policy, Timestamp};

use crate::matcher::{ItemId, Items, Matcher};
use crate::overrides::{Boosted, Overrides, Said};
use crate::permits::is_held;
use crate::top::Top;
use crate::{Conditions, Limit, Mode, Request, Rule, RuleSet, TierLimits};

/// Lists longer than this are looked up and not gone through.
const LISTED_MAX: usize = 8;

/// A version of the rules. Checks hold on to one while they last, so none sees half of two.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) rules: RuleSet,
    /// Counts up with every change.
    pub(crate) version: u64,
    matcher: Matcher,
    sketches: Vec<Sketch>,
    plans: Vec<Plan>,
    /// Bans and boosts; almost always none.
    pub(crate) overrides: Option<Box<Overrides>>,
}

/// A version that somebody holds on to. Those who check at the same time do not pass a count of
/// holders from core to core, as clones of an `Arc` would.
#[derive(Debug)]
pub(crate) struct Pinned(Guard<Arc<Snapshot>>);

/// What every check of a rule needs, in one cache line.
#[derive(Debug)]
pub(crate) struct Sketch {
    pub(crate) priority: i32,
    /// The first rule whose subjects are written by the same recipe.
    pub(crate) recipe: ItemId,
    pub(crate) flags: Flags,
    /// What a request costs, unless `has_costs`.
    cost: u64,
    /// The rule's own limits.
    pub(crate) limits: Box<[Policy]>,
}

/// What is so of a rule.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(crate) struct Flags {
    pub(crate) is_enabled: bool,
    pub(crate) is_fallback: bool,
    pub(crate) is_unlimited: bool,
    /// Not in shadow mode.
    pub(crate) is_live: bool,
    /// May keep others from applying.
    pub(crate) is_against_others: bool,
    has_exemptions: bool,
    has_tiers: bool,
    has_costs: bool,
    pub(crate) has_candidate: bool,
    /// Some limit of it is held and not spent.
    pub(crate) has_permits: bool,
    /// Whoever is under it is under its own limits, whatever else is so.
    is_plain: bool,
}

/// A rule, compiled.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Shares of the rule's own limits.
    shares: Box<[Policy]>,
    /// In the order of the rule's tiers; `None` is unlimited.
    tiers: Vec<Option<Policies>>,
    default_tier: Option<usize>,
    candidate: Policies,
    /// The places of the rules that it replaces.
    pub(crate) replaces: Vec<ItemId>,
    exemptions: Option<Matcher>,
    costs: Option<Matcher>,
    /// Who is limited most by it.
    pub(crate) top: Arc<Top>,
    /// Its limits multiplied, by each factor that somebody has.
    boosts: Box<[Boosted]>,
}

/// The limits of a rule or a tier, under the rule's name.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    pub(crate) whole: Box<[Policy]>,
    /// This node's share of each, for when the store cannot answer.
    pub(crate) shares: Box<[Policy]>,
}

/// Which limits of a rule a request is under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    /// The rule's own.
    Rule,
    /// Those of the tier in this place.
    At(usize),
}

impl Snapshot {
    pub(crate) fn new(rules: RuleSet, version: u64, before: Option<&Self>) -> Self {
        let list = rules.rules();
        let places: HashMap<&str, ItemId> =
            list.iter().enumerate().map(|(at, rule)| (&*rule.name, at as ItemId)).collect();
        let tops: HashMap<&str, &Arc<Top>> = before
            .into_iter()
            .flat_map(|before| before.rules.rules().iter().zip(&before.plans))
            .map(|(rule, plan)| (&**rule.identity(), &plan.top))
            .collect();
        let overrides = Overrides::new(rules.overrides(), list);
        let mut recipes = HashMap::new();
        let mut plans = Vec::with_capacity(list.len());
        let mut sketches = Vec::with_capacity(list.len());
        for (at, rule) in list.iter().enumerate() {
            let recipe: (Vec<&str>, _) =
                (rule.per.iter().map(crate::Per::name).collect(), rule.missing as u8);
            let recipe = *recipes.entry(recipe).or_insert(at as ItemId);
            let top = tops.get(&**rule.identity()).map_or_else(Arc::default, |top| Arc::clone(top));
            let replaces = rule.replaces.iter().filter_map(|name| places.get(&**name).copied());
            let replaces = replaces.collect();
            sketches.push(Sketch::new(rule, recipe));
            let boosts = overrides.as_ref().map(|it| it.boosts_of(at as ItemId));
            let plan = Plan::new(rule, rules.node_count(), replaces, top);
            plans.push(Plan { boosts: boosts.unwrap_or_default(), ..plan });
        }
        let matcher = Matcher::new(list.iter().map(|rule| &rule.conditions));
        Self { rules, version, matcher, sketches, plans, overrides }
    }

    pub(crate) fn rule(&self, at: ItemId) -> &Rule {
        &self.rules.rules()[at as usize]
    }

    #[inline]
    pub(crate) fn sketch(&self, at: ItemId) -> &Sketch {
        &self.sketches[at as usize]
    }

    pub(crate) fn plan(&self, at: ItemId) -> &Plan {
        &self.plans[at as usize]
    }

    /// The place of the rule of that name.
    pub(crate) fn find(&self, name: &str) -> Option<ItemId> {
        self.rules.rules().iter().position(|rule| *rule.name == *name).map(|at| at as ItemId)
    }

    /// The rules that match, the first to be looked at first.
    #[inline]
    pub(crate) fn matching(&self, request: &Request<'_>, found: &mut Items) {
        self.matcher.matching(request, |at| &self.rule(at).conditions, found);
    }

    /// The first exemption of a rule that covers the request.
    pub(crate) fn exemption(
        &self,
        at: ItemId,
        request: &Request<'_>,
        now: impl FnOnce() -> Timestamp,
    ) -> Option<usize> {
        if !self.sketch(at).flags.has_exemptions {
            return None;
        }
        let rule = self.rule(at);
        let all = 0..rule.exemptions.len();
        let candidates = proposed(self.plan(at).exemptions.as_ref(), all, request, |at| {
            &rule.exemptions[at].conditions
        });
        let now = now();
        candidates.into_iter().find(|at| rule.exemptions[*at].covers(request, now))
    }

    /// What a request costs under a rule.
    pub(crate) fn cost(&self, at: ItemId, request: &Request<'_>) -> u64 {
        if !self.sketch(at).flags.has_costs {
            return request.cost().saturating_mul(self.sketch(at).cost);
        }
        let costs = &self.rule(at).costs;
        match &self.plan(at).costs {
            None => costs.of(request),
            index => {
                let all = 0..costs.by_condition.len();
                let found = proposed(index.as_ref(), all, request, |at| &costs.by_condition[at].0);
                costs.of_found(request, found.into_iter().map(|at| costs.by_condition[at].1))
            }
        }
    }
}

impl Snapshot {
    /// Which limits of a rule a request is under.
    #[inline]
    pub(crate) fn tier(&self, at: ItemId, request: &Request<'_>) -> Tier {
        if !self.sketch(at).flags.has_tiers {
            return Tier::Rule;
        }
        let tiers = &self.rule(at).tiers.limits;
        let of_name = |name: &str| tiers.iter().position(|(known, _)| **known == *name);
        let named = request.attribute("tier").and_then(of_name);
        named.or(self.plan(at).default_tier).map_or(Tier::Rule, Tier::At)
    }

    /// What is said of a subject of a rule, and which of the rule's boosts that makes it.
    #[cold]
    pub(crate) fn said(
        &self,
        overrides: &Overrides,
        at: ItemId,
        key: &[u8],
        request: &Request<'_>,
        now: Timestamp,
    ) -> (Said, u32) {
        let said = overrides.of_subject(at, key, request, now);
        let boosts = &self.plan(at).boosts;
        (said, said.boost.map_or(0, |it| overrides.place_of(it, boosts)) as u32)
    }

    /// The limits of a tier, multiplied by a boost if that is not 0; `None` is unlimited.
    #[inline]
    pub(crate) fn policies(&self, at: ItemId, tier: Tier, boost: u32) -> Option<&[Policy]> {
        if boost > 0
            && let Some(boosted) = self.plan(at).boosts.get(boost as usize - 1)
        {
            let tier_at = match tier {
                Tier::Rule => None,
                // An unlimited tier stays so.
                Tier::At(tier) => self.plan(at).tiers[tier].as_ref().map(|_| Some(tier))?,
            };
            return Some(boosted.limits(self.rule(at), tier_at));
        }
        match tier {
            Tier::Rule => Some(&self.sketch(at).limits),
            Tier::At(tier) => self.plan(at).tiers[tier].as_ref().map(|it| &*it.whole),
        }
    }
}

impl Pinned {
    pub(crate) fn to_arc(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0)
    }
}

impl From<Guard<Arc<Snapshot>>> for Pinned {
    #[inline]
    fn from(guard: Guard<Arc<Snapshot>>) -> Self {
        Self(guard)
    }
}

impl From<Arc<Snapshot>> for Pinned {
    fn from(snapshot: Arc<Snapshot>) -> Self {
        Self(Guard::from_inner(snapshot))
    }
}

impl Clone for Pinned {
    fn clone(&self) -> Self {
        Self::from(self.to_arc())
    }
}

impl Deref for Pinned {
    type Target = Snapshot;

    #[inline]
    fn deref(&self) -> &Snapshot {
        &self.0
    }
}

impl Sketch {
    fn new(rule: &Rule, recipe: ItemId) -> Self {
        let costs = &rule.costs;
        let identity = rule.identity();
        let limits = rule.limits.iter().map(|limit| limit.policy().clone().named(identity));
        Self {
            priority: rule.priority,
            recipe,
            flags: Flags::of(rule),
            cost: costs.default,
            limits: limits.collect(),
        }
    }

    /// The limit of a rule that has one and nothing that could change what it means.
    #[inline]
    pub(crate) fn plain(&self) -> Option<&Policy> {
        match &*self.limits {
            [policy] if self.flags.is_plain => Some(policy),
            _ => None,
        }
    }
}

impl Flags {
    fn of(rule: &Rule) -> Self {
        let mut flags = Self {
            is_enabled: rule.enabled,
            is_fallback: rule.fallback,
            is_unlimited: rule.unlimited,
            is_live: rule.mode == Mode::Enforce,
            is_against_others: rule.stop || rule.unlimited || !rule.replaces.is_empty(),
            has_exemptions: !rule.exemptions.is_empty(),
            has_tiers: !rule.tiers.limits.is_empty(),
            has_costs: !rule.costs.by_condition.is_empty() || rule.costs.attribute.is_some(),
            has_candidate: !rule.candidate.is_empty(),
            has_permits: rule.all_limits().any(|limit| is_held(limit.policy())),
            is_plain: false,
        };
        // A fallback that is the only one to match applies as any other rule does.
        let is_in_force = flags.is_enabled && flags.is_live && !flags.is_against_others;
        let is_simple = !(flags.has_exemptions || flags.has_tiers || flags.has_candidate);
        flags.is_plain = is_in_force && is_simple && !flags.has_permits;
        flags
    }
}

/// The places of a list whose conditions may hold: by the index where there is one, else all.
fn proposed<'c>(
    index: Option<&Matcher>,
    all: Range<usize>,
    request: &Request<'_>,
    conditions: impl Fn(usize) -> &'c Conditions,
) -> SmallVec<[usize; LISTED_MAX]> {
    let Some(index) = index else {
        return all.collect();
    };
    let mut found = Items::new();
    index.matching(request, |at| conditions(at as usize), &mut found);
    found.into_iter().map(|at| at as usize).collect()
}

impl Plan {
    fn new(rule: &Rule, node_count: u64, replaces: Vec<ItemId>, top: Arc<Top>) -> Self {
        let identity = rule.identity();
        let tier = |limits: &TierLimits| match limits {
            TierLimits::Limits(limits) => Some(Policies::new(limits, identity, node_count)),
            TierLimits::Unlimited => None,
        };
        let default = rule.tiers.default.as_deref();
        // No rule's name has a `#` in it.
        let candidate = format!("{identity}#candidate");
        let index =
            |is_long: bool, list: Vec<&Conditions>| is_long.then(|| Matcher::new(list.into_iter()));
        let exemptions: Vec<&Conditions> =
            rule.exemptions.iter().map(|it| &it.conditions).collect();
        let costs: Vec<&Conditions> = rule.costs.by_condition.iter().map(|(it, _)| it).collect();
        Self {
            shares: Policies::new(&rule.limits, identity, node_count).shares,
            tiers: rule.tiers.limits.iter().map(|(_, limits)| tier(limits)).collect(),
            default_tier: rule.tiers.limits.iter().position(|(name, _)| Some(&**name) == default),
            candidate: Policies::new(&rule.candidate, &candidate, node_count),
            replaces,
            exemptions: index(exemptions.len() > LISTED_MAX, exemptions),
            costs: index(costs.len() > LISTED_MAX, costs),
            top,
            boosts: Box::default(),
        }
    }

    /// This node's shares of a tier's limits.
    pub(crate) fn shares(&self, tier: Tier) -> &[Policy] {
        match tier {
            Tier::Rule => &self.shares,
            Tier::At(at) => self.tiers[at].as_ref().map_or(&[], |it| &it.shares),
        }
    }

    pub(crate) fn candidate(&self) -> &Policies {
        &self.candidate
    }
}

impl Policies {
    fn new(limits: &[Limit], name: &str, node_count: u64) -> Self {
        let whole = limits.iter().map(|limit| limit.policy().clone().named(name));
        let shares = limits.iter().map(|limit| limit.share(node_count).named(name));
        Self { whole: whole.collect(), shares: shares.collect() }
    }
}
