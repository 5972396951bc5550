//! One log: its entry's two words, and the chain of the stamps before the newest.

use std::sync::atomic::Ordering;

use crate::algorithm::Algorithm;
use crate::algorithm::sliding_log::{SlidingLog, Stamp, Stamps};
use crate::memory::counter_id::CounterId;
use crate::memory::lists::{ListState, Lists, NoVictim};
use crate::memory::rank::{EntryRank, UsedShare};
use crate::memory::shards::ShardGuard;

/// The log of one counter, in the hands of whoever holds the lock.
pub(in crate::memory) struct Log<'a> {
    lists: &'a Lists,
    guard: &'a ShardGuard<'a>,
    now_us: u64,
    /// `None` where the counter is fresh, and absent.
    entry: Option<usize>,
    state: ListState,
    /// How many live counters had to make room for it.
    pub(super) evicted: u64,
}

/// Of the two words an entry has to itself: the tokens of all stamps, and the newest stamp.
const TOKENS: usize = 0;
const NEWEST: usize = 1;

impl<'a> Log<'a> {
    /// The log of `id` as it is.
    #[inline]
    pub(super) fn find(
        lists: &'a Lists,
        guard: &'a ShardGuard<'a>,
        id: CounterId,
        now_us: u64,
    ) -> Self {
        let entry = lists.find(guard, id);
        let state = entry.map_or(ListState::default(), |entry| lists.load(guard, entry));
        Self { lists, guard, now_us, entry, state, evicted: 0 }
    }

    /// A log to be looked at.
    pub(super) fn from_state(
        lists: &'a Lists,
        guard: &'a ShardGuard<'a>,
        state: ListState,
        now_us: u64,
    ) -> Self {
        Self { lists, guard, now_us, entry: None, state, evicted: 0 }
    }

    /// Makes sure that it has an entry, before it is charged.
    #[inline]
    pub(super) fn enter(&mut self, id: CounterId) {
        if self.entry.is_none() {
            let free_entry = self.lists.take(self.guard, id, self.now_us);
            self.evicted += u64::from(free_entry.was_live);
            self.entry = Some(free_entry.entry);
        }
    }

    #[inline]
    pub(super) fn save(&self, algorithm: &SlidingLog) {
        let remaining = algorithm.limit().saturating_sub(self.tokens());
        let used = UsedShare::from_remaining(algorithm.limit(), remaining);
        self.save_with_rank(EntryRank { used, fresh_at_us: algorithm.fresh_at_us(self) });
    }

    #[inline]
    pub(super) fn save_with_rank(&self, rank: EntryRank) {
        if let Some(entry) = self.entry {
            self.lists.save(self.guard, entry, &self.state, rank);
        }
    }

    pub(super) fn is_absent(&self) -> bool {
        self.entry.is_none()
    }

    /// Nothing of it is left, nor the blocks it has taken since it was loaded.
    pub(super) fn forget(&mut self) {
        self.lists.blocks.clear(self.guard, &mut self.state.chain);
        self.save_with_rank(EntryRank::until(0));
        if let Some(entry) = self.entry {
            self.lists.forget(self.guard, entry);
        }
    }

    /// True where the next stamp takes a block that only a list of higher `rank` could make free.
    pub(super) fn has_to_be_forgotten_before_others(&self, rank: EntryRank) -> bool {
        let needs_block = self.newest().tokens() > 0 && self.state.chain.needs_block();
        let Some(entry) = self.entry.filter(|_| needs_block) else {
            return false;
        };
        if self.lists.blocks.has_free(self.guard) {
            return false;
        }
        let lowest = self.lists.lowest_with_blocks(self.guard, entry, self.now_us);
        lowest.is_some_and(|victim| victim.rank > rank)
    }

    /// All stamps, oldest first.
    pub(in crate::memory) fn stamps(&self) -> impl Iterator<Item = Stamp> {
        let older = self.lists.blocks.items(self.guard, self.state.chain);
        let newest = self.newest();
        older
            .map(|word| Stamp::from_word(word.load(Ordering::Relaxed)))
            .chain((newest != Stamp::default()).then_some(newest))
    }

    /// All blocks of the shard are its own, and it needs another: the oldest stamps are forgiven.
    #[cold]
    fn forget_oldest_block(&mut self) {
        let count = self.state.chain.front_block_len();
        let tokens = self.stamps().take(count).map(Stamp::tokens).sum();
        self.drop_front(count, tokens);
        self.evicted += 1;
    }
}

impl Stamps for Log<'_> {
    #[inline]
    fn tokens(&self) -> u64 {
        self.state.own[TOKENS]
    }

    #[inline]
    fn len(&self) -> usize {
        self.state.chain.len() + usize::from(self.newest() != Stamp::default())
    }

    #[inline]
    fn newest(&self) -> Stamp {
        Stamp::from_word(self.state.own[NEWEST])
    }

    #[inline]
    fn newest_charged(&self) -> Option<Stamp> {
        if self.newest().tokens() > 0 {
            return Some(self.newest());
        }
        self.lists.blocks.back(self.guard, self.state.chain).map(Stamp::from_word)
    }

    #[inline]
    fn visit(&self, mut visit: impl FnMut(Stamp) -> bool) {
        let _ = self.stamps().all(&mut visit);
    }

    #[inline]
    fn drop_front(&mut self, count: usize, tokens: u64) {
        if count > self.state.chain.len() {
            self.state.own[NEWEST] = 0;
        }
        self.lists.blocks.drop_front(self.guard, &mut self.state.chain, count);
        self.state.own[TOKENS] -= tokens;
    }

    #[inline]
    fn set_newest(&mut self, stamp: Stamp) {
        self.state.own[TOKENS] = self.tokens() - self.newest().tokens() + stamp.tokens();
        self.state.own[NEWEST] = stamp.word();
    }

    #[inline]
    fn push(&mut self, stamp: Stamp) {
        let newest = self.newest();
        if let Some(entry) = self.entry.filter(|_| newest.tokens() > 0) {
            loop {
                let chain = &mut self.state.chain;
                let word = newest.word();
                match self.lists.push_back(self.guard, entry, chain, word, self.now_us) {
                    Ok(evicted_live) => {
                        self.evicted += u64::from(evicted_live);
                        break;
                    }
                    Err(NoVictim) if self.state.chain.len() > 0 => self.forget_oldest_block(),
                    // Not reached: a block that nobody has is free, and a shard has one at least.
                    Err(NoVictim) => {
                        self.state.own[TOKENS] -= newest.tokens();
                        break;
                    }
                }
            }
        }
        self.state.own[TOKENS] += stamp.tokens();
        self.state.own[NEWEST] = stamp.word();
    }

    fn alter_older(&mut self, mut change: impl FnMut(Stamp) -> Option<Stamp>) {
        let mut places = self.lists.blocks.items(self.guard, self.state.chain);
        let mut kept = 0;
        for place in self.lists.blocks.items(self.guard, self.state.chain) {
            let before = Stamp::from_word(place.load(Ordering::Relaxed));
            let after = change(before);
            self.state.own[TOKENS] -= before.tokens();
            if let (Some(after), Some(to)) = (after, after.and_then(|_| places.next())) {
                self.state.own[TOKENS] += after.tokens();
                to.store(after.word(), Ordering::Relaxed);
                kept += 1;
            }
        }
        drop(places);
        self.lists.blocks.truncate(self.guard, &mut self.state.chain, kept);
    }
}

#[cfg(all(test, not(tollbar_loom)))]
impl Log<'_> {
    pub(super) fn block_count(&self) -> usize {
        self.state.chain.block_count()
    }
}
