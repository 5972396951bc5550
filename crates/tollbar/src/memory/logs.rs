//! Sliding window logs: one counter each, decided and charged under the lock of its shard.
//!
//! The newest stamp is kept in the entry itself, so a key that is seen once in a window needs no
//! block. The stamps before it are the entry's list.

use std::sync::atomic::Ordering;

use super::MemoryStore;
use super::counter_id::CounterId;
use super::deciding::LogQuestion;
use super::lists::{Alone, ListState, Lists};
use super::shards::ShardGuard;
use crate::algorithm::sliding_log::{SlidingLog, Stamp, Stamps, Standing};
use crate::{Decision, Timestamp};

/// The log of one counter, in the hands of whoever holds the lock.
pub(super) struct Log<'a> {
    lists: &'a Lists,
    guard: &'a ShardGuard<'a>,
    now_us: u64,
    /// `None` where the counter is fresh, and absent.
    entry: Option<usize>,
    state: ListState,
    /// How many live counters had to make room.
    evicted: u64,
}

/// Of the two words an entry has to itself: the tokens of all stamps, and the newest stamp.
const TOKENS: usize = 0;
const NEWEST: usize = 1;

impl MemoryStore {
    #[inline(never)]
    pub(super) fn check_log(
        &self,
        algorithm: &SlidingLog,
        id: CounterId,
        now_us: u64,
        cost: u64,
    ) -> Decision {
        let guard = self.shards.lock(id);
        let mut log = self.log(&guard, id, now_us);
        let standing = algorithm.standing(&log, now_us);
        let decision = algorithm.decide(&log, &standing, 0, cost);
        if cost > 0 && decision.is_allowed() {
            self.charge(&mut log, algorithm, &standing, id, cost);
        }
        decision
    }

    /// Decides one entry of a batch, and says what its charge is called.
    pub(super) fn decide_log(
        &self,
        guard: &ShardGuard<'_>,
        asked: &LogQuestion<'_>,
        now_us: u64,
    ) -> (Decision, u64) {
        let log = self.log(guard, asked.id, now_us);
        let standing = asked.log.standing(&log, now_us);
        let decision = asked.log.decide(&log, &standing, asked.pending, asked.cost);
        (decision, standing.stamp())
    }

    /// Charges what a batch was decided to cost.
    pub(super) fn charge_log(
        &self,
        guard: &ShardGuard<'_>,
        algorithm: &SlidingLog,
        id: CounterId,
        now_us: u64,
        tokens: u64,
    ) {
        let mut log = self.log(guard, id, now_us);
        let standing = algorithm.standing(&log, now_us);
        self.charge(&mut log, algorithm, &standing, id, tokens);
    }

    /// Gives back up to `amount` tokens that were charged at `stamp`.
    pub(super) fn refund_log(
        &self,
        algorithm: &SlidingLog,
        id: CounterId,
        now: Timestamp,
        stamp: u64,
        amount: u64,
    ) -> u64 {
        let guard = self.shards.lock(id);
        let mut log = self.log(&guard, id, now.as_micros());
        let given_back = algorithm.give_back(&mut log, now.as_micros(), stamp, amount);
        if given_back > 0 {
            log.save(algorithm);
        }
        given_back
    }

    pub(super) fn reset_log(&self, id: CounterId) {
        let guard = self.shards.lock(id);
        if let Some(entry) = self.lists.find(&guard, id) {
            self.lists.forget(&guard, entry);
        }
    }

    /// Puts in the stamps of a snapshot, oldest first. Where there is no room for all of them, and
    /// every other list is farther from fresh, it is this one that is forgotten.
    pub(super) fn restore_log(
        &self,
        id: CounterId,
        fresh_at_us: u64,
        now_us: u64,
        stamps: impl Iterator<Item = Stamp>,
    ) {
        let guard = self.shards.lock(id);
        if self.lists.find(&guard, id).is_some() {
            return;
        }
        let nearest_us = self.lists.nearest_in_bucket(&guard, id).fresh_at_us;
        if nearest_us > fresh_at_us.max(now_us) {
            return self.count_eviction(true);
        }
        let mut log = self.log(&guard, id, now_us);
        self.enter(&mut log, id);
        for stamp in stamps {
            if log.has_to_be_forgotten_before_others(fresh_at_us) {
                log.forget();
                return self.count_eviction(true);
            }
            log.push(stamp);
        }
        self.count_evictions(log.evicted);
        log.save_until(fresh_at_us);
    }

    /// Hands out every log of the guarded shard that is not fresh: its name, from when on it is
    /// fresh, and itself.
    pub(super) fn for_each_log(
        &self,
        guard: &ShardGuard<'_>,
        now_us: u64,
        mut visit: impl FnMut(u64, u64, &Log<'_>),
    ) {
        let lists = &self.lists;
        lists.for_each_live(guard, now_us, |id, fresh_at_us, state| {
            let log = Log { lists, guard, now_us, entry: None, state, evicted: 0 };
            visit(id, fresh_at_us, &log);
        });
    }

    fn log<'a>(&'a self, guard: &'a ShardGuard<'a>, id: CounterId, now_us: u64) -> Log<'a> {
        let entry = self.lists.find(guard, id);
        let state = entry.map_or(ListState::default(), |entry| self.lists.load(guard, entry));
        Log { lists: &self.lists, guard, now_us, entry, state, evicted: 0 }
    }

    #[inline]
    fn charge(
        &self,
        log: &mut Log<'_>,
        algorithm: &SlidingLog,
        standing: &Standing,
        id: CounterId,
        tokens: u64,
    ) {
        self.enter(log, id);
        algorithm.charge(log, standing, tokens);
        log.save(algorithm);
        self.count_evictions(log.evicted);
    }

    /// Makes sure that the log has an entry.
    #[inline]
    fn enter(&self, log: &mut Log<'_>, id: CounterId) {
        if log.entry.is_none() {
            let taken = self.lists.take(log.guard, id, log.now_us);
            self.count_eviction(taken.was_live);
            log.entry = Some(taken.entry);
        }
    }

    #[inline]
    fn count_evictions(&self, evicted: u64) {
        if evicted > 0 {
            self.forced_evictions.fetch_add(evicted, Ordering::Relaxed);
        }
    }
}

impl Log<'_> {
    fn save(&self, algorithm: &SlidingLog) {
        self.save_until(algorithm.fresh_at_us(self));
    }

    fn save_until(&self, fresh_at_us: u64) {
        if let Some(entry) = self.entry {
            self.lists.save(self.guard, entry, &self.state, fresh_at_us);
        }
    }

    /// Nothing of it is left, nor the blocks it has taken since it was loaded.
    fn forget(&mut self) {
        self.lists.blocks.clear(self.guard, &mut self.state.chain);
        self.save_until(0);
        if let Some(entry) = self.entry {
            self.lists.forget(self.guard, entry);
        }
    }

    /// True where the next stamp takes a block that nobody nearer to fresh can make free.
    fn has_to_be_forgotten_before_others(&self, fresh_at_us: u64) -> bool {
        let needs_block = self.newest().tokens() > 0 && self.state.chain.needs_block();
        let Some(entry) = self.entry.filter(|_| needs_block) else {
            return false;
        };
        if self.lists.blocks.has_free(self.guard) {
            return false;
        }
        let nearest = self.lists.nearest_to_fresh(self.guard, entry, self.now_us);
        nearest.is_some_and(|it| it.fresh_at_us > fresh_at_us.max(self.now_us))
    }

    /// All stamps, oldest first.
    pub(super) fn stamps(&self) -> impl Iterator<Item = Stamp> {
        let older = self.lists.blocks.items(self.guard, self.state.chain);
        let newest = self.newest();
        older
            .map(|word| Stamp::of_word(word.load(Ordering::Relaxed)))
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
        Stamp::of_word(self.state.own[NEWEST])
    }

    #[inline]
    fn newest_charged(&self) -> Option<Stamp> {
        if self.newest().tokens() > 0 {
            return Some(self.newest());
        }
        self.lists.blocks.back(self.guard, self.state.chain).map(Stamp::of_word)
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
                    Err(Alone) if self.state.chain.len() > 0 => self.forget_oldest_block(),
                    // Not reached: a block that nobody has is free, and a shard has one at least.
                    Err(Alone) => {
                        self.state.own[TOKENS] -= newest.tokens();
                        break;
                    }
                }
            }
        }
        self.state.own[TOKENS] += stamp.tokens();
        self.state.own[NEWEST] = stamp.word();
    }

    fn alter_older(&mut self, mut alter: impl FnMut(Stamp) -> Option<Stamp>) {
        let mut places = self.lists.blocks.items(self.guard, self.state.chain);
        let mut kept = 0;
        for place in self.lists.blocks.items(self.guard, self.state.chain) {
            let before = Stamp::of_word(place.load(Ordering::Relaxed));
            let after = alter(before);
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
