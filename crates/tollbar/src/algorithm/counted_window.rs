//! Windows that count from zero: fixed, staggered and calendar windows are this one algorithm, and
//! differ only in where their windows begin and end.

use std::fmt;

use super::word::{
    DecisionBasis, NUMBER_MAX, Step, TIME_MAX, WordParts, WordState, count_max, window_shift,
};
use super::{Algorithm, Refund};
use crate::{Decision, Outcome, Timestamp};

/// Where windows begin and end: they follow each other without a gap.
pub(crate) trait Windows: fmt::Debug + Send + Sync + 'static {
    /// The name of the algorithm.
    const NAME: &'static str;

    /// See [`Algorithm::variant`].
    fn variant(&self) -> u64 {
        0
    }

    /// The length as it is reported to clients.
    fn window_us(&self) -> u64;

    /// The least length there is.
    fn shortest_us(&self) -> u64 {
        self.window_us()
    }

    /// The last instant not after `at_us` at which a window begins; 0 where there is none.
    fn start_us(&self, at_us: u64) -> u64;

    /// The end of the window that `at_us` is in.
    fn end_us(&self, at_us: u64) -> u64;
}

/// So many in each window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CountedWindow<W> {
    pub(super) limit: u64,
    pub(super) windows: W,
}

/// The count of one window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WindowCount {
    pub(super) end_us: u64,
    pub(super) count: u64,
}

impl<W: Windows + Clone> CountedWindow<W> {
    /// The same windows with another limit.
    pub(crate) fn with_limit(&self, limit: u64) -> Self {
        Self { limit, windows: self.windows.clone() }
    }
}

impl<W: Windows> CountedWindow<W> {
    pub(crate) fn fits_word(&self) -> bool {
        self.limit <= count_max(self.shift())
    }

    /// The latest end that fits a word when it is rounded up.
    fn end_us_max(&self) -> u64 {
        TIME_MAX >> self.shift() << self.shift()
    }

    /// The state as of `now_us`. A window that has not ended is in force, even if the clock has
    /// gone back before it.
    #[inline(always)]
    fn at(&self, state: WindowCount, now_us: u64) -> WindowCount {
        if state.end_us > now_us {
            return state;
        }
        WindowCount { end_us: self.windows.end_us(now_us), count: 0 }
    }
}

impl<W: Windows> WordState for CountedWindow<W> {
    type State = WindowCount;

    fn shift(&self) -> u32 {
        window_shift(self.windows.shortest_us())
    }

    #[inline(always)]
    fn step(&self, state: WindowCount, now_us: u64, cost: u64) -> Step<WindowCount> {
        let WindowCount { end_us, count } = self.at(state, now_us);
        let remaining = self.limit.saturating_sub(count);
        let (outcome, remaining, next) = if cost > self.limit {
            (Outcome::Never, remaining, None)
        } else if cost == 0 {
            (Outcome::Allow, remaining, None)
        } else if cost <= remaining {
            let next = WindowCount { end_us, count: count + cost };
            (Outcome::Allow, remaining - cost, Some(next))
        } else {
            (Outcome::Deny { retry_after_us: end_us - now_us }, remaining, None)
        };
        Step { outcome, next, basis: DecisionBasis { amount: remaining, end_us, excess_us: 0 } }
    }

    #[inline(always)]
    fn is_heavy(&self, basis: &DecisionBasis) -> bool {
        basis.amount * 2 < self.limit
    }

    fn fits(&self, state: WindowCount) -> bool {
        state.count <= count_max(self.shift()) && state.end_us <= self.end_us_max()
    }

    #[inline(always)]
    fn pack(&self, state: WindowCount) -> WordParts {
        WordParts { fresh_at_us: state.end_us, payload: state.count }
    }

    /// The stored end was rounded up by less than 2^shift, which is at most an eighth of the
    /// shortest window. So it lies in the window that begins at the exact end, whichever length
    /// that one has, and the beginning of the window it lies in gives the exact end back.
    ///
    /// A month, in units of 2^38 us (3 d 4 h): the end 2024-03-01 is stored as 2024-03-02 or so,
    /// and March begins on 2024-03-01. A fresh word is 0, and stays 0.
    #[inline(always)]
    fn unpack(&self, parts: WordParts) -> WindowCount {
        WindowCount { end_us: self.windows.start_us(parts.fresh_at_us), count: parts.payload }
    }

    fn from_words(words: &[u64]) -> WindowCount {
        WindowCount { end_us: words[0].min(NUMBER_MAX), count: words[1].min(NUMBER_MAX) }
    }

    fn to_words(state: WindowCount, words: &mut [u64]) {
        words[..2].copy_from_slice(&[state.end_us, state.count]);
    }
}

impl<W: Windows> Algorithm for CountedWindow<W> {
    fn name(&self) -> &'static str {
        W::NAME
    }

    fn variant(&self) -> u64 {
        self.windows.variant()
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn window_us(&self) -> u64 {
        self.windows.window_us()
    }

    fn words(&self) -> usize {
        2
    }

    fn transition(&self, state: &mut [u64], now: Timestamp, cost: u64) -> Decision {
        self.transition_words(state, now, cost)
    }

    /// The end of the window it is counted in.
    fn stamp(&self, state: &[u64]) -> u64 {
        Self::from_words(state).end_us
    }

    fn refund(&self, state: &mut [u64], now: Timestamp, stamp: u64, amount: u64) -> Refund {
        let WindowCount { end_us, count } = Self::from_words(state);
        if stamp != end_us || end_us <= now.as_micros() {
            return Refund::default();
        }
        let refunded = amount.min(count);
        Self::to_words(WindowCount { end_us, count: count - refunded }, state);
        Refund { tokens: refunded, sooner_us: 0 }
    }

    fn overdraw(&self, state: &mut [u64], now: Timestamp, amount: u64) -> u64 {
        let WindowCount { end_us, count } = self.at(Self::from_words(state), now.as_micros());
        let charged = amount.min(NUMBER_MAX - count);
        Self::to_words(WindowCount { end_us, count: count + charged }, state);
        charged
    }

    fn fresh_at(&self, state: &[u64]) -> Timestamp {
        Timestamp::from_micros(Self::from_words(state).end_us)
    }
}
