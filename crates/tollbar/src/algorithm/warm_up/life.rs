//! How old a key is: when it was born, and when it was last charged.

use crate::algorithm::word::NUMBER_MAX;

/// How many words of state a life is.
pub(super) const LIFE_WORDS: usize = 2;

/// A key's first charge since it was new, and its last one. All zeros is a key that has had none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Life {
    born_us: u64,
    /// Plus one, so that a charge at the beginning of time is one.
    last_us_plus_1: u64,
}

impl Life {
    pub(super) fn from_words(words: &[u64]) -> Self {
        let [born_us, last_us_plus_1] = [0, 1].map(|at| words[at].min(NUMBER_MAX));
        Self { born_us, last_us_plus_1 }
    }

    pub(super) fn to_words(self, words: &mut [u64]) {
        words.copy_from_slice(&[self.born_us, self.last_us_plus_1]);
    }

    pub(super) fn born_us(self) -> u64 {
        self.born_us
    }

    pub(super) fn last_us(self) -> Option<u64> {
        self.last_us_plus_1.checked_sub(1)
    }

    /// From when on the key is new again if it is charged nothing; `None` where it is new already.
    pub(super) fn new_at_us(self, over_us: u64) -> Option<u64> {
        self.last_us().map(|last_us| last_us + over_us)
    }

    fn is_new(self, at_us: u64, over_us: u64) -> bool {
        self.new_at_us(over_us).is_none_or(|new_at_us| new_at_us <= at_us)
    }

    /// Zero for a new key, and where the clock has gone back to before the birth.
    pub(super) fn age_us(self, at_us: u64, over_us: u64) -> u64 {
        if self.is_new(at_us, over_us) { 0 } else { at_us.saturating_sub(self.born_us) }
    }

    /// After a charge. A clock that has gone back makes no charge older than it is.
    pub(super) fn charged(self, now_us: u64, over_us: u64) -> Self {
        let born_us = if self.is_new(now_us, over_us) { now_us } else { self.born_us };
        Self { born_us, last_us_plus_1: self.last_us_plus_1.max(now_us + 1) }
    }
}
