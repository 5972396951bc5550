//! From the rules that match to the limits that apply.
//!
//! Rules are looked at by priority. What loosens (an unlimited rule, `stop`, `replaces`) counts only
//! where it is sure: not in shadow mode, and not if it hangs on how an encoded slash is read.

use smallvec::SmallVec;
use tollbar::Timestamp;

use crate::Request;
use crate::matcher::{ItemId, Items};
use crate::rule::Tier;
use crate::rule::subject::{KeyBuffer, SubjectKey};
use crate::rule_set::POLICIES_PER_REQUEST_MAX;
use crate::snapshot::overrides::Overrides;
use crate::snapshot::{Flags, RecipeId, Snapshot};
use crate::verdict::{Enforcement, StoredReason};

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
    /// Where its key is among the keys.
    pub(crate) key: (usize, usize),
}

/// What a request is to be checked against.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    pub(crate) keys: KeyBuffer,
    pub(crate) limits: SmallVec<[SelectedLimit; 8]>,
    /// A denial that needs no store.
    pub(crate) denial: Option<StoredReason>,
    /// Why the request is allowed if no live limit applies.
    pub(crate) pass_reason: Option<StoredReason>,
    /// Whether any of the limits may be of permits.
    pub(crate) has_permits: bool,
    /// Rules that deny for want of an attribute, and its place in `per`.
    missing: SmallVec<[(ItemId, usize); 2]>,
    /// Rules whose subject is banned, and the ban.
    banned: SmallVec<[(ItemId, StoredReason); 1]>,
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
}

impl<O: Observer, N: Fn() -> Timestamp> Selector<'_, O, N> {
    #[inline]
    pub(crate) fn select(&mut self, selection: &mut Selection) {
        let mut matching = Items::new();
        let matching = self.snapshot.matching(self.request, &mut matching);
        self.select_among(matching, selection);
    }

    /// Selects among rules that are known to match.
    #[inline]
    pub(crate) fn select_among(&mut self, matching: &[ItemId], selection: &mut Selection) {
        if let Some(overrides) = &self.snapshot.overrides
            && self.is_banned(overrides, selection)
        {
            return;
        }
        let mut replaced: SmallVec<[(ItemId, ItemId); 4]> = SmallVec::new();
        // Whether a live rule matches: it keeps the fallbacks away.
        let mut is_covered = false;
        let mut rest = matching;
        while let Some(&first) = rest.first() {
            let priority = self.snapshot.core(first).priority;
            let is_level = |at: &&ItemId| self.snapshot.core(**at).priority == priority;
            let level = rest.iter().take_while(is_level).count();
            let (level, below) = rest.split_at(level);
            rest = below;
            if let Some(unlimited) = self.unlimited(level, &replaced) {
                self.lift(unlimited, level, below, selection);
                return selection.finish();
            }
            let mut stopped_by = None;
            for &at in level {
                if self.flags(at).is_fallback || !self.is_open(at, &replaced) {
                    continue;
                }
                let fate = self.apply(at, selection);
                self.observer.observe(at, fate);
                let is_live = self.flags(at).is_live;
                is_covered |= is_live && !matches!(fate, MatchFate::Skipped(_));
                let applies = matches!(fate, MatchFate::Applied(_) | MatchFate::TierUnlimited(_));
                if is_live && applies && self.loosens(at) {
                    replaced.extend(self.snapshot.replaced_by(at).iter().map(|it| (*it, at)));
                    if self.snapshot.rule(at).stop {
                        stopped_by = stopped_by.or(Some(at));
                    }
                }
            }
            if let Some(stop) = stopped_by {
                for at in below {
                    self.observer.observe(*at, MatchFate::BelowStop(stop));
                }
                break;
            }
        }
        // The limits of a rule that was replaced by one looked at after it are selected already.
        if !replaced.is_empty() {
            let is_gone = |rule| replaced.iter().any(|(gone, _)| *gone == rule);
            selection.limits.retain(|selected| !is_gone(selected.rule));
            selection.missing.retain(|(rule, _)| !is_gone(*rule));
            selection.banned.retain(|(rule, _)| !is_gone(*rule));
        }
        for (gone, by) in &replaced {
            self.observer.observe(*gone, MatchFate::ReplacedBy(*by));
        }
        self.fall_back(matching, is_covered, selection);
        selection.finish();
    }

    /// Selects one rule alone, whatever it matches.
    pub(crate) fn select_only(&mut self, at: ItemId, selection: &mut Selection) {
        if let Some(overrides) = &self.snapshot.overrides
            && self.is_banned(overrides, selection)
        {
            return;
        }
        if self.is_open(at, &[]) && self.apply(at, selection) == MatchFate::Unlimited {
            selection.pass_reason = Some(StoredReason::Unlimited(at));
        }
        selection.finish();
    }

    #[inline]
    fn flags(&self, at: ItemId) -> Flags {
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

    /// True where a rule is enabled and has not been replaced so far.
    fn is_open(&mut self, at: ItemId, replaced: &[(ItemId, ItemId)]) -> bool {
        if !self.flags(at).is_enabled {
            self.observer.observe(at, MatchFate::Disabled);
            return false;
        }
        !replaced.iter().any(|(gone, _)| *gone == at)
    }

    /// True where a rule that matches may make others not apply.
    fn loosens(&self, at: ItemId) -> bool {
        // Conditions are looked at once more only where a path has two readings.
        self.flags(at).is_against_others
            && (self.request.path_with_slashes_kept().is_none()
                || self.snapshot.rule(at).conditions.hold_surely(self.request))
    }

    /// The unlimited rule of a level, if one is in force.
    fn unlimited(&self, level: &[ItemId], replaced: &[(ItemId, ItemId)]) -> Option<ItemId> {
        level.iter().copied().find(|at| {
            let flags = self.flags(*at);
            flags.is_unlimited
                && flags.is_enabled
                && flags.is_live
                && !replaced.iter().any(|(gone, _)| gone == at)
                && self.loosens(*at)
        })
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
        selection.pass_reason = Some(StoredReason::Unlimited(unlimited));
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
            // In shadow mode, or not surely: it lifts nothing.
            return MatchFate::Unlimited;
        }
        if let Some(exemption) = self.snapshot.exemption(at, self.request, &self.now) {
            selection.pass_reason.get_or_insert(StoredReason::Exempt { rule: at, exemption });
            return MatchFate::Exempt(exemption);
        }
        let key = match selection.key(self.snapshot, at, self.request) {
            Ok(key) => key,
            Err(MissingAttribute::Skip(per)) => return MatchFate::Skipped(per),
            Err(MissingAttribute::Deny(per)) => {
                if flags.is_live {
                    selection.missing.push((at, per));
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
        let tier = self.snapshot.tier(at, self.request);
        let cost = self.snapshot.cost(at, self.request);
        let enforcement = if flags.is_live { Enforcement::Live } else { Enforcement::Shadow };
        selection.has_permits |= flags.has_permits;
        let policies = self.snapshot.policies(at, tier, boost);
        let selected = SelectedLimit { rule: at, tier, limit: 0, enforcement, cost, boost, key };
        for limit in 0..policies.map_or(0, <[_]>::len) {
            selection.limits.push(SelectedLimit { limit, ..selected });
        }
        if flags.has_candidate {
            for limit in 0..self.snapshot.plan(at).candidate().whole.len() {
                selection.limits.push(SelectedLimit {
                    limit,
                    enforcement: Enforcement::Candidate,
                    ..selected
                });
            }
        }
        if policies.is_some() {
            return MatchFate::Applied(tier);
        }
        if flags.is_live {
            selection.pass_reason.get_or_insert(StoredReason::Unlimited(at));
        }
        MatchFate::TierUnlimited(tier)
    }
}

/// The denial of a subject that `ban` covers: under `rule`, or under every rule.
fn denial_by_ban(
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
    /// Keeps what a store takes at once: what only reports gives way.
    fn finish(&mut self) {
        if let Some(&(_, reason)) = self.banned.first() {
            self.denial = Some(reason);
            return;
        }
        if let Some(&(rule, per)) = self.missing.first() {
            self.denial = Some(StoredReason::MissingAttribute { rule, per });
            return;
        }
        self.limit_to(POLICIES_PER_REQUEST_MAX);
    }

    /// Keeps at most `count_max` limits: those that only report give way. Denies if the others are too many.
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
            self.limits.retain(|selected| {
                let stays = is_live(selected) || room > 0;
                room -= usize::from(stays && !is_live(selected));
                stays
            });
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
        let recipe = &snapshot.core(at).recipe;
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
