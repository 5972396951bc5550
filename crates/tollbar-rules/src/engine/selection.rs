//! From the rules that match to the limits that apply.
//!
//! Rules are looked at by priority. What loosens (an unlimited rule, `stop`, `replaces`) counts only
//! where it is sure: not in shadow mode, and not if it hangs on how an encoded slash is read.

use smallvec::SmallVec;
use tollbar::Timestamp;

use crate::Request;
use crate::matcher::{ItemId, Items};
use crate::rule::Tier;
use crate::rule::subject::{Found, KeyBuffer};
use crate::rule_set::POLICIES_PER_REQUEST_MAX;
use crate::snapshot::overrides::Overrides;
use crate::snapshot::{Flags, RecipeId, Snapshot};
use crate::verdict::{Enforcement, Why};

/// One limit to be asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) rule: ItemId,
    pub(crate) tier: Tier,
    pub(crate) limit: usize,
    pub(crate) capacity: Enforcement,
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
    pub(crate) asks: SmallVec<[Ask; 8]>,
    /// A denial that needs no store.
    pub(crate) denial: Option<Why>,
    /// Why the request is allowed if no live limit is asked for.
    pub(crate) leave: Option<Why>,
    /// Whether any of the asks may be for permits.
    pub(crate) has_permits: bool,
    /// Rules that deny for want of an attribute, and its place in `per`.
    lacking: SmallVec<[(ItemId, usize); 2]>,
    /// Rules whose subject is banned, and the ban.
    banned: SmallVec<[(ItemId, Why); 1]>,
    /// The last key that was written by each recipe.
    written: SmallVec<[(RecipeId, (usize, usize)); 4]>,
}

/// What became of a rule that matched. For those who explain; a check does not look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
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

/// Is told what becomes of each rule that matches.
pub(crate) trait Observer {
    fn saw(&mut self, rule: ItemId, fate: Fate);
}

/// Does not listen.
pub(crate) struct Nobody;

impl Observer for Nobody {
    #[inline]
    fn saw(&mut self, _: ItemId, _: Fate) {}
}

/// Chooses among the rules that match.
pub(crate) struct Selecting<'a, O, N> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) request: &'a Request<'a>,
    pub(crate) now: N,
    pub(crate) observer: &'a mut O,
}

impl<O: Observer, N: Fn() -> Timestamp> Selecting<'_, O, N> {
    #[inline]
    pub(crate) fn select(&mut self, selection: &mut Selection) {
        let mut matching = Items::new();
        let matching = self.snapshot.matching(self.request, &mut matching);
        self.select_of(matching, selection);
    }

    /// The same, where it is known which rules match.
    #[inline]
    pub(crate) fn select_of(&mut self, matching: &[ItemId], selection: &mut Selection) {
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
            let priority = self.snapshot.sketch(first).priority;
            let is_level = |at: &&ItemId| self.snapshot.sketch(**at).priority == priority;
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
                self.observer.saw(at, fate);
                let is_live = self.flags(at).is_live;
                is_covered |= is_live && !matches!(fate, Fate::Skipped(_));
                let applies = matches!(fate, Fate::Applied(_) | Fate::TierUnlimited(_));
                if is_live && applies && self.loosens(at) {
                    replaced.extend(self.snapshot.replaced_by(at).iter().map(|it| (*it, at)));
                    if self.snapshot.rule(at).stop {
                        stopped_by = stopped_by.or(Some(at));
                    }
                }
            }
            if let Some(stop) = stopped_by {
                for at in below {
                    self.observer.saw(*at, Fate::BelowStop(stop));
                }
                break;
            }
        }
        // A rule that was replaced by one looked at after it has been asked for already.
        if !replaced.is_empty() {
            let is_gone = |rule| replaced.iter().any(|(gone, _)| *gone == rule);
            selection.asks.retain(|ask| !is_gone(ask.rule));
            selection.lacking.retain(|(rule, _)| !is_gone(*rule));
            selection.banned.retain(|(rule, _)| !is_gone(*rule));
        }
        for (gone, by) in &replaced {
            self.observer.saw(*gone, Fate::ReplacedBy(*by));
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
        if self.is_open(at, &[]) && self.apply(at, selection) == Fate::Unlimited {
            selection.leave = Some(Why::Unlimited(at));
        }
        selection.finish();
    }

    #[inline]
    fn flags(&self, at: ItemId) -> Flags {
        self.snapshot.sketch(at).flags
    }

    /// True where the request is denied whatever the rules say.
    #[cold]
    fn is_banned(&self, overrides: &Overrides, selection: &mut Selection) -> bool {
        let now = (self.now)();
        let ban = overrides.of_request(self.request, now).ban;
        selection.denial = ban.map(|ban| denial_by_ban(overrides, None, ban, now));
        ban.is_some()
    }

    /// True where a rule is enabled and has not been replaced so far.
    fn is_open(&mut self, at: ItemId, replaced: &[(ItemId, ItemId)]) -> bool {
        if !self.flags(at).is_enabled {
            self.observer.saw(at, Fate::Disabled);
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
            let fate = if at == unlimited { Fate::Unlimited } else { Fate::LiftedBy(unlimited) };
            self.observer.saw(at, fate);
        }
        selection.leave = Some(Why::Unlimited(unlimited));
    }

    fn fall_back(&mut self, matching: &[ItemId], is_covered: bool, selection: &mut Selection) {
        for &at in matching {
            if !self.flags(at).is_fallback {
                continue;
            }
            let fate = match (self.flags(at).is_enabled, is_covered) {
                (false, _) => Fate::Disabled,
                (true, true) => Fate::FallbackNotNeeded,
                (true, false) => self.apply(at, selection),
            };
            self.observer.saw(at, fate);
        }
    }

    /// Asks for the limits of a rule that matches.
    fn apply(&mut self, at: ItemId, selection: &mut Selection) -> Fate {
        let flags = self.flags(at);
        if flags.is_unlimited {
            // In shadow mode, or not surely: it lifts nothing.
            return Fate::Unlimited;
        }
        if let Some(exemption) = self.snapshot.exemption(at, self.request, &self.now) {
            selection.leave.get_or_insert(Why::Exempt { rule: at, exemption });
            return Fate::Exempt(exemption);
        }
        let key = match selection.key(self.snapshot, at, self.request) {
            Ok(key) => key,
            Err(Lacking::Skip(per)) => return Fate::Skipped(per),
            Err(Lacking::Deny(per)) => {
                if flags.is_live {
                    selection.lacking.push((at, per));
                }
                return Fate::Denied(per);
            }
        };
        let mut boost = 0;
        if let Some(overrides) = &self.snapshot.overrides {
            let (now, subject) = ((self.now)(), &selection.keys[key.0..key.1]);
            let (said, its) = self.snapshot.said(overrides, at, subject, self.request, now);
            boost = its;
            if let Some(ban) = said.ban.filter(|_| flags.is_live) {
                let why = denial_by_ban(overrides, Some(at), ban, now);
                selection.banned.push((at, why));
                return Fate::Banned(ban);
            }
        }
        let tier = self.snapshot.tier(at, self.request);
        let cost = self.snapshot.cost(at, self.request);
        let capacity = if flags.is_live { Enforcement::Live } else { Enforcement::Shadow };
        selection.has_permits |= flags.has_permits;
        let policies = self.snapshot.policies(at, tier, boost);
        let ask = Ask { rule: at, tier, limit: 0, capacity, cost, boost, key };
        for limit in 0..policies.map_or(0, <[_]>::len) {
            selection.asks.push(Ask { limit, ..ask });
        }
        if flags.has_candidate {
            for limit in 0..self.snapshot.plan(at).candidate().whole.len() {
                selection.asks.push(Ask { limit, capacity: Enforcement::Candidate, ..ask });
            }
        }
        if policies.is_some() {
            return Fate::Applied(tier);
        }
        if flags.is_live {
            selection.leave.get_or_insert(Why::Unlimited(at));
        }
        Fate::TierUnlimited(tier)
    }
}

/// The denial of a subject that `ban` covers: under `rule`, or under every rule.
fn denial_by_ban(overrides: &Overrides, rule: Option<ItemId>, ban: usize, now: Timestamp) -> Why {
    Why::Banned { rule, ban, ends_in_us: overrides.ban_ends_in_us(ban, now) }
}

/// A subject that cannot be named, for want of the attribute in this place of `per`.
enum Lacking {
    Skip(usize),
    Deny(usize),
}

impl Selection {
    /// Keeps what a store takes at once: what only reports gives way.
    fn finish(&mut self) {
        if let Some(&(_, why)) = self.banned.first() {
            self.denial = Some(why);
            return;
        }
        if let Some(&(rule, per)) = self.lacking.first() {
            self.denial = Some(Why::Missing { rule, per });
            return;
        }
        self.keep(POLICIES_PER_REQUEST_MAX);
    }

    /// Keeps so many: what only reports gives way. Denies where the others are too many.
    pub(crate) fn keep(&mut self, count_max: usize) {
        let count = self.asks.len();
        if count > count_max {
            let is_live = |ask: &Ask| ask.capacity == Enforcement::Live;
            let live_count = self.asks.iter().filter(|ask| is_live(ask)).count();
            if live_count > count_max {
                self.denial = Some(Why::TooMany { count: live_count });
                return;
            }
            let mut room = count_max - live_count;
            self.asks.retain(|ask| {
                let stays = is_live(ask) || room > 0;
                room -= usize::from(stays && !is_live(ask));
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
    ) -> Result<(usize, usize), Lacking> {
        let recipe = &snapshot.sketch(at).recipe;
        let id = recipe.id();
        if let Some((_, key)) = self.written.iter().find(|(known, _)| *known == id) {
            return Ok(*key);
        }
        let start = self.keys.len();
        match recipe.write(request, &mut self.keys) {
            Found::Key => {
                let key = (start, self.keys.len());
                self.written.push((id, key));
                Ok(key)
            }
            Found::Skip(per) => {
                self.keys.truncate(start);
                Err(Lacking::Skip(per))
            }
            Found::Deny(per) => {
                self.keys.truncate(start);
                Err(Lacking::Deny(per))
            }
        }
    }
}
