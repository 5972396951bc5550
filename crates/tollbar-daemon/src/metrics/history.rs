//! What was decided over time: the last 15 minutes by the second and the last day by the minute, of
//! everything and of the rules that decide most lately. In memory only, of bounded size: 47 KiB for each
//! rule that has a history, of at most 64.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use tollbar::Timestamp;
use tollbar_rules::{Counts, Tallies, TallyId};

use super::checks::OutcomeCounts;

pub const SECONDS_MAX: usize = 15 * 60;
pub const MINUTES_MAX: usize = 24 * 60;

/// Rules that have a history.
const RULES_MAX: usize = 64;

/// A rule that has decided nothing for so long gives its place to one that does.
const IDLE_SECONDS: u64 = SECONDS_MAX as u64;

/// Changes of the rules that are remembered.
const RULES_CHANGES_MAX: usize = 256;

/// What was decided in a second or a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Point {
    pub allowed: u32,
    pub denied: u32,
    pub shadow_denied: u32,
    pub degraded: u32,
    pub near_limit: u32,
}

/// Points that follow each other, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistorySeries {
    pub start: Timestamp,
    pub step_s: u32,
    pub points: Vec<Point>,
}

/// When the rules changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RulesChange {
    pub at: Timestamp,
    pub rules_version: u64,
}

/// What was decided over time.
#[derive(Debug, Default)]
pub struct History {
    /// The second that the newest point is of, since 1970.
    second: Option<u64>,
    total: PointRings,
    rules: Vec<RuleHistory>,
    /// What every rule had counted at the last tick, in their order then.
    sums: Vec<(TallyId, Sums)>,
    /// Held, so that an id means one rule.
    last: Option<Tallies>,
    total_counted: OutcomeCounts,
    rules_changes: VecDeque<RulesChange>,
    rules_version: u64,
}

/// The points of one line of a chart: a ring of seconds and one of minutes.
#[derive(Debug, Default)]
struct PointRings {
    seconds: VecDeque<Point>,
    minutes: VecDeque<Point>,
}

/// A rule with a history.
#[derive(Debug)]
struct RuleHistory {
    id: TallyId,
    name: Arc<str>,
    rings: PointRings,
    active_second: u64,
}

/// What all tiers of a rule have counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sums {
    allowed: u64,
    denied: u64,
    shadow_denied: u64,
    degraded: u64,
    near_limit: u64,
}

impl History {
    /// Adds what was decided since the last time to the second that `now` is in. Called once a second.
    pub(super) fn tick(&mut self, now: Timestamp, total: OutcomeCounts, tallies: &Tallies) {
        let second = now.as_micros() / 1_000_000;
        // A clock that goes back adds to the newest second.
        let second = self.second.map_or(second, |newest| newest.max(second));
        let steps = self.second.map_or(0, |newest| second - newest);
        let minutes = self.second.map_or(0, |newest| second / 60 - newest / 60);
        for rings in self.rules.iter_mut().map(|rule| &mut rule.rings).chain([&mut self.total]) {
            rings.advance(steps, minutes);
        }
        self.second = Some(second);
        let before = PreviousSums::new(std::mem::take(&mut self.sums));
        let mut all_sums = Vec::with_capacity(before.sums.len());
        let mut near_limit = 0;
        for (id, name, sums) in by_rule(tallies) {
            let since = sums.since(before.sums_of(all_sums.len(), id));
            all_sums.push((id, sums));
            near_limit += u64::from(since.near_limit);
            if since != Point::default() {
                self.record(id, name, since, second);
            }
        }
        if self.rules_version != tallies.rules_version() {
            let there: HashSet<TallyId> = all_sums.iter().map(|(id, _)| *id).collect();
            self.rules.retain(|rule| there.contains(&rule.id));
        }
        (self.sums, self.last) = (all_sums, Some(tallies.clone()));
        let since = Sums { near_limit, ..Sums::from_checks(total) };
        let before = Sums::from_checks(self.total_counted);
        self.total.add(since.since(before));
        self.total_counted = total;
        self.note_rules_version(now, tallies.rules_version());
    }

    fn record(&mut self, id: TallyId, name: &Arc<str>, since: Point, second: u64) {
        let slot = self.rules.iter().position(|rule| rule.id == id);
        let slot = slot.or_else(|| self.slot_for(id, name, second));
        if let Some(rule) = slot.map(|at| &mut self.rules[at]) {
            rule.rings.add(since);
            (rule.active_second, rule.name) = (second, Arc::clone(name));
        }
    }

    /// Returns a slot for a rule that has none: a new one, or that of the one that was active longest ago.
    fn slot_for(&mut self, id: TallyId, name: &Arc<str>, second: u64) -> Option<usize> {
        let new = RuleHistory {
            id,
            name: Arc::clone(name),
            rings: self.total.silent(),
            active_second: second,
        };
        if self.rules.len() < RULES_MAX {
            self.rules.push(new);
            return Some(self.rules.len() - 1);
        }
        let (at, oldest) =
            self.rules.iter().enumerate().min_by_key(|(_, rule)| rule.active_second)?;
        let is_idle = second - oldest.active_second >= IDLE_SECONDS;
        is_idle.then(|| {
            self.rules[at] = new;
            at
        })
    }

    fn note_rules_version(&mut self, at: Timestamp, rules_version: u64) {
        // The first version is no change.
        if self.rules_version != 0 && self.rules_version != rules_version {
            if self.rules_changes.len() == RULES_CHANGES_MAX {
                self.rules_changes.pop_front();
            }
            self.rules_changes.push_back(RulesChange { at, rules_version });
        }
        self.rules_version = rules_version;
    }

    /// The last `count` seconds of everything, or of the rule of that name; `None` where it has no history.
    pub fn seconds(&self, of: Option<&str>, count: usize) -> Option<HistorySeries> {
        let (rings, second) = (self.rings(of)?, self.second?);
        Some(last(&rings.seconds, count, second, 1))
    }

    /// The same of minutes, the newest of which is not over.
    pub fn minutes(&self, of: Option<&str>, count: usize) -> Option<HistorySeries> {
        let (rings, second) = (self.rings(of)?, self.second?);
        Some(last(&rings.minutes, count, second / 60, 60))
    }

    /// The rules that have a history.
    pub fn rules(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|rule| &*rule.name)
    }

    /// When the rules changed, the oldest first.
    pub fn rules_changes(&self) -> impl Iterator<Item = RulesChange> {
        self.rules_changes.iter().copied()
    }

    fn rings(&self, of: Option<&str>) -> Option<&PointRings> {
        match of {
            None => Some(&self.total),
            Some(name) => {
                self.rules.iter().find(|rule| *rule.name == *name).map(|rule| &rule.rings)
            }
        }
    }
}

/// The counts of each rule, all tiers together.
fn by_rule(tallies: &Tallies) -> impl Iterator<Item = (TallyId, &Arc<str>, Sums)> {
    let mut tallies = tallies.iter().peekable();
    std::iter::from_fn(move || {
        let first = tallies.next()?;
        let mut sums = Sums::default();
        sums.add(&first.counts);
        while let Some(tier) = tallies.next_if(|tally| tally.id == first.id) {
            sums.add(&tier.counts);
        }
        Some((first.id, &first.rule.name, sums))
    })
}

/// What rules had counted before. Most are where they were.
struct PreviousSums {
    sums: Vec<(TallyId, Sums)>,
    by_id: OnceCell<HashMap<TallyId, Sums>>,
}

impl PreviousSums {
    fn new(sums: Vec<(TallyId, Sums)>) -> Self {
        Self { sums, by_id: OnceCell::new() }
    }

    /// Nothing where the rule is new.
    fn sums_of(&self, at: usize, id: TallyId) -> Sums {
        match self.sums.get(at) {
            Some((known, sums)) if *known == id => *sums,
            _ => {
                let by_id = self.by_id.get_or_init(|| self.sums.iter().copied().collect());
                by_id.get(&id).copied().unwrap_or_default()
            }
        }
    }
}

fn last(points: &VecDeque<Point>, count: usize, newest: u64, step_s: u32) -> HistorySeries {
    let count = count.min(points.len());
    let first = newest.saturating_sub(count.saturating_sub(1) as u64);
    HistorySeries {
        start: Timestamp::from_micros(first.saturating_mul(u64::from(step_s) * 1_000_000)),
        step_s,
        points: points.iter().skip(points.len() - count).copied().collect(),
    }
}

impl PointRings {
    /// One as long as this, in which nothing was decided.
    fn silent(&self) -> Self {
        let silence = |points: &VecDeque<Point>| vec![Point::default(); points.len()].into();
        Self { seconds: silence(&self.seconds), minutes: silence(&self.minutes) }
    }

    fn advance(&mut self, seconds: u64, minutes: u64) {
        advance(&mut self.seconds, seconds, SECONDS_MAX);
        advance(&mut self.minutes, minutes, MINUTES_MAX);
    }

    fn add(&mut self, since: Point) {
        for newest in [self.seconds.back_mut(), self.minutes.back_mut()].into_iter().flatten() {
            newest.allowed = newest.allowed.saturating_add(since.allowed);
            newest.denied = newest.denied.saturating_add(since.denied);
            newest.shadow_denied = newest.shadow_denied.saturating_add(since.shadow_denied);
            newest.degraded = newest.degraded.saturating_add(since.degraded);
            newest.near_limit = newest.near_limit.saturating_add(since.near_limit);
        }
    }
}

/// Adds empty points, one at first, and lets the oldest go.
fn advance(points: &mut VecDeque<Point>, steps: u64, points_max: usize) {
    let steps = if points.is_empty() { 1 } else { steps.min(points_max as u64) };
    for _ in 0..steps {
        if points.len() == points_max {
            points.pop_front();
        }
        points.push_back(Point::default());
    }
}

impl Sums {
    fn add(&mut self, counts: &Counts) {
        self.allowed += counts.allowed + counts.shadow_allowed;
        self.denied += counts.denied;
        self.shadow_denied += counts.shadow_denied;
        self.degraded += counts.degraded_allowed + counts.degraded_denied;
        self.near_limit += counts.near_limit;
    }

    fn from_checks(total: OutcomeCounts) -> Self {
        Self {
            allowed: total.allowed + total.no_rule,
            denied: total.denied + total.rejected,
            shadow_denied: total.shadow_denied,
            degraded: total.degraded_allowed + total.degraded_denied,
            near_limit: 0,
        }
    }

    fn since(self, before: Self) -> Point {
        let since =
            |now: u64, before: u64| u32::try_from(now.saturating_sub(before)).unwrap_or(u32::MAX);
        Point {
            allowed: since(self.allowed, before.allowed),
            denied: since(self.denied, before.denied),
            shadow_denied: since(self.shadow_denied, before.shadow_denied),
            degraded: since(self.degraded, before.degraded),
            near_limit: since(self.near_limit, before.near_limit),
        }
    }
}

#[cfg(test)]
mod tests;
