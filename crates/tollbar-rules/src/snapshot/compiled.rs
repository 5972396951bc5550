//! What a check needs of one rule, worked out once. Versions of the rules share it for as long as the
//! rule is the same.

use std::collections::BTreeSet;
use std::sync::Arc;

use smallvec::SmallVec;
use tollbar::{Accuracy, Policy, PolicyError};

use super::counting::{CountedPolicies, CountingPlan};
use super::recipe::Recipe;
use super::{LISTED_MAX, Snapshot};
use crate::matcher::{ItemId, Matcher};
use crate::rule::Tier;
use crate::snapshot::tally::Tally;
use crate::snapshot::top::TopDenials;
use crate::{Conditions, Criticality, Limit, Mode, Rule, RuleSet, TierLimits};

/// A rule, compiled. Nothing here hangs on which other rules there are.
#[derive(Debug)]
pub(crate) struct CompiledRule {
    pub(super) core: RuleCore,
    pub(super) plan: RulePlan,
}

/// What every check of a rule needs, together.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct RuleCore {
    pub(crate) priority: i32,
    pub(crate) flags: RuleFlags,
    /// What a request costs, unless `has_costs`.
    pub(super) cost: u64,
    /// How subjects are written.
    pub(crate) recipe: Arc<Recipe>,
    /// What the limits have decided.
    pub(crate) tally: Tally,
    /// The rule's own limits. Of most rules one, which lies here: one place less to go to.
    pub(crate) limits: SmallVec<[Policy; 1]>,
}

/// What is so of a rule.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(crate) struct RuleFlags {
    pub(crate) is_enabled: bool,
    pub(crate) is_fallback: bool,
    pub(crate) is_unlimited: bool,
    /// Not in shadow mode.
    pub(crate) is_live: bool,
    /// May keep others from applying.
    pub(crate) is_against_others: bool,
    pub(super) has_exemptions: bool,
    pub(crate) has_tiers: bool,
    pub(super) has_costs: bool,
    pub(crate) has_candidate: bool,
    /// Some limit of it is held and not spent.
    pub(crate) has_permits: bool,
    /// It bounds how many new keys a network brings.
    pub(crate) has_new_keys: bool,
    /// A part of some limit of it is reserved for more critical requests.
    pub(crate) has_reserves: bool,
    /// How critical it makes its requests.
    pub(crate) criticality: Option<Criticality>,
    /// Some of its limits are alternatives.
    pub(crate) has_alternatives: bool,
    /// None of its limits is lent or counted by nodes.
    pub(crate) is_exact: bool,
    /// Whoever is under it is under its own limits, whatever else is so.
    is_plain: bool,
}

/// What some checks of a rule need.
#[derive(Debug)]
pub(crate) struct RulePlan {
    /// How the rule's limits are counted.
    pub(super) counting: CountingPlan,
    /// How each of the rule's own limits is.
    accuracies: Box<[Accuracy]>,
    /// Shares of the rule's own limits.
    shares: Box<[Policy]>,
    /// The place of each among alternatives; empty where all of them hold.
    alternatives: Box<[AlternativePlan]>,
    /// In the order of the rule's tiers; `None` is unlimited.
    pub(super) tiers: Vec<Option<Policies>>,
    pub(super) default_tier: Option<usize>,
    /// What each tier has decided.
    pub(super) tallies: Vec<Tally>,
    candidate: Policies,
    pub(super) exemptions: Option<Matcher>,
    pub(super) costs: Option<Matcher>,
    /// The attributes that a request with an id may not change, each once.
    pub(crate) attributes_tested: Box<[Box<str>]>,
    /// How many new keys a network brings, if the rule bounds that.
    pub(crate) new_keys: Option<NewKeyPolicies>,
    /// Who is limited most by it.
    pub(crate) top: Arc<TopDenials>,
}

/// The limits of a rule or a tier, under the rule's name.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    pub(crate) whole: Box<[Policy]>,
    /// How exactly each is counted.
    pub(crate) accuracies: Box<[Accuracy]>,
    /// This node's share of each, for when the store cannot answer.
    pub(crate) shares: Box<[Policy]>,
    /// The place of each among alternatives; empty where all of them hold.
    pub(crate) alternatives: Box<[AlternativePlan]>,
}

/// What a check needs of a limit that is one of alternatives.
#[derive(Debug)]
pub(crate) struct AlternativePlan {
    pub(crate) order: u8,
    /// How the subjects of a limit with a `per` of its own are written.
    pub(crate) recipe: Option<Arc<Recipe>>,
}

/// How many requests of a key are remembered under a rule with `new_keys`, each for three hours. A key with few requests
/// is forgotten before a key with many: see decision 0053.
pub(crate) const VISITS_MAX: u64 = 8;

/// What is counted of the new keys of one rule.
#[derive(Debug)]
pub(crate) struct NewKeyPolicies {
    /// The requests of one key.
    pub(crate) visits: Policy,
    /// The new keys of one network.
    pub(crate) arrivals: Policy,
}

/// What a rule keeps when the rules change: who is limited most, and what was decided.
struct RuleHistory {
    top: Arc<TopDenials>,
    tally: Tally,
    tallies: Vec<Tally>,
}

impl RuleHistory {
    /// Carries over what the rule had where it was `known`, by the names of its tiers.
    fn carry_over(rule: &Rule, known: Option<(&Snapshot, ItemId)>) -> Self {
        let top = known.map_or_else(Arc::default, |(before, at)| Arc::clone(&before.plan(at).top));
        let tally = known.map_or_else(Tally::default, |(before, at)| before.core(at).tally.clone());
        let of_tier = |name: &str| {
            let (before, at) = known?;
            let mut tiers = before.rule(at).tiers.limits.iter();
            let tier = tiers.position(|(known, _)| **known == *name)?;
            Some(before.plan(at).tallies[tier].clone())
        };
        let tiers = rule.tiers.limits.iter();
        let tallies = tiers.map(|(name, _)| of_tier(name).unwrap_or_default()).collect();
        Self { top, tally, tallies }
    }
}

impl CompiledRule {
    /// What goes on is taken over from where the rule was `known`.
    pub(super) fn new(
        rule: &Rule,
        recipe: Arc<Recipe>,
        rules: &RuleSet,
        counting: CountingPlan,
        known: Option<(&Snapshot, ItemId)>,
    ) -> Self {
        let history = RuleHistory::carry_over(rule, known);
        let own = Policies::new(rule, &rule.limits, rule.identity(), counting);
        let core = RuleCore {
            priority: rule.priority,
            flags: RuleFlags::new(rule, counting),
            cost: rule.costs.default,
            recipe,
            tally: history.tally.clone(),
            limits: own.whole.iter().cloned().collect(),
        };
        let plan = RulePlan::new(rule, rules, counting, own, history);
        Self { core, plan }
    }
}

impl RuleCore {
    /// The limit of a rule that has one and nothing that could change what it means.
    #[inline]
    pub(crate) fn plain(&self) -> Option<&Policy> {
        match &*self.limits {
            [policy] if self.flags.is_plain => Some(policy),
            _ => None,
        }
    }
}

impl RuleFlags {
    fn new(rule: &Rule, counting: CountingPlan) -> Self {
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
            has_permits: rule.all_limits().any(|limit| limit.policy().has_permits()),
            has_new_keys: rule.new_keys.is_some(),
            has_reserves: rule.all_limits().any(|limit| limit.options().reserve.is_some()),
            criticality: rule.criticality,
            has_alternatives: rule.has_alternatives(),
            is_exact: counting.is_exact(),
            is_plain: false,
        };
        // A fallback that is the only one to match applies as any other rule does.
        let is_in_force = flags.is_enabled && flags.is_live && !flags.is_against_others;
        let is_simple = !(flags.has_exemptions
            || flags.has_tiers
            || flags.has_candidate
            || flags.has_alternatives);
        let is_of_all = !(flags.has_permits || flags.has_new_keys || flags.has_reserves);
        let is_silent = flags.criticality.is_none();
        flags.is_plain = is_in_force && is_simple && is_of_all && is_silent;
        flags
    }
}

impl RulePlan {
    fn new(
        rule: &Rule,
        rules: &RuleSet,
        counting: CountingPlan,
        own: Policies,
        history: RuleHistory,
    ) -> Self {
        let path_options = rules.path_options();
        let identity = rule.identity();
        let tier = |limits: &TierLimits| match limits {
            TierLimits::Limits(limits) => Some(Policies::new(rule, limits, identity, counting)),
            TierLimits::Unlimited => None,
        };
        let default = rule.tiers.default.as_deref();
        // No rule's name has a `#` in it.
        let candidate = format!("{identity}#candidate");
        let index = |is_long: bool, list: Vec<&Conditions>| {
            is_long.then(|| Matcher::new(list.into_iter(), path_options.unwrap_or_default()))
        };
        let exemptions: Vec<&Conditions> =
            rule.exemptions.iter().map(|exemption| &exemption.conditions).collect();
        let costs: Vec<&Conditions> =
            rule.costs.by_condition.iter().map(|(conditions, _)| conditions).collect();
        let attributes: BTreeSet<&str> = rule.attributes_tested().collect();
        Self {
            counting,
            accuracies: own.accuracies,
            shares: own.shares,
            alternatives: own.alternatives,
            tiers: rule.tiers.limits.iter().map(|(_, limits)| tier(limits)).collect(),
            default_tier: rule.tiers.limits.iter().position(|(name, _)| Some(&**name) == default),
            candidate: Policies::new(rule, &rule.candidate, &candidate, counting),
            exemptions: index(exemptions.len() > LISTED_MAX, exemptions),
            costs: index(costs.len() > LISTED_MAX, costs),
            attributes_tested: attributes.into_iter().map(Box::from).collect(),
            new_keys: NewKeyPolicies::new(rule),
            tallies: history.tallies,
            top: history.top,
        }
    }

    /// This node's shares of a tier's limits.
    pub(crate) fn shares(&self, tier: Tier) -> &[Policy] {
        match tier {
            Tier::Rule => &self.shares,
            Tier::At(at) => self.tiers[at].as_ref().map_or(&[], |policies| &policies.shares),
        }
    }

    /// The places of a tier's limits among alternatives; empty where all of them hold.
    pub(crate) fn alternatives(&self, tier: Tier) -> &[AlternativePlan] {
        match tier {
            Tier::Rule => &self.alternatives,
            Tier::At(at) => self.tiers[at].as_ref().map_or(&[], |policies| &policies.alternatives),
        }
    }

    /// How exactly a tier's limits are counted.
    pub(crate) fn accuracies(&self, tier: Tier) -> &[Accuracy] {
        match tier {
            Tier::Rule => &self.accuracies,
            Tier::At(at) => self.tiers[at].as_ref().map_or(&[], |policies| &policies.accuracies),
        }
    }

    pub(crate) fn candidate(&self) -> &Policies {
        &self.candidate
    }
}

impl NewKeyPolicies {
    /// Returns the policies of a rule that has `new_keys`.
    fn new(rule: &Rule) -> Option<Self> {
        let new_keys = rule.new_keys.as_ref()?;
        let name = |what: &str| format!("{}#{what}", rule.identity());
        Some(Self {
            visits: visits().ok()?.with_name(&name("visits")),
            arrivals: new_keys.policy().clone().with_name(&name("arrivals")),
        })
    }
}

/// Eight requests a day in a bucket: each is forgotten after three hours.
fn visits() -> Result<Policy, PolicyError> {
    Policy::token_bucket("8/day")?.with_burst(VISITS_MAX)
}

impl Policies {
    fn new(rule: &Rule, limits: &[Limit], name: &str, counting: CountingPlan) -> Self {
        let whole = |limit: &Limit| limit.policy().clone();
        let counted = CountedPolicies::new(rule, limits, name, whole, counting);
        let share = |(policy, accuracy): (&Policy, &Accuracy)| match accuracy {
            // It is a share already.
            Accuracy::Local => policy.clone(),
            _ => policy.share(counting.node_count()),
        };
        let CountedPolicies { policies, accuracies } = counted;
        let shares = policies.iter().zip(&accuracies).map(share).collect();
        let place = |limit: &Limit| {
            let recipe = rule.own_per(limit).map(|per| Recipe::of_limit(per, rule));
            Some(AlternativePlan { order: limit.alternative()?, recipe })
        };
        // Of all limits, or of none.
        let alternatives = limits.iter().filter_map(place).collect();
        Self { whole: policies, accuracies, shares, alternatives }
    }
}
