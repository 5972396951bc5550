//! How old a key is: when it was born, and when it will be new again.

use crate::algorithm::word::NUMBER_MAX;

/// How many words of state a life is.
pub(crate) const LIFE_WORDS: usize = 2;

/// All zeros is a key that was never charged.
///
/// What is kept is not the last charge but when the key is new again: like the end of a window, it
/// follows from the rule under which it was charged, and so does when a store may forget it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Life {
    /// The first charge since it was new.
    born_us: u64,
    new_at_us: u64,
}

impl Life {
    pub(crate) fn from_words(words: &[u64]) -> Self {
        let [born_us, new_at_us] = [0, 1].map(|at| words[at].min(NUMBER_MAX));
        Self { born_us, new_at_us }
    }

    pub(crate) fn to_words(self, words: &mut [u64]) {
        words.copy_from_slice(&[self.born_us, self.new_at_us]);
    }

    pub(super) fn born_us(self) -> u64 {
        self.born_us
    }

    /// From when on the key is new again if it is charged nothing.
    pub(crate) fn new_at_us(self) -> u64 {
        self.new_at_us
    }

    /// Zero for a new key, and where the clock has gone back to before the birth.
    pub(super) fn age_us(self, at_us: u64) -> u64 {
        if at_us >= self.new_at_us { 0 } else { at_us.saturating_sub(self.born_us) }
    }

    /// After a charge, under a rule by which a key is new after `over_us`.
    pub(super) fn charged(self, now_us: u64, over_us: u64) -> Self {
        let born_us = if now_us >= self.new_at_us { now_us } else { self.born_us };
        Self { born_us, new_at_us: now_us + over_us }
    }
}
