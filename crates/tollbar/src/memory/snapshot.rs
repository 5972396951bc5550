//! The counters of a store in a file, and back: so that limits survive a restart.
//!
//! A snapshot is taken while checks go on. Each counter in it is whole, as it was at some instant
//! while the snapshot was written; two counters of one request may be seen one before and one
//! after it. What is charged later than that is not in the file.
//!
//! A file that is damaged, cut short, of another version or no snapshot at all is refused before a
//! single counter is taken from it. The checksum guards against accidents and not against people:
//! the file holds the secret key of the store's hash, so it is to be read and written by nobody
//! else, and [`MemoryStore::snapshot_to_file`] makes it so where the system knows how.
//!
//! | file | noun |
//! |---|---|
//! | `format`, `logs` | the bytes |
//! | `restore` | a new store from those bytes |
//! | `file` | a file that is there whole or not at all |
//! | `error` | what can go wrong |

mod error;
mod file;
mod format;
mod logs;
mod restore;

#[cfg(all(test, not(tollbar_loom)))]
mod tests;

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use self::format::{Counts, Header, Sink, WideShare};
use arrayvec::ArrayVec;

use super::MemoryStore;
use super::counter_id::{counts_permits, is_in_use};
use super::rank::EntryRank;
use super::slot::{Slot, fresh_at_us};
use super::sync::Backoff;
use crate::Timestamp;
use crate::algorithm::STATE_WORDS_MAX;
use crate::algorithm::concurrency::NEVER_US;
use crate::algorithm::warm_up::Life;
use crate::memory::wide_table::{CLASS_WORDS, WideTable};

pub use error::SnapshotError;

/// What a snapshot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotSummary {
    /// When it was begun, by the store's clock. Counters fresh by then were left out.
    pub taken_at: Timestamp,
    /// How many counters are in it.
    pub counters: u64,
    /// How long it is.
    pub bytes: u64,
}

impl MemoryStore {
    /// Writes all counters that are not fresh, while checks go on. Not those of permits in flight,
    /// which end with the process that holds them.
    ///
    /// Each counter is written as it was at one instant; counters of one request may be seen one
    /// before it and one after. `to` is written to in pieces of about 64 KiB, and flushed.
    ///
    /// ```
    /// use tollbar::{MemoryStore, Policy};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::token_bucket("10/h")?;
    /// let store = MemoryStore::builder().max_keys(1_000).build();
    /// store.check_now(b"user:42", &policy, 3);
    /// let mut bytes = Vec::new();
    /// store.write_snapshot(&mut bytes)?;
    ///
    /// let store = MemoryStore::builder().max_keys(2_000).restore(&mut bytes.as_slice())?;
    /// assert_eq!(store.check_now(b"user:42", &policy, 0).remaining(), Some(7));
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_snapshot(
        &self,
        to: &mut (impl Write + ?Sized),
    ) -> Result<SnapshotSummary, SnapshotError> {
        let _running = self.hold_moves();
        let now_us = self.now_us();
        let mut counts = Counts::default();
        let mut sink = Sink::new(to);
        sink.header(&Header {
            seeds: self.hash.seeds(),
            taken_at_us: now_us,
            line_count: self.table.line_count() as u64,
        })?;
        for line in 0..self.table.line_count() {
            for (tag, word) in self.table.slots(line).map(read_settled) {
                // Whoever holds permits in flight will not outlive this process to return them.
                let is_kept = is_in_use(tag) && !counts_permits(tag);
                if is_kept && fresh_at_us(tag, word) > now_us {
                    counts.words += 1;
                    sink.words(&[line as u64, tag, word])?;
                }
            }
        }
        for (class, class_words) in CLASS_WORDS.into_iter().enumerate() {
            for shard in 0..self.shards.count() {
                counts.wide[class] += self.buffer_shard(&mut sink, shard, class_words, now_us);
                // Not under the lock: whoever is on the other side may be slow.
                sink.pass_on()?;
            }
        }
        for shard in 0..self.shards.count() {
            self.buffer_logs(&mut sink, &mut counts, shard, now_us);
            sink.pass_on()?;
        }
        for shard in 0..self.shards.count() {
            self.buffer_leases(&mut sink, &mut counts, shard, now_us);
            sink.pass_on()?;
        }
        // Only now, when no more counters are read: one that has outgrown its word in the
        // meantime is in the file, and will be looked for.
        let has_outgrown = self.has_outgrown.load(Ordering::Acquire);
        let bytes = sink.finish(&counts, has_outgrown)?;
        let taken_at = Timestamp::from_micros(now_us);
        Ok(SnapshotSummary { taken_at, counters: counts.total(), bytes })
    }

    /// Writes a snapshot to the file `path`, in place of the one that may be there.
    ///
    /// The file is written under another name in the same directory, synchronised and then put in
    /// place: whatever happens, there is the old file or the new one, whole. Only the user that
    /// runs the process may read it, on systems that have users.
    pub fn snapshot_to_file(
        &self,
        path: impl AsRef<Path>,
    ) -> Result<SnapshotSummary, SnapshotError> {
        file::write_atomically(path.as_ref(), |to| self.write_snapshot(to))
    }

    /// Keeps wide counters from moving into the table until the guard is dropped.
    ///
    /// The table is read first, so a counter that moves out of it is seen in both places, which a
    /// restore puts right; one that moved in would be seen in none.
    fn hold_moves(&self) -> MigrationPause<'_> {
        self.snapshots_running.fetch_add(1, Ordering::AcqRel);
        // A move is made under the lock of its shard: after this, those that did not know are over.
        for shard in 0..self.shards.count() {
            drop(self.shards.lock_shard(shard));
        }
        MigrationPause { snapshots_running: &self.snapshots_running }
    }

    pub(super) fn wide_share(&self, share: WideShare) -> &WideTable {
        match share {
            WideShare::Counters => &self.wide,
            WideShare::RequestIds => &self.request_ids,
            WideShare::Reservations => &self.reservations,
        }
    }

    /// How many live entries of one shard there were.
    fn buffer_shard(
        &self,
        sink: &mut Sink<'_, impl Write + ?Sized>,
        shard: usize,
        class_words: usize,
        now_us: u64,
    ) -> u64 {
        let guard = self.shards.lock_shard(shard);
        let mut count = 0;
        for share in WideShare::ALL {
            let wide = self.wide_share(share);
            wide.for_each_live(&guard, class_words, now_us, |id, rank, state| {
                let mut state: ArrayVec<u64, STATE_WORDS_MAX> =
                    state.iter().map(|word| word.load(Ordering::Relaxed)).collect();
                let rank = without_permits(rank, &mut state);
                if rank.fresh_at_us <= now_us {
                    return;
                }
                count += 1;
                sink.buffer(&[id, share.tagged(rank)]);
                sink.buffer(&state);
            });
        }
        count
    }

    /// The leases of one shard that have not ended.
    fn buffer_leases(
        &self,
        sink: &mut Sink<'_, impl Write + ?Sized>,
        counts: &mut Counts,
        shard: usize,
        now_us: u64,
    ) {
        let guard = self.shards.lock_shard(shard);
        self.for_each_leases(&guard, now_us, |counter, rank, leases| {
            counts.leased += 1;
            for lease in leases.leases().filter(|lease| lease.ends_at_us() > now_us) {
                counts.leases += 1;
                let [id, extent] = lease.to_words();
                sink.buffer(&[counter, rank.to_word(), id, extent]);
            }
        });
    }

    /// The live logs of one shard.
    fn buffer_logs(
        &self,
        sink: &mut Sink<'_, impl Write + ?Sized>,
        counts: &mut Counts,
        shard: usize,
        now_us: u64,
    ) {
        let guard = self.shards.lock_shard(shard);
        self.for_each_log(&guard, now_us, |id, rank, log| {
            let stamps = || log.stamps().filter(|stamp| stamp.tokens() > 0);
            let stamp_count = stamps().count() as u64;
            counts.logs += 1;
            counts.stamps += stamp_count;
            sink.buffer(&[id, rank.to_word(), stamp_count]);
            stamps().for_each(|stamp| sink.buffer(&[stamp.word()]));
        });
    }
}

/// Takes the permits in flight out of a wide state, which are those of a key that warms up: they end with
/// this process, and how warm the key is does not. Returns the rank of what is left.
fn without_permits(rank: EntryRank, state: &mut [u64]) -> EntryRank {
    if rank.fresh_at_us != NEVER_US {
        return rank;
    }
    state[0] = 0;
    EntryRank::until(Life::from_words(&state[1..]).new_at_us())
}

struct MigrationPause<'a> {
    snapshots_running: &'a AtomicUsize,
}

impl Drop for MigrationPause<'_> {
    fn drop(&mut self) {
        self.snapshots_running.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Tag and state that were there at the same time. Waits for who has locked the slot.
fn read_settled(slot: Slot<'_>) -> (u64, u64) {
    let mut backoff = Backoff::default();
    loop {
        match slot.read_any() {
            Some((tag, reading)) if slot.is_unchanged(reading) => return (tag, reading.word),
            _ => backoff.wait(),
        }
    }
}
