//! Fixed window: `limit` in each window of the clock, windows aligned to 1970.
//!
//! Cheap and easy to explain, and its weakness is as well: `limit` just before a boundary and
//! `limit` just after it pass, twice the limit within a moment. Choose it for quotas, not for
//! logins. The retry-after is exact: the window's end.

use super::Algorithm;
use super::staggered_window::StaggeredWindow;
use super::window_count::{self, WindowCount};
use super::word::{Parts, Step, WordState, count_max, window_shift};
use crate::units::Rate;
use crate::{Decision, PolicyError, Timestamp};

/// The algorithm's name.
pub const NAME: &str = "fixed_window";

/// The numbers of one fixed window policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FixedWindow {
    limit: u64,
    window_us: u64,
}

impl FixedWindow {
    pub(crate) fn new(rate: Rate) -> Result<Self, PolicyError> {
        Ok(Self { limit: rate.whole_limit()?, window_us: rate.window_us })
    }

    /// The same limit in windows that begin at another moment for every key.
    pub(crate) fn staggered(&self) -> StaggeredWindow {
        StaggeredWindow::new(self.limit, self.window_us)
    }

    pub(crate) fn fits_word(&self) -> bool {
        self.limit <= count_max(self.shift())
    }
}

/// The end of the window that `now_us` is in; the windows are aligned to 1970.
#[inline]
pub(super) fn window_end_us(now_us: u64, window_us: u64) -> u64 {
    (now_us / window_us + 1) * window_us
}

impl WordState for FixedWindow {
    type State = WindowCount;

    fn shift(&self) -> u32 {
        window_shift(self.window_us)
    }

    #[inline(always)]
    fn step(&self, state: WindowCount, now_us: u64, cost: u64) -> Step<WindowCount> {
        state.step(self.limit, now_us, cost, |now_us| window_end_us(now_us, self.window_us))
    }

    fn fits(&self, state: WindowCount) -> bool {
        state.count <= count_max(self.shift())
    }

    /// The stored end was rounded up by less than 2^shift, which is less than a window:
    /// rounding down to a multiple of the window gives the exact one back.
    #[inline(always)]
    fn unpack(&self, parts: Parts) -> WindowCount {
        let end_us = parts.fresh_at_us / self.window_us * self.window_us;
        WindowCount { end_us, count: parts.payload }
    }

    #[inline(always)]
    fn pack(&self, state: WindowCount) -> Parts {
        state.to_parts()
    }

    fn from_words(words: &[u64]) -> WindowCount {
        WindowCount::from_words(words)
    }

    fn to_words(state: WindowCount, words: &mut [u64]) {
        state.to_words(words);
    }
}

impl Algorithm for FixedWindow {
    fn name(&self) -> &'static str {
        NAME
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn window_us(&self) -> u64 {
        self.window_us
    }

    fn words(&self) -> usize {
        window_count::WORDS
    }

    fn transition(&self, state: &mut [u64], now: Timestamp, cost: u64) -> Decision {
        self.transition_words(state, now, cost)
    }

    fn fresh_at(&self, state: &[u64]) -> Timestamp {
        Timestamp::from_micros(Self::from_words(state).end_us)
    }
}
