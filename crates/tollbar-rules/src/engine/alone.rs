//! The usual request, sooner: one rule matches, it is plain, and the store is in memory.
//!
//! Decides what the general way would decide and leaves to it whatever it is not sure of.

use tollbar::Store;

use super::Engine;
use crate::matcher::ItemId;
use crate::subject::{Found, KeyBuffer};
use crate::tally::is_near;
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
        let sketch = snapshot.sketch(rule);
        let Some(policy) = sketch.plain() else {
            return false;
        };
        let mut key = KeyBuffer::new();
        if sketch.recipe.write(request, &mut key) != Found::Key {
            return false;
        }
        let cost = snapshot.cost(rule, request);
        let Ok(decision) = memory.check(&key, policy, cost).wait() else {
            return false;
        };
        let is_allowed = decision.is_allowed();
        if !is_allowed {
            snapshot.plan(rule).top.record(&key);
        }
        let is_near = || is_near(decision.remaining(), policy.capacity());
        sketch.tally.decided(is_allowed, cost, is_near);
        let (tier, limit, capacity) = (u32::MAX, 0, Capacity::Live);
        made.push(Made { rule, tier, limit, capacity, cost, decision, degraded: None });
        (verdict.outcome, verdict.reason) = (decision.outcome(), Why::Limits);
        verdict.binding = Some(0);
        true
    }
}
