//! From the limits that apply to a verdict.
//!
//! A question has three parts: what comes before the store is asked, the store, and what comes after.
//! The first and the last are functions here, and are written once. [`AsyncEngine::decide_now`] is the
//! way for a store that answers at once, [`AsyncEngine::decide`] that for any other: its future is
//! kilobytes, which the first should not have to set up.

use std::time::Duration;

use arrayvec::ArrayVec;
use tollbar::charge::Marks;
use tollbar::{Decision, Entry, Outcome, Policy, Reply, Role, Store, StoreError};

use super::AsyncEngine;
use super::hold::{self, Hold};
use super::request_id::Name;
use super::selection::{Ask, Nobody, Observer, Selecting, Selection};
use super::{ahead_of_clock, outage, tallies};
use crate::Request;
use crate::matcher::{ItemId, Items};
use crate::rule::Tier;
use crate::rule_set::POLICIES_PER_REQUEST_MAX;
use crate::snapshot::Snapshot;
use crate::verdict::{Decisions, Enforcement, Made, Verdict, Why};

/// The questions of one check.
pub(super) type Entries<'e> = ArrayVec<Entry<'e>, POLICIES_PER_REQUEST_MAX>;

/// A check that the store has answered.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) request: &'a Request<'a>,
    pub(super) selection: &'a Selection,
    pub(super) entries: &'a Entries<'a>,
}

/// What came of a check, besides the decisions.
#[derive(Default)]
struct Concluded {
    hold: Option<Hold>,
    failure: Option<StoreError>,
    /// Set if the store cannot handle the request, and no outage is to blame.
    refusal: Option<Why>,
    /// True if a counter is to be made fresh because it is ahead of the clock.
    clears: bool,
}

impl AsyncEngine {
    /// Makes the verdict over a store that answers at once, in place: a verdict is most of a kilobyte, of
    /// which little is used. Returns what the request holds.
    pub(super) fn decide_now(
        &self,
        request: &Request<'_>,
        reserve_for: Option<Duration>,
        verdict: &mut Verdict,
    ) -> Option<Hold> {
        let mut matching = Items::new();
        let matching = verdict.snapshot.matching(request, &mut matching);
        if reserve_for.is_none()
            && self.decide_alone(request, &verdict.snapshot, matching, &mut verdict.made)
        {
            verdict.bind_only_one();
            return None;
        }
        let mut selection = Selection::default();
        self.select_of(matching, &verdict.snapshot, request, &mut selection);
        let name = Self::prepare(request, reserve_for, &mut selection, verdict)?;
        let marks = self.charge_ids.marks(name.as_bytes(), reserve_for);
        let Verdict { snapshot, made, .. } = verdict;
        let mut entries = Entries::new();
        fill(&mut entries, snapshot, &selection);
        let answer = match self.ask(&mut entries, selection.has_permits, marks) {
            Some(reply) => reply.wait(),
            None => Ok(()),
        };
        let asked = Asked { snapshot, request, selection: &selection, entries: &entries };
        let concluded = self.conclude(&asked, answer, marks, made);
        if concluded.clears {
            self.clear_ahead_now(&asked);
        }
        drop(entries);
        verdict.finish(concluded)
    }

    /// Makes the verdict on what was selected, over any store. Returns what the request holds.
    pub(super) async fn decide(
        &self,
        request: &Request<'_>,
        reserve_for: Option<Duration>,
        selection: &mut Selection,
        verdict: &mut Verdict,
    ) -> Option<Hold> {
        let name = Self::prepare(request, reserve_for, selection, verdict)?;
        let marks = self.charge_ids.marks(name.as_bytes(), reserve_for);
        let selection = &*selection;
        let Verdict { snapshot, made, .. } = verdict;
        let mut entries = Entries::new();
        fill(&mut entries, snapshot, selection);
        let answer = match self.ask(&mut entries, selection.has_permits, marks) {
            Some(reply) => reply.await,
            None => Ok(()),
        };
        let asked = Asked { snapshot, request, selection, entries: &entries };
        let concluded = self.conclude(&asked, answer, marks, made);
        if concluded.clears {
            self.clear_ahead(&asked).await;
        }
        drop(entries);
        verdict.finish(concluded)
    }

    /// Selects the limits that apply to a request, and tells `observer` of each rule that matches.
    #[inline]
    pub(crate) fn select(
        &self,
        snapshot: &Snapshot,
        request: &Request<'_>,
        observer: &mut impl Observer,
        selection: &mut Selection,
    ) {
        let now = || self.clock.now();
        Selecting { snapshot, request, now, observer }.select(selection);
    }

    /// Selects among rules that are known to match.
    #[inline]
    fn select_of(
        &self,
        matching: &[ItemId],
        snapshot: &Snapshot,
        request: &Request<'_>,
        selection: &mut Selection,
    ) {
        let now = || self.clock.now();
        Selecting { snapshot, request, now, observer: &mut Nobody }.select_of(matching, selection);
    }

    /// Selects one rule alone, whatever it matches.
    pub(crate) fn select_only(
        &self,
        snapshot: &Snapshot,
        rule: ItemId,
        request: &Request<'_>,
        selection: &mut Selection,
    ) {
        let now = || self.clock.now();
        Selecting { snapshot, request, now, observer: &mut Nobody }.select_only(rule, selection);
    }

    /// Names what is to be asked. `None` if the verdict is made already: no store is needed.
    #[inline]
    fn prepare(
        request: &Request<'_>,
        reserve_for: Option<Duration>,
        selection: &mut Selection,
        verdict: &mut Verdict,
    ) -> Option<Name> {
        let name = Name::of(request, &verdict.snapshot, selection);
        if verdict.settle(selection) {
            return None;
        }
        let is_reservation = reserve_for.is_some();
        let is_held = is_reservation || selection.has_permits && request.cost() > 0;
        // Before anything is charged: what cannot be written down could not be given back elsewhere.
        if is_held && !hold::has_token(&verdict.snapshot, selection, is_reservation) {
            verdict.refuse(Why::ReceiptTooLong);
            return None;
        }
        Some(name)
    }

    /// Asks the store for all entries at once; `None` if it has answered already.
    #[inline]
    fn ask<'a, 'e: 'a>(
        &'a self,
        entries: &'a mut Entries<'e>,
        has_permits: bool,
        marks: Marks<'a>,
    ) -> Option<Reply<'a, ()>> {
        // One question by itself is answered sooner than a batch of one, but charges without a name,
        // by which permits come back.
        if let (Some(memory), [entry], true) =
            (&self.memory, entries.as_mut_slice(), marks.is_empty() && !has_permits)
            && entry.role() == Role::Enforce
            && let Ok(decision) = memory.check(entry.key(), entry.policy(), entry.cost()).wait()
        {
            entry.decide(decision);
            return None;
        }
        Some(self.store.decide(marks.batch(entries)))
    }

    /// Writes the decisions of a check or, if the store could not answer, those of the rules' outage
    /// policies.
    #[inline]
    fn conclude(
        &self,
        asked: &Asked<'_>,
        answer: Result<(), StoreError>,
        marks: Marks<'_>,
        made: &mut Decisions,
    ) -> Concluded {
        let &Asked { snapshot, request, selection, entries } = asked;
        if let Err(failure) = answer {
            if let Some(why) = refusal(&failure) {
                return Concluded { refusal: Some(why), ..Concluded::default() };
            }
            let hold = outage::decide(snapshot, request, selection, &*self.local, made);
            tallies::count(snapshot, made);
            return Concluded { hold, failure: Some(failure), ..Concluded::default() };
        }
        let (mut is_denied, mut clears) = (false, false);
        for (ask, entry) in selection.asks.iter().zip(entries) {
            let Some(decision) = entry.decision() else {
                continue;
            };
            if ask.capacity == Enforcement::Live && !decision.is_allowed() {
                let top = &snapshot.plan(ask.rule).top;
                top.record(entry.key());
                is_denied = true;
                if let Some(by) = ahead_of_clock::beyond(entry.policy(), &decision) {
                    let rule = &snapshot.rule(ask.rule).name;
                    clears |= self.found_ahead(rule, &top.ahead_of_clock, by);
                }
            }
            made.push(ask.made(decision));
        }
        tallies::count(snapshot, made);
        let hold = match marks.hold {
            _ if is_denied => None,
            Some(reservation) => Some(Hold::of_reservation(reservation.id, asked)),
            None if selection.has_permits => Hold::of_permits(entries, false),
            None => None,
        };
        Concluded { hold, clears, ..Concluded::default() }
    }
}

impl Verdict {
    /// Denies for a reason that no wait helps, and no other cost: what is missing or wrong has to be
    /// sent otherwise.
    fn refuse(&mut self, why: Why) {
        (self.outcome, self.reason) = (Outcome::Busy, why);
    }

    /// Returns true if no store is needed.
    #[inline]
    fn settle(&mut self, selection: &Selection) -> bool {
        (self.outcome, self.reason) = match selection.denial {
            Some(denial) => {
                if let Some(rule) = denial.denying_rule() {
                    self.snapshot.tally(rule, Tier::Rule).refused();
                }
                (denial.outcome(), denial)
            }
            None => (Outcome::Allow, selection.leave.unwrap_or(Why::NoRule)),
        };
        selection.denial.is_some() || selection.asks.is_empty()
    }

    /// Takes the outcome from the one decision that was made, which is of a live rule.
    #[inline]
    fn bind_only_one(&mut self) {
        (self.reason, self.binding) = (Why::Limits, Some(0));
        if let [made] = &*self.made {
            self.outcome = made.decision.outcome();
        }
    }

    /// Says which decision binds, now that all are made, and returns what is held. Decisions are in the
    /// order of the rules, so of equals the first binds.
    #[inline]
    fn finish(&mut self, concluded: Concluded) -> Option<Hold> {
        let Concluded { hold, failure, refusal, clears: _ } = concluded;
        if let Some(why) = refusal {
            self.refuse(why);
            return None;
        }
        self.failure = failure;
        let mut binding: Option<(usize, &Made)> = None;
        for (at, it) in self.made.iter().enumerate() {
            let binds = |(_, before): (_, &Made)| it.decision.binds_before(&before.decision);
            if it.capacity == Enforcement::Live && binding.is_none_or(binds) {
                binding = Some((at, it));
            }
        }
        if let Some((at, it)) = binding {
            (self.outcome, self.reason) = (it.decision.outcome(), Why::Limits);
            self.binding = Some(at);
        }
        hold
    }
}

/// The reason to deny a request that the store cannot handle. `None` for an outage, which the rules'
/// failure policies answer.
fn refusal(error: &StoreError) -> Option<Why> {
    match error {
        StoreError::RequestIdReused => Some(Why::RequestIdReused),
        StoreError::BatchTooLarge { entries, .. } => Some(Why::TooMany { count: *entries }),
        StoreError::CrossSlot { .. } => Some(Why::CrossSlot),
        error => (!error.is_outage()).then_some(Why::Unsupported),
    }
}

/// Fills the entries in place: they are kilobytes of which a few words are used, and should not be
/// moved.
#[inline]
fn fill<'e>(entries: &mut Entries<'e>, snapshot: &'e Snapshot, selection: &'e Selection) {
    for ask in selection.asks.iter().take(POLICIES_PER_REQUEST_MAX) {
        entries.push(ask.entry(snapshot, selection));
    }
}

impl Ask {
    /// The question to a store.
    #[inline]
    pub(crate) fn entry<'e>(&self, snapshot: &'e Snapshot, selection: &'e Selection) -> Entry<'e> {
        let key = &selection.keys[self.key.0..self.key.1];
        let role = match self.capacity {
            Enforcement::Live => Role::Enforce,
            Enforcement::Shadow | Enforcement::Candidate => Role::Shadow,
        };
        Entry::new(key, self.policy(snapshot)).with_cost(self.cost).with_role(role)
    }

    #[inline]
    pub(crate) fn policy<'s>(&self, snapshot: &'s Snapshot) -> &'s Policy {
        match (self.capacity, snapshot.policies(self.rule, self.tier, self.boost)) {
            (Enforcement::Live | Enforcement::Shadow, Some(policies)) => &policies[self.limit],
            _ => &snapshot.plan(self.rule).candidate().whole[self.limit],
        }
    }

    #[inline]
    pub(crate) fn made(&self, decision: Decision) -> Made {
        let tier = match self.tier {
            Tier::Rule => u32::MAX,
            Tier::At(at) => at as u32,
        };
        let Self { rule, limit, capacity, cost, .. } = *self;
        Made { rule, tier, limit: limit as u32, capacity, cost, decision }
    }
}
