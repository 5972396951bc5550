//! A new store from a snapshot.
//!
//! A counter of the table is kept with its line, because its tag has only 56 of its name's 64 bits.
//! In a table of as many lines it goes into the same line again. For a table of another size its
//! name is worked out from tag and line; where two names are possible it is put in under both, of
//! which one is never asked for and is gone when it is fresh.
//! `docs/decisions/0009-a-snapshot-keeps-a-counter-with-its-line.md` has the reasons.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;

use super::error::SnapshotError;
use super::format::{BYTES_MAX, Snapshot, WideEntry, WordEntry};
use super::{file, read_settled};
use crate::algorithm::STATE_WORDS_MAX;
use crate::memory::counter_id::{CounterHash, CounterId, MOVED, names_of_tag};
use crate::memory::slot::{Rank, Slot, fresh_at_us};
use crate::memory::table::SLOTS_PER_LINE;
use crate::memory::{MemoryStore, MemoryStoreBuilder};

/// With fewer lines, a tag and its line stand for many names.
const RESIZED_LINES_MIN: usize = 256;

impl MemoryStoreBuilder {
    /// The store, with the counters that [`MemoryStore::write_snapshot`] has written to `from`,
    /// which is read to its end.
    ///
    /// Counters that are fresh by now are left out. If the clock has gone back since, they hold
    /// until it has caught up. If there are more than the store has room for, the ones nearest to
    /// fresh are forgotten, which counts as forced evictions. The store may have another size than
    /// the one that was written; only a snapshot of a store for fewer than 512 keys needs the same
    /// [`max_keys`](Self::max_keys).
    ///
    /// Nothing is taken from a snapshot that is damaged or of another version.
    pub fn restore(self, from: &mut (impl Read + ?Sized)) -> Result<MemoryStore, SnapshotError> {
        let snapshot = Snapshot::read(from, BYTES_MAX)?;
        let store = self.build_with(CounterHash::from_seeds(snapshot.header.seeds));
        // As many lines as fit a `usize`, or the snapshot would have been refused.
        let line_count = snapshot.header.line_count as usize;
        if line_count != store.table.line_count() && line_count < RESIZED_LINES_MIN {
            // Half a line is what a key gets.
            return Err(SnapshotError::OtherSize { keys_max: snapshot.header.line_count * 2 });
        }
        let now_us = store.now_us();
        let live = || snapshot.words().filter(|entry| entry.fresh_at_us() > now_us);
        if line_count == store.table.line_count() {
            live().for_each(|entry| store.restore_to_line(entry, now_us));
        } else {
            live().for_each(|entry| store.restore_likely(entry, line_count, now_us));
            // These displace nobody, so they come when everybody else is there.
            live().for_each(|entry| store.restore_unlikely(entry, line_count, now_us));
        }
        store.has_outgrown.store(snapshot.has_outgrown, Ordering::Release);
        for entry in snapshot.wide() {
            store.restore_wide(entry, now_us);
        }
        for log in snapshot.logs().filter(|log| log.rank().fresh_at_us > now_us) {
            let id = CounterId::new(log.id);
            store.restore_log(id, log.rank(), now_us, log.stamps());
        }
        for entry in snapshot.leases().filter(|entry| entry.lease.ends_at_us() > now_us) {
            store.restore_lease(CounterId::new(entry.name), entry.used(), now_us, entry.lease);
        }
        Ok(store)
    }

    /// The store, with the counters that [`MemoryStore::snapshot_to_file`] has left at `path`.
    ///
    /// Where there is no such file, the answer is [`SnapshotError::Missing`].
    ///
    /// ```
    /// use tollbar::{MemoryStore, SnapshotError};
    ///
    /// # fn main() -> Result<(), SnapshotError> {
    /// let builder = || MemoryStore::builder().max_keys(1_000);
    /// let store = match builder().restore_from_file("/nowhere/counters") {
    ///     Err(SnapshotError::Missing { .. }) => builder().build(),
    ///     restored => restored?,
    /// };
    /// # assert_eq!(store.stats().live_keys, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn restore_from_file(self, path: impl AsRef<Path>) -> Result<MemoryStore, SnapshotError> {
        self.restore(&mut file::open(path.as_ref())?)
    }
}

impl WordEntry {
    fn rank(&self, now_us: u64) -> Rank {
        Rank::new(self.tag, self.word, now_us)
    }

    fn fresh_at_us(&self) -> u64 {
        fresh_at_us(self.tag, self.word)
    }
}

// The store is nobody else's yet: no slot is locked, and what is read stays so.
impl MemoryStore {
    /// Puts in a counter that was in the same line of a table of the same size.
    fn restore_to_line(&self, entry: WordEntry, now_us: u64) {
        let line_count = self.table.line_count();
        let mut is_there = false;
        for name in names_of_tag(entry.tag, entry.line, line_count) {
            is_there |= self.keep_later(name, entry, now_us);
            if name.first_line(line_count) != entry.line {
                self.mark_once_full(name.first_line(line_count));
            }
        }
        if !is_there {
            self.place(self.table.slots(entry.line), entry, now_us);
        }
    }

    /// Puts in a counter that was in line `entry.line` of `line_count`, by the likelier of its
    /// names: most counters are in their first line.
    fn restore_likely(&self, entry: WordEntry, line_count: usize, now_us: u64) {
        for name in names_of_tag(entry.tag, entry.line, line_count).take(1) {
            if !self.keep_later(name, entry, now_us) {
                self.place(self.slots_of(name), entry, now_us);
            }
        }
    }

    /// The same by the other names, where there are any, and only where there is a slot to spare.
    fn restore_unlikely(&self, entry: WordEntry, line_count: usize, now_us: u64) {
        for name in names_of_tag(entry.tag, entry.line, line_count).skip(1) {
            if self.keep_later(name, entry, now_us) {
                continue;
            }
            let is_spare = |slot: &Slot<'_>| {
                let (tag, word) = read_settled(*slot);
                fresh_at_us(tag, word) <= now_us
            };
            if self.slots_of(name).any(|slot| is_spare(&slot)) {
                self.place(self.slots_of(name), entry, now_us);
            } else {
                // It may have been the right one.
                self.count_eviction(true);
            }
        }
    }

    /// The slots that a counter may be in, those of its first line first.
    fn slots_of(&self, id: CounterId) -> impl Iterator<Item = Slot<'_>> {
        let line_count = self.table.line_count();
        let lines = [id.first_line(line_count), id.second_line(line_count)];
        lines.into_iter().flat_map(|line| self.table.slots(line))
    }

    /// True where the counter is there already; then the state farther from fresh stays.
    ///
    /// One that was forgotten and came back while the snapshot was taken can be in it twice; and
    /// the two names that a tag may stand for often have a line in common.
    fn keep_later(&self, id: CounterId, entry: WordEntry, now_us: u64) -> bool {
        let is_it = |(_, slot): &(usize, Slot<'_>)| read_settled(*slot).0 == entry.tag;
        let Some((at, slot)) = self.slots_of(id).enumerate().find(is_it) else {
            return false;
        };
        if Rank::new(entry.tag, read_settled(slot).1, now_us) < entry.rank(now_us) {
            overwrite(slot, entry.tag, entry.word);
        }
        if at >= SLOTS_PER_LINE {
            self.mark_once_full(id.first_line(self.table.line_count()));
        }
        true
    }

    /// Puts a counter into the slot with the lowest rank, unless its own is lower.
    fn place<'a>(&self, slots: impl Iterator<Item = Slot<'a>>, entry: WordEntry, now_us: u64) {
        let ranked = slots.map(|slot| {
            let (tag, word) = read_settled(slot);
            (slot, Rank::new(tag, word, now_us), fresh_at_us(tag, word))
        });
        let Some((slot, lowest, fresh_at_us)) = ranked.min_by_key(|(_, rank, _)| *rank) else {
            return;
        };
        // Either way a live counter is forgotten.
        self.count_eviction(fresh_at_us > now_us);
        if fresh_at_us <= now_us || lowest <= entry.rank(now_us) {
            overwrite(slot, entry.tag, entry.word);
        }
    }

    /// Makes a line look as if it had been full, as it was when a counter went to its second line:
    /// otherwise nobody would look for it there.
    fn mark_once_full(&self, line: usize) {
        for slot in self.table.slots(line).filter(|slot| read_settled(*slot).0 == 0) {
            overwrite(slot, MOVED, 0);
        }
    }

    fn restore_wide(&self, entry: WideEntry<'_>, now_us: u64) {
        let id = CounterId::new(entry.id);
        if self.has_outgrown.load(Ordering::Acquire) {
            // It may have come from the table while the snapshot was taken, after it was seen
            // there. Here is the later state.
            let is_it = |slot: &Slot<'_>| id.is_named_by(read_settled(*slot).0);
            for slot in self.slots_of(id).filter(is_it) {
                overwrite(slot, MOVED, 0);
            }
        }
        let rank = entry.rank();
        if rank.fresh_at_us <= now_us {
            return;
        }
        let state: ArrayVec<u64, STATE_WORDS_MAX> = entry.state().collect();
        let guard = self.shards.lock(id);
        for share in entry.shares {
            let wide = self.wide_share(*share);
            if wide.has_room_for(state.len()) {
                let saved = wide.admit(&guard, id, &state, rank, now_us);
                self.count_eviction(saved.evicted_live);
            }
        }
    }
}

fn overwrite(slot: Slot<'_>, tag: u64, word: u64) {
    let locked = slot.read_any().and_then(|(old, reading)| slot.try_lock(reading, old));
    if let Some(mut guard) = locked {
        guard.hand_over(tag, word);
    }
}
