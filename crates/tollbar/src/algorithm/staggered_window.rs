//! Staggered window: a fixed window that begins at another moment for every key.
//!
//! With plain windows all clients that were denied come back at the same instant, the boundary.
//! Here each key has a boundary of its own, spread evenly over the window, and each still gets
//! `limit` per window. What holds for one key of a fixed window holds here.
//!
//! The moment follows from the key's bytes alone, by a public function ([`stagger_us`]): every
//! store and every process has the same. It is no secret and protects nothing.

use super::counted_window::{CountedWindow, Windows};
use crate::fnv::fnv1a_spread;

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

/// So many in each window of the key's own.
pub(crate) type StaggeredWindow = CountedWindow<StaggeredWindows>;

/// Windows of one length, begun at a moment of the key's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StaggeredWindows {
    window_us: u64,
    /// Zero until it is bound to a key.
    stagger_us: u64,
}

impl StaggeredWindow {
    pub(crate) fn new(limit: u64, window_us: u64) -> Self {
        Self { limit, windows: StaggeredWindows { window_us, stagger_us: 0 } }
    }

    /// The same for one key: what a check counts with.
    #[inline]
    pub(crate) fn for_key(&self, key: &[u8]) -> Self {
        let window_us = self.windows.window_us;
        let windows = StaggeredWindows { window_us, stagger_us: stagger_us(key, window_us) };
        Self { limit: self.limit, windows }
    }
}

impl Windows for StaggeredWindows {
    const NAME: &'static str = NAME;

    fn window_us(&self) -> u64 {
        self.window_us
    }

    #[inline(always)]
    fn start_us(&self, at_us: u64) -> u64 {
        match at_us.checked_sub(self.stagger_us) {
            Some(since_us) => self.stagger_us + since_us / self.window_us * self.window_us,
            None => 0,
        }
    }

    #[inline(always)]
    fn end_us(&self, at_us: u64) -> u64 {
        if at_us < self.stagger_us {
            return self.stagger_us;
        }
        self.start_us(at_us) + self.window_us
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::counted_window::WindowCount;
    use super::super::word::{WordParts, WordState, count_max};
    use super::*;
    use crate::Timestamp;

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
            now_us in prop_oneof![0_u64..200, 0_u64..=Timestamp::MAX.as_micros()],
        ) {
            let window = StaggeredWindow::new(1, window_us).for_key(&key);
            let stagger_us = window.windows.stagger_us;
            prop_assert!(stagger_us < window_us);
            let end_us = window.windows.end_us(now_us);
            prop_assert!(now_us < end_us && end_us - now_us <= window_us);
            prop_assert_eq!(end_us % window_us, stagger_us);
            let shift = window.shift();
            let state = WindowCount { end_us, count: count_max(shift) };
            let word = window.pack(state).to_word(shift);
            prop_assert_eq!(window.unpack(WordParts::from_word(word, shift)), state);
            prop_assert_eq!(window.unpack(WordParts::from_word(0, shift)), WindowCount::default());
        }
    }
}
