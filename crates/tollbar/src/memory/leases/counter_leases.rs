//! The leases of one counter: its entry's two words, and the chain of the leases.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::algorithm::leased::{LeaseList, LeaseRecord};
use crate::memory::counter_id::CounterId;
use crate::memory::lists::{ListState, Lists, NoVictim};
use crate::memory::rank::{EntryRank, UsedShare};
use crate::memory::shards::ShardGuard;

/// The leases of one counter, in the hands of whoever holds the lock.
pub(in crate::memory) struct CounterLeases<'a> {
    lists: &'a Lists,
    guard: &'a ShardGuard<'a>,
    now_us: u64,
    /// `None` where the counter is fresh, and absent.
    entry: Option<usize>,
    state: ListState,
    /// The share of the permits that are out, and when the last lease ends: from then on the counter
    /// is fresh.
    rank: EntryRank,
    /// How many live counters had to make room for it.
    pub(super) evicted: u64,
}

/// Of the two words an entry has to itself: the permits of all leases, and when the first one ends.
const PERMITS: usize = 0;
const FIRST_END: usize = 1;

impl<'a> CounterLeases<'a> {
    /// The leases of `id` as they are.
    pub(super) fn find(
        lists: &'a Lists,
        guard: &'a ShardGuard<'a>,
        id: CounterId,
        now_us: u64,
    ) -> Self {
        let entry = lists.find(guard, id);
        let state = entry.map_or(ListState::default(), |entry| lists.load(guard, entry));
        let rank = entry.map_or(EntryRank::until(0), |entry| lists.rank(guard, entry));
        Self { lists, guard, now_us, entry, state, rank, evicted: 0 }
    }

    /// Leases to be looked at.
    pub(super) fn from_state(
        lists: &'a Lists,
        guard: &'a ShardGuard<'a>,
        state: ListState,
        now_us: u64,
    ) -> Self {
        Self { lists, guard, now_us, entry: None, state, rank: EntryRank::until(0), evicted: 0 }
    }

    /// Makes sure that there is an entry, before a lease is granted.
    pub(super) fn enter(&mut self, id: CounterId) {
        if self.entry.is_none() {
            let free_entry = self.lists.take(self.guard, id, self.now_us);
            self.evicted += u64::from(free_entry.was_live);
            self.entry = Some(free_entry.entry);
        }
    }

    pub(super) fn is_absent(&self) -> bool {
        self.entry.is_none()
    }

    /// Writes the state back. One that has no lease left is all zero, and fresh.
    pub(super) fn save(&self, limit: u64) {
        let permits = self.state.own[PERMITS];
        self.save_with_share(UsedShare::from_remaining(limit, limit.saturating_sub(permits)));
    }

    /// Writes the state back, of a counter that ranks by a share that is known already.
    pub(super) fn save_with_share(&self, used: UsedShare) {
        if let Some(entry) = self.entry {
            self.lists.save(self.guard, entry, &self.state, EntryRank { used, ..self.rank });
        }
    }

    /// All leases, in the order in which they were granted.
    pub(in crate::memory) fn leases(&self) -> impl Iterator<Item = LeaseRecord> {
        let mut words = self.lists.blocks.items(self.guard, self.state.chain);
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        std::iter::from_fn(move || {
            Some(LeaseRecord::from_words([words.next().map(read)?, words.next().map(read)?]))
        })
    }

    /// All blocks of the shard are its own, and it needs another: the oldest leases are forgiven.
    #[cold]
    fn forget_oldest(&mut self) {
        let count = self.state.chain.front_block_len().next_multiple_of(LeaseRecord::WORDS);
        let forgotten =
            self.leases().take(count / LeaseRecord::WORDS).map(LeaseRecord::permits).sum::<u64>();
        self.lists.blocks.drop_front(self.guard, &mut self.state.chain, count);
        self.state.own[PERMITS] -= forgotten;
        self.evicted += 1;
    }

    /// Appends both words of a lease, or says that no other list of the shard has a block to give.
    fn try_push(&mut self, entry: usize, lease: LeaseRecord) -> Result<(), NoVictim> {
        let len = self.state.chain.len();
        for word in lease.to_words() {
            let chain = &mut self.state.chain;
            let pushed = self.lists.push_back(self.guard, entry, chain, word, self.now_us);
            let Ok(evicted_live) = pushed else {
                // Half a lease is none.
                self.lists.blocks.truncate(self.guard, chain, len);
                return Err(NoVictim);
            };
            self.evicted += u64::from(evicted_live);
        }
        Ok(())
    }
}

impl LeaseList for CounterLeases<'_> {
    fn in_flight(&self, now_us: u64) -> u64 {
        if self.state.own[FIRST_END] > now_us {
            return self.state.own[PERMITS];
        }
        self.leases().filter(|lease| lease.ends_at_us() > now_us).map(LeaseRecord::permits).sum()
    }

    fn push(&mut self, lease: LeaseRecord) {
        let Some(entry) = self.entry else { return };
        while self.try_push(entry, lease).is_err() {
            self.forget_oldest();
        }
        let is_first = self.state.own[PERMITS] == 0;
        let first_end_us = if is_first { u64::MAX } else { self.state.own[FIRST_END] };
        self.state.own[PERMITS] += lease.permits();
        self.state.own[FIRST_END] = first_end_us.min(lease.ends_at_us());
        self.rank.fresh_at_us = self.rank.fresh_at_us.max(lease.ends_at_us());
    }

    fn alter(&mut self, mut change: impl FnMut(LeaseRecord) -> Option<LeaseRecord>) {
        let mut places = self.lists.blocks.items(self.guard, self.state.chain);
        let (mut kept, mut permits) = (0, 0);
        let (mut first_end_us, mut last_end_us) = (u64::MAX, 0);
        for lease in self.leases().filter_map(&mut change) {
            // Fewer are written than were read, so what is overwritten has been read.
            // In this order, or the last step would take a place in vain.
            for (word, place) in lease.to_words().into_iter().zip(places.by_ref()) {
                place.store(word, Ordering::Relaxed);
            }
            kept += LeaseRecord::WORDS;
            permits += lease.permits();
            first_end_us = first_end_us.min(lease.ends_at_us());
            last_end_us = last_end_us.max(lease.ends_at_us());
        }
        drop(places);
        self.lists.blocks.truncate(self.guard, &mut self.state.chain, kept);
        self.state.own[PERMITS] = permits;
        self.state.own[FIRST_END] = if permits == 0 { 0 } else { first_end_us };
        self.rank.fresh_at_us = last_end_us;
    }

    fn strike_ended(&mut self, now_us: u64) {
        if self.state.own[FIRST_END] <= now_us {
            self.alter(|lease| (lease.ends_at_us() > now_us).then_some(lease));
        }
    }
}
