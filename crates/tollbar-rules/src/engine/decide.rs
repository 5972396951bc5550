//! The heart of the engine: from a request to a verdict.
//!
//! A check has three parts: what comes before the store is asked, the store, and what comes after.
//! The first and the last are functions here, and are written once. [`AsyncEngine::decide_now`] is the
//! way for a store that answers at once, [`AsyncEngine::decide`] that for any other: its future is
//! kilobytes, which the first should not have to set up.

use std::time::Duration;

use arrayvec::ArrayVec;
use tollbar::charge::Marks;
use tollbar::store::binding_place;
use tollbar::{
    Accuracy, Decision, Entry, Outcome, Policy, Reply, Role, Source, Store, StoreError, Timestamp,
};

use super::AsyncEngine;
use super::hold::{self, Hold};
use super::new_keys::Visit;
use super::request_id::RequestName;
use super::selection::{NoObserver, Observer, SelectedLimit, Selection, Selector};
use super::{ahead_of_clock, outage, tallies};
use crate::matcher::{ItemId, Items};
use crate::rule::Tier;
use crate::rule::condition::PathReading;
use crate::rule_set::POLICIES_PER_REQUEST_MAX;
use crate::snapshot::Snapshot;
use crate::verdict::{Decisions, Enforcement, LimitDecision, StoredReason, Verdict};
use crate::{Limit, Request, Reserve};

/// The batch entries of one check.
pub(super) type Entries<'e> = ArrayVec<Entry<'e>, POLICIES_PER_REQUEST_MAX>;

/// A check that the store has answered.
#[derive(Clone, Copy)]
pub(super) struct AnsweredCheck<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) request: &'a Request<'a>,
    pub(super) selection: &'a Selection,
    pub(super) entries: &'a Entries<'a>,
}

/// What a check came to, besides the decisions.
#[derive(Default)]
struct Conclusion {
    hold: Option<Hold>,
    failure: Option<StoreError>,
    /// Set if the store cannot handle the request, and no outage is to blame.
    refusal: Option<StoredReason>,
    /// True if a counter is to be made fresh because it is ahead of the clock.
    clears: bool,
    /// When the charge was made that the store has only repeated the answer of.
    repeat_of: Option<Timestamp>,
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
        let request = &*verdict.snapshot.fold(request);
        let mut matching = Items::new();
        let matching = verdict.snapshot.matching(request, &mut matching);
        if reserve_for.is_none()
            && self.decide_single_rule(request, &verdict.snapshot, matching, &mut verdict.decisions)
        {
            verdict.criticality = request.criticality();
            verdict.bind_only_one();
            return None;
        }
        let mut selection = Selection::default();
        let is_reservation = reserve_for.is_some();
        self.selector(&verdict.snapshot, request, is_reservation, &mut NoObserver)
            .select_among(matching, &mut selection);
        let visit = Visit::by(request, is_reservation);
        self.share_new_keys(&verdict.snapshot, request, &mut selection, visit);
        let name = self.prepare(request, reserve_for, &mut selection, verdict)?;
        let marks = name.marks(&self.charge_ids, reserve_for);
        let Verdict { snapshot, decisions, .. } = verdict;
        let mut entries = Entries::new();
        fill(&mut entries, snapshot, &selection);
        let answer = match self.ask_store(&mut entries, selection.has_permits, marks) {
            Some(reply) => reply.wait(),
            None => Ok(()),
        };
        let check = AnsweredCheck { snapshot, request, selection: &selection, entries: &entries };
        let conclusion = self.conclude(&check, answer, marks, decisions);
        if conclusion.clears {
            self.clear_ahead_now(&check);
        }
        drop(entries);
        verdict.finish(conclusion)
    }

    /// Makes the verdict on what was selected, over any store. Returns what the request holds.
    pub(super) async fn decide(
        &self,
        request: &Request<'_>,
        reserve_for: Option<Duration>,
        selection: &mut Selection,
        verdict: &mut Verdict,
    ) -> Option<Hold> {
        let request = &*verdict.snapshot.fold(request);
        let visit = Visit::by(request, reserve_for.is_some());
        self.share_new_keys(&verdict.snapshot, request, selection, visit);
        let name = self.prepare(request, reserve_for, selection, verdict)?;
        let marks = name.marks(&self.charge_ids, reserve_for);
        let selection = &*selection;
        let Verdict { snapshot, decisions, .. } = verdict;
        let mut entries = Entries::new();
        fill(&mut entries, snapshot, selection);
        let answer = match self.ask_store(&mut entries, selection.has_permits, marks) {
            Some(reply) => reply.await,
            None => Ok(()),
        };
        let check = AnsweredCheck { snapshot, request, selection, entries: &entries };
        let conclusion = self.conclude(&check, answer, marks, decisions);
        if conclusion.clears {
            self.clear_ahead(&check).await;
        }
        drop(entries);
        verdict.finish(conclusion)
    }

    /// Selects the limits that apply to a request, and tells `observer` of each rule that matches. A reservation is no
    /// look-up, even at a cost of 0: it may be settled for more.
    #[inline]
    pub(crate) fn select(
        &self,
        snapshot: &Snapshot,
        request: &Request<'_>,
        is_reservation: bool,
        observer: &mut impl Observer,
        selection: &mut Selection,
    ) {
        let request = &*snapshot.fold(request);
        self.selector(snapshot, request, is_reservation, observer).select(selection);
    }

    /// Selects one rule alone, whatever it matches.
    pub(crate) fn select_only(
        &self,
        snapshot: &Snapshot,
        rule: ItemId,
        request: &Request<'_>,
        selection: &mut Selection,
    ) {
        let request = &*snapshot.fold(request);
        self.selector(snapshot, request, false, &mut NoObserver).select_only(rule, selection);
    }

    #[inline]
    fn selector<'a, O>(
        &'a self,
        snapshot: &'a Snapshot,
        request: &'a Request<'a>,
        is_reservation: bool,
        observer: &'a mut O,
    ) -> Selector<'a, O, impl Fn() -> Timestamp> {
        let now = || self.clock.now();
        let is_look_up = request.cost() == 0 && !is_reservation;
        let (latest_tiers, reading) = (&self.latest_tiers, PathReading::Decoded);
        Selector { snapshot, request, now, observer, latest_tiers, is_look_up, reading }
    }

    /// Names what is to be asked. `None` if the verdict is made already: no store is needed.
    #[inline]
    fn prepare(
        &self,
        request: &Request<'_>,
        reserve_for: Option<Duration>,
        selection: &mut Selection,
        verdict: &mut Verdict,
    ) -> Option<RequestName> {
        (verdict.criticality, verdict.classifier) = (selection.criticality, selection.classifier);
        let name = RequestName::new(request, &verdict.snapshot, selection);
        if request.cost() > 0 {
            self.latest_tiers.record_all(&verdict.snapshot, selection);
        }
        if verdict.decide_without_store(selection) {
            return None;
        }
        selection.lower_policies(request, &verdict.snapshot);
        let is_reservation = reserve_for.is_some();
        let is_held = is_reservation || selection.has_permits && request.cost() > 0;
        // Before anything is charged: what cannot be written down could not be given back elsewhere.
        if is_held && !hold::has_token(&verdict.snapshot, selection, is_reservation) {
            verdict.refuse(StoredReason::ReceiptTooLong);
            return None;
        }
        Some(name)
    }

    /// Asks the store for all entries at once; `None` if it has answered already.
    #[inline]
    fn ask_store<'a, 'e: 'a>(
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
        check: &AnsweredCheck<'_>,
        answer: Result<(), StoreError>,
        marks: Marks<'_>,
        decisions: &mut Decisions,
    ) -> Conclusion {
        let &AnsweredCheck { snapshot, request, selection, entries } = check;
        if let Err(failure) = answer {
            if let Some(reason) = refusal(&failure) {
                return Conclusion { refusal: Some(reason), ..Conclusion::default() };
            }
            let hold = outage::decide(snapshot, request, selection, self.local(), decisions);
            tallies::count(snapshot, decisions);
            return Conclusion { hold, failure: Some(failure), ..Conclusion::default() };
        }
        let (mut is_denied, mut clears, mut would_wait) = (false, false, false);
        for (at, (selected, entry)) in selection.limits.iter().zip(entries).enumerate() {
            let Some(decision) = entry.decision() else {
                continue;
            };
            if selected.enforcement == Enforcement::Live && !decision.is_allowed() {
                let top = &snapshot.plan(selected.rule).top;
                let is_denial = entry.alternative().is_none() || !has_paid(entries, entry);
                if request.only_asks_whether_to_wait(entry.policy()) {
                    would_wait |= is_denial;
                } else if is_denial && selection.speaks_for_rule(at) {
                    top.record(entry.key());
                }
                is_denied |= is_denial;
                if let Some(by) = ahead_of_clock::excess_wait(entry.policy(), &decision) {
                    let rule = &snapshot.rule(selected.rule).name;
                    clears |= self.record_ahead(rule, &top.ahead_of_clock, by);
                }
            }
            let mut limit = selected.with_decision(decision);
            (limit.source, limit.pays) = (entry.source(), entry.is_paid());
            decisions.push(limit);
        }
        // A request that would have to wait is not counted as denied: it is checked again when it may wait.
        if !would_wait {
            tallies::count(snapshot, decisions);
        }
        let hold = match marks.hold {
            _ if is_denied => None,
            Some(_) => Some(Hold::of_reservation(marks, check)),
            None if selection.has_permits => Hold::of_permits(entries, marks, false),
            None => None,
        };
        let repeat_of = entries.first().and_then(Entry::repeat_of);
        Conclusion { hold, clears, repeat_of, ..Conclusion::default() }
    }
}

impl Verdict {
    /// Denies for a reason that no wait helps, and no other cost: what is missing or wrong has to be
    /// sent otherwise.
    fn refuse(&mut self, reason: StoredReason) {
        (self.outcome, self.reason) = (Outcome::Busy, reason);
    }

    /// Decides without the store if it can. Returns true if no store is needed.
    #[inline]
    fn decide_without_store(&mut self, selection: &Selection) -> bool {
        self.permit_limits_skipped = selection.permit_limits_skipped;
        (self.outcome, self.reason) = match selection.denial {
            Some(denial) => {
                if let Some(rule) = denial.denying_rule() {
                    self.snapshot.tally(rule, Tier::Rule).refused();
                }
                (denial.outcome(), denial)
            }
            None => (Outcome::Allow, selection.pass_reason.unwrap_or(StoredReason::NoRule)),
        };
        selection.denial.is_some() || selection.limits.is_empty()
    }

    /// Takes the outcome from the one decision that was made, which is of a live rule.
    #[inline]
    fn bind_only_one(&mut self) {
        (self.reason, self.binding) = (StoredReason::Limits, Some(0));
        if let [only] = &*self.decisions {
            self.outcome = only.decision.outcome();
        }
    }

    /// Says which decision binds, now that all are made, and returns what is held. Decisions are in the
    /// order of the rules, so of equals the first binds.
    #[inline]
    fn finish(&mut self, conclusion: Conclusion) -> Option<Hold> {
        let Conclusion { hold, failure, refusal, clears: _, repeat_of } = conclusion;
        if let Some(reason) = refusal {
            self.refuse(reason);
            return None;
        }
        (self.failure, self.repeat_of) = (failure, repeat_of);
        let binding = binding_place(&self.decisions, |limit| {
            let is_live = limit.enforcement == Enforcement::Live;
            is_live.then_some((limit.alternative, limit.decision))
        });
        if let Some(at) = binding {
            let outcome = self.decisions[at].decision.outcome();
            (self.outcome, self.reason) = (outcome, StoredReason::Limits);
            self.binding = Some(at);
        }
        hold
    }
}

/// The reason to deny a request that the store cannot handle. `None` for an outage, which the rules'
/// failure policies answer.
fn refusal(error: &StoreError) -> Option<StoredReason> {
    match error {
        StoreError::RequestIdReused => Some(StoredReason::RequestIdReused),
        StoreError::BatchTooLarge { entries, .. } => {
            Some(StoredReason::TooManyLimits { count: *entries })
        }
        StoreError::CrossSlot { .. } => Some(StoredReason::CrossSlot),
        error => (!error.is_outage()).then_some(StoredReason::Unsupported),
    }
}

/// Returns true if an alternative of the group of `entry` pays.
#[cold]
fn has_paid(entries: &[Entry<'_>], entry: &Entry<'_>) -> bool {
    let group = |entry: &Entry<'_>| {
        entry.alternative().map(|alternative| (alternative.group, entry.role()))
    };
    entries.iter().any(|other| group(other) == group(entry) && other.is_paid())
}

/// Fills the entries in place: they are kilobytes of which a few words are used, and should not be
/// moved.
#[inline]
fn fill<'e>(entries: &mut Entries<'e>, snapshot: &'e Snapshot, selection: &'e Selection) {
    for selected in selection.limits.iter().take(POLICIES_PER_REQUEST_MAX) {
        entries.push(selected.entry(snapshot, selection));
    }
}

impl SelectedLimit {
    /// The entry of a batch that asks for this limit.
    #[inline]
    pub(crate) fn entry<'e>(&self, snapshot: &'e Snapshot, selection: &'e Selection) -> Entry<'e> {
        let key = &selection.keys[self.key.0..self.key.1];
        let role = match self.enforcement {
            Enforcement::Live => Role::Enforce,
            Enforcement::Shadow | Enforcement::Candidate => Role::Shadow,
        };
        let policy = selection.policy(self, snapshot);
        let entry = Entry::new(key, policy).with_cost(self.cost).with_role(role);
        if let Some(alternative) = self.alternative {
            return entry.with_alternative(alternative);
        }
        match self.accuracy(snapshot) {
            Accuracy::Exact => entry,
            accuracy => entry.with_accuracy(accuracy),
        }
    }

    /// The limit as its rule says it.
    pub(crate) fn limit<'s>(&self, snapshot: &'s Snapshot) -> &'s Limit {
        let rule = snapshot.rule(self.rule);
        match self.enforcement {
            Enforcement::Candidate => &rule.candidate[self.limit],
            Enforcement::Live | Enforcement::Shadow => &rule.limits_of(self.tier)[self.limit],
        }
    }

    /// What of it is reserved for more critical requests.
    pub(crate) fn reserve(&self, snapshot: &Snapshot) -> Option<Reserve> {
        self.limit(snapshot).options().reserve
    }

    /// How exactly it is counted.
    #[inline]
    pub(crate) fn accuracy(&self, snapshot: &Snapshot) -> Accuracy {
        let accuracies = match self.enforcement {
            Enforcement::Live | Enforcement::Shadow => {
                snapshot.accuracies(self.rule, self.tier, self.boost)
            }
            Enforcement::Candidate => &snapshot.plan(self.rule).candidate().accuracies,
        };
        accuracies.get(self.limit).copied().unwrap_or_default()
    }

    #[inline]
    pub(crate) fn policy<'s>(&self, snapshot: &'s Snapshot) -> &'s Policy {
        match (self.enforcement, snapshot.policies(self.rule, self.tier, self.boost)) {
            (Enforcement::Live | Enforcement::Shadow, Some(policies)) => &policies[self.limit],
            _ => &snapshot.plan(self.rule).candidate().whole[self.limit],
        }
    }

    #[inline]
    pub(crate) fn with_decision(&self, decision: Decision) -> LimitDecision {
        let tier = match self.tier {
            Tier::Rule => u32::MAX,
            Tier::At(at) => at as u32,
        };
        let Self { rule, limit, enforcement, cost, alternative, .. } = *self;
        let (limit, source, pays) = (limit as u32, Source::Store, decision.is_allowed());
        LimitDecision { rule, tier, limit, enforcement, source, cost, decision, alternative, pays }
    }
}
