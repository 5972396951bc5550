//! Several counters at one instant: all are charged, or none.
//!
//! First everything is read without a lock and decided. If an enforced entry denies, that is the
//! answer, and nothing was written: a denial is as cheap as its reads. Otherwise the counters are
//! locked, in the order of their names so that two batches never wait for each other in a circle,
//! read and decided again, and charged.

use arrayvec::ArrayVec;

use super::MemoryStore;
use super::counter_id::CounterId;
use super::leases::{LeaseGrant, lease_name};
use super::marks::MARKS_MAX;
use super::rank::UsedShare;
use super::shards::ShardGuard;
use super::slot::{SlotGuard, SlotRead};
use super::sync::Backoff;
use crate::algorithm::leased::LeasedConcurrency;
use crate::algorithm::warm_up::Life;
use crate::memory::batch_decision::{
    BATCH_ENTRIES_MAX, BatchCounter, BatchDecider, LogCharge, States, copy, zero,
};
use crate::memory::migration::CounterLocation;
use crate::policy::Kind;
use crate::store::{Batch, Entry, StoreError};

/// How often a batch that finds no free slot lets all go and tries again.
const LOCK_ROUNDS_MAX: u32 = 256;

/// What is said of a store in which the keys of one batch take each other's slots.
const TOO_SMALL: &str = "the memory store has too few slots for the keys of one request: make it larger, with room \
                         for at least 1,000 keys (`max_keys`)";

/// Those of the counters, and those of the marks.
const SHARDS_MAX: usize = BATCH_ENTRIES_MAX + MARKS_MAX;

/// The locks of a batch, held until its states are stored.
#[derive(Default)]
pub(super) struct BatchLocks<'a> {
    // Dropped in this order: slots first, then the shards they may have been inserted under.
    slots: ArrayVec<Option<SlotGuard<'a>>, BATCH_ENTRIES_MAX>,
    shards: ArrayVec<ShardGuard<'a>, SHARDS_MAX>,
}

impl BatchLocks<'_> {
    fn release(&mut self) {
        self.slots.clear();
        self.shards.clear();
    }
}

enum LockError {
    /// A counter is wide or not in the table: locks of shards are needed.
    NeedsShards,
    /// Every slot of a newcomer is locked.
    NoFreeSlot,
}

impl MemoryStore {
    pub(super) fn check_all_or_none(&self, batch: Batch<'_, '_>) -> Result<(), StoreError> {
        let Batch { entries, once, hold, .. } = batch;
        if entries.len() > BATCH_ENTRIES_MAX {
            let entries_max = BATCH_ENTRIES_MAX;
            return Err(StoreError::BatchTooLarge { entries: entries.len(), entries_max });
        }
        let now_us = self.now_us();
        if once.is_none() && hold.is_none() && self.check_small_batch(entries, now_us) {
            return Ok(());
        }
        // These and the states below are kilobytes of which a few words are used: they are filled in
        // place and never moved.
        let (mut counters, mut counter_of) = (ArrayVec::new(), ArrayVec::new());
        self.name(entries, &mut counters, &mut counter_of);
        let marks = self.marks(once, hold, entries);
        let decide_log =
            |charge: &LogCharge<'_>| self.decide_log(&self.shards.lock(charge.id), charge);
        let (counters, counter_of) = (&counters, &counter_of);
        let mut batch =
            BatchDecider { entries, counters, counter_of, now_us, decide_log: &decide_log };

        let (mut before, mut after) = (States::new(), States::new());
        // Whether a request has been here before is only known under its lock.
        if marks.is_empty() {
            self.read(counters, now_us, &mut before);
            copy(&before, &mut after);
            if !batch.decide(&mut after) {
                batch.report_uncharged(&before);
                return Ok(());
            }
        }

        let mut locks = BatchLocks::default();
        self.lock(counters, &marks.ids(), &mut locks)?;
        // Read again under the locks, because a counter that was absent may have been forgotten as
        // fresh by a thread with a later reading: see `check_absent`.
        let now_us = self.now_us();
        batch.now_us = now_us;
        if self.is_answered(&marks, &locks, batch.entries, now_us)? {
            return Ok(());
        }
        self.read_locked(counters, &locks, now_us, &mut before);
        copy(&before, &mut after);
        let decide_locked_log =
            |charge: &LogCharge<'_>| self.decide_log(self.guard_of(&locks, charge.id), charge);
        batch.decide_log = &decide_locked_log;
        if !batch.decide(&mut after) {
            batch.report_uncharged(&before);
            return Ok(());
        }
        if hold.is_some() {
            self.make_stamps_last(&mut batch, &locks);
        }
        Self::name_leases(&mut batch);
        let answers = Self::answers(&marks, batch.entries)?;
        self.remember(&marks, &locks, &answers, now_us);
        self.grant_leases(&batch, &locks);
        self.write_locked(counters, &mut locks, &before, &after, now_us);
        Ok(())
    }

    /// For a batch that may be given back.
    fn make_stamps_last(&self, batch: &mut BatchDecider<'_, '_>, locks: &BatchLocks<'_>) {
        let paid = batch.entries.iter_mut().zip(batch.counter_of);
        for (entry, at) in paid.filter(|(entry, _)| !entry.is_unused) {
            let counter = &batch.counters[*at];
            let guard = self.guard_of(locks, counter.id);
            entry.stamp =
                self.lasting_stamp(guard, &counter.kind, counter.id, entry.stamp, batch.now_us);
        }
    }

    /// Says what the leases of an allowed batch will be called.
    fn name_leases(batch: &mut BatchDecider<'_, '_>) {
        for entry in batch.entries.iter_mut().filter(|entry| granted(entry).is_some()) {
            entry.stamp = lease_name();
        }
    }

    /// Writes the leases of an allowed batch down.
    fn grant_leases(&self, batch: &BatchDecider<'_, '_>, locks: &BatchLocks<'_>) {
        for (entry, at) in batch.entries.iter().zip(batch.counter_of) {
            if let Some(leased) = granted(entry) {
                let counter = batch.counters[*at].id;
                let grant = LeaseGrant { id: entry.stamp, cost: entry.cost };
                let guard = self.guard_of(locks, counter);
                self.grant_lease(guard, leased, counter, batch.now_us, grant);
            }
        }
    }

    /// The different counters of a batch in the order of their names, and which one each entry
    /// asks for.
    fn name<'e>(
        &self,
        entries: &[Entry<'e>],
        counters: &mut ArrayVec<BatchCounter<'e>, BATCH_ENTRIES_MAX>,
        counter_of: &mut ArrayVec<usize, BATCH_ENTRIES_MAX>,
    ) {
        let mut order = ArrayVec::<(CounterId, bool, usize), BATCH_ENTRIES_MAX>::new();
        for (at, entry) in entries.iter().enumerate() {
            let id = self.hash.id(entry.key, entry.policy);
            order.push((id, entry.policy.kind.fits_word(), at));
            counter_of.push(0);
        }
        order.sort_unstable();
        for &(id, _, at) in &order {
            if counters.last().is_none_or(|counter| counter.id != id) {
                let kind = entries[at].policy.kind.for_key(entries[at].key);
                let start = counters.last().map_or(0, |counter| counter.words.end);
                let words = start..start + BatchCounter::state_words(&kind);
                counters.push(BatchCounter { id, kind, words });
            }
            counter_of[at] = counters.len() - 1;
        }
    }

    /// The states as they are, each read by itself.
    fn read(&self, counters: &[BatchCounter<'_>], now_us: u64, states: &mut States) {
        zero(states, counters);
        for counter in counters {
            let state = &mut states[counter.words.clone()];
            if counter.kind.fits_word() {
                self.read_word(counter, now_us, state);
            } else if !counter.is_log() {
                self.load_counter(&self.shards.lock(counter.id), counter, now_us, state);
            }
        }
    }

    fn load_counter(
        &self,
        guard: &ShardGuard<'_>,
        counter: &BatchCounter<'_>,
        now_us: u64,
        state: &mut [u64],
    ) {
        if let Some(warming) = counter.kind.as_warming_list() {
            return self.load_warming_list(guard, warming, counter.id, now_us, state);
        }
        if let Kind::Leased(_) = &*counter.kind {
            state[0] = self.leases_in_flight(guard, counter.id, now_us);
            return;
        }
        let (algorithm, packed) = (counter.kind.as_dyn(), counter.kind.as_packed());
        self.load_wide(guard, algorithm, packed, counter.id, now_us, state);
    }

    fn read_word(&self, counter: &BatchCounter<'_>, now_us: u64, state: &mut [u64]) {
        let Some((packed, tag)) = counter.packed() else {
            return;
        };
        let mut backoff = Backoff::default();
        loop {
            let Some(slot) = self.table.find(counter.id, tag) else {
                match self.recall(packed, counter.id, now_us) {
                    CounterLocation::New => return,
                    CounterLocation::Table => backoff.wait(),
                    CounterLocation::Wide => {
                        let guard = self.shards.lock(counter.id);
                        return self.load_counter(&guard, counter, now_us, state);
                    }
                }
                continue;
            };
            match slot.read(tag) {
                SlotRead::Word(reading) if slot.is_unchanged(reading) => {
                    return packed.load(reading.word, state);
                }
                SlotRead::Locked => backoff.wait(),
                SlotRead::Word(_) | SlotRead::Gone => {}
            }
        }
    }

    /// Locks every counter, and the shards of the marks. Without shards where there are no marks and
    /// all counters are in the table.
    fn lock<'a>(
        &'a self,
        counters: &[BatchCounter<'_>],
        marks: &[CounterId],
        locks: &mut BatchLocks<'a>,
    ) -> Result<(), StoreError> {
        let mut with_shards = !marks.is_empty();
        let mut backoff = Backoff::default();
        loop {
            let shards_of = with_shards.then_some(marks);
            let locked = self.try_lock(counters, shards_of, locks);
            if locked.is_err() {
                locks.release();
            }
            match locked {
                Ok(()) => return Ok(()),
                Err(LockError::NeedsShards) => with_shards = true,
                // The batch itself may hold them all: then trying again will not help.
                Err(LockError::NoFreeSlot) if backoff.rounds() >= LOCK_ROUNDS_MAX => {
                    // A mistake and no outage: trying later does not help, and an outage may be let pass.
                    return Err(StoreError::Unsupported { detail: TOO_SMALL.into() });
                }
                Err(LockError::NoFreeSlot) => backoff.wait(),
            }
        }
    }

    /// Locks every counter; with shards, those of the marks as well.
    fn try_lock<'a>(
        &'a self,
        counters: &[BatchCounter<'_>],
        marks: Option<&[CounterId]>,
        locks: &mut BatchLocks<'a>,
    ) -> Result<(), LockError> {
        let with_shards = marks.is_some();
        if let Some(marks) = marks {
            let ids = counters.iter().map(|counter| counter.id).chain(marks.iter().copied());
            let mut shards: ArrayVec<usize, SHARDS_MAX> =
                ids.map(|id| self.shards.shard_of(id)).collect();
            shards.sort_unstable();
            for (at, &shard) in shards.iter().enumerate() {
                if at == 0 || shards[at - 1] != shard {
                    locks.shards.push(self.shards.lock_shard(shard));
                }
            }
        }
        for counter in counters {
            let slot = match counter.packed() {
                Some((_, tag)) if counter.kind.fits_word() => {
                    match self.lock_present(counter.id, tag) {
                        Some(slot) => Some(slot),
                        None if with_shards => self.lock_newcomer(counter, locks)?,
                        None => return Err(LockError::NeedsShards),
                    }
                }
                _ if with_shards => None,
                _ => return Err(LockError::NeedsShards),
            };
            locks.slots.push(slot);
        }
        Ok(())
    }

    fn lock_present(&self, id: CounterId, tag: u64) -> Option<SlotGuard<'_>> {
        let mut backoff = Backoff::default();
        while let Some(slot) = self.table.find(id, tag) {
            match slot.read(tag) {
                SlotRead::Word(reading) => {
                    if let Some(guard) = slot.try_lock(reading, tag) {
                        return Some(guard);
                    }
                }
                SlotRead::Locked => backoff.wait(),
                SlotRead::Gone => {}
            }
        }
        None
    }

    /// Gives a counter that is not in the table a slot, fresh and locked; none where it is wide.
    fn lock_newcomer<'a>(
        &'a self,
        counter: &BatchCounter<'_>,
        locks: &BatchLocks<'a>,
    ) -> Result<Option<SlotGuard<'a>>, LockError> {
        let (packed, tag) = counter.packed().ok_or(LockError::NeedsShards)?;
        let now_us = self.now_us();
        match self.bring_back(self.guard_of(locks, counter.id), packed, counter.id, now_us) {
            CounterLocation::New => {}
            CounterLocation::Wide => return Ok(None),
            CounterLocation::Table => {
                return self.lock_present(counter.id, tag).map(Some).ok_or(LockError::NoFreeSlot);
            }
        }
        let mut free_slot = self.table.free(counter.id, now_us).ok_or(LockError::NoFreeSlot)?;
        self.count_eviction(free_slot.was_live);
        free_slot.guard.hand_over(tag, 0);
        Ok(Some(free_slot.guard))
    }

    pub(super) fn guard_of<'h, 'a>(
        &self,
        locks: &'h BatchLocks<'a>,
        id: CounterId,
    ) -> &'h ShardGuard<'a> {
        let shard = self.shards.shard_of(id);
        let found = locks.shards.iter().find(|guard| guard.shard() == shard);
        found.expect("every shard of the batch is locked before its slots")
    }

    fn read_locked(
        &self,
        counters: &[BatchCounter<'_>],
        locks: &BatchLocks<'_>,
        now_us: u64,
        states: &mut States,
    ) {
        zero(states, counters);
        for (counter, slot) in counters.iter().zip(&locks.slots) {
            let state = &mut states[counter.words.clone()];
            match (slot, counter.packed()) {
                (Some(slot), Some((packed, _))) => packed.load(slot.word, state),
                _ if counter.is_log() => {}
                _ => {
                    self.load_counter(self.guard_of(locks, counter.id), counter, now_us, state);
                }
            }
        }
    }

    fn write_locked(
        &self,
        counters: &[BatchCounter<'_>],
        locks: &mut BatchLocks<'_>,
        before: &States,
        after: &States,
        now_us: u64,
    ) {
        for (at, counter) in counters.iter().enumerate() {
            let state = &after[counter.words.clone()];
            if state == &before[counter.words.clone()] {
                continue;
            }
            if counter.kind.as_warming_list().is_some() {
                let life = Life::from_words(&state[1..]);
                self.save_life(self.guard_of(locks, counter.id), counter.id, life, now_us);
            }
            // Leases have been written down one by one.
            if counter.kind.as_leased().is_some() {
                continue;
            }
            if let (Some(slot), Some((packed, _))) = (&mut locks.slots[at], counter.packed()) {
                let word = packed.save(state, now_us);
                slot.word = word.expect("a state from a word, charged under a limit that fits");
            } else if let Some(log) = counter.kind.as_log() {
                let guard = self.guard_of(locks, counter.id);
                self.charge_log(guard, log, counter.id, now_us, state[0]);
            } else {
                let guard = self.guard_of(locks, counter.id);
                let used = UsedShare::at(counter.kind.as_dyn(), state, now_us);
                self.save_wide(guard, counter.kind.as_dyn(), counter.id, now_us, state, used);
            }
        }
    }
}

/// Returns the leases of which an entry of an allowed batch takes one.
fn granted<'p>(entry: &Entry<'p>) -> Option<&'p LeasedConcurrency> {
    entry.policy.kind.as_leased().filter(|_| entry.is_paid() && entry.cost > 0)
}
