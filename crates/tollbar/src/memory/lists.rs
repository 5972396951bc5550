//! Counters whose state is a list of words: an entry each, as wide counters have, with a chain of
//! blocks.
//!
//! An entry is found, and a fresh one overwritten, as in `wide_table.rs`; whoever loses an entry loses its
//! blocks with it. Where a shard has no free block left, the list with the lowest [`EntryRank`] makes
//! room: one that is fresh if there is any, and never the one that needs the room.

mod entries;

use std::sync::atomic::{AtomicU64, Ordering};

use self::entries::{Entries, STATE_WORDS};
use super::blocks::{Blocks, Chain, SlabFull};
use super::counter_id::CounterId;
use super::rank::EntryRank;
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
    fn from_words([ends, extent, own_0, own_1]: [u64; STATE_WORDS]) -> Self {
        Self { chain: Chain::from_words([ends, extent]), own: [own_0, own_1] }
    }

    #[inline]
    fn to_words(self) -> [u64; STATE_WORDS] {
        let ([ends, extent], [own_0, own_1]) = (self.chain.to_words(), self.own);
        [ends, extent, own_0, own_1]
    }
}

/// A list of the guarded shard that may have to make room.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListVictim {
    entry: usize,
    /// At the instant of the search.
    pub(super) rank: EntryRank,
}

/// No other list of the shard has a block to give.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoVictim;

/// An entry for a newcomer.
pub(super) struct FreeEntry {
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
        ListState::from_words(std::array::from_fn(|at| words[at].load(Ordering::Relaxed)))
    }

    #[inline]
    pub(super) fn save(
        &self,
        _guard: &ShardGuard<'_>,
        entry: usize,
        state: &ListState,
        rank: EntryRank,
    ) {
        for (to, word) in self.entries.state(entry).iter().zip(state.to_words()) {
            to.store(word, Ordering::Relaxed);
        }
        self.entries.set_rank(entry, rank);
    }

    pub(super) fn rank(&self, _guard: &ShardGuard<'_>, entry: usize) -> EntryRank {
        self.entries.rank(entry)
    }

    /// The entry of its bucket that a newcomer would take: the one with the lowest rank.
    pub(super) fn lowest_in_bucket(
        &self,
        guard: &ShardGuard<'_>,
        id: CounterId,
        now_us: u64,
    ) -> ListVictim {
        let entries = self.entries.of_bucket(guard, id);
        let victim = |entry| ListVictim { entry, rank: self.entries.rank(entry).at(now_us) };
        let first = victim(entries.start);
        entries.map(victim).min_by_key(|victim| victim.rank).unwrap_or(first)
    }

    /// Gives a newcomer an entry, with an empty list.
    pub(super) fn take(&self, guard: &ShardGuard<'_>, id: CounterId, now_us: u64) -> FreeEntry {
        let ListVictim { entry, rank } = self.lowest_in_bucket(guard, id, now_us);
        self.forget(guard, entry);
        self.entries.set_name(entry, id.get());
        FreeEntry { entry, was_live: rank.fresh_at_us > now_us }
    }

    /// Empties an entry. Its blocks are free again.
    pub(super) fn forget(&self, guard: &ShardGuard<'_>, entry: usize) {
        let mut state = self.load(guard, entry);
        self.blocks.clear(guard, &mut state.chain);
        self.save(guard, entry, &ListState::default(), EntryRank::until(0));
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
    ) -> Result<bool, NoVictim> {
        if self.blocks.push_back(guard, chain, word).is_ok() {
            return Ok(false);
        }
        let was_live = self.make_room(guard, entry, now_us)?;
        self.blocks.push_back(guard, chain, word).map_err(|SlabFull| NoVictim)?;
        Ok(was_live)
    }

    #[cold]
    fn make_room(
        &self,
        guard: &ShardGuard<'_>,
        entry: usize,
        now_us: u64,
    ) -> Result<bool, NoVictim> {
        let victim = self.lowest_with_blocks(guard, entry, now_us).ok_or(NoVictim)?;
        self.forget(guard, victim.entry);
        Ok(victim.rank.fresh_at_us > now_us)
    }

    /// The list with blocks that ranks lowest, other than that of `entry`.
    pub(super) fn lowest_with_blocks(
        &self,
        guard: &ShardGuard<'_>,
        entry: usize,
        now_us: u64,
    ) -> Option<ListVictim> {
        let entries = self.entries.of_shard(guard);
        let hand = &self.hands[guard.shard()];
        let start = hand.load(Ordering::Relaxed) as usize % entries.len();
        let mut lowest: Option<ListVictim> = None;
        let mut looked_at = 0;
        for step in 0..entries.len() {
            let is_fresh = |victim: ListVictim| victim.rank.fresh_at_us <= now_us;
            if lowest.is_some_and(|victim| is_fresh(victim) || step >= SEARCH_ENTRIES_MAX) {
                break;
            }
            looked_at = step + 1;
            let other = entries.start + (start + step) % entries.len();
            if other == entry || self.load(guard, other).chain.len() == 0 {
                continue;
            }
            let rank = self.entries.rank(other).at(now_us);
            if lowest.is_none_or(|victim| rank < victim.rank) {
                lowest = Some(ListVictim { entry: other, rank });
            }
        }
        hand.store(((start + looked_at) % entries.len()) as u64, Ordering::Relaxed);
        lowest
    }

    /// Hands out every list of the guarded shard that is not fresh: its name, its rank, and its
    /// state.
    pub(super) fn for_each_live(
        &self,
        guard: &ShardGuard<'_>,
        now_us: u64,
        mut visit: impl FnMut(u64, EntryRank, ListState),
    ) {
        for entry in self.entries.of_shard(guard) {
            let rank = self.entries.rank(entry);
            if rank.fresh_at_us > now_us {
                visit(self.entries.name(entry), rank, self.load(guard, entry));
            }
        }
    }
}
