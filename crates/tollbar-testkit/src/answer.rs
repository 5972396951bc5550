//! An answer as the judges compare it: a decision without its type's privacy.

use tollbar::{Decision, Outcome, Timestamp};

/// Everything a [`Decision`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Allow, deny or never.
    pub outcome: Outcome,
    /// The limit reported.
    pub limit: u64,
    /// Tokens left.
    pub remaining: u64,
    /// When the counter is reset.
    pub reset_at: Timestamp,
}

impl From<Decision> for Answer {
    /// # Panics
    /// If the decision is degraded: nothing judged here may be.
    fn from(decision: Decision) -> Self {
        assert_eq!(decision.degraded(), None, "a store answered with a degraded decision");
        Self {
            outcome: decision.outcome(),
            limit: decision.limit(),
            remaining: decision.remaining(),
            reset_at: decision.reset_at(),
        }
    }
}

impl From<Answer> for Decision {
    fn from(answer: Answer) -> Self {
        Self::new(answer.outcome, answer.limit, answer.remaining, answer.reset_at)
    }
}
