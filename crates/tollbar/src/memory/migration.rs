//! Counters that outgrow their word when a limit is raised, and fit again when it is lowered.
//!
//! A counter is in one place at a time: in the table, or among the wide ones. It is moved by the
//! first check under the changed rule, always under the lock of its shard, so that checks under the
//! old and the new rule never count apart.

use std::sync::atomic::Ordering;

use super::MemoryStore;
use super::counter_id::{CounterId, MOVED};
use super::rank::{EntryRank, UsedShare};
use super::shards::ShardGuard;
use super::slot::SlotRead;
use super::sync::Backoff;
use crate::algorithm::concurrency::NEVER_US;
use crate::algorithm::word::PackedAlgorithm;
use crate::algorithm::{Algorithm, STATE_WORDS_MAX};

/// Where a counter that was not found in the table turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CounterLocation {
    /// Nowhere: it was fresh, and is in the table now if it was to be put there.
    New,
    /// In the table after all, or there is no slot to be had at this moment: look again.
    Table,
    /// Among the wide counters, where it has to be decided.
    Wide,
}

impl MemoryStore {
    /// Where a counter is that was not found in the table.
    #[cold]
    pub(super) fn recall(
        &self,
        packed: &dyn PackedAlgorithm,
        id: CounterId,
        now_us: u64,
    ) -> CounterLocation {
        if !self.has_outgrown.load(Ordering::Acquire) {
            return CounterLocation::New;
        }
        let guard = self.shards.lock(id);
        if self.table.find(id, id.tag(packed.word_shift())).is_some() {
            return CounterLocation::Table;
        }
        self.bring_back(&guard, packed, id, now_us)
    }

    /// Moves a counter that was not found in the table there, if it was kept wide because its limit
    /// was too large before the rule changed, and fits a word now.
    pub(super) fn bring_back(
        &self,
        guard: &ShardGuard<'_>,
        packed: &dyn PackedAlgorithm,
        id: CounterId,
        now_us: u64,
    ) -> CounterLocation {
        if !self.has_outgrown.load(Ordering::Acquire) {
            return CounterLocation::New;
        }
        let mut state = [0; STATE_WORDS_MAX];
        let state = &mut state[..packed.state_words()];
        let Some(place) = self.wide.find(guard, id, state.len()) else {
            return CounterLocation::New;
        };
        // A snapshot has read the table already: moved there now, the counter would not be in it.
        if self.snapshots_running.load(Ordering::Acquire) > 0 {
            return CounterLocation::Wide;
        }
        self.wide.load(guard, place, state);
        let Some(word) = packed.save(state, now_us) else {
            return CounterLocation::Wide;
        };
        let Some(mut free_slot) = self.table.free(id, now_us) else {
            return CounterLocation::Wide;
        };
        self.count_eviction(free_slot.was_live);
        self.wide.forget(guard, place);
        free_slot.guard.hand_over(id.tag(packed.word_shift()), word);
        CounterLocation::Table
    }

    /// Loads the state of a wide counter, which may still be in the table if its limit was smaller
    /// before the rule changed; then it is moved here. Where there is none, `state` stays fresh and
    /// the answer is false.
    pub(super) fn load_wide(
        &self,
        guard: &ShardGuard<'_>,
        algorithm: &dyn Algorithm,
        packed: Option<&dyn PackedAlgorithm>,
        id: CounterId,
        now_us: u64,
        state: &mut [u64],
    ) -> bool {
        if let Some(place) = self.wide.find(guard, id, state.len()) {
            self.wide.load(guard, place, state);
            return true;
        }
        let Some(packed) = packed else { return false };
        // From now on a check under the old, smaller limit has to look here as well. Set before
        // the slot is emptied, so that whoever finds it gone sees this.
        self.has_outgrown.store(true, Ordering::Release);
        let tag = id.tag(packed.word_shift());
        let mut backoff = Backoff::default();
        while let Some(slot) = self.table.find(id, tag) {
            match slot.read(tag) {
                SlotRead::Word(reading) => {
                    if let Some(mut slot) = slot.try_lock(reading, tag) {
                        packed.load(slot.word, state);
                        slot.hand_over(MOVED, 0);
                        let used = UsedShare::at(algorithm, state, now_us);
                        self.save_wide(guard, algorithm, id, now_us, state, used);
                        return true;
                    }
                }
                SlotRead::Locked => backoff.wait(),
                SlotRead::Gone => {}
            }
        }
        false
    }

    pub(super) fn save_wide(
        &self,
        guard: &ShardGuard<'_>,
        algorithm: &dyn Algorithm,
        id: CounterId,
        now_us: u64,
        state: &[u64],
        used: UsedShare,
    ) {
        let found = self.wide.find(guard, id, state.len());
        let fresh_at_us = algorithm.fresh_at(state).as_micros();
        // Permits in flight are forgotten last of all, as in the table.
        let used = if fresh_at_us == NEVER_US { UsedShare::ALL } else { used };
        let rank = EntryRank { used, fresh_at_us };
        let saved = self.wide.save(guard, id, found, state, rank, now_us);
        self.count_eviction(saved.evicted_live);
    }
}
