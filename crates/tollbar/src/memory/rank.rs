//! Which counter a full bucket of wide states or lists forgets first: the one that forgives least.
//!
//! Counters are ranked by the share of their capacity that is in use, then by the time until they are
//! fresh. So a flood of keys that ask once cannot free a key that is throttled, whatever their limits
//! and windows are. The table of one-word counters has room for one bit of this share: see
//! `algorithm/word.rs` and `slot.rs`.

use crate::Timestamp;
use crate::algorithm::{Algorithm, STATE_WORDS_MAX};

/// Of an entry's rank word: the time until it is fresh, below the share in use.
const TIME_BITS: u32 = 53;

/// How much of a counter's capacity is in use, from 0 to 255.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UsedShare(u8);

impl UsedShare {
    pub(super) const ALL: Self = Self(u8::MAX);

    /// The share where `remaining` of `capacity` is left. Rounded down, so that only an exhausted
    /// counter ranks as one.
    pub(super) fn from_remaining(capacity: u64, remaining: u64) -> Self {
        let used = u128::from(capacity.saturating_sub(remaining));
        let share = used * u128::from(u8::MAX) / u128::from(capacity.max(1));
        Self(share as u8)
    }

    /// The share that `state` has in use at `now_us`.
    pub(super) fn at(algorithm: &dyn Algorithm, state: &[u64], now_us: u64) -> Self {
        let mut copy = [0; STATE_WORDS_MAX];
        let copy = &mut copy[..state.len()];
        copy.copy_from_slice(state);
        let peek = algorithm.transition(copy, Timestamp::from_micros(now_us), 0);
        Self::from_remaining(algorithm.capacity(), peek.remaining)
    }
}

/// The rank of an entry: the lower, the less is forgiven by forgetting it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryRank {
    // In this order, which is that of comparison.
    pub(super) used: UsedShare,
    pub(super) fresh_at_us: u64,
}

impl EntryRank {
    /// What the rank of something that is not a counter depends on: only when it ends.
    pub(super) fn until(fresh_at_us: u64) -> Self {
        Self { used: UsedShare(0), fresh_at_us }
    }

    pub(super) fn to_word(self) -> u64 {
        u64::from(self.used.0) << TIME_BITS | self.fresh_at_us.min((1 << TIME_BITS) - 1)
    }

    pub(super) fn from_word(word: u64) -> Self {
        let fresh_at_us = word & ((1 << TIME_BITS) - 1);
        Self { used: UsedShare((word >> TIME_BITS) as u8), fresh_at_us }
    }

    /// True for words that [`to_word`](Self::to_word) makes.
    pub(super) fn is_word(word: u64) -> bool {
        Self::from_word(word).to_word() == word
    }

    /// The rank at `now_us`: whatever is fresh by then ranks lowest.
    pub(super) fn at(self, now_us: u64) -> Self {
        if self.fresh_at_us > now_us { self } else { Self::until(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_comes_before_time_and_fresh_ranks_lowest() {
        let rank = |remaining: u64, fresh_at_us| {
            let rank = EntryRank { used: UsedShare::from_remaining(10, remaining), fresh_at_us };
            assert_eq!(EntryRank::from_word(rank.to_word()), rank);
            rank
        };
        assert!(rank(0, 1_000) > rank(9, 2_000));
        assert!(rank(0, 1_000) < rank(0, 2_000));
        assert!(rank(0, 1_000).at(1_000) < rank(9, 1_001).at(1_000));
        assert_eq!(rank(0, 1_001).at(1_000), rank(0, 1_001));
    }

    #[test]
    fn only_an_exhausted_counter_uses_all() {
        assert_eq!(UsedShare::from_remaining(10, 0), UsedShare::ALL);
        assert!(UsedShare::from_remaining(u64::MAX, 1) < UsedShare::ALL);
        assert_eq!(UsedShare::from_remaining(10, 10), UsedShare(0));
        assert_eq!(UsedShare::from_remaining(0, 0), UsedShare(0));
        // More remains than fits where the limit was lowered in between.
        assert_eq!(UsedShare::from_remaining(10, 20), UsedShare(0));
    }
}
