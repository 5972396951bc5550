//! The fast path for the usual request: one rule matches, it is plain, and the store is in memory.
//!
//! Decides what the general way would decide and leaves to it whatever it is not sure of.

use std::borrow::Cow;

use tollbar::{Decision, Outcome, Source, Store, Timestamp};

use super::AsyncEngine;
use super::ahead_of_clock::excess_wait;
use crate::Request;
use crate::matcher::ItemId;
use crate::rule::subject::{KeyBuffer, SubjectKey};
use crate::snapshot::Snapshot;
use crate::snapshot::tally::is_near;
use crate::verdict::{Decisions, Enforcement, LimitDecision};

/// What stands in a decision's place until it is made.
const UNDECIDED: Decision = Decision::new(Outcome::Never, 0, 0, Timestamp::ZERO);

impl AsyncEngine {
    /// Makes the only decision where one plain rule matches and memory answers; false, with nothing
    /// done, where that is not so.
    #[inline]
    pub(super) fn decide_single_rule(
        &self,
        request: &Request<'_>,
        snapshot: &Snapshot,
        matching: &[ItemId],
        decisions: &mut Decisions,
    ) -> bool {
        let (Some(memory), &[rule], None) = (&self.memory, matching, request.request_id()) else {
            return false;
        };
        if snapshot.overrides.is_some() || request.has_ambiguous_path() {
            return false;
        }
        let core = snapshot.core(rule);
        let Some(policy) = core.plain() else {
            return false;
        };
        if matches!(request.cap_wait(policy), Cow::Owned(_)) {
            return false;
        }
        let mut key = KeyBuffer::new();
        if core.recipe.write(request, &mut key) != SubjectKey::Written
            || snapshot.has_invalid_cost(rule, request)
        {
            return false;
        }
        let cost = snapshot.cost(rule, request);
        decisions.push(LimitDecision {
            rule,
            tier: u32::MAX,
            limit: 0,
            enforcement: Enforcement::Live,
            source: Source::Store,
            cost,
            decision: UNDECIDED,
            alternative: None,
            pays: true,
        });
        let decision = &mut decisions[0].decision;
        memory.check_now_into(&key, policy, cost, decision);
        let is_allowed = decision.is_allowed();
        if !is_allowed {
            let top = &snapshot.plan(rule).top;
            top.record(&key);
            if let Some(by) = excess_wait(policy, decision)
                && self.record_ahead(&snapshot.rule(rule).name, &top.ahead_of_clock, by)
            {
                self.ahead.clear(memory.reset(&key, policy).wait());
            }
        }
        let is_near = || is_near(decision, policy.capacity());
        core.tally.decided(is_allowed, cost, is_near);
        true
    }
}
