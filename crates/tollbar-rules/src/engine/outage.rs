//! What the rules say while the store cannot answer: each as it declared, and marked.

use std::borrow::Cow;
use std::sync::Arc;

use arrayvec::ArrayVec;
use tollbar::charge::Marks;
use tollbar::{
    Accuracy, Batch, Decision, Degraded, Entry, MemoryStore, Outcome, Policy, Role, Store,
};

use super::AsyncEngine;
use super::hold::Hold;
use super::selection::{SelectedLimit, Selection};
use crate::rule_set::POLICIES_PER_REQUEST_MAX;
use crate::snapshot::Snapshot;
use crate::verdict::{Decisions, Enforcement, LimitDecision, mark_paid};
use crate::{OnOutage, Request};

/// How long a client that was turned away unseen is told to wait.
const RETRY_AFTER_US: u64 = 1_000_000;

/// How many keys this process counts while the store cannot answer.
const LOCAL_KEYS_MAX: usize = 100_000;

impl AsyncEngine {
    /// The store of this node's shares. It is made at the first outage: most engines never need one.
    pub(super) fn local(&self) -> &MemoryStore {
        let store = || {
            MemoryStore::builder().clock(Arc::clone(&self.clock)).max_keys(LOCAL_KEYS_MAX).build()
        };
        self.local.get_or_init(store)
    }
}

/// Writes the decisions in the store's place, and returns the permits that are held. A share is charged only if no
/// other rule denies.
#[cold]
pub(super) fn decide(
    snapshot: &Snapshot,
    request: &Request<'_>,
    selection: &Selection,
    local: &dyn Store,
    decisions: &mut Decisions,
) -> Option<Hold> {
    decisions.extend(
        selection.limits.iter().map(|selected| uncounted_decision(snapshot, selection, selected)),
    );
    let is_denied = decisions.chunk_by(LimitDecision::is_of_same_rule).any(denies_without_share);
    let limits = selection.limits.iter();
    let lowered =
        |selected| selection.lowered(selected, share(snapshot, selected), request, snapshot);
    let shares: Vec<Cow<'_, Policy>> = limits.map(lowered).collect();
    let mut places: ArrayVec<usize, POLICIES_PER_REQUEST_MAX> = ArrayVec::new();
    let mut entries: ArrayVec<Entry<'_>, POLICIES_PER_REQUEST_MAX> = ArrayVec::new();
    for (at, selected) in selection.limits.iter().enumerate().take(POLICIES_PER_REQUEST_MAX) {
        // The local store sees the alternatives of a rule as one group, also those that never pass.
        if is_share(&decisions[at]) || is_beside_share(decisions, at) {
            places.push(at);
            // Where the request is denied already, the shares are only looked at.
            let cost = if is_denied { 0 } else { selected.cost };
            let key = &selection.keys[selected.key.0..selected.key.1];
            let role = if selected.enforcement == Enforcement::Live {
                Role::Enforce
            } else {
                Role::Shadow
            };
            let entry = Entry::new(key, &shares[at]).with_cost(cost).with_role(role);
            entries.push(match selected.alternative {
                Some(alternative) => entry.with_alternative(alternative),
                None => entry,
            });
        }
    }
    // Should this store fail too, nothing is left to count with, and the blind denial stands.
    if local.decide(Batch::all_or_none(&mut entries)).wait().is_ok() {
        for (at, entry) in places.iter().zip(&entries) {
            if let Some(decision) = entry.decision().filter(|_| is_share(&decisions[*at])) {
                decisions[*at].decision = decision.into_degraded(Degraded::Fallback);
            }
        }
        // All or none: a denied batch has charged nothing.
        mark_paid(decisions);
        if !decisions.iter().any(|limit| limit.denies_live(decisions)) {
            return Hold::of_permits(&entries, Marks::default(), true);
        }
    } else {
        for at in places {
            decisions[at].decision = decisions[at].decision.into_degraded(Degraded::Denied);
        }
        mark_paid(decisions);
    }
    None
}

/// Returns true if the limits of one rule deny the request whatever their shares say: one of them does or, of
/// alternatives, one in each.
fn denies_without_share(limits: &[LimitDecision]) -> bool {
    let denies = |limit: &LimitDecision| {
        limit.enforcement == Enforcement::Live && !is_share(limit) && !limit.decision.is_allowed()
    };
    limits.chunk_by(|a, b| a.alternative == b.alternative).all(|limits| limits.iter().any(denies))
}

/// Returns true if a share is counted of another alternative of the rule.
fn is_beside_share(decisions: &[LimitDecision], at: usize) -> bool {
    let limit = &decisions[at];
    limit.alternative.is_some()
        && decisions.iter().any(|other| other.is_of_same_rule(limit) && is_share(other))
}

/// What a rule says that sees no counter. For `local` it is a denial, until its share is asked.
fn uncounted_decision(
    snapshot: &Snapshot,
    selection: &Selection,
    selected: &SelectedLimit,
) -> LimitDecision {
    let deny = Outcome::Deny { retry_after_us: RETRY_AFTER_US };
    let policy = selection.policy(selected, snapshot);
    let (outcome, degraded) = match snapshot.rule(selected.rule).on_store_failure {
        // It would not pass if the store answered.
        _ if selected.cost > policy.capacity() => (Outcome::Never, Degraded::Denied),
        // It needs no store, and was asked together with what does.
        _ if selected.accuracy(snapshot) == Accuracy::Local => (deny, Degraded::Fallback),
        OnOutage::Local => (deny, Degraded::Fallback),
        OnOutage::Deny => (deny, Degraded::Denied),
        OnOutage::Shed { keep } if selection.criticality < keep => (deny, Degraded::Denied),
        OnOutage::Allow | OnOutage::Shed { .. } => (Outcome::Allow, Degraded::Allowed),
    };
    selected.with_decision(Decision::uncounted(outcome, policy.limit(), degraded))
}

/// Returns true if this process counts a share of the limit.
fn is_share(decision: &LimitDecision) -> bool {
    decision.decision.degraded() == Some(Degraded::Fallback)
}

fn share<'s>(snapshot: &'s Snapshot, selected: &SelectedLimit) -> &'s Policy {
    let plan = snapshot.plan(selected.rule);
    match selected.enforcement {
        Enforcement::Live | Enforcement::Shadow => &plan.shares(selected.tier)[selected.limit],
        Enforcement::Candidate => &plan.candidate().shares[selected.limit],
    }
}
