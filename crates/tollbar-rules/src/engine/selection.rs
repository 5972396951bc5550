//! From the rules that match to the limits that apply.
//!
//! Rules are looked at by priority. What loosens (an unlimited rule, `stop`, `replaces`) does not count in
//! shadow mode.
//!
//! Servers read an encoded slash in two ways, and nobody here knows which way the one behind does. Such a
//! request is selected for once in each reading and meets the limits of both ([`Selector::select_among`]).
//! So whatever makes a request cheaper (an unlimited rule, an exemption, a tier, a cheap route, `stop`,
//! `replaces`, or a rule that keeps a fallback away) counts only in the readings in which it holds.
//! Decision 0066.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;
use tollbar::store::Alternative;
use tollbar::{Policy, Timestamp};

use super::latest_tiers::LatestTiers;
use super::replacement::{Replaced, Replacements};
use crate::matcher::{ItemId, Items};
use crate::rule::Tier;
use crate::rule::condition::PathReading;
use crate::rule::subject::{KeyBuffer, SubjectKey};
use crate::rule_set::POLICIES_PER_REQUEST_MAX;
use crate::snapshot::overrides::Overrides;
use crate::snapshot::{AlternativePlan, Recipe, RecipeId, RuleFlags, Snapshot};
use crate::verdict::{Enforcement, StoredReason};
use crate::{Criticality, Request};

/// One limit that applies to a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SelectedLimit {
    pub(crate) rule: ItemId,
    pub(crate) tier: Tier,
    pub(crate) limit: usize,
    pub(crate) enforcement: Enforcement,
    pub(crate) cost: u64,
    /// Which of its rule's boosts the subject has, counted from 1.
    pub(crate) boost: u32,
    /// Its place among the alternatives of the request.
    pub(crate) alternative: Option<Alternative>,
    /// Whether it counts by a `per` of its own.
    pub(crate) has_own_key: bool,
    /// Where its key is among the keys.
    pub(crate) key: (usize, usize),
}

impl SelectedLimit {
    /// Returns true if both are among the alternatives of one rule.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        let name = |limit: &Self| (limit.rule, limit.enforcement, limit.alternative.is_some());
        self.alternative.is_some() && name(self) == name(other)
    }
}

/// A rule with tiers, the tier of the request, and where its key begins and ends among the keys.
type SelectedTier = (ItemId, Tier, (usize, usize));

/// What a request is to be checked against.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about the limits")]
pub(crate) struct Selection {
    pub(crate) keys: KeyBuffer,
    pub(crate) limits: SmallVec<[SelectedLimit; 8]>,
    /// How critical the request is.
    pub(crate) criticality: Criticality,
    /// The rule that says how critical such requests are.
    pub(crate) classifier: Option<ItemId>,
    /// A denial that needs no store.
    pub(crate) denial: Option<StoredReason>,
    /// Why the request is allowed if no live limit applies.
    pub(crate) pass_reason: Option<StoredReason>,
    /// Whether any of the limits may be of permits.
    pub(crate) has_permits: bool,
    /// Whether any of the limits is of a rule with `new_keys`.
    pub(crate) has_new_keys: bool,
    /// Whether any of the limits are alternatives.
    has_alternatives: bool,
    /// How many limits of permits were left out, because the request takes none.
    pub(crate) permit_limits_skipped: u32,
    /// Whether any of the limits is of a rule with reserves.
    has_reserves: bool,
    /// The limits that are less for this request than their rules say: queues in which it may not wait for as long,
    /// and those of which a part is reserved for more critical requests.
    lower_policies: Vec<(SelectedLimit, Policy)>,
    /// Rules that cannot decide the request, and what is wrong with it.
    mistakes: SmallVec<[(ItemId, StoredReason); 2]>,
    /// Rules whose subject is banned, and the ban.
    banned: SmallVec<[(ItemId, StoredReason); 1]>,
    /// Rules that let the request pass, and why, in their order.
    passes: SmallVec<[(ItemId, StoredReason); 1]>,
    /// The rules with tiers that apply, the tier of each, and where its key is among the keys. Some may come twice.
    pub(super) tiers: SmallVec<[SelectedTier; 2]>,
    /// The last key that was written by each recipe.
    written: SmallVec<[(RecipeId, (usize, usize)); 4]>,
}

/// What became of a rule that matched. Explanations read it; checks do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MatchFate {
    Disabled,
    /// Not looked at, because of a rule of higher priority that stops, or an unlimited one.
    BelowStop(ItemId),
    LiftedBy(ItemId),
    ReplacedBy(ItemId),
    Unlimited,
    /// Covered by the exemption in this place.
    Exempt(usize),
    /// For want of the attribute in this place of `per`.
    Skipped(usize),
    Denied(usize),
    /// Its cost is in an attribute that is no number.
    InvalidCost,
    /// All its limits are of permits, and the request takes none.
    PermitsOnly,
    /// Another rule matches.
    FallbackNotNeeded,
    TierUnlimited(Tier),
    /// By the ban in this place.
    Banned(usize),
    Applied(Tier),
}

/// Observes what becomes of each rule that matches.
pub(crate) trait Observer {
    fn observe(&mut self, rule: ItemId, fate: MatchFate);

    /// What is observed from now on is of the other reading of the path.
    fn begin_other_reading(&mut self) {}
}

/// Observes nothing.
pub(crate) struct NoObserver;

impl Observer for NoObserver {
    #[inline]
    fn observe(&mut self, _: ItemId, _: MatchFate) {}
}

/// Chooses among the rules that match.
pub(crate) struct Selector<'a, O, N> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) request: &'a Request<'a>,
    pub(crate) now: N,
    pub(crate) observer: &'a mut O,
    /// The tiers of look-ups that name none.
    pub(crate) latest_tiers: &'a LatestTiers,
    /// Whether the request only looks: it is of cost 0, and never charged.
    pub(crate) is_look_up: bool,
    /// How the path is read at the moment.
    pub(crate) reading: PathReading,
}

/// How much of a selection was there at some point.
#[derive(Clone, Copy)]
struct SelectionMark {
    limits: usize,
    mistakes: usize,
    banned: usize,
    passes: usize,
    permit_limits_skipped: u32,
}

impl<O: Observer, N: Fn() -> Timestamp> Selector<'_, O, N> {
    #[inline]
    pub(crate) fn select(&mut self, selection: &mut Selection) {
        let mut matching = Items::new();
        let matching = self.snapshot.matching(self.request, &mut matching);
        self.select_among(matching, selection);
    }

    /// Selects among rules that are known to match in some reading of the path.
    #[inline]
    pub(crate) fn select_among(&mut self, matching: &[ItemId], selection: &mut Selection) {
        if self.snapshot.refuses_path_of(self.request) {
            selection.denial = Some(StoredReason::AmbiguousPath);
        } else if self.request.path_with_slashes_kept().is_none() {
            self.choose(matching, selection);
        } else {
            self.select_in_each_reading(selection, |selector, selection| {
                let mut matching = Items::new();
                let Self { snapshot, request, reading, .. } = *selector;
                let matching = snapshot.matching_as(request, reading, &mut matching);
                selector.choose(matching, selection);
            });
        }
    }

    /// Selects one rule alone, whatever it matches.
    pub(crate) fn select_only(&mut self, at: ItemId, selection: &mut Selection) {
        if self.snapshot.refuses_path_of(self.request) {
            selection.denial = Some(StoredReason::AmbiguousPath);
            return;
        }
        self.select_in_each_reading(selection, |selector, selection| {
            selector.classify(&[at], selection);
            if let Some(overrides) = &selector.snapshot.overrides
                && selector.is_banned(overrides, selection)
            {
                return;
            }
            if selector.is_enabled(at) && selector.apply(at, selection) == MatchFate::Unlimited {
                selection.passes.push((at, StoredReason::Unlimited(at)));
            }
            selection.finish();
        });
    }

    /// Selects once for each reading of the path: what applies in either applies.
    #[cold]
    fn select_in_each_reading(
        &mut self,
        selection: &mut Selection,
        select: impl Fn(&mut Self, &mut Selection),
    ) {
        select(self, selection);
        if self.request.path_with_slashes_kept().is_some() {
            let mut other = Selection::default();
            self.observer.begin_other_reading();
            self.reading = PathReading::SlashesKept;
            select(self, &mut other);
            self.reading = PathReading::Decoded;
            selection.join(other);
        }
    }

    /// Goes through the rules that match in one reading of the path.
    ///
    /// Of each priority, all rules are looked at before any of them stops those below. A rule that is
    /// replaced by one that is not has no effect, wherever the other stands among those looked at.
    #[inline]
    fn choose(&mut self, matching: &[ItemId], selection: &mut Selection) {
        self.classify(matching, selection);
        if let Some(overrides) = &self.snapshot.overrides
            && self.is_banned(overrides, selection)
        {
            return;
        }
        let mut replacements = Replacements::default();
        let mut replaced = Replaced::default();
        let mut stops: SmallVec<[ItemId; 2]> = SmallVec::new();
        // Whether a live rule matches: it keeps the fallbacks away.
        let mut is_covered = false;
        let mut is_lifted = false;
        let mut rest = matching;
        while let Some(&first) = rest.first() {
            let priority = self.snapshot.core(first).priority;
            let is_level = |at: &&ItemId| self.snapshot.core(**at).priority == priority;
            let level = rest.iter().take_while(is_level).count();
            let (level, below) = rest.split_at(level);
            rest = below;
            if let Some(unlimited) = self.unlimited(level, &replacements, &replaced, selection) {
                self.lift(unlimited, level, below, selection);
                is_lifted = true;
                break;
            }
            for &at in level {
                if self.flags(at).is_fallback || !self.is_enabled(at) {
                    continue;
                }
                let fate = self.apply(at, selection);
                self.observer.observe(at, fate);
                let is_skipped = matches!(fate, MatchFate::Skipped(_) | MatchFate::PermitsOnly);
                is_covered |= self.flags(at).is_live && !is_skipped;
                if self.loosens(at, fate) {
                    replacements.add(at, self.snapshot.replaced_by(at));
                    if self.snapshot.rule(at).stop {
                        stops.push(at);
                    }
                }
            }
            replaced = replacements.resolve();
            if let Some(&stop) = stops.iter().find(|at| replaced.by(**at).is_none()) {
                for at in below {
                    self.observer.observe(*at, MatchFate::BelowStop(stop));
                }
                break;
            }
        }
        if !replaced.is_empty() {
            selection.remove(&replaced);
            for (gone, by) in replaced.iter().filter(|(gone, _)| matching.contains(gone)) {
                self.observer.observe(gone, MatchFate::ReplacedBy(by));
            }
        }
        if !is_lifted {
            self.fall_back(matching, is_covered, selection);
        }
        selection.finish();
    }

    /// Says how critical the request is: as the first rule says that is in force, unless the request itself says
    /// something else that counts. Whom a rule limits, exempts or lifts makes no difference.
    #[inline]
    fn classify(&self, matching: &[ItemId], selection: &mut Selection) {
        let is_in_force = |at: &ItemId| self.flags(*at).is_enabled && self.flags(*at).is_live;
        let is_fallback = |at: ItemId| self.flags(at).is_fallback;
        let mut classifier = None;
        if matching.iter().any(|at| self.flags(*at).criticality.is_some()) {
            let in_force = || matching.iter().copied().filter(is_in_force);
            let is_covered = in_force().any(|at| !is_fallback(at));
            let mut applying = in_force().filter(|at| !(is_covered && is_fallback(*at)));
            classifier = applying.find(|at| self.flags(*at).criticality.is_some());
        }
        let declared = classifier.and_then(|at| self.flags(at).criticality);
        selection.criticality = self.request.criticality_under(declared);
        selection.classifier = classifier;
    }

    #[inline]
    fn flags(&self, at: ItemId) -> RuleFlags {
        self.snapshot.core(at).flags
    }

    /// True where the request is denied whatever the rules say.
    #[cold]
    fn is_banned(&self, overrides: &Overrides, selection: &mut Selection) -> bool {
        let now = (self.now)();
        let ban = overrides.active_for_request(self.request, now).ban;
        selection.denial = ban.map(|ban| denial_by_ban(overrides, None, ban, now));
        ban.is_some()
    }

    fn is_enabled(&mut self, at: ItemId) -> bool {
        let is_enabled = self.flags(at).is_enabled;
        if !is_enabled {
            self.observer.observe(at, MatchFate::Disabled);
        }
        is_enabled
    }

    /// True where a rule with that fate may make others not apply.
    #[inline]
    fn loosens(&self, at: ItemId, fate: MatchFate) -> bool {
        let flags = self.flags(at);
        let applies = matches!(fate, MatchFate::Applied(_) | MatchFate::TierUnlimited(_));
        flags.is_against_others && flags.is_live && applies
    }

    /// The unlimited rule of a level, if one is in force.
    fn unlimited(
        &mut self,
        level: &[ItemId],
        replacements: &Replacements,
        replaced: &Replaced,
        selection: &mut Selection,
    ) -> Option<ItemId> {
        let is_one = |at: &ItemId| {
            let flags = self.flags(*at);
            let is_in_force = flags.is_unlimited && flags.is_enabled && flags.is_live;
            is_in_force && replaced.by(*at).is_none()
        };
        let mut all = level.iter().copied().filter(is_one);
        let first = all.next()?;
        let others: SmallVec<[ItemId; 2]> = all.collect();
        let can_replace =
            |at: &ItemId| self.flags(*at).is_enabled && !self.snapshot.replaced_by(*at).is_empty();
        let peers: SmallVec<[ItemId; 2]> = level.iter().copied().filter(can_replace).collect();
        if peers.is_empty() {
            return Some(first);
        }
        // Rules of the same priority may replace it, where they apply themselves.
        let mark = selection.mark();
        let mut replacements = replacements.clone();
        for at in peers {
            let fate = self.apply(at, selection);
            if self.loosens(at, fate) {
                replacements.add(at, self.snapshot.replaced_by(at));
            }
        }
        selection.truncate(mark);
        let replaced = replacements.resolve();
        std::iter::once(first).chain(others).find(|at| replaced.by(*at).is_none())
    }

    /// Nothing of this level and below applies.
    fn lift(
        &mut self,
        unlimited: ItemId,
        level: &[ItemId],
        below: &[ItemId],
        selection: &mut Selection,
    ) {
        for &at in level.iter().chain(below) {
            let fate =
                if at == unlimited { MatchFate::Unlimited } else { MatchFate::LiftedBy(unlimited) };
            self.observer.observe(at, fate);
        }
        selection.passes.clear();
        selection.passes.push((unlimited, StoredReason::Unlimited(unlimited)));
    }

    fn fall_back(&mut self, matching: &[ItemId], is_covered: bool, selection: &mut Selection) {
        for &at in matching {
            if !self.flags(at).is_fallback {
                continue;
            }
            let fate = match (self.flags(at).is_enabled, is_covered) {
                (false, _) => MatchFate::Disabled,
                (true, true) => MatchFate::FallbackNotNeeded,
                (true, false) => self.apply(at, selection),
            };
            self.observer.observe(at, fate);
        }
    }

    /// Selects the limits of a rule that matches.
    fn apply(&mut self, at: ItemId, selection: &mut Selection) -> MatchFate {
        let flags = self.flags(at);
        if flags.is_unlimited {
            // In shadow mode, or replaced: it lifts nothing.
            return MatchFate::Unlimited;
        }
        if let Some(exemption) =
            self.snapshot.exemption_as(at, self.request, self.reading, &self.now)
        {
            selection.passes.push((at, StoredReason::Exempt { rule: at, exemption }));
            return MatchFate::Exempt(exemption);
        }
        let key = match selection.key(self.snapshot, at, self.request) {
            Ok(key) => key,
            Err(MissingAttribute::Skip(per)) => return MatchFate::Skipped(per),
            Err(MissingAttribute::Deny(per)) => {
                if flags.is_live {
                    let reason = StoredReason::MissingAttribute { rule: at, per };
                    selection.mistakes.push((at, reason));
                }
                return MatchFate::Denied(per);
            }
        };
        let mut boost = 0;
        if let Some(overrides) = &self.snapshot.overrides {
            let (now, subject) = ((self.now)(), &selection.keys[key.0..key.1]);
            let (active, its_boost) =
                self.snapshot.active_overrides(overrides, at, subject, self.request, now);
            boost = its_boost;
            if let Some(ban) = active.ban.filter(|_| flags.is_live) {
                let reason = denial_by_ban(overrides, Some(at), ban, now);
                selection.banned.push((at, reason));
                return MatchFate::Banned(ban);
            }
        }
        if flags.is_live && self.snapshot.has_invalid_cost(at, self.request) {
            selection.mistakes.push((at, StoredReason::InvalidCost { rule: at }));
            return MatchFate::InvalidCost;
        }
        let tier = self.tier(at, &selection.keys[key.0..key.1]);
        if flags.has_tiers {
            selection.tiers.push((at, tier, key));
        }
        let cost = self.snapshot.cost(at, self.request);
        let enforcement = if flags.is_live { Enforcement::Live } else { Enforcement::Shadow };
        let skips_permits = flags.has_permits && self.request.takes_no_permits();
        selection.has_permits |= flags.has_permits && !skips_permits;
        selection.has_new_keys |= flags.has_new_keys;
        selection.has_reserves |= flags.has_reserves;
        let policies = self.snapshot.policies(at, tier, boost);
        let selected = SelectedLimit {
            rule: at,
            tier,
            limit: 0,
            enforcement,
            cost,
            boost,
            alternative: None,
            has_own_key: false,
            key,
        };
        let request = self.request;
        let mut select = |policies: &[Policy], places: &[AlternativePlan], enforcement| {
            for (limit, policy) in policies.iter().enumerate() {
                let selected = SelectedLimit { limit, enforcement, ..selected };
                if skips_permits && policy.has_permits() {
                    selection.permit_limits_skipped += 1;
                } else if let Some(place) = places.get(limit) {
                    selection.push_alternative(selected, place, request);
                } else {
                    selection.limits.push(selected);
                }
            }
        };
        let places =
            if flags.has_alternatives { self.snapshot.plan(at).alternatives(tier) } else { &[] };
        select(policies.unwrap_or_default(), places, enforcement);
        if flags.has_candidate {
            let candidate = self.snapshot.plan(at).candidate();
            select(&candidate.whole, &candidate.alternatives, Enforcement::Candidate);
        }
        if let Some(policies) = policies {
            // A rule of which nothing applies keeps no other from applying.
            if skips_permits && policies.iter().all(Policy::has_permits) {
                return MatchFate::PermitsOnly;
            }
            return MatchFate::Applied(tier);
        }
        if flags.is_live {
            selection.passes.push((at, StoredReason::Unlimited(at)));
        }
        MatchFate::TierUnlimited(tier)
    }
}

impl<O, N> Selector<'_, O, N> {
    /// Returns the tier whose limits apply. A look-up that names no tier is shown the limits of its subject's latest
    /// request.
    #[inline]
    fn tier(&self, at: ItemId, key: &[u8]) -> Tier {
        let Self { snapshot, request, latest_tiers, is_look_up, .. } = self;
        if *is_look_up
            && snapshot.core(at).flags.has_tiers
            && request.attribute("tier").is_none()
            && let Some(latest) = latest_tiers.find(snapshot.rule(at), key)
        {
            return latest;
        }
        snapshot.tier(at, request)
    }
}

/// The denial of a subject that `ban` covers: under `rule`, or under every rule.
pub(super) fn denial_by_ban(
    overrides: &Overrides,
    rule: Option<ItemId>,
    ban: usize,
    now: Timestamp,
) -> StoredReason {
    StoredReason::Banned { rule, ban, ends_in_us: overrides.ban_ends_in_us(ban, now) }
}

/// The attribute that a subject lacks, by its place in `per`, and what becomes of the request.
enum MissingAttribute {
    Skip(usize),
    Deny(usize),
}

impl Selection {
    fn mark(&self) -> SelectionMark {
        SelectionMark {
            limits: self.limits.len(),
            mistakes: self.mistakes.len(),
            banned: self.banned.len(),
            passes: self.passes.len(),
            permit_limits_skipped: self.permit_limits_skipped,
        }
    }

    /// Forgets what was selected since the mark.
    fn truncate(&mut self, mark: SelectionMark) {
        self.limits.truncate(mark.limits);
        self.mistakes.truncate(mark.mistakes);
        self.banned.truncate(mark.banned);
        self.passes.truncate(mark.passes);
        self.permit_limits_skipped = mark.permit_limits_skipped;
    }

    /// Forgets what was selected of rules that are replaced.
    fn remove(&mut self, replaced: &Replaced) {
        let stays = |rule| replaced.by(rule).is_none();
        self.limits.retain(|selected| stays(selected.rule));
        self.mistakes.retain(|(rule, _)| stays(*rule));
        self.banned.retain(|(rule, _)| stays(*rule));
        self.passes.retain(|(rule, _)| stays(*rule));
    }

    /// Adds what was selected for the other reading of the path. Both have made up their minds.
    fn join(&mut self, other: Self) {
        // Nobody becomes more critical by a path that servers read in two ways.
        if other.criticality < self.criticality {
            (self.criticality, self.classifier) = (other.criticality, other.classifier);
        }
        let start = self.keys.len();
        self.keys.extend_from_slice(&other.keys);
        let moved = |(rule, tier, key): (ItemId, Tier, (usize, usize))| {
            (rule, tier, (key.0 + start, key.1 + start))
        };
        self.tiers.extend(other.tiers.into_iter().map(moved));
        for selected in other.limits {
            let is_same = |known: &SelectedLimit| {
                (known.rule, known.limit, known.enforcement)
                    == (selected.rule, selected.limit, selected.enforcement)
            };
            if !self.limits.iter().any(is_same) {
                let key = (selected.key.0 + start, selected.key.1 + start);
                self.limits.push(SelectedLimit { key, ..selected });
            }
        }
        // In the order in which rules are looked at.
        self.limits.sort_by_key(|selected| selected.rule);
        self.denial = self.denial.or(other.denial);
        self.pass_reason = self.pass_reason.or(other.pass_reason);
        self.has_permits |= other.has_permits;
        self.has_new_keys |= other.has_new_keys;
        self.has_reserves |= other.has_reserves;
        self.has_alternatives |= other.has_alternatives;
        self.permit_limits_skipped = self.permit_limits_skipped.max(other.permit_limits_skipped);
        if self.denial.is_none() {
            self.limit_to(POLICIES_PER_REQUEST_MAX);
            self.number_groups();
        }
    }

    /// Adds a limit that is one of alternatives.
    #[cold]
    fn push_alternative(
        &mut self,
        selected: SelectedLimit,
        place: &AlternativePlan,
        request: &Request<'_>,
    ) {
        let own_key = place.recipe.as_ref().and_then(|recipe| self.key_by(recipe, request).ok());
        self.has_alternatives = true;
        self.limits.push(SelectedLimit {
            alternative: Some(Alternative { group: 0, order: place.order }),
            has_own_key: own_key.is_some(),
            key: own_key.unwrap_or(selected.key),
            ..selected
        });
    }

    /// Tells the alternatives of each rule from those of the next, now that no more limits come or go.
    #[inline]
    fn number_groups(&mut self) {
        if self.has_alternatives {
            for (number, group) in (0..).zip(self.limits.chunk_by_mut(SelectedLimit::is_beside)) {
                for alternative in group.iter_mut().filter_map(|limit| limit.alternative.as_mut()) {
                    alternative.group = number;
                }
            }
        }
    }

    /// Returns true if a denial by the limit in this place counts for its rule. Alternatives are denied together, and one
    /// of them speaks for all: the first that counts whom the rule does.
    #[inline]
    pub(super) fn speaks_for_rule(&self, at: usize) -> bool {
        let limit = &self.limits[at];
        if limit.alternative.is_none() {
            return true;
        }
        let beside = (0..self.limits.len()).filter(|other| self.limits[*other].is_beside(limit));
        beside.min_by_key(|other| self.limits[*other].has_own_key) == Some(at)
    }

    /// Lowers the limits to what they are for this request.
    #[inline]
    pub(crate) fn lower_policies(&mut self, request: &Request<'_>, snapshot: &Snapshot) {
        for selected in &self.limits {
            let policy = selected.policy(snapshot);
            if let Cow::Owned(lower) = self.lowered(selected, policy, request, snapshot) {
                self.lower_policies.push((*selected, lower));
            }
        }
    }

    /// Returns `policy` as a limit of this request: without what is reserved for more critical ones, and as a queue
    /// with a shorter wait if it cannot wait for as long.
    #[inline]
    pub(super) fn lowered<'p>(
        &self,
        selected: &SelectedLimit,
        policy: &'p Policy,
        request: &Request<'_>,
        snapshot: &Snapshot,
    ) -> Cow<'p, Policy> {
        let reserve = if self.has_reserves { selected.reserve(snapshot) } else { None };
        match reserve.map(|reserve| reserve.apply(policy, self.criticality)) {
            Some(Cow::Owned(lower)) => Cow::Owned(request.cap_wait(&lower).into_owned()),
            _ => request.cap_wait(policy),
        }
    }

    /// Returns the policy that the request is compared with.
    #[inline]
    pub(crate) fn policy<'s>(
        &'s self,
        selected: &SelectedLimit,
        snapshot: &'s Snapshot,
    ) -> &'s Policy {
        let name = |limit: &SelectedLimit| (limit.rule, limit.limit, limit.key, limit.enforcement);
        let mut lower = self.lower_policies.iter();
        let lower = lower.find(|(limit, _)| name(limit) == name(selected));
        lower.map_or_else(|| selected.policy(snapshot), |(_, policy)| policy)
    }

    /// Keeps what a store takes at once: what only reports gives way.
    fn finish(&mut self) {
        self.pass_reason = self.passes.first().map(|(_, reason)| *reason);
        if let Some(&(_, reason)) = self.banned.first() {
            self.denial = Some(reason);
            return;
        }
        if let Some(&(_, reason)) = self.mistakes.first() {
            self.denial = Some(reason);
            return;
        }
        self.limit_to(POLICIES_PER_REQUEST_MAX);
        if self.denial.is_none() {
            self.number_groups();
        }
    }

    /// Keeps at most `count_max` limits: those that only report give way, all alternatives of a rule together. Denies if the others are too many.
    pub(crate) fn limit_to(&mut self, count_max: usize) {
        let count = self.limits.len();
        if count > count_max {
            let is_live = |selected: &SelectedLimit| selected.enforcement == Enforcement::Live;
            let live_count = self.limits.iter().filter(|selected| is_live(selected)).count();
            if live_count > count_max {
                self.denial = Some(StoredReason::TooManyLimits { count: live_count });
                return;
            }
            let mut room = count_max - live_count;
            let mut stays = SmallVec::<[bool; 2 * POLICIES_PER_REQUEST_MAX]>::new();
            for group in self.limits.chunk_by(SelectedLimit::is_beside) {
                let is_live = group.iter().any(is_live);
                let has_room = group.len() <= room;
                room -= if has_room && !is_live { group.len() } else { 0 };
                stays.extend(std::iter::repeat_n(is_live || has_room, group.len()));
            }
            let mut stays = stays.into_iter();
            self.limits.retain(|_| stays.next().unwrap_or(false));
        }
    }

    /// Where the key of a rule's subject is, written now or for an earlier rule.
    #[inline]
    fn key(
        &mut self,
        snapshot: &Snapshot,
        at: ItemId,
        request: &Request<'_>,
    ) -> Result<(usize, usize), MissingAttribute> {
        self.key_by(&snapshot.core(at).recipe, request)
    }

    /// Where the key is that a recipe writes.
    #[inline]
    fn key_by(
        &mut self,
        recipe: &Arc<Recipe>,
        request: &Request<'_>,
    ) -> Result<(usize, usize), MissingAttribute> {
        let id = recipe.id();
        if let Some((_, key)) = self.written.iter().find(|(known, _)| *known == id) {
            return Ok(*key);
        }
        let start = self.keys.len();
        match recipe.write(request, &mut self.keys) {
            SubjectKey::Written => {
                let key = (start, self.keys.len());
                self.written.push((id, key));
                Ok(key)
            }
            SubjectKey::Skip(per) => {
                self.keys.truncate(start);
                Err(MissingAttribute::Skip(per))
            }
            SubjectKey::Deny(per) => {
                self.keys.truncate(start);
                Err(MissingAttribute::Deny(per))
            }
        }
    }
}
