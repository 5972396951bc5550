//! The sliding window logs of a snapshot: `name u64 | rank u64 | how many stamps u64 | stamps`.
//!
//! Stamps are written out, oldest first, and blocks are not: so nothing in a file can lead a store
//! astray in its slab.

use crate::algorithm::sliding_log::{LOG_TOKENS_MAX, Stamp};
use crate::memory::rank::EntryRank;

/// What stands before the stamps of each log.
pub(super) const LOG_HEAD_WORDS: usize = 3;

/// A log as it was written.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogEntry<'a> {
    pub(super) id: u64,
    pub(super) rank_word: u64,
    stamps: &'a [[u8; 8]],
}

/// The logs in `words`, one after the other; ends early where one does not fit.
pub(super) fn logs(mut words: &[[u8; 8]]) -> impl Iterator<Item = LogEntry<'_>> {
    std::iter::from_fn(move || {
        let (log, rest) = split_log(words)?;
        words = rest;
        Some(log)
    })
}

fn split_log(words: &[[u8; 8]]) -> Option<(LogEntry<'_>, &[[u8; 8]])> {
    let (head, rest) = words.split_first_chunk::<LOG_HEAD_WORDS>()?;
    let [id, rank_word, len] = head.map(u64::from_le_bytes);
    let (stamps, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
    Some((LogEntry { id, rank_word, stamps }, rest))
}

impl<'a> LogEntry<'a> {
    pub(super) fn rank(self) -> EntryRank {
        EntryRank::from_word(self.rank_word)
    }

    pub(super) fn stamps(self) -> impl Iterator<Item = Stamp> + 'a {
        self.stamps.iter().map(|word| Stamp::from_word(u64::from_le_bytes(*word)))
    }

    pub(super) fn stamp_count(self) -> u64 {
        self.stamps.len() as u64
    }

    /// True where a check can have written it.
    pub(super) fn is_possible(self) -> bool {
        let newest_us = self.stamps().last().map_or(0, Stamp::at_us);
        self.id != 0
            && (1..=LOG_TOKENS_MAX).contains(&self.stamp_count())
            && newest_us < self.rank().fresh_at_us
            && self.stamps().all(|stamp| stamp.tokens() > 0)
            && self.stamps().map(Stamp::at_us).is_sorted()
    }
}
