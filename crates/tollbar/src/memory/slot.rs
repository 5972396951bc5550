//! One slot of a line: a tag that says whose it is, and a word of state.
//!
//! The rules that keep two words consistent without a lock around every check:
//!
//! 1. Whoever charges a counter does it by one compare-and-swap of the state word.
//! 2. Whoever changes a tag, or several slots at once, first sets the lock bit of the state word;
//!    a locked word is nobody else's to read or write.
//! 3. The state is stored xor a mask made from the tag. So a word read under one tag is never equal
//!    to a word stored under another (but for a chance of 2^-63): a compare-and-swap that was
//!    prepared for one key cannot succeed after the slot has passed to another, even if both
//!    counters hold the same number.
//! 4. Readers load state, then tag, then state again (by the compare-and-swap, or by
//!    [`Slot::is_unchanged`]). By rule 2 the tag cannot have changed in between if the state has not.
//!
//! The models in `tests/loom` run these under every interleaving.

use super::counter_id::tag_shift;
use super::sync::{AtomicU64, Ordering};
use crate::algorithm::word::{HEAVY_BIT, LOCK_BIT, WordParts};

/// A slot in a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot<'a> {
    pub(super) tag: &'a AtomicU64,
    pub(super) state: &'a AtomicU64,
}

/// A state word as it was read, raw and unmasked.
#[derive(Debug, Clone, Copy)]
pub(super) struct WordReading {
    raw: u64,
    pub(super) word: u64,
}

/// What reading a slot for one tag found.
#[derive(Debug, Clone, Copy)]
pub(super) enum SlotRead {
    Word(WordReading),
    /// Another thread owns it; ask again.
    Locked,
    /// The slot belongs to another counter by now.
    Gone,
}

#[inline]
fn mask(tag: u64) -> u64 {
    // An odd factor is a bijection: different tags have different masks but for the lock bit.
    tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !LOCK_BIT
}

impl<'a> Slot<'a> {
    #[inline]
    pub(super) fn read(self, tag: u64) -> SlotRead {
        self.read_raw(self.state.load(Ordering::Acquire), tag)
    }

    /// What `raw`, which has just been loaded, means to the owner of `tag`.
    #[inline]
    fn read_raw(self, raw: u64, tag: u64) -> SlotRead {
        if self.tag.load(Ordering::Acquire) != tag {
            SlotRead::Gone
        } else if raw & LOCK_BIT != 0 {
            SlotRead::Locked
        } else {
            SlotRead::Word(WordReading { raw, word: raw ^ mask(tag) })
        }
    }

    /// Whose it is and what it holds, or `None` while it is locked.
    #[inline]
    pub(super) fn read_any(self) -> Option<(u64, WordReading)> {
        let raw = self.state.load(Ordering::Acquire);
        let tag = self.tag.load(Ordering::Acquire);
        (raw & LOCK_BIT == 0).then(|| (tag, WordReading { raw, word: raw ^ mask(tag) }))
    }

    /// Stores `word` if nothing has changed since `reading`; otherwise reads again, at the price of
    /// the attempt: it has brought the line here, and the next attempt should come before it leaves.
    #[inline]
    pub(super) fn replace(self, reading: WordReading, word: u64, tag: u64) -> Result<(), SlotRead> {
        let new = word ^ mask(tag);
        match self.state.compare_exchange(reading.raw, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(raw) => Err(self.read_raw(raw, tag)),
        }
    }

    /// True where the slot still holds `reading`, and therefore held it when the tag was read.
    #[inline]
    pub(super) fn is_unchanged(self, reading: WordReading) -> bool {
        self.state.load(Ordering::Acquire) == reading.raw
    }

    /// Locks the slot if nothing has changed since `reading`. It stays `tag`'s, holding `reading.word`,
    /// until the guard is told otherwise.
    pub(super) fn try_lock(self, reading: WordReading, tag: u64) -> Option<SlotGuard<'a>> {
        let locked = reading.raw | LOCK_BIT;
        self.state
            .compare_exchange(reading.raw, locked, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
            .then(|| SlotGuard { slot: self, tag, word: reading.word })
    }
}

/// A locked slot. Dropping it unlocks the slot with what the guard holds by then.
#[derive(Debug)]
pub(super) struct SlotGuard<'a> {
    slot: Slot<'a>,
    tag: u64,
    pub(super) word: u64,
}

impl SlotGuard<'_> {
    /// Gives the slot to another counter.
    pub(super) fn hand_over(&mut self, tag: u64, word: u64) {
        self.slot.tag.store(tag, Ordering::Release);
        self.tag = tag;
        self.word = word;
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        self.slot.state.store(self.word ^ mask(self.tag), Ordering::Release);
    }
}

/// The time from which the counter of a slot is fresh; 0 for an empty slot.
#[inline]
pub(super) fn fresh_at_us(tag: u64, word: u64) -> u64 {
    WordParts::from_word(word, tag_shift(tag)).fresh_at_us
}

/// How much is forgiven by forgetting a counter: the lower, the less. A full table forgets the
/// lowest.
///
/// Fresh counters rank lowest. A live one ranks by whether it is heavy, then by the time until it is
/// fresh, then by the payload: of two windows that end together the one with the lower count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    is_heavy: bool,
    fresh_at_us: u64,
    payload: u64,
}

impl Rank {
    #[inline]
    pub(super) fn new(tag: u64, word: u64, now_us: u64) -> Self {
        let WordParts { fresh_at_us, payload } = WordParts::from_word(word, tag_shift(tag));
        let is_heavy = word & HEAVY_BIT != 0 && fresh_at_us > now_us;
        Self { is_heavy, fresh_at_us, payload }
    }
}
