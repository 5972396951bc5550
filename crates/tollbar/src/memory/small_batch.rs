//! The usual batch: a few different counters, all in the table, none of them fought over.
//!
//! Each is read and decided on its own word, without copies. Where all allow, the slots are locked in
//! the order of their names, each only if it is still as it was read, so that what was decided
//! stands; then all are stored. Whatever is not as usual (a newcomer, a wide state, a shadow, two
//! entries on one counter, a lost race) is left to
//! `batch.rs`, and nothing has happened. Locks are never waited for here, so nobody can wait in a
//! circle.

use arrayvec::ArrayVec;

use super::MemoryStore;
use super::counter_id::CounterId;
use super::slot::{Slot, SlotGuard, SlotRead, WordReading};
use crate::algorithm::word::PackedAlgorithm;
use crate::policy::Kind;
use crate::store::alternative::{EntryDecider, decide_entries};
use crate::store::{Entry, Role};

/// More than that are not a few.
const ENTRIES_MAX: usize = 8;

/// One counter as it was read, and what its entry comes to.
struct CounterReading<'s, 'p> {
    id: CounterId,
    tag: u64,
    slot: Slot<'s>,
    reading: WordReading,
    packed: &'p dyn PackedAlgorithm,
    next: Option<u64>,
}

impl MemoryStore {
    /// True where the batch was usual, and has been decided and charged.
    pub(super) fn check_small_batch(&self, entries: &mut [Entry<'_>], now_us: u64) -> bool {
        if entries.len() > ENTRIES_MAX {
            return false;
        }
        let mut all = ArrayVec::<CounterReading<'_, '_>, ENTRIES_MAX>::new();
        for entry in &*entries {
            let Some(counter) = self.find_usual(entry) else {
                return false;
            };
            if all.iter().any(|other| other.id == counter.id) {
                return false;
            }
            all.push(counter);
        }
        let is_allowed = decide_entries(&mut SmallBatch { entries, all: &mut all, now_us });
        if is_allowed { charge(&mut all) } else { report_denied(entries, &all, now_us) }
    }

    /// The counter of an entry that is as usual.
    #[inline]
    fn find_usual<'p>(&self, entry: &Entry<'p>) -> Option<CounterReading<'_, 'p>> {
        let kind = &entry.policy.kind;
        // Those of a staggered window depend on the key.
        if entry.role != Role::Enforce || matches!(kind, Kind::StaggeredWindow(_)) {
            return None;
        }
        let packed = kind.as_packed().filter(|_| kind.fits_word())?;
        let id = self.hash.id(entry.key, entry.policy);
        let tag = id.tag(packed.word_shift());
        let slot = self.table.find(id, tag)?;
        match slot.read(tag) {
            SlotRead::Word(reading) => {
                Some(CounterReading { id, tag, slot, reading, packed, next: None })
            }
            SlotRead::Locked | SlotRead::Gone => None,
        }
    }
}

/// A batch of which every entry has a counter of its own.
struct SmallBatch<'b, 'e, 's, 'p> {
    entries: &'b mut [Entry<'e>],
    all: &'b mut [CounterReading<'s, 'p>],
    now_us: u64,
}

impl<'e> EntryDecider<'e> for SmallBatch<'_, 'e, '_, '_> {
    /// Nothing: an entry charges its own counter alone, and gives that up when it is peeked.
    type Saved = ();

    fn entries(&mut self) -> &mut [Entry<'e>] {
        self.entries
    }

    #[inline]
    fn charge(&mut self, at: usize) {
        let (entry, counter) = (&mut self.entries[at], &mut self.all[at]);
        let step = counter.packed.step_word(counter.reading.word, self.now_us, entry.cost);
        counter.next = step.next;
        (entry.decision, entry.stamp) = (Some(step.decision), step.stamp);
    }

    fn peek(&mut self, at: usize) {
        self.all[at].next = None;
        peek(&mut self.entries[at], &self.all[at], self.now_us);
    }

    fn save(&self) {}

    fn restore(&mut self, (): ()) {}
}

fn peek(entry: &mut Entry<'_>, counter: &CounterReading<'_, '_>, now_us: u64) {
    let step = counter.packed.step_word(counter.reading.word, now_us, 0);
    entry.decision = Some(step.decision);
}

/// Stores what every entry comes to, if nobody has been faster.
fn charge(all: &mut ArrayVec<CounterReading<'_, '_>, ENTRIES_MAX>) -> bool {
    all.sort_unstable_by_key(|counter| counter.id);
    let mut guards = ArrayVec::<SlotGuard<'_>, ENTRIES_MAX>::new();
    for counter in &*all {
        match counter.slot.try_lock(counter.reading, counter.tag) {
            Some(guard) => guards.push(guard),
            // Dropped, the others are as they were.
            None => return false,
        }
    }
    for (guard, counter) in guards.iter_mut().zip(&*all) {
        guard.word = counter.next.unwrap_or(counter.reading.word);
    }
    true
}

/// Charges nothing: entries that would have been allowed say what remains now. False if a counter has
/// changed since it was read.
fn report_denied(entries: &mut [Entry<'_>], all: &[CounterReading<'_, '_>], now_us: u64) -> bool {
    if !all.iter().all(|counter| counter.slot.is_unchanged(counter.reading)) {
        return false;
    }
    for (entry, counter) in entries.iter_mut().zip(all) {
        if entry.decision.is_none_or(|decision| decision.is_allowed()) {
            peek(entry, counter, now_us);
        }
    }
    true
}
