//! Several counters at one instant: all are charged, or none.
//!
//! First everything is read without a lock and decided. If an enforced entry denies, that is the
//! answer, and nothing was written: a denial is as cheap as its reads. Otherwise the counters are
//! locked, in the order of their names so that two batches never wait for each other in a circle,
//! read and decided again, and charged.

use std::sync::Arc;

use arrayvec::ArrayVec;
use thiserror::Error;

use super::MemoryStore;
use super::counter_id::CounterId;
use super::leases::{LeaseGrant, lease_name};
use super::marks::MARKS_MAX;
use super::rank::UsedShare;
use super::shards::ShardGuard;
use super::slot::{SlotGuard, SlotRead};
use super::sync::Backoff;
use crate::algorithm::leased::LeasedConcurrency;
use crate::memory::batch_decision::{
    BATCH_ENTRIES_MAX, BatchDecider, LogCharge, States, Unit, copy, zero,
};
use crate::memory::migration::CounterLocation;
use crate::policy::Kind;
use crate::store::{Batch, Entry, StoreError};

/// How often a batch that finds no free slot lets all go and tries again.
const LOCK_ROUNDS_MAX: u32 = 256;

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

/// Every place a key could take is held by other checks at this moment.
#[derive(Debug, Error)]
#[error("every slot for this key is in use by other checks: make the store larger")]
struct NoFreeSlot;

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
        let (mut units, mut unit_of) = (ArrayVec::new(), ArrayVec::new());
        self.name(entries, &mut units, &mut unit_of);
        let marks = self.marks(once, hold, entries);
        let decide_log =
            |charge: &LogCharge<'_>| self.decide_log(&self.shards.lock(charge.id), charge, now_us);
        let (units, unit_of) = (&units, &unit_of);
        let mut batch = BatchDecider { entries, units, unit_of, now_us, decide_log: &decide_log };

        let (mut before, mut after) = (States::new(), States::new());
        // Whether a request has been here before is only known under its lock.
        if marks.is_empty() {
            self.read(units, now_us, &mut before);
            copy(&before, &mut after);
            if !batch.decide(&mut after) {
                batch.report_uncharged(&before);
                return Ok(());
            }
        }

        let mut locks = BatchLocks::default();
        self.lock(units, &marks.ids(), &mut locks)?;
        // Read again under the locks, because a counter that was absent may have been forgotten as
        // fresh by a thread with a later reading: see `check_absent`.
        let now_us = self.now_us();
        batch.now_us = now_us;
        if self.is_answered(&marks, &locks, batch.entries, now_us)? {
            return Ok(());
        }
        self.read_locked(units, &locks, now_us, &mut before);
        copy(&before, &mut after);
        let decide_locked_log = |charge: &LogCharge<'_>| {
            self.decide_log(self.guard_of(&locks, charge.id), charge, now_us)
        };
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
        self.write_locked(units, &mut locks, &before, &after, now_us);
        Ok(())
    }

    /// For a batch that may be given back.
    fn make_stamps_last(&self, batch: &mut BatchDecider<'_, '_>, locks: &BatchLocks<'_>) {
        for (entry, unit) in batch.entries.iter_mut().zip(batch.unit_of) {
            let unit = &batch.units[*unit];
            let guard = self.guard_of(locks, unit.id);
            entry.stamp = self.lasting_stamp(guard, &unit.kind, unit.id, entry.stamp, batch.now_us);
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
        for (entry, unit) in batch.entries.iter().zip(batch.unit_of) {
            if let Some(leased) = granted(entry) {
                let counter = batch.units[*unit].id;
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
        units: &mut ArrayVec<Unit<'e>, BATCH_ENTRIES_MAX>,
        unit_of: &mut ArrayVec<usize, BATCH_ENTRIES_MAX>,
    ) {
        let mut order = ArrayVec::<(CounterId, bool, usize), BATCH_ENTRIES_MAX>::new();
        for (at, entry) in entries.iter().enumerate() {
            let id = self.hash.id(entry.key, entry.policy);
            order.push((id, entry.policy.kind.fits_word(), at));
            unit_of.push(0);
        }
        order.sort_unstable();
        for &(id, _, at) in &order {
            if units.last().is_none_or(|unit| unit.id != id) {
                let kind = entries[at].policy.kind.for_key(entries[at].key);
                let start = units.last().map_or(0, |unit| unit.words.end);
                let words = start..start + Unit::state_words(&kind);
                units.push(Unit { id, kind, words });
            }
            unit_of[at] = units.len() - 1;
        }
    }

    /// The states as they are, each read by itself.
    fn read(&self, units: &[Unit<'_>], now_us: u64, states: &mut States) {
        zero(states, units);
        for unit in units {
            let state = &mut states[unit.words.clone()];
            if unit.kind.fits_word() {
                self.read_word(unit, now_us, state);
            } else if !unit.is_log() {
                self.load_unit(&self.shards.lock(unit.id), unit, now_us, state);
            }
        }
    }

    fn load_unit(&self, guard: &ShardGuard<'_>, unit: &Unit<'_>, now_us: u64, state: &mut [u64]) {
        if let Kind::Leased(_) = &*unit.kind {
            state[0] = self.leases_in_flight(guard, unit.id, now_us);
            return;
        }
        let (algorithm, packed) = (unit.kind.as_dyn(), unit.kind.as_packed());
        self.load_wide(guard, algorithm, packed, unit.id, now_us, state);
    }

    fn read_word(&self, unit: &Unit<'_>, now_us: u64, state: &mut [u64]) {
        let Some((packed, tag)) = unit.packed() else {
            return;
        };
        let mut backoff = Backoff::default();
        loop {
            let Some(slot) = self.table.find(unit.id, tag) else {
                match self.recall(packed, unit.id, now_us) {
                    CounterLocation::New => return,
                    CounterLocation::Table => backoff.wait(),
                    CounterLocation::Wide => {
                        let guard = self.shards.lock(unit.id);
                        return self.load_unit(&guard, unit, now_us, state);
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
        units: &[Unit<'_>],
        marks: &[CounterId],
        locks: &mut BatchLocks<'a>,
    ) -> Result<(), StoreError> {
        let mut with_shards = !marks.is_empty();
        let mut backoff = Backoff::default();
        loop {
            let shards_of = with_shards.then_some(marks);
            let locked = self.try_lock(units, shards_of, locks);
            if locked.is_err() {
                locks.release();
            }
            match locked {
                Ok(()) => return Ok(()),
                Err(LockError::NeedsShards) => with_shards = true,
                // The batch itself may hold them all: then trying again will not help.
                Err(LockError::NoFreeSlot) if backoff.rounds() >= LOCK_ROUNDS_MAX => {
                    return Err(StoreError::Overloaded { source: Arc::new(NoFreeSlot) });
                }
                Err(LockError::NoFreeSlot) => backoff.wait(),
            }
        }
    }

    /// Locks every counter; with shards, those of the marks as well.
    fn try_lock<'a>(
        &'a self,
        units: &[Unit<'_>],
        marks: Option<&[CounterId]>,
        locks: &mut BatchLocks<'a>,
    ) -> Result<(), LockError> {
        let with_shards = marks.is_some();
        if let Some(marks) = marks {
            let ids = units.iter().map(|unit| unit.id).chain(marks.iter().copied());
            let mut shards: ArrayVec<usize, SHARDS_MAX> =
                ids.map(|id| self.shards.shard_of(id)).collect();
            shards.sort_unstable();
            for (at, &shard) in shards.iter().enumerate() {
                if at == 0 || shards[at - 1] != shard {
                    locks.shards.push(self.shards.lock_shard(shard));
                }
            }
        }
        for unit in units {
            let slot = match unit.packed() {
                Some((_, tag)) if unit.kind.fits_word() => match self.lock_present(unit.id, tag) {
                    Some(slot) => Some(slot),
                    None if with_shards => self.lock_newcomer(unit, locks)?,
                    None => return Err(LockError::NeedsShards),
                },
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
        unit: &Unit<'_>,
        locks: &BatchLocks<'a>,
    ) -> Result<Option<SlotGuard<'a>>, LockError> {
        let (packed, tag) = unit.packed().ok_or(LockError::NeedsShards)?;
        let now_us = self.now_us();
        match self.bring_back(self.guard_of(locks, unit.id), packed, unit.id, now_us) {
            CounterLocation::New => {}
            CounterLocation::Wide => return Ok(None),
            CounterLocation::Table => {
                return self.lock_present(unit.id, tag).map(Some).ok_or(LockError::NoFreeSlot);
            }
        }
        let mut free_slot = self.table.free(unit.id, now_us).ok_or(LockError::NoFreeSlot)?;
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
        units: &[Unit<'_>],
        locks: &BatchLocks<'_>,
        now_us: u64,
        states: &mut States,
    ) {
        zero(states, units);
        for (unit, slot) in units.iter().zip(&locks.slots) {
            let state = &mut states[unit.words.clone()];
            match (slot, unit.packed()) {
                (Some(slot), Some((packed, _))) => packed.load(slot.word, state),
                _ if unit.is_log() => {}
                _ => {
                    self.load_unit(self.guard_of(locks, unit.id), unit, now_us, state);
                }
            }
        }
    }

    fn write_locked(
        &self,
        units: &[Unit<'_>],
        locks: &mut BatchLocks<'_>,
        before: &States,
        after: &States,
        now_us: u64,
    ) {
        for (at, unit) in units.iter().enumerate() {
            let state = &after[unit.words.clone()];
            let is_lease = matches!(*unit.kind, Kind::Leased(_));
            // Leases have been written down one by one.
            if state == &before[unit.words.clone()] || is_lease {
                continue;
            }
            if let (Some(slot), Some((packed, _))) = (&mut locks.slots[at], unit.packed()) {
                let word = packed.save(state, now_us);
                slot.word = word.expect("a state from a word, charged under a limit that fits");
            } else if let Kind::SlidingLog(log) = &*unit.kind {
                let guard = self.guard_of(locks, unit.id);
                self.charge_log(guard, log, unit.id, now_us, state[0]);
            } else {
                let guard = self.guard_of(locks, unit.id);
                let used = UsedShare::at(unit.kind.as_dyn(), state, now_us);
                self.save_wide(guard, unit.kind.as_dyn(), unit.id, now_us, state, used);
            }
        }
    }
}

/// Where an entry of an allowed batch takes a lease. A shadow that denied takes nothing.
fn granted<'p>(entry: &Entry<'p>) -> Option<&'p LeasedConcurrency> {
    let is_taken = entry.decision.is_some_and(|decision| decision.is_allowed());
    entry.policy.kind.as_leased().filter(|_| is_taken && entry.cost > 0)
}
