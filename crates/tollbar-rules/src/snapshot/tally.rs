//! What rules have decided, counted as it happens: one relaxed add for a rule and a check, on a line of
//! memory that few threads share.
//!
//! Whom a rule has limited is in [`top`](crate::snapshot::top); no client appears here. What is counted belongs to
//! a rule's identity and the name of its tier, and goes on when the rules change around it.

use std::cell::Cell;
use std::collections::HashSet;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use tollbar::Decision;

use crate::matcher::ItemId;
use crate::snapshot::{Snapshot, Tier};
use crate::verdict::{Enforcement, Made};
use crate::{AsyncEngine, Limit, Rule};

/// More threads than this share lines.
const LINES_MAX: usize = 16;

/// Counters of a rule, or of one tier of it.
#[derive(Debug, Clone)]
pub(crate) struct Tally(Arc<[Line]>);

/// The counters of some threads, on one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line {
    allowed: AtomicU64,
    denied: AtomicU64,
    shadow_allowed: AtomicU64,
    shadow_denied: AtomicU64,
    degraded_allowed: AtomicU64,
    degraded_denied: AtomicU64,
    near_limit: AtomicU64,
    /// What was paid beyond a token for each allowed request; wraps where it was less. So a request of
    /// one token, as most are, costs one add.
    extra_tokens: AtomicU64,
}

/// What a rule, or one tier of it, has decided since it has been there. Each check counts once, however
/// many limits the rule has; one of cost 0 does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Allowed, by a store that answered.
    pub allowed: u64,
    /// Denied, by a store that answered or for want of an attribute.
    pub denied: u64,
    /// What a rule in shadow mode, or a candidate, would have allowed.
    pub shadow_allowed: u64,
    /// What it would have denied.
    pub shadow_denied: u64,
    /// Allowed by the failure policy, because the store could not answer.
    pub degraded_allowed: u64,
    /// Denied by it.
    pub degraded_denied: u64,
    /// How many of the allowed ones left at most a fifth of a limit's capacity.
    pub near_limit: u64,
    /// What was charged for requests that passed. What a reservation gives back is not taken off.
    pub admitted_tokens: u64,
    /// How many of the denied ones were by counters that owe more than their policy can: see
    /// [`AheadOfClock`](crate::AheadOfClock). Of all tiers together, with the rule's own.
    pub ahead_of_clock: u64,
}

/// The counts of all rules at one moment.
#[derive(Debug, Clone)]
pub struct Tallies(Arc<Snapshot>);

/// Tells rules apart across versions, for as long as somebody holds the [`Tallies`] that it is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TallyId(usize);

/// The counts of one rule, or of one tier of it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RuleTally<'t> {
    /// The same for all tiers of a rule.
    pub id: TallyId,
    /// The rule.
    pub rule: &'t Rule,
    /// The tier, where it is one's.
    pub tier: Option<&'t str>,
    /// Its limits.
    pub limits: &'t [Limit],
    /// What it has decided.
    pub counts: Counts,
}

impl AsyncEngine {
    /// What the rules have decided so far.
    ///
    /// ```
    /// use tollbar_rules::{Engine, Request, RuleFile};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let file = RuleFile::parse("rules.yaml", "rules: [{ name: per_client, limit: 1/min }]")?;
    /// let engine = Engine::new(file.rules);
    /// let request = Request::new("GET", "/")?.with_attributes(&[("user", "42")])?;
    /// let _ = (engine.check(&request), engine.check(&request));
    ///
    /// let tallies = engine.tallies();
    /// let counts = tallies.iter().next().unwrap().counts;
    /// assert_eq!((counts.allowed, counts.denied), (1, 1));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn tallies(&self) -> Tallies {
        Tallies(self.snapshot())
    }
}

impl Tallies {
    /// Each rule, and each tier of it that has limits, in the order in which rules are looked at.
    pub fn iter(&self) -> impl Iterator<Item = RuleTally<'_>> {
        (0..self.0.rules.len()).flat_map(|at| self.of_rule(at))
    }

    /// Those of `before` that are not here any more.
    ///
    /// ```
    /// # use tollbar_rules::{Engine, RuleFile};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = |text| RuleFile::parse("rules.yaml", text).map(|it| it.rules);
    /// let engine = Engine::new(rules("rules: [{ name: a, limit: 1/s }, { name: b, limit: 1/s }]")?);
    /// let before = engine.tallies();
    /// engine.replace(rules("rules: [{ name: b, limit: 2/s }]")?);
    /// let after = engine.tallies();
    /// let gone: Vec<&str> = after.gone_since(&before).iter().map(|it| &*it.rule.name).collect();
    /// assert_eq!(gone, ["a"]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn gone_since<'b>(&self, before: &'b Self) -> Vec<RuleTally<'b>> {
        let (then, now) = (&before.0.rules, &self.0.rules);
        let here = self.but(now.places_in(then));
        let here: HashSet<_> = here.map(|it| (&**it.rule.identity(), it.tier)).collect();
        let others = before.but(then.places_in(now));
        others.filter(|it| !here.contains(&(&**it.rule.identity(), it.tier))).collect()
    }

    /// Those of rules that have no place elsewhere.
    fn but(&self, places: Vec<Option<ItemId>>) -> impl Iterator<Item = RuleTally<'_>> {
        let others = places.into_iter().enumerate().filter(|(_, place)| place.is_none());
        others.flat_map(|(at, _)| self.of_rule(at))
    }

    /// Those of the rule in this place.
    fn of_rule(&self, at: usize) -> impl Iterator<Item = RuleTally<'_>> {
        let snapshot = &*self.0;
        let rule = &*snapshot.rules.rules()[at];
        let id = snapshot.tally(at as ItemId, Tier::Rule).id();
        let tiers = rule.tiers.limits.iter().enumerate();
        let tiers = tiers.map(|(tier, (name, _))| (Tier::At(tier), Some(&**name)));
        [(Tier::Rule, None)].into_iter().chain(tiers).filter_map(move |(tier, name)| {
            let limits = rule.limits_of(tier);
            let mut counts = snapshot.tally(at as ItemId, tier).counts();
            if tier == Tier::Rule {
                let top = &snapshot.plan(at as ItemId).top;
                counts.ahead_of_clock = top.ahead_of_clock.load(Ordering::Relaxed);
            }
            let is_silent = limits.is_empty() && counts == Counts::default();
            (!is_silent).then_some(RuleTally { id, rule, tier: name, limits, counts })
        })
    }

    /// Which version of the rules it is; counts up with every change.
    #[must_use]
    pub fn rules_version(&self) -> u64 {
        self.0.version
    }

    /// How many rules there are.
    #[must_use]
    pub fn rule_count(&self) -> usize {
        self.0.rules.len()
    }
}

impl Default for Tally {
    fn default() -> Self {
        static LINES: LazyLock<usize> = LazyLock::new(|| {
            let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
            threads.next_power_of_two().min(LINES_MAX)
        });
        Self((0..*LINES).map(|_| Line::default()).collect())
    }
}

impl Tally {
    /// The line of this thread.
    #[inline]
    fn line(&self) -> &Line {
        // A power of two.
        &self.0[thread_number() & (self.0.len() - 1)]
    }

    /// One rule alone has decided, and the store has answered.
    #[inline]
    pub(crate) fn decided(&self, is_allowed: bool, cost: u64, is_near: impl FnOnce() -> bool) {
        if cost == 0 {
            return;
        }
        let line = self.line();
        if !is_allowed {
            return add(&line.denied, 1);
        }
        add(&line.allowed, 1);
        if cost != 1 {
            add(&line.extra_tokens, cost - 1);
        }
        if is_near() {
            add(&line.near_limit, 1);
        }
    }

    /// Turned away before any counter was asked.
    pub(crate) fn refused(&self) {
        add(&self.line().denied, 1);
    }

    /// By where it is.
    fn id(&self) -> TallyId {
        TallyId(self.0.as_ptr().addr())
    }

    fn counts(&self) -> Counts {
        let sum = |of: fn(&Line) -> &AtomicU64| {
            let counts = self.0.iter().map(|line| of(line).load(Ordering::Relaxed));
            counts.fold(0, u64::wrapping_add)
        };
        let allowed = sum(|it| &it.allowed);
        Counts {
            allowed,
            denied: sum(|it| &it.denied),
            shadow_allowed: sum(|it| &it.shadow_allowed),
            shadow_denied: sum(|it| &it.shadow_denied),
            degraded_allowed: sum(|it| &it.degraded_allowed),
            degraded_denied: sum(|it| &it.degraded_denied),
            near_limit: sum(|it| &it.near_limit),
            admitted_tokens: allowed.wrapping_add(sum(|it| &it.extra_tokens)),
            ahead_of_clock: 0,
        }
    }
}

/// Counts all decisions of a check, each rule once.
pub(crate) fn count(snapshot: &Snapshot, made: &[Made]) {
    let denies = |it: &Made| it.capacity == Enforcement::Live && !it.decision.is_allowed();
    let is_admitted = !made.iter().any(denies);
    // Those of one rule follow each other, its candidate's last.
    for these in made.chunk_by(|a, b| a.rule == b.rule && a.capacity == b.capacity) {
        let [first, ..] = these else {
            continue;
        };
        if first.cost == 0 {
            continue;
        }
        let line = snapshot.tally(first.rule, first.tier()).line();
        let is_allowed = these.iter().all(|it| it.decision.is_allowed());
        let counter = match (first.capacity, first.decision.degraded().is_some(), is_allowed) {
            (Enforcement::Live, false, true) => &line.allowed,
            (Enforcement::Live, false, false) => &line.denied,
            (Enforcement::Live, true, true) => &line.degraded_allowed,
            (Enforcement::Live, true, false) => &line.degraded_denied,
            // What it would have said, it can say only by a counter.
            (_, true, _) => continue,
            (_, false, true) => &line.shadow_allowed,
            (_, false, false) => &line.shadow_denied,
        };
        add(counter, 1);
        let is_counted = first.capacity == Enforcement::Live && first.decision.degraded().is_none();
        if !(is_counted && is_allowed) {
            continue;
        }
        // Another rule may deny what this one allows: then nothing is paid.
        let paid = if is_admitted { first.cost } else { 0 };
        if paid != 1 {
            add(&line.extra_tokens, paid.wrapping_sub(1));
        }
        let limits = snapshot.policies(first.rule, first.tier(), 0).unwrap_or_default();
        let is_near = |it: &Made| {
            let capacity = limits.get(it.limit as usize).map_or(0, tollbar::Policy::capacity);
            is_near(&it.decision, capacity)
        };
        if is_admitted && these.iter().any(is_near) {
            add(&line.near_limit, 1);
        }
    }
}

/// Returns true if at least four fifths are known to be used: 20 of 100 remain, not 21.
#[inline]
pub(crate) fn is_near(decision: &Decision, capacity: u64) -> bool {
    decision.remaining().is_some_and(|remaining| remaining <= capacity / 5)
}

#[inline]
fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// Threads are numbered as they first count.
#[inline]
fn thread_number() -> usize {
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0);

    let number = NUMBER.get();
    if number != usize::MAX {
        return number;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed) & (usize::MAX >> 1);
    NUMBER.set(number);
    number
}
