//! Counters whose state is a list of words: an entry each, as wide counters have, with a chain of
//! blocks.
//!
//! An entry is found, and a fresh one overwritten, as in `wide.rs`; whoever loses an entry loses its
//! blocks with it. Where a shard has no free block left, the list that is nearest to fresh makes
//! room: one that is fresh if there is any, and never the one that needs the room.

mod entries;

use std::sync::atomic::{AtomicU64, Ordering};

use self::entries::{Entries, STATE_WORDS};
use super::blocks::{Blocks, Chain, Full};
use super::counter_id::CounterId;
use super::shards::ShardGuard;

/// How many entries are looked at for one to make room, beyond the first that has blocks at all.
/// Up to 120,000 wide keys that is the whole shard.
const SEARCH_ENTRIES_MAX: usize = 1_024;

#[derive(Debug)]
pub(super) struct Lists {
    entries: Entries,
    pub(super) blocks: Blocks,
    /// Of each shard: where the next search for room begins, so that it does not look at the same
    /// entries again and again.
    hands: Box<[AtomicU64]>,
}

/// What an entry holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ListState {
    pub(super) chain: Chain,
    pub(super) own: [u64; 2],
}

impl ListState {
    #[inline]
    fn of_words([ends, extent, own_0, own_1]: [u64; STATE_WORDS]) -> Self {
        Self { chain: Chain::of_words([ends, extent]), own: [own_0, own_1] }
    }

    #[inline]
    fn to_words(self) -> [u64; STATE_WORDS] {
        let ([ends, extent], [own_0, own_1]) = (self.chain.to_words(), self.own);
        [ends, extent, own_0, own_1]
    }
}

/// A list of the guarded shard that may have to make room.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nearest {
    entry: usize,
    pub(super) fresh_at_us: u64,
}

/// No other list of the shard has a block to give.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Alone;

/// An entry for a newcomer.
pub(super) struct Taken {
    pub(super) entry: usize,
    /// True where a live counter was forgotten for it.
    pub(super) was_live: bool,
}

impl Lists {
    /// Room for `keys_max` lists and `items_max` words in them.
    pub(super) fn new(keys_max: usize, items_max: usize, shard_count: usize) -> Self {
        Self {
            entries: Entries::new(keys_max, shard_count),
            blocks: Blocks::new(items_max, shard_count),
            hands: (0..shard_count).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// What all entries take when every page has been touched.
    pub(super) fn entry_bytes_max(&self) -> usize {
        self.entries.bytes_max()
    }

    /// How many lists are not fresh. An estimate while checks are going on.
    pub(super) fn live_count(&self, now_us: u64) -> usize {
        self.entries.live_count(now_us)
    }

    #[inline]
    pub(super) fn find(&self, guard: &ShardGuard<'_>, id: CounterId) -> Option<usize> {
        self.entries.find(guard, id)
    }

    #[inline]
    pub(super) fn load(&self, _guard: &ShardGuard<'_>, entry: usize) -> ListState {
        let words = self.entries.state(entry);
        ListState::of_words(std::array::from_fn(|at| words[at].load(Ordering::Relaxed)))
    }

    #[inline]
    pub(super) fn save(
        &self,
        _guard: &ShardGuard<'_>,
        entry: usize,
        state: &ListState,
        fresh_at_us: u64,
    ) {
        for (to, word) in self.entries.state(entry).iter().zip(state.to_words()) {
            to.store(word, Ordering::Relaxed);
        }
        self.entries.set_fresh_at_us(entry, fresh_at_us);
    }

    /// From when on a list is fresh.
    pub(super) fn fresh_at_us(&self, _guard: &ShardGuard<'_>, entry: usize) -> u64 {
        self.entries.fresh_at_us(entry)
    }

    /// The entry of its bucket that a newcomer would take: the one nearest to fresh.
    pub(super) fn nearest_in_bucket(&self, guard: &ShardGuard<'_>, id: CounterId) -> Nearest {
        let entries = self.entries.of_bucket(guard, id);
        let nearest = |entry| Nearest { entry, fresh_at_us: self.entries.fresh_at_us(entry) };
        let first = nearest(entries.start);
        entries.map(nearest).min_by_key(|it| it.fresh_at_us).unwrap_or(first)
    }

    /// Gives a newcomer an entry, with an empty list.
    pub(super) fn take(&self, guard: &ShardGuard<'_>, id: CounterId, now_us: u64) -> Taken {
        let Nearest { entry, fresh_at_us } = self.nearest_in_bucket(guard, id);
        self.forget(guard, entry);
        self.entries.set_name(entry, id.get());
        Taken { entry, was_live: fresh_at_us > now_us }
    }

    /// Empties an entry. Its blocks are free again.
    pub(super) fn forget(&self, guard: &ShardGuard<'_>, entry: usize) {
        let mut state = self.load(guard, entry);
        self.blocks.clear(guard, &mut state.chain);
        self.save(guard, entry, &ListState::default(), 0);
        self.entries.set_name(entry, 0);
    }

    /// Appends `word` to the list of `entry`, whose state is in the caller's hands. True where a
    /// live list had to make room.
    #[inline]
    pub(super) fn push_back(
        &self,
        guard: &ShardGuard<'_>,
        entry: usize,
        chain: &mut Chain,
        word: u64,
        now_us: u64,
    ) -> Result<bool, Alone> {
        if self.blocks.push_back(guard, chain, word).is_ok() {
            return Ok(false);
        }
        let was_live = self.make_room(guard, entry, now_us)?;
        self.blocks.push_back(guard, chain, word).map_err(|Full| Alone)?;
        Ok(was_live)
    }

    #[cold]
    fn make_room(&self, guard: &ShardGuard<'_>, entry: usize, now_us: u64) -> Result<bool, Alone> {
        let nearest = self.nearest_to_fresh(guard, entry, now_us).ok_or(Alone)?;
        self.forget(guard, nearest.entry);
        Ok(nearest.fresh_at_us > now_us)
    }

    /// The list with blocks that is nearest to fresh, other than that of `entry`.
    pub(super) fn nearest_to_fresh(
        &self,
        guard: &ShardGuard<'_>,
        entry: usize,
        now_us: u64,
    ) -> Option<Nearest> {
        let entries = self.entries.of_shard(guard);
        let hand = &self.hands[guard.shard()];
        let start = hand.load(Ordering::Relaxed) as usize % entries.len();
        let mut nearest: Option<Nearest> = None;
        let mut looked_at = 0;
        for step in 0..entries.len() {
            if nearest.is_some_and(|it| it.fresh_at_us <= now_us || step >= SEARCH_ENTRIES_MAX) {
                break;
            }
            looked_at = step + 1;
            let other = entries.start + (start + step) % entries.len();
            if other == entry || self.load(guard, other).chain.len() == 0 {
                continue;
            }
            let fresh_at_us = self.entries.fresh_at_us(other);
            if nearest.is_none_or(|it| fresh_at_us < it.fresh_at_us) {
                nearest = Some(Nearest { entry: other, fresh_at_us });
            }
        }
        hand.store(((start + looked_at) % entries.len()) as u64, Ordering::Relaxed);
        nearest
    }

    /// Hands out every list of the guarded shard that is not fresh: its name, from when on it is
    /// fresh, and its state.
    pub(super) fn for_each_live(
        &self,
        guard: &ShardGuard<'_>,
        now_us: u64,
        mut visit: impl FnMut(u64, u64, ListState),
    ) {
        for entry in self.entries.of_shard(guard) {
            let fresh_at_us = self.entries.fresh_at_us(entry);
            if fresh_at_us > now_us {
                visit(self.entries.name(entry), fresh_at_us, self.load(guard, entry));
            }
        }
    }
}
