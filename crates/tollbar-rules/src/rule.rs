//! A rule: which requests, per whom, under which limits. Plain data, checked by a
//! [`RuleSet`](crate::RuleSet).

pub(crate) mod accuracy;
pub(crate) mod alternative;
pub(crate) mod cidr;
pub(crate) mod condition;
pub(crate) mod cost;
pub(crate) mod limit;
pub(crate) mod pattern;
pub(crate) mod reserve;
pub(crate) mod subject;
pub(crate) mod subject_text;
pub(crate) mod warning;

use std::sync::Arc;

use tollbar::Timestamp;

use condition::PathReading;

use crate::{Conditions, Costs, Criticality, Limit, OnMissing, Per, Request, RuleAccuracy};

/// One rule. Make one with [`Rule::new`], and set what differs from the defaults.
///
/// ```
/// use tollbar_rules::{Conditions, Limit, Rule, RuleSet, Test};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut rule = Rule::new("writes");
/// rule.conditions = Conditions::new().and("method", Test::equal("POST"));
/// rule.limits = vec![Limit::parse("10/s")?];
/// let rules = RuleSet::new(vec![rule])?;
/// # assert_eq!(rules.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a rule's switches are independent of each other"
)]
pub struct Rule {
    /// What people call it.
    pub name: Arc<str>,
    /// What its counters are kept under, where that is not the name: it survives a new name.
    pub id: Option<Arc<str>>,
    /// For people.
    pub description: Option<Box<str>>,
    /// Whether it is looked at.
    pub enabled: bool,
    /// To which requests it applies.
    pub conditions: Conditions,
    /// How critical the requests are to which it applies; `None` where it does not say. Of several rules the one that
    /// is looked at first says it.
    pub criticality: Option<Criticality>,
    /// Whom it counts apart. Empty: one counter for all.
    pub per: Vec<Per>,
    /// What stands for an attribute of `per` that a request lacks.
    pub missing: OnMissing,
    /// How many new keys each network (IPv4 /24, IPv6 /48) may bring to this process. The requests of its other new keys
    /// share one counter.
    pub new_keys: Option<Limit>,
    /// The limits, all of which hold.
    pub limits: Vec<Limit>,
    /// Other limits for some tiers.
    pub tiers: Tiers,
    /// What requests cost.
    pub costs: Costs,
    /// Which rules are looked at first: the higher the sooner.
    pub priority: i32,
    /// Where it applies, rules of lower priority do not.
    pub stop: bool,
    /// Where it applies, the rules of these names do not.
    pub replaces: Vec<Box<str>>,
    /// It applies only where no other rule matches.
    pub fallback: bool,
    /// Where it matches, neither it nor any rule of its priority or below limits anything.
    pub unlimited: bool,
    /// Whether it denies.
    pub mode: Mode,
    /// Limits that are tried out beside the live ones: counted, reported, never denied.
    pub candidate: Vec<Limit>,
    /// How exactly it counts; `None` where the [rule set](crate::RuleSet::accuracy) says it.
    pub accuracy: Option<RuleAccuracy>,
    /// What happens while the store cannot answer.
    pub on_store_failure: OnOutage,
    /// Who is not counted.
    pub exemptions: Vec<Exemption>,
}

/// Limits by the attribute `tier`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Tiers {
    /// Each tier's name and its limits.
    pub limits: Vec<(Box<str>, TierLimits)>,
    /// The tier of requests that have none, or one that is not known. Without it, those are under
    /// the rule's own limits.
    pub default: Option<Box<str>>,
}

/// Which limits of a rule a request is under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    /// The rule's own.
    Rule,
    /// Those of the tier in this place.
    At(usize),
}

/// What a tier is under.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TierLimits {
    /// These limits.
    Limits(Vec<Limit>),
    /// None.
    Unlimited,
}

/// Whether a rule denies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// It does.
    #[default]
    Enforce,
    /// It counts and reports, and denies nothing.
    Shadow,
}

/// What happens to a rule's requests while the store cannot answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnOutage {
    /// They pass: limiting is worth less than serving.
    #[default]
    Allow,
    /// They are turned away for a second: passing is worth less than limiting.
    Deny,
    /// They are counted in this process, against its share of the limit.
    Local,
    /// They pass if they matter enough.
    Shed {
        /// The least criticality that passes.
        keep: Criticality,
    },
}

/// Requests a rule does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exemption {
    /// Which.
    pub conditions: Conditions,
    /// Until when; from that instant on the rule applies again.
    pub until: Option<Timestamp>,
    /// Why, for people.
    pub reason: Option<Box<str>>,
}

impl Rule {
    /// A rule that applies to any request, per client, and has no limits yet.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            id: None,
            description: None,
            enabled: true,
            conditions: Conditions::new(),
            criticality: None,
            per: vec![Per::Client],
            missing: OnMissing::default(),
            new_keys: None,
            limits: Vec::new(),
            tiers: Tiers::default(),
            costs: Costs::default(),
            priority: 0,
            stop: false,
            replaces: Vec::new(),
            fallback: false,
            unlimited: false,
            mode: Mode::default(),
            candidate: Vec::new(),
            accuracy: None,
            on_store_failure: OnOutage::default(),
            exemptions: Vec::new(),
        }
    }

    /// What its counters are kept under.
    #[must_use]
    pub fn identity(&self) -> &Arc<str> {
        self.id.as_ref().unwrap_or(&self.name)
    }

    /// The first exemption that covers `request` at `now`, whichever way its path is read.
    #[must_use]
    pub fn exemption(&self, request: &Request<'_>, now: Timestamp) -> Option<&Exemption> {
        self.exemptions.iter().find(|exemption| exemption.covers(request, now))
    }

    /// True where the rule counts by an attribute, or tests it to match or to exempt.
    #[must_use]
    pub fn tests_or_counts(&self, attribute: &str) -> bool {
        let tests = |conditions: &Conditions| {
            conditions.all().iter().any(|condition| *condition.attribute == *attribute)
        };
        let own_per = self.all_limits().filter_map(Limit::per).flatten();
        self.per.iter().chain(own_per).any(|per| per.name() == attribute)
            || tests(&self.conditions)
            || self.exemptions.iter().any(|exemption| tests(&exemption.conditions))
    }

    /// The attributes that it tests to match, to exempt or to set a price, and that choose a tier. Some may
    /// come twice.
    pub(crate) fn attributes_tested(&self) -> impl Iterator<Item = &str> {
        let exempt = self.exemptions.iter().map(|exemption| &exemption.conditions);
        let costs = self.costs.by_condition.iter().map(|(conditions, _)| conditions);
        let conditions = std::iter::once(&self.conditions).chain(exempt).chain(costs);
        let tested = conditions.flat_map(Conditions::all).map(|condition| &*condition.attribute);
        let tier = (!self.tiers.limits.is_empty()).then_some("tier");
        tested.chain(self.costs.attribute.as_deref()).chain(tier)
    }

    /// True where it limits what is in flight without a lease: its permits are lost with whoever forgets
    /// to return them.
    #[must_use]
    pub fn has_unleased_permits(&self) -> bool {
        self.all_limits().any(|limit| limit::is_unleased(limit.policy()))
    }

    /// True for a rule that only says how critical requests are.
    pub(crate) fn only_classifies(&self) -> bool {
        let has_limits = !self.limits.is_empty() || !self.tiers.limits.is_empty();
        self.criticality.is_some() && !has_limits && !self.unlimited
    }

    /// The limits of a tier.
    pub(crate) fn limits_of(&self, tier: Tier) -> &[Limit] {
        match tier {
            Tier::Rule => &self.limits,
            Tier::At(at) => self.tiers.limits[at].1.limits(),
        }
    }

    /// The names of what it counts per.
    pub(crate) fn per_names(&self) -> Vec<String> {
        self.per.iter().map(|per| per.name().to_owned()).collect()
    }

    /// Every tier that a request may be under.
    pub(crate) fn all_tiers(&self) -> impl Iterator<Item = Tier> {
        let own = self.tiers.default.is_none().then_some(Tier::Rule);
        own.into_iter().chain((0..self.tiers.limits.len()).map(Tier::At))
    }

    /// The name of a tier; `None` for the rule's own limits.
    pub(crate) fn tier_name(&self, tier: Tier) -> Option<&str> {
        match tier {
            Tier::Rule => None,
            Tier::At(at) => Some(&self.tiers.limits[at].0),
        }
    }

    /// The limits that some request is under: not the rule's own where every request has a tier.
    pub(crate) fn live_limits(&self) -> impl Iterator<Item = &Limit> {
        let own = if self.tiers.default.is_some() { &[][..] } else { &self.limits };
        own.iter().chain(self.tiers.limits.iter().flat_map(|(_, limits)| limits.limits()))
    }

    /// Every limit it has, of tiers and candidates too.
    pub fn all_limits(&self) -> impl Iterator<Item = &Limit> {
        let tiers = self.tiers.limits.iter().flat_map(|(_, limits)| limits.limits());
        self.limits.iter().chain(tiers).chain(&self.candidate)
    }
}

impl Exemption {
    /// Of these requests, for ever.
    #[must_use]
    pub fn new(conditions: Conditions) -> Self {
        Self { conditions, until: None, reason: None }
    }

    /// True where it covers `request` at `now`, whichever way the path is read.
    #[must_use]
    pub fn covers(&self, request: &Request<'_>, now: Timestamp) -> bool {
        self.is_on(now) && self.conditions.hold_surely(request)
    }

    /// True where it covers `request` at `now` in one reading of the path.
    pub(crate) fn covers_as(
        &self,
        request: &Request<'_>,
        reading: PathReading,
        now: Timestamp,
    ) -> bool {
        self.is_on(now) && self.conditions.hold_as(request, reading)
    }

    fn is_on(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl TierLimits {
    /// The limits; none where there are none.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        match self {
            Self::Limits(limits) => limits,
            Self::Unlimited => &[],
        }
    }
}

impl OnOutage {
    /// Those that a word is enough for, each with its name.
    pub const NAMED: [(&'static str, Self); 4] = [
        ("allow", Self::Allow),
        ("deny", Self::Deny),
        ("local", Self::Local),
        ("shed", Self::Shed { keep: Criticality::High }),
    ];

    /// Returns its name; `None` where a word is not enough.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        Self::NAMED.iter().find(|(_, known)| *known == self).map(|(name, _)| *name)
    }
}

impl Mode {
    /// Every one with its name.
    pub(crate) const NAMED: [(&'static str, Self); 2] =
        [("enforce", Self::Enforce), ("shadow", Self::Shadow)];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Test;

    #[test]
    fn an_exemption_ends_at_its_instant() {
        let mut rule = Rule::new("a");
        let internal = Conditions::new().and("api_key", Test::equal("internal"));
        let mut exemption = Exemption::new(internal);
        exemption.until = Some(Timestamp::from_micros(10));
        rule.exemptions = vec![exemption];
        let attributes = [("api_key", "internal")];
        let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
        assert!(rule.exemption(&request, Timestamp::from_micros(9)).is_some());
        assert!(rule.exemption(&request, Timestamp::from_micros(10)).is_none());
        let other = Request::new("GET", "/").unwrap();
        assert!(rule.exemption(&other, Timestamp::ZERO).is_none());
    }
}
