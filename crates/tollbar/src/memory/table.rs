//! The table of one-word counters: cache lines of four slots, two lines for each key.
//!
//! A key lives in its first line, or in its second where the first was full of live counters when
//! it came. A counter that is fresh may be overwritten at any time, so nothing is ever swept, and
//! the table never grows. Where both lines are full of live counters, the one with the lowest
//! [`Rank`] is forgotten before its time: a *forced eviction*, which is counted.

use super::counter_id::{CounterId, is_in_use};
use super::pages::{LINE_WORDS, Lines};
use super::prefetch::prefetch;
use super::slot::{Rank, Slot, SlotGuard, WordReading, fresh_at_us};
use super::sync::AtomicU64;
use super::sync::Ordering;

pub(super) const SLOTS_PER_LINE: usize = LINE_WORDS / 2;

/// For how long a counter must have been fresh for its slot to be taken without a look at the
/// newcomer's other line. Five busy keys of one line would otherwise drive each other out by turns.
const RESTED_US: u64 = 1_000_000;

#[derive(Debug)]
pub(super) struct Table {
    lines: Lines<AtomicU64>,
}

/// A slot that was made free for a newcomer, locked.
pub(super) struct FreeSlot<'a> {
    pub(super) guard: SlotGuard<'a>,
    /// True where a live counter was forgotten for it.
    pub(super) was_live: bool,
}

impl Table {
    pub(super) fn new(line_count: usize) -> Self {
        Self { lines: Lines::zeroed(line_count) }
    }

    pub(super) fn slot_count(&self) -> usize {
        self.lines.len() * SLOTS_PER_LINE
    }

    pub(super) fn line_count(&self) -> usize {
        self.lines.len()
    }

    #[inline]
    pub(super) fn prefetch(&self, id: CounterId) {
        prefetch(self.lines.line(id.first_line(self.lines.len())));
    }

    /// The slots of line `index`.
    #[inline]
    pub(super) fn slots(&self, index: usize) -> impl Iterator<Item = Slot<'_>> {
        let (pairs, _) = self.lines.line(index).as_chunks();
        pairs.iter().map(|[tag, state]| Slot { tag, state })
    }

    /// The slot that bears `tag`, in either of the two lines of `id`.
    #[inline]
    pub(super) fn find(&self, id: CounterId, tag: u64) -> Option<Slot<'_>> {
        let first = self.lines.line(id.first_line(self.lines.len()));
        find_in_line(first, tag).or_else(|| self.find_in_second(first, id, tag))
    }

    #[cold]
    fn find_in_second(
        &self,
        first: &[AtomicU64; LINE_WORDS],
        id: CounterId,
        tag: u64,
    ) -> Option<Slot<'_>> {
        // Slots never become empty again, and a key goes to its second line only where the first
        // has none left: so where there is one, it is not there.
        if find_in_line(first, 0).is_some() {
            return None;
        }
        find_in_line(self.lines.line(id.second_line(self.lines.len())), tag)
    }

    /// Locks the slot that a newcomer with this `id` should take, or `None` where every slot is
    /// locked by others at this moment.
    ///
    /// Must be called under the lock of the id's shard, and after [`find`](Self::find) under that
    /// same lock has not found it: that is what keeps a key from being inserted twice.
    pub(super) fn free(&self, id: CounterId, now_us: u64) -> Option<FreeSlot<'_>> {
        loop {
            let first = self.lowest_ranked(id.first_line(self.lines.len()), now_us);
            let victim = match first {
                Some(victim) if victim.has_rested(now_us) => victim,
                _ => {
                    let second = self.lowest_ranked(id.second_line(self.lines.len()), now_us);
                    first.into_iter().chain(second).min_by_key(|victim| victim.rank(now_us))?
                }
            };
            let was_live = !victim.is_fresh(now_us);
            // Loses against a check of the victim's own key; then look again.
            if let Some(guard) = victim.slot.try_lock(victim.reading, victim.tag) {
                return Some(FreeSlot { guard, was_live });
            }
        }
    }

    fn lowest_ranked(&self, line: usize, now_us: u64) -> Option<SlotVictim<'_>> {
        self.slots(line)
            .filter_map(|slot| {
                slot.read_any().map(|(tag, reading)| SlotVictim { slot, tag, reading })
            })
            .min_by_key(|victim| victim.rank(now_us))
    }
}

/// Looks at all four tags before it branches: which one it is cannot be predicted.
#[inline]
fn find_in_line(line: &[AtomicU64; LINE_WORDS], tag: u64) -> Option<Slot<'_>> {
    let (slots, _) = line.as_chunks::<2>();
    let mut found = 0_u32;
    for (at, [slot_tag, _]) in slots.iter().enumerate() {
        found |= u32::from(slot_tag.load(Ordering::Relaxed) == tag) << at;
    }
    let [tag, state] = slots.get(found.trailing_zeros() as usize)?;
    Some(Slot { tag, state })
}

/// A slot that may have to make room.
#[derive(Clone, Copy)]
struct SlotVictim<'a> {
    slot: Slot<'a>,
    tag: u64,
    reading: WordReading,
}

impl SlotVictim<'_> {
    /// Of two that are as near to fresh, a slot that is nobody's makes room before one whose owner
    /// may be back in a moment.
    fn rank(&self, now_us: u64) -> (Rank, bool) {
        (Rank::new(self.tag, self.reading.word, now_us), is_in_use(self.tag))
    }

    fn is_fresh(&self, now_us: u64) -> bool {
        fresh_at_us(self.tag, self.reading.word) <= now_us
    }

    /// A counter that is all zero does not say since when: permits in flight come and go.
    fn has_rested(&self, now_us: u64) -> bool {
        let is_idle = self.reading.word == 0 && is_in_use(self.tag);
        self.is_fresh(now_us.saturating_sub(RESTED_US)) && !is_idle
    }
}
