//! Staggered window: a fixed window that begins at another moment for every key.
//!
//! With plain windows all clients that were denied come back at the same instant, the boundary.
//! Here each key has a boundary of its own, spread evenly over the window, and each still gets
//! `limit` per window. What holds for one key of a fixed window holds here.
//!
//! The moment follows from the key's bytes alone, by a public function ([`stagger_us`]): every
//! store and every process has the same. It is no secret and protects nothing.

use super::Algorithm;
use super::window_count::{self, WindowCount};
use super::word::{Parts, Step, WordState, count_max, window_shift};
use crate::fnv::fnv1a_spread;
use crate::{Decision, Timestamp};

/// The algorithm's name.
pub const NAME: &str = "staggered_window";

/// How long after a multiple of `window_us` the windows of `key` begin: 0 to `window_us - 1`.
///
/// The key's FNV-1a hash in 64 bits; exclusive-or'd with itself shifted right by 32; times
/// 0x9e3779b97f4a7c15, modulo 2<sup>64</sup>; times `window_us`, in 128 bits; of that the upper 64.
///
/// ```
/// use tollbar::algorithm::staggered_window::stagger_us;
///
/// assert_eq!(stagger_us(b"user:42", 60_000_000), 9_315_726);
/// assert_eq!(stagger_us(b"user:43", 60_000_000), 55_545_083);
/// ```
#[must_use]
#[inline]
pub fn stagger_us(key: &[u8], window_us: u64) -> u64 {
    let hash = fnv1a_spread(key.iter().copied());
    ((u128::from(hash) * u128::from(window_us)) >> 64) as u64
}

/// The numbers of one staggered policy, and of one key of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StaggeredWindow {
    limit: u64,
    window_us: u64,
    /// Zero until it is bound to a key.
    stagger_us: u64,
}

impl StaggeredWindow {
    pub(crate) fn new(limit: u64, window_us: u64) -> Self {
        Self { limit, window_us, stagger_us: 0 }
    }

    /// The same for one key: what a check counts with.
    #[inline]
    pub(crate) fn for_key(&self, key: &[u8]) -> Self {
        Self { stagger_us: stagger_us(key, self.window_us), ..*self }
    }

    pub(crate) fn fits_word(&self) -> bool {
        self.limit <= count_max(self.shift())
    }

    /// The last instant not after `at_us` at which a window begins; the beginning of time where
    /// there is none.
    #[inline]
    fn start_us(&self, at_us: u64) -> u64 {
        match at_us.checked_sub(self.stagger_us) {
            Some(since_us) => self.stagger_us + since_us / self.window_us * self.window_us,
            None => 0,
        }
    }

    /// The end of the window that `now_us` is in.
    #[inline]
    fn window_end_us(&self, now_us: u64) -> u64 {
        if now_us < self.stagger_us {
            return self.stagger_us;
        }
        self.start_us(now_us) + self.window_us
    }
}

impl WordState for StaggeredWindow {
    type State = WindowCount;

    fn shift(&self) -> u32 {
        window_shift(self.window_us)
    }

    #[inline(always)]
    fn step(&self, state: WindowCount, now_us: u64, cost: u64) -> Step<WindowCount> {
        state.step(self.limit, now_us, cost, |now_us| self.window_end_us(now_us))
    }

    fn fits(&self, state: WindowCount) -> bool {
        state.count <= count_max(self.shift())
    }

    /// As in the fixed window: the stored end, rounded up by less than a window, lies in the window
    /// that begins at the exact end. Only a fresh word, 0, lies before the first beginning.
    #[inline(always)]
    fn unpack(&self, parts: Parts) -> WindowCount {
        WindowCount { end_us: self.start_us(parts.fresh_at_us), count: parts.payload }
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

impl Algorithm for StaggeredWindow {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Keys that differ in their last digits, as most do, and windows of powers of two as well.
    #[test]
    fn keys_are_spread_evenly_over_the_window() {
        for window_us in [16, 1 << 20, 1_000_000, 60_000_000, 86_400_000_000] {
            let mut counts = [0; 16];
            for key in 0..16_000 {
                let stagger_us = stagger_us(format!("user:{key}").as_bytes(), window_us);
                counts[(stagger_us * 16 / window_us) as usize] += 1;
            }
            let even = counts.iter().all(|count| (800..=1_200).contains(count));
            assert!(even, "{window_us}: {counts:?}");
        }
    }

    proptest! {
        #[test]
        fn every_end_comes_back_from_its_word(
            window_us in prop_oneof![1_u64..100, 1_u64..315_360_000_000_000],
            key: [u8; 4],
            now_us in prop_oneof![0_u64..200, 0_u64..1 << 52],
        ) {
            let window = StaggeredWindow::new(1, window_us).for_key(&key);
            prop_assert!(window.stagger_us < window_us);
            let end_us = window.window_end_us(now_us);
            prop_assert!(now_us < end_us && end_us - now_us <= window_us);
            prop_assert_eq!(end_us % window_us, window.stagger_us);
            let shift = window.shift();
            let state = WindowCount { end_us, count: count_max(shift) };
            let word = window.pack(state).to_word(shift);
            prop_assert_eq!(window.unpack(Parts::of_word(word, shift)), state);
            prop_assert_eq!(window.unpack(Parts::of_word(0, shift)), WindowCount::default());
        }
    }
}
