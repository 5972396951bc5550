//! The usual request, sooner: one rule matches, it is plain, and the store is in memory.
//!
//! Decides what the general way would decide and leaves to it whatever it is not sure of.

use tollbar::Store;

use super::Engine;
use crate::matcher::ItemId;
use crate::subject::{Found, KeyBuffer, write_key};
use crate::verdict::{Capacity, Made, Why};
use crate::{Request, Verdict};

impl Engine {
    /// Makes the verdict where one plain rule matches and memory answers; false, with nothing done,
    /// where that is not so.
    #[inline]
    pub(super) fn decide_alone(
        &self,
        request: &Request<'_>,
        matching: &[ItemId],
        verdict: &mut Verdict,
    ) -> bool {
        let (Some(memory), &[rule], None) = (&self.memory, matching, request.request_id()) else {
            return false;
        };
        let Verdict { snapshot, made, .. } = verdict;
        if snapshot.overrides.is_some() {
            return false;
        }
        let Some(policy) = snapshot.sketch(rule).plain() else {
            return false;
        };
        let mut key = KeyBuffer::new();
        let its = snapshot.rule(rule);
        if write_key(&its.per, its.missing, request, &mut key) != Found::Key {
            return false;
        }
        let cost = snapshot.cost(rule, request);
        let Ok(decision) = memory.check(&key, policy, cost).wait() else {
            return false;
        };
        if !decision.is_allowed() {
            snapshot.plan(rule).top.record(&key);
        }
        let (tier, limit, capacity) = (u32::MAX, 0, Capacity::Live);
        made.push(Made { rule, tier, limit, capacity, cost, decision, degraded: None });
        (verdict.outcome, verdict.reason) = (decision.outcome(), Why::Limits);
        verdict.binding = Some(0);
        true
    }
}
