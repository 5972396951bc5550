//! Where a limiter goes wrong: the instants next to its boundaries and the costs next to what is
//! left.
//!
//! A move is chosen before the run and becomes a time and a cost during it, from the last answer.
//! So the generator of vectors and the property tests aim at the same spots.

use tollbar::{Outcome, Policy, Timestamp};

use crate::answer::Answer;

/// How the clock moves before a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advance {
    /// Not at all.
    Stay,
    /// By so many microseconds.
    Ticks(u64),
    /// By so many 256ths of a token's due time.
    Tokens(u64),
    /// To the moment a denied request may come back, give or take.
    Retry(i8),
    /// To the moment the counter is reset, give or take.
    Reset(i8),
    /// To the next multiple of the window, give or take.
    Boundary(i8),
    /// By so many 16ths of a window.
    Windows(u64),
    /// By as long as a key is idle until it is new again, give or take.
    Idle(i8),
    /// By so many 16ths of that.
    Warming(u64),
    /// Back by so many microseconds.
    BackTicks(u64),
    /// Back by so many 16ths of a window.
    BackWindows(u64),
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Price {
    /// Just so many.
    Exactly(u64),
    /// What the last answer said is left, and so many more.
    Remaining(u64),
    /// All that can ever pass, and so many more.
    Capacity(u64),
    /// So many 16ths of all that can ever pass.
    Share(u64),
    /// The largest number there is.
    Most,
}

/// How a run stands: what the next move is reckoned from.
#[derive(Debug, Clone, Copy)]
pub struct TraceState {
    /// The clock.
    pub now: Timestamp,
    /// The last answer, if there was one.
    pub last: Option<Answer>,
}

impl TraceState {
    /// A run that begins at `now`.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        Self { now, last: None }
    }

    /// The time after the move. Only the two `Back` moves ever go back.
    #[must_use]
    pub fn advanced(&self, advance: Advance, policy: &Policy) -> Timestamp {
        let now_us = self.now.as_micros();
        let over_us = policy.warm_up().map_or(0, |warm_up| warm_up.over.as_micros() as u64);
        // Permits have no window: what time does for them it does when a lease ends, or never.
        let window_us = match policy.window().as_micros() as u64 {
            0 => policy.lease_ttl().map_or(1_000_000, |ttl| ttl.as_micros() as u64),
            window_us => window_us,
        };
        let near =
            |goal_us: u64, offset: i8| goal_us.saturating_add_signed(offset.into()).max(now_us);
        let later = |steps: u64, part_us: u64| now_us.saturating_add(part_us.saturating_mul(steps));
        let to_us = match advance {
            Advance::Stay => now_us,
            Advance::Ticks(ticks) => now_us.saturating_add(ticks),
            Advance::Tokens(parts) => later(parts, window_us / policy.limit().max(1) / 256),
            Advance::Retry(offset) if policy.lease_ttl().is_some() => {
                near(now_us.saturating_add(window_us), offset)
            }
            Advance::Retry(offset) => near(now_us.saturating_add(self.retry_after_us()), offset),
            Advance::Reset(offset) => {
                near(self.last.map_or(now_us, |answer| answer.reset_at.as_micros()), offset)
            }
            Advance::Boundary(offset) => {
                near((now_us / window_us).saturating_add(1).saturating_mul(window_us), offset)
            }
            Advance::Windows(parts) => later(parts, window_us / 16),
            Advance::Idle(offset) => near(now_us.saturating_add(over_us), offset),
            Advance::Warming(parts) => later(parts, over_us / 16),
            Advance::BackTicks(ticks) => now_us.saturating_sub(ticks),
            Advance::BackWindows(parts) => {
                now_us.saturating_sub((window_us / 16).saturating_mul(parts))
            }
        };
        Timestamp::from_micros(to_us).clamp_to_clock()
    }

    /// The cost asked for.
    #[must_use]
    pub fn cost(&self, price: Price, policy: &Policy) -> u64 {
        let capacity = policy.capacity();
        match price {
            Price::Exactly(cost) => cost,
            Price::Remaining(more) => {
                self.last.map_or(1, |answer| answer.remaining).saturating_add(more)
            }
            Price::Capacity(more) => capacity.saturating_add(more),
            Price::Share(parts) => (capacity / 16).saturating_mul(parts),
            Price::Most => u64::MAX,
        }
    }

    fn retry_after_us(&self) -> u64 {
        match self.last.map(|answer| answer.outcome) {
            Some(Outcome::Deny { retry_after_us }) => retry_after_us,
            _ => 0,
        }
    }
}
