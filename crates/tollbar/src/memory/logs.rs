//! Sliding window logs: one counter each, decided and charged under the lock of its shard.
//!
//! The newest stamp is kept in the entry itself, so a key that is seen once in a window needs no
//! block. The stamps before it are the entry's list.

mod log;

#[cfg(all(test, not(tollbar_loom)))]
mod tests;

use std::sync::atomic::Ordering;

use self::log::Log;
use super::MemoryStore;
use super::counter_id::CounterId;
use super::rank::EntryRank;
use super::shards::ShardGuard;
use crate::Decision;
use crate::algorithm::sliding_log::{LogStatus, PendingTokens, SlidingLog, Stamp, Stamps};
use crate::memory::batch_decision::LogCharge;
use crate::policy::Kind;

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
        // As in `check_absent`: an absent counter is decided at an instant after it was forgotten.
        let now_us = if log.is_absent() { self.now_us() } else { now_us };
        let status = algorithm.status(&log, now_us);
        let decision = algorithm.decide(&log, &status, PendingTokens::default(), cost);
        if cost > 0 && decision.is_allowed() {
            self.charge(&mut log, algorithm, &status, id, cost);
        }
        decision
    }

    /// Decides one entry of a batch, and says what its charge is called.
    pub(super) fn decide_log(
        &self,
        guard: &ShardGuard<'_>,
        charge: &LogCharge<'_>,
    ) -> (Decision, u64) {
        let log = self.log(guard, charge.id, charge.now_us);
        let status = charge.log.status(&log, charge.now_us);
        // Where the clock has gone back, the newest stamp is the present.
        let at_us = charge.pending_at_us.max(log.newest().at_us());
        let pending = PendingTokens { at_us, tokens: charge.pending };
        let decision = charge.log.decide(&log, &status, pending, charge.cost);
        (decision, status.stamp())
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
        let status = algorithm.status(&log, now_us);
        self.charge(&mut log, algorithm, &status, id, tokens);
    }

    /// Gives back up to `amount` tokens that were charged at `stamp`.
    pub(super) fn refund_log(
        &self,
        algorithm: &SlidingLog,
        id: CounterId,
        stamp: u64,
        amount: u64,
    ) -> u64 {
        let guard = self.shards.lock(id);
        let now_us = self.now_us();
        let mut log = self.log(&guard, id, now_us);
        let given_back = algorithm.give_back(&mut log, now_us, stamp, amount);
        if given_back > 0 {
            log.save(algorithm);
        }
        given_back
    }

    /// Charges up to `amount` tokens that were spent already. `None` where `kind` is no log.
    pub(super) fn overdraw_log(&self, kind: &Kind, id: CounterId, amount: u64) -> Option<u64> {
        let algorithm = kind.as_log()?;
        let guard = self.shards.lock(id);
        let now_us = self.now_us();
        let mut log = self.log(&guard, id, now_us);
        let status = algorithm.status(&log, now_us);
        let charged = status.overdraft(&log, amount);
        if charged > 0 {
            self.charge(&mut log, algorithm, &status, id, charged);
            if let Some(warming) = kind.as_warming_list() {
                self.prolong_life(&guard, warming, id, now_us);
            }
        }
        Some(charged)
    }

    /// Puts in the stamps of a snapshot, oldest first. Where there is no room for all of them, and
    /// every other list ranks higher, it is this one that is forgotten.
    pub(super) fn restore_log(
        &self,
        id: CounterId,
        rank: EntryRank,
        now_us: u64,
        stamps: impl Iterator<Item = Stamp>,
    ) {
        let guard = self.shards.lock(id);
        if self.lists.find(&guard, id).is_some() {
            return;
        }
        if self.lists.lowest_in_bucket(&guard, id, now_us).rank > rank {
            return self.count_eviction(true);
        }
        let mut log = self.log(&guard, id, now_us);
        log.enter(id);
        for stamp in stamps {
            if log.has_to_be_forgotten_before_others(rank) {
                log.forget();
                return self.count_evictions(log.evicted + 1);
            }
            log.push(stamp);
        }
        self.count_evictions(log.evicted);
        log.save_with_rank(rank);
    }

    /// Hands out every log of the guarded shard that is not fresh: its name, its rank, and itself.
    pub(super) fn for_each_log(
        &self,
        guard: &ShardGuard<'_>,
        now_us: u64,
        mut visit: impl FnMut(u64, EntryRank, &Log<'_>),
    ) {
        let lists = &self.lists;
        lists.for_each_live(guard, now_us, |id, rank, state| {
            visit(id, rank, &Log::from_state(lists, guard, state, now_us));
        });
    }

    #[inline]
    fn log<'a>(&'a self, guard: &'a ShardGuard<'a>, id: CounterId, now_us: u64) -> Log<'a> {
        Log::find(&self.lists, guard, id, now_us)
    }

    #[inline]
    fn charge(
        &self,
        log: &mut Log<'_>,
        algorithm: &SlidingLog,
        status: &LogStatus,
        id: CounterId,
        tokens: u64,
    ) {
        log.enter(id);
        status.charge(log, tokens);
        log.save(algorithm);
        self.count_evictions(log.evicted);
    }

    #[inline]
    fn count_evictions(&self, evicted: u64) {
        if evicted > 0 {
            self.forced_evictions.fetch_add(evicted, Ordering::Relaxed);
        }
    }
}
