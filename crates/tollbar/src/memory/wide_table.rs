//! Counters whose state is more than one word, each under the lock of its shard.
//!
//! Sized in classes of 4 to 64 words; each class has its share of buckets per shard, eight entries
//! each. As in the table, a fresh entry may be overwritten at any time, and where a bucket is full
//! of live ones the one with the lowest [`EntryRank`] goes. The arrays are set aside when the store is made, and
//! take memory only where they are touched.
//!
//! The words are atomics only so that they can be shared; every access is under the shard's lock,
//! which the [`ShardGuard`] argument stands for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::counter_id::CounterId;
use super::pages::zeroed;
use super::rank::EntryRank;
use super::shards::ShardGuard;
use crate::algorithm::STATE_WORDS_MAX;

const BUCKET_ENTRIES: usize = 8;

/// How many words the entries of each class have.
pub(super) const CLASS_WORDS: [usize; CLASS_COUNT] = [4, 8, 16, 32, 64];
pub(super) const CLASS_COUNT: usize = 5;
const CLASS_WORDS_MIN: usize = CLASS_WORDS[0];

#[derive(Debug)]
pub(super) struct WideTable {
    classes: [SizeClass; CLASS_COUNT],
}

/// All entries of one size.
#[derive(Debug)]
struct SizeClass {
    words_per_entry: usize,
    buckets_per_shard: usize,
    /// True once a state was saved. Until then nothing need be looked through, and no page touched.
    is_in_use: AtomicBool,
    /// Of each entry: its counter's name (0: empty), and its rank.
    heads: Box<[AtomicU64]>,
    words: Box<[AtomicU64]>,
}

/// Where an entry is.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryPosition {
    class: usize,
    entry: usize,
}

/// What saving a state displaced.
pub(super) struct SaveResult {
    pub(super) evicted_live: bool,
}

impl WideTable {
    /// Room for so many states in each class, over `shard_count` shards. Where there is none, states
    /// of that size must not be saved.
    pub(super) fn new(keys_max: [usize; CLASS_COUNT], shard_count: usize) -> Self {
        debug_assert_eq!(CLASS_WORDS[CLASS_COUNT - 1], STATE_WORDS_MAX);
        let class = |at: usize| {
            let words_per_entry = CLASS_WORDS[at];
            // Twice as many entries as keys, so that few buckets overflow.
            let buckets_per_shard = (keys_max[at] * 2).div_ceil(BUCKET_ENTRIES * shard_count);
            let entries = buckets_per_shard * BUCKET_ENTRIES * shard_count;
            SizeClass {
                words_per_entry,
                buckets_per_shard,
                is_in_use: AtomicBool::new(false),
                heads: zeroed(entries * 2),
                words: zeroed(entries * words_per_entry),
            }
        };
        Self { classes: std::array::from_fn(class) }
    }

    /// True where states of `words` words can be saved.
    pub(super) fn has_room_for(&self, words: usize) -> bool {
        self.classes[class_of(words)].buckets_per_shard > 0
    }

    /// What all classes together take when every page has been touched.
    pub(super) fn bytes_max(&self) -> usize {
        let words = |class: &SizeClass| class.heads.len() + class.words.len();
        self.classes.iter().map(words).sum::<usize>() * size_of::<AtomicU64>()
    }

    /// The entry of `id` among those of at least `words` words.
    pub(super) fn find(
        &self,
        guard: &ShardGuard<'_>,
        id: CounterId,
        words: usize,
    ) -> Option<EntryPosition> {
        let class = class_of(words);
        let entries = self.classes[class].bucket(guard, id);
        let found = entries.into_iter().find(|entry| self.classes[class].id(*entry) == id.get());
        found.map(|entry| EntryPosition { class, entry })
    }

    pub(super) fn load(&self, _guard: &ShardGuard<'_>, place: EntryPosition, state: &mut [u64]) {
        let words = self.classes[place.class].state(place.entry);
        for (to, from) in state.iter_mut().zip(words) {
            *to = from.load(Ordering::Relaxed);
        }
    }

    /// Loads the state of `id` among those of at least `state.len()` words, and returns until when it lasts;
    /// `None` where it is not there or fresh.
    pub(super) fn load_live(
        &self,
        guard: &ShardGuard<'_>,
        id: CounterId,
        now_us: u64,
        state: &mut [u64],
    ) -> Option<u64> {
        let place = self.find(guard, id, state.len())?;
        let fresh_at_us = self.rank(place).fresh_at_us;
        if fresh_at_us <= now_us {
            return None;
        }
        self.load(guard, place, state);
        Some(fresh_at_us)
    }

    /// Replaces the first word of the entry of `id` among those of at least `words` words, if it is there.
    pub(super) fn set_first_word(
        &self,
        guard: &ShardGuard<'_>,
        id: CounterId,
        words: usize,
        first: u64,
    ) {
        if let Some(EntryPosition { class, entry }) = self.find(guard, id, words) {
            self.classes[class].state(entry)[0].store(first, Ordering::Relaxed);
        }
    }

    /// Stores `state`, where it was found or, for a newcomer, in place of the lowest-ranked entry of
    /// its bucket.
    pub(super) fn save(
        &self,
        guard: &ShardGuard<'_>,
        id: CounterId,
        found: Option<EntryPosition>,
        state: &[u64],
        rank: EntryRank,
        now_us: u64,
    ) -> SaveResult {
        let mut evicted_live = false;
        let place = found.unwrap_or_else(|| {
            let class = class_of(state.len());
            let entries = self.classes[class].bucket(guard, id);
            // An empty entry before a fresh one, which is live again if the clock goes back.
            let rank_of = |entry: &usize| {
                let class = &self.classes[class];
                (class.rank(*entry).at(now_us), class.id(*entry) != 0)
            };
            let lowest = entries.clone().min_by_key(rank_of);
            let entry = lowest.unwrap_or(entries.start);
            evicted_live = self.classes[class].rank(entry).fresh_at_us > now_us;
            EntryPosition { class, entry }
        });
        let class = &self.classes[place.class];
        if !class.is_in_use.load(Ordering::Relaxed) {
            class.is_in_use.store(true, Ordering::Relaxed);
        }
        class.heads[place.entry * 2].store(id.get(), Ordering::Relaxed);
        class.heads[place.entry * 2 + 1].store(rank.to_word(), Ordering::Relaxed);
        for (to, from) in class.state(place.entry).iter().zip(state) {
            to.store(*from, Ordering::Relaxed);
        }
        SaveResult { evicted_live }
    }

    /// Saves a state of a snapshot. Unlike [`save`](Self::save), where the bucket is full of live
    /// entries that all rank higher, it is the newcomer that is forgotten.
    pub(super) fn admit(
        &self,
        guard: &ShardGuard<'_>,
        id: CounterId,
        state: &[u64],
        rank: EntryRank,
        now_us: u64,
    ) -> SaveResult {
        let class = &self.classes[class_of(state.len())];
        let found = self.find(guard, id, state.len());
        if found.is_some_and(|place| self.rank(place).fresh_at_us >= rank.fresh_at_us) {
            return SaveResult { evicted_live: false };
        }
        let mut others = class.bucket(guard, id);
        if found.is_none() && others.all(|entry| class.rank(entry).at(now_us) > rank) {
            return SaveResult { evicted_live: true };
        }
        self.save(guard, id, found, state, rank, now_us)
    }

    /// Hands out every entry of the guarded shard with `words` words that is not fresh: its name,
    /// its rank, and its state.
    pub(super) fn for_each_live(
        &self,
        guard: &ShardGuard<'_>,
        words: usize,
        now_us: u64,
        mut visit: impl FnMut(u64, EntryRank, &[AtomicU64]),
    ) {
        let class = &self.classes[class_of(words)];
        if !class.is_in_use.load(Ordering::Relaxed) {
            return;
        }
        let entries_per_shard = class.buckets_per_shard * BUCKET_ENTRIES;
        let first = guard.shard() * entries_per_shard;
        for entry in first..first + entries_per_shard {
            let rank = class.rank(entry);
            if rank.fresh_at_us > now_us {
                visit(class.id(entry), rank, class.state(entry));
            }
        }
    }

    pub(super) fn forget(&self, _guard: &ShardGuard<'_>, place: EntryPosition) {
        let heads = &self.classes[place.class].heads;
        heads[place.entry * 2].store(0, Ordering::Relaxed);
        heads[place.entry * 2 + 1].store(0, Ordering::Relaxed);
    }

    /// How many entries are not fresh. Looks at every entry, without locks: an estimate while
    /// checks are going on.
    pub(super) fn live_count(&self, now_us: u64) -> usize {
        let live = |class: &SizeClass| {
            let ranks = class.heads.iter().skip(1).step_by(2);
            let ranks = ranks.map(|rank| EntryRank::from_word(rank.load(Ordering::Relaxed)));
            ranks.filter(|rank| rank.fresh_at_us > now_us).count()
        };
        let in_use = |class: &&SizeClass| class.is_in_use.load(Ordering::Relaxed);
        self.classes.iter().filter(in_use).map(live).sum()
    }

    fn rank(&self, place: EntryPosition) -> EntryRank {
        self.classes[place.class].rank(place.entry)
    }
}

impl SizeClass {
    /// The entries of the one bucket that `id` may be in. It belongs to the guarded shard.
    fn bucket(&self, guard: &ShardGuard<'_>, id: CounterId) -> std::ops::Range<usize> {
        let bucket = guard.shard() * self.buckets_per_shard + id.bucket(self.buckets_per_shard);
        bucket * BUCKET_ENTRIES..(bucket + 1) * BUCKET_ENTRIES
    }

    fn id(&self, entry: usize) -> u64 {
        self.heads[entry * 2].load(Ordering::Relaxed)
    }

    fn rank(&self, entry: usize) -> EntryRank {
        EntryRank::from_word(self.heads[entry * 2 + 1].load(Ordering::Relaxed))
    }

    fn state(&self, entry: usize) -> &[AtomicU64] {
        &self.words[entry * self.words_per_entry..][..self.words_per_entry]
    }
}

/// The smallest class with room for `words`.
fn class_of(words: usize) -> usize {
    debug_assert!(words <= STATE_WORDS_MAX);
    let class_words = words.max(CLASS_WORDS_MIN).next_power_of_two();
    (class_words / CLASS_WORDS_MIN).ilog2() as usize
}
