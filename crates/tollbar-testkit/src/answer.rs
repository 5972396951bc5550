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
    /// In a queue, how long an allowed request waits for its turn; zero elsewhere.
    pub delay_us: u64,
}

impl From<Decision> for Answer {
    /// # Panics
    /// If the decision is degraded: nothing judged here may be.
    fn from(decision: Decision) -> Self {
        assert_eq!(decision.degraded(), None, "a store answered with a degraded decision");
        Self {
            outcome: decision.outcome(),
            limit: decision.limit(),
            remaining: decision.remaining().unwrap_or(0),
            reset_at: decision.reset_at().unwrap_or(Timestamp::ZERO),
            delay_us: decision.delay().as_micros() as u64,
        }
    }
}

impl From<Answer> for Decision {
    fn from(answer: Answer) -> Self {
        Self::new(answer.outcome, answer.limit, answer.remaining, answer.reset_at)
            .with_delay_us(answer.delay_us)
    }
}
