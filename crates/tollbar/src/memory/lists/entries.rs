//! The entries of lists: whose each is, its rank, and its state.
//!
//! In buckets of eight, as wide counters are, and laid out for one lookup: a bucket's names are on
//! one cache line, which is only read once they are there, and each entry has a line to itself, so
//! that threads which charge two of them do not take turns.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::counter_id::CounterId;
use crate::memory::pages::{LINE_WORDS, aligned_start, zeroed_huge};
use crate::memory::rank::EntryRank;
use crate::memory::shards::ShardGuard;

const BUCKET_ENTRIES: usize = LINE_WORDS;

/// Words of an entry's state.
pub(super) const STATE_WORDS: usize = 4;

/// In an entry's line: its rank, then its state.
const RANK: usize = 0;
const STATE: usize = 1;

/// A line of names, and one for each entry.
const BUCKET_LINES: usize = 1 + BUCKET_ENTRIES;

#[derive(Debug)]
pub(super) struct Entries {
    words: Box<[AtomicU64]>,
    /// Where the first bucket begins, aligned to a cache line.
    first: usize,
    buckets_per_shard: usize,
    entry_count: usize,
}

/// Entries are numbered through all buckets.
impl Entries {
    /// Room for `keys_max` entries, over `shard_count` shards.
    pub(super) fn new(keys_max: usize, shard_count: usize) -> Self {
        // Twice as many entries as keys, so that few buckets overflow; one bucket at the least.
        let buckets_per_shard = (keys_max * 2).div_ceil(BUCKET_ENTRIES * shard_count).max(1);
        let bucket_count = buckets_per_shard * shard_count;
        let words = zeroed_huge((bucket_count * BUCKET_LINES + 1) * LINE_WORDS);
        let first = aligned_start(&words, LINE_WORDS);
        Self { words, first, buckets_per_shard, entry_count: bucket_count * BUCKET_ENTRIES }
    }

    /// What they take when every page has been touched.
    pub(super) fn bytes_max(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// How many are not fresh. Looks at all, without locks.
    pub(super) fn live_count(&self, now_us: u64) -> usize {
        (0..self.entry_count).filter(|entry| self.rank(*entry).fresh_at_us > now_us).count()
    }

    /// The entries of the guarded shard.
    pub(super) fn of_shard(&self, guard: &ShardGuard<'_>) -> Range<usize> {
        let entries_per_shard = self.buckets_per_shard * BUCKET_ENTRIES;
        let first = guard.shard() * entries_per_shard;
        first..first + entries_per_shard
    }

    /// The entries that `id` may have. They belong to the guarded shard.
    pub(super) fn of_bucket(&self, guard: &ShardGuard<'_>, id: CounterId) -> Range<usize> {
        let first = self.bucket_of(guard, id) * BUCKET_ENTRIES;
        first..first + BUCKET_ENTRIES
    }

    /// The entry of `id`. Looks at all eight names before it branches.
    #[inline]
    pub(super) fn find(&self, guard: &ShardGuard<'_>, id: CounterId) -> Option<usize> {
        let bucket = self.bucket_of(guard, id);
        let mut found = 0_u32;
        for (at, name) in self.names(bucket).iter().enumerate() {
            found |= u32::from(name.load(Ordering::Relaxed) == id.get()) << at;
        }
        (found != 0).then(|| bucket * BUCKET_ENTRIES + found.trailing_zeros() as usize)
    }

    /// Whose it is; 0 where it is empty.
    pub(super) fn name(&self, entry: usize) -> u64 {
        self.names(entry / BUCKET_ENTRIES)[entry % BUCKET_ENTRIES].load(Ordering::Relaxed)
    }

    pub(super) fn set_name(&self, entry: usize, name: u64) {
        let names = self.names(entry / BUCKET_ENTRIES);
        names[entry % BUCKET_ENTRIES].store(name, Ordering::Relaxed);
    }

    pub(super) fn rank(&self, entry: usize) -> EntryRank {
        EntryRank::from_word(self.entry(entry)[RANK].load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn set_rank(&self, entry: usize, rank: EntryRank) {
        self.entry(entry)[RANK].store(rank.to_word(), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn state(&self, entry: usize) -> &[AtomicU64] {
        &self.entry(entry)[STATE..][..STATE_WORDS]
    }

    #[inline]
    fn bucket_of(&self, guard: &ShardGuard<'_>, id: CounterId) -> usize {
        guard.shard() * self.buckets_per_shard + id.bucket(self.buckets_per_shard)
    }

    #[inline]
    fn names(&self, bucket: usize) -> &[AtomicU64; LINE_WORDS] {
        self.line(bucket * BUCKET_LINES)
    }

    #[inline]
    fn entry(&self, entry: usize) -> &[AtomicU64; LINE_WORDS] {
        self.line(entry / BUCKET_ENTRIES * BUCKET_LINES + 1 + entry % BUCKET_ENTRIES)
    }

    #[inline]
    fn line(&self, line: usize) -> &[AtomicU64; LINE_WORDS] {
        &self.words[self.first..].as_chunks().0[line]
    }
}
