//! The state of a window that counts from zero, and its step: whatever the windows are, they
//! differ only in where they end.

use super::word::{Basis, NUMBER_MAX, Parts, Step};
use crate::Outcome;

/// Words of the wide form.
pub(super) const WORDS: usize = 2;

/// The count of one window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WindowCount {
    pub(super) end_us: u64,
    pub(super) count: u64,
}

impl WindowCount {
    /// The pure step; `window_end_us` is asked for the end of the window that `now_us` is in only
    /// where a new one begins.
    #[inline(always)]
    pub(super) fn step(
        self,
        limit: u64,
        now_us: u64,
        cost: u64,
        window_end_us: impl FnOnce(u64) -> u64,
    ) -> Step<Self> {
        // A window that has not ended is in force, even if the clock has gone back before it.
        let Self { end_us, count } = if self.end_us > now_us {
            self
        } else {
            Self { end_us: window_end_us(now_us), count: 0 }
        };
        let remaining = limit.saturating_sub(count);
        let (outcome, remaining, next) = if cost > limit {
            (Outcome::Never, remaining, None)
        } else if cost == 0 {
            (Outcome::Allow, remaining, None)
        } else if cost <= remaining {
            let next = Self { end_us, count: count + cost };
            (Outcome::Allow, remaining - cost, Some(next))
        } else {
            (Outcome::Deny { retry_after_us: end_us - now_us }, remaining, None)
        };
        Step { outcome, next, basis: Basis { amount: remaining, end_us } }
    }

    #[inline(always)]
    pub(super) fn to_parts(self) -> Parts {
        Parts { fresh_at_us: self.end_us, payload: self.count }
    }

    pub(super) fn from_words(words: &[u64]) -> Self {
        Self { end_us: words[0].min(NUMBER_MAX), count: words[1].min(NUMBER_MAX) }
    }

    pub(super) fn to_words(self, words: &mut [u64]) {
        words[..WORDS].copy_from_slice(&[self.end_us, self.count]);
    }
}
