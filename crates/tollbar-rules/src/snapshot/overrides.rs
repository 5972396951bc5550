//! Bans and boosts, indexed by subject.
//!
//! Where there are none, a check pays one look at that.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use tollbar::Timestamp;

use crate::rule::cidr::{self, Cidr, Family};
use crate::rule::subject::readable;
use crate::rule::subject_text::{AddressText, read_address};
use crate::rule_set::overrides::FACTORS_MAX;
use crate::snapshot::counting::{CountedPolicies, CountingPlan};
use crate::{Effect, Limit, Override, Request, Rule, TierLimits};

/// Bans and boosts, to be looked up.
#[derive(Debug)]
pub(crate) struct Overrides {
    list: Arc<[Override]>,
    /// Under every rule: by an attribute of requests, then by its value.
    of_requests: Vec<(Box<str>, SubjectIndex)>,
    /// Under one, by its identity: by the subject as people read it. It need not be there.
    of_rules: HashMap<Arc<str>, SubjectIndex>,
    /// Factors of boosts under every rule.
    factors: BTreeSet<u32>,
}

/// Places in the list.
type Positions = SmallVec<[u32; 2]>;

/// The places in the list of what is said of each subject and of each network of addresses.
#[derive(Debug, Default)]
struct SubjectIndex {
    subjects: HashMap<Box<str>, Positions>,
    /// By the family and the length of the prefix, of which there are few, then by the network.
    networks: Vec<((Family, u32), HashMap<u128, Positions>)>,
}

/// The ban and the boost that apply to a subject now, by their places in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ActiveOverrides {
    /// Of several bans the one that ends last.
    pub(crate) ban: Option<usize>,
    /// Of several boosts the largest.
    pub(crate) boost: Option<usize>,
}

/// Limits of a rule and its tiers, multiplied.
#[derive(Debug)]
pub(crate) struct BoostedLimits {
    pub(crate) factor_percent: u32,
    /// The rule's own, then those of its tiers in their order; an unlimited one has none.
    policies: OnceLock<Box<[CountedPolicies]>>,
}

impl Overrides {
    /// `None` where nothing is said of anybody.
    pub(crate) fn new(list: Arc<[Override]>) -> Option<Arc<Self>> {
        if list.is_empty() {
            return None;
        }
        let mut of_requests: HashMap<&str, SubjectIndex> = HashMap::new();
        let mut of_rules: HashMap<Arc<str>, SubjectIndex> = HashMap::new();
        let mut factors = BTreeSet::new();
        for (at, entry) in list.iter().enumerate() {
            let (attribute, value) = attribute_of(&entry.subject);
            let address = (attribute == "ip").then(|| read_address(value).ok()).flatten();
            let (index, subject) = match &entry.rule {
                None => {
                    factors.extend(entry.effect.factor_percent());
                    (of_requests.entry(attribute).or_default(), value)
                }
                Some(rule) => (of_rules.entry(Arc::clone(rule)).or_default(), &*entry.subject),
            };
            let positions = match address {
                Some(AddressText::Network(network)) => index.of_network(&network),
                Some(AddressText::Address(address)) if entry.rule.is_none() => {
                    index.of_subject(&address)
                }
                Some(AddressText::Address(address)) => index.of_subject(&format!("ip:{address}")),
                None => index.of_subject(subject),
            };
            positions.push(at as u32);
        }
        let of_requests = of_requests.into_iter().map(|(name, index)| (name.into(), index));
        let of_requests = of_requests.collect();
        Some(Arc::new(Self { list, of_requests, of_rules, factors }))
    }

    pub(crate) fn get(&self, at: usize) -> &Override {
        &self.list[at]
    }

    /// Returns what applies to a request under every rule.
    pub(crate) fn active_for_request(
        &self,
        request: &Request<'_>,
        now: Timestamp,
    ) -> ActiveOverrides {
        let mut active = ActiveOverrides::default();
        for (name, index) in &self.of_requests {
            let Some(value) = request.attribute(name) else {
                continue;
            };
            let is_address = **name == *"ip";
            let subject = if is_address { cidr::subject_of(value) } else { value.into() };
            self.add(index.subjects.get(&*subject), now, &mut active);
            if is_address {
                self.add_networks(index, value, now, &mut active);
            }
        }
        active
    }

    /// Returns what applies to a subject of one rule, boosts under every rule included.
    pub(crate) fn active_for_subject(
        &self,
        rule: &Rule,
        key: &[u8],
        request: &Request<'_>,
        now: Timestamp,
    ) -> ActiveOverrides {
        let mut active = ActiveOverrides { ban: None, ..self.active_for_request(request, now) };
        if let Some(index) = self.of_rules.get(rule.identity()) {
            let subject = readable(key);
            self.add(index.subjects.get(subject.as_str()), now, &mut active);
            // A network is of those whom the rule counts by their address alone.
            if let Some(address) = request.attribute("ip")
                && subject.strip_prefix("ip:") == Some(&*cidr::subject_of(address))
            {
                self.add_networks(index, address, now, &mut active);
            }
        }
        active
    }

    fn add_networks(
        &self,
        index: &SubjectIndex,
        address: &str,
        now: Timestamp,
        active: &mut ActiveOverrides,
    ) {
        if index.networks.is_empty() {
            return;
        }
        let Ok(address) = address.parse() else {
            return;
        };
        let (family, bits) = cidr::bits_of(address);
        for ((of_family, prefix_bits), networks) in &index.networks {
            if *of_family == family {
                self.add(networks.get(&cidr::masked(bits, *prefix_bits)), now, active);
            }
        }
    }

    fn add(&self, positions: Option<&Positions>, now: Timestamp, active: &mut ActiveOverrides) {
        let end = |at: usize| self.list[at].until.unwrap_or(Timestamp::MAX);
        for at in positions.into_iter().flatten().map(|at| *at as usize) {
            if !self.list[at].is_on(now) {
                continue;
            }
            match self.list[at].effect {
                Effect::Ban if active.ban.is_none_or(|ban| end(ban) < end(at)) => {
                    active.ban = Some(at);
                }
                Effect::Boost { factor_percent }
                    if active.boost.is_none_or(|boost| self.factor(boost) < factor_percent) =>
                {
                    active.boost = Some(at);
                }
                _ => {}
            }
        }
    }

    /// How long a ban lasts from `now` on; `None` for good.
    pub(crate) fn ban_ends_in_us(&self, ban: usize, now: Timestamp) -> Option<u64> {
        let until = self.list[ban].until;
        until.map(|until| until.as_micros().saturating_sub(now.as_micros()))
    }

    fn factor(&self, at: usize) -> u32 {
        self.list[at].effect.factor_percent().unwrap_or(100)
    }

    /// True where anybody is boosted.
    pub(crate) fn has_boosts(&self) -> bool {
        self.list.iter().any(|entry| entry.effect != Effect::Ban)
    }

    /// The factors that limits of a rule may be multiplied by.
    pub(crate) fn boosts_of(&self, rule: &Rule) -> Box<[BoostedLimits]> {
        let positions =
            self.of_rules.get(rule.identity()).into_iter().flat_map(SubjectIndex::positions);
        let of_rule = positions.flatten().map(|at| self.list[*at as usize].effect);
        let mut factors = self.factors.clone();
        factors.extend(of_rule.filter_map(Effect::factor_percent));
        let boosted = |factor_percent| BoostedLimits { factor_percent, policies: OnceLock::new() };
        factors.into_iter().take(FACTORS_MAX).map(boosted).collect()
    }

    /// Which of the boosts of a rule it is, counted from 1.
    pub(crate) fn place_of(&self, at: usize, boosts: &[BoostedLimits]) -> usize {
        let factor = self.factor(at);
        boosts.iter().position(|boost| boost.factor_percent == factor).map_or(0, |place| place + 1)
    }
}

impl SubjectIndex {
    fn of_subject(&mut self, subject: &str) -> &mut Positions {
        self.subjects.entry(subject.into()).or_default()
    }

    fn of_network(&mut self, network: &Cidr) -> &mut Positions {
        let shape = network.shape();
        let at = self.networks.iter().position(|(known, _)| *known == shape).unwrap_or_else(|| {
            self.networks.push((shape, HashMap::new()));
            self.networks.len() - 1
        });
        self.networks[at].1.entry(network.network()).or_default()
    }

    fn positions(&self) -> impl Iterator<Item = &Positions> {
        let networks = self.networks.iter().flat_map(|(_, networks)| networks.values());
        self.subjects.values().chain(networks)
    }
}

impl BoostedLimits {
    /// The limits of the rule, or of one of its tiers, worked out when they are first asked for.
    pub(crate) fn limits(
        &self,
        rule: &Rule,
        counting: CountingPlan,
        tier: Option<usize>,
    ) -> Option<&CountedPolicies> {
        let policies = self.policies.get_or_init(|| {
            let own = std::iter::once(&*rule.limits);
            let tiers = rule.tiers.limits.iter().map(|(_, limits)| TierLimits::limits(limits));
            // What is not counted by the rule's `per` is not the subject's own.
            let policy_of = |limit: &Limit| match rule.own_per(limit) {
                None => limit.policy().boosted(self.factor_percent),
                Some(_) => limit.policy().clone(),
            };
            let boosted = |limits: &[Limit]| {
                CountedPolicies::new(rule, limits, rule.identity(), policy_of, counting)
            };
            own.chain(tiers).map(boosted).collect()
        });
        policies.get(tier.map_or(0, |at| at + 1))
    }
}

/// The attribute and the value that a subject under every rule is.
pub(crate) fn attribute_of(subject: &str) -> (&str, &str) {
    match subject.split_once(':') {
        Some(("api", value)) => ("api_key", value),
        Some((name, value)) if !name.is_empty() => (name, value),
        _ => ("client", subject),
    }
}
