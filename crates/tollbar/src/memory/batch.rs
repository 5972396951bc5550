//! Several counters at one instant: all are charged, or none.
//!
//! First everything is read without a lock and decided. If an enforced entry denies, that is the
//! answer, and nothing was written: a denial is as cheap as its reads. Otherwise the counters are
//! locked, in the order of their names so that two batches never wait for each other in a circle,
//! read and decided again, and charged.

use std::borrow::Cow;

use arrayvec::ArrayVec;

use super::MemoryStore;
use super::counter_id::CounterId;
use super::shards::ShardGuard;
use super::single::Whereabouts;
use super::slot::{Read, SlotGuard};
use super::sync::Backoff;
use crate::algorithm::STATE_WORDS_MAX;
use crate::policy::Kind;
use crate::store::{Entry, Role, StoreError};
use crate::{Decision, Timestamp};

/// The most entries a batch of all or none may have. Loom's threads have small stacks.
const BATCH_ENTRIES_MAX: usize = if cfg!(tollbar_loom) { 4 } else { 32 };

/// How often a batch that finds no free slot lets all go and tries again.
const CROWDED_ROUNDS_MAX: u32 = 256;

/// The states of all counters of a batch, one after the other.
type States = ArrayVec<u64, { BATCH_ENTRIES_MAX * STATE_WORDS_MAX }>;

/// One counter of a batch; several entries may share it.
struct Unit<'a> {
    id: CounterId,
    /// Of the first entry that asks for it; one whose state is wide comes first.
    kind: Cow<'a, Kind>,
    /// Where its state is among the batch's.
    words: std::ops::Range<usize>,
}

/// What deciding the entries in order came to.
struct Tally {
    allowed: bool,
    /// A denial that wants to write: a debt above full was cut to full.
    denial_writes: bool,
}

/// The locks of a batch, held until its states are stored.
#[derive(Default)]
struct Held<'a> {
    // Dropped in this order: slots first, then the shards they may have been inserted under.
    slots: ArrayVec<Option<SlotGuard<'a>>, BATCH_ENTRIES_MAX>,
    shards: ArrayVec<ShardGuard<'a>, BATCH_ENTRIES_MAX>,
}

enum LockError {
    /// A counter is wide or not in the table: locks of shards are needed.
    NeedsShards,
    /// Every slot of a newcomer is locked.
    Crowded,
}

impl MemoryStore {
    pub(super) fn check_all_or_none(&self, entries: &mut [Entry<'_>]) -> Result<(), StoreError> {
        if entries.len() > BATCH_ENTRIES_MAX {
            let entries_max = BATCH_ENTRIES_MAX;
            return Err(StoreError::BatchTooLarge { entries: entries.len(), entries_max });
        }
        let now_us = self.now_us();
        let mut unit_of = ArrayVec::<usize, BATCH_ENTRIES_MAX>::new();
        let units = self.units(entries, &mut unit_of);
        let mut batch = Deciding { entries, units: &units, unit_of: &unit_of, now_us };

        // Each is 16 KB of which a few words are used: they are filled in place, never moved.
        let (mut before, mut after, mut held_now) = (States::new(), States::new(), States::new());
        self.read(&units, now_us, &mut before);
        copy(&before, &mut after);
        let mut tally = batch.decide(&mut after);
        if !tally.allowed && !tally.denial_writes {
            batch.report_uncharged(&before);
            return Ok(());
        }

        let mut held = self.lock(&units, now_us)?;
        self.read_held(&units, &held, now_us, &mut held_now);
        // Mostly nothing has happened in between, and what was decided stands.
        if held_now != before {
            copy(&held_now, &mut before);
            copy(&held_now, &mut after);
            tally = batch.decide(&mut after);
        }
        if !tally.allowed {
            batch.report_uncharged(&before);
            copy(&before, &mut after);
            batch.cut_denied(&mut after);
        }
        self.write_held(&units, &mut held, &before, &after, now_us);
        Ok(())
    }

    /// The different counters of a batch in the order of their names, and which one each entry
    /// asks for.
    fn units<'e>(
        &self,
        entries: &[Entry<'e>],
        unit_of: &mut ArrayVec<usize, BATCH_ENTRIES_MAX>,
    ) -> ArrayVec<Unit<'e>, BATCH_ENTRIES_MAX> {
        let ids: ArrayVec<CounterId, BATCH_ENTRIES_MAX> =
            entries.iter().map(|entry| self.hash.id(entry.key, entry.policy)).collect();
        let mut order: ArrayVec<usize, BATCH_ENTRIES_MAX> = (0..entries.len()).collect();
        order.sort_unstable_by_key(|&at| (ids[at], entries[at].policy.kind.fits_word(), at));
        unit_of.extend(std::iter::repeat_n(0, entries.len()));
        let mut units = ArrayVec::<Unit<'e>, BATCH_ENTRIES_MAX>::new();
        for at in order {
            if units.last().is_none_or(|unit| unit.id != ids[at]) {
                let kind = entries[at].policy.kind.for_key(entries[at].key);
                let start = units.last().map_or(0, |unit| unit.words.end);
                let words = start..start + kind.as_dyn().words();
                units.push(Unit { id: ids[at], kind, words });
            }
            unit_of[at] = units.len() - 1;
        }
        units
    }

    /// The states as they are, each read by itself.
    fn read(&self, units: &[Unit<'_>], now_us: u64, states: &mut States) {
        zero(states, units);
        for unit in units {
            let state = &mut states[unit.words.clone()];
            if unit.kind.fits_word() {
                self.read_word(unit, now_us, state);
            } else {
                self.load_unit(&self.shards.lock(unit.id), unit, now_us, state);
            }
        }
    }

    fn load_unit(&self, guard: &ShardGuard<'_>, unit: &Unit<'_>, now_us: u64, state: &mut [u64]) {
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
                    Whereabouts::New => return,
                    Whereabouts::Table => backoff.wait(),
                    Whereabouts::Wide => {
                        let guard = self.shards.lock(unit.id);
                        return self.load_unit(&guard, unit, now_us, state);
                    }
                }
                continue;
            };
            match slot.read(tag) {
                Read::Seen(seen) if slot.is_unchanged(seen) => {
                    return packed.load(seen.word, state);
                }
                Read::Locked => backoff.wait(),
                Read::Seen(_) | Read::Gone => {}
            }
        }
    }

    /// Locks every counter. Without shards where all of them are in the table.
    fn lock<'a>(&'a self, units: &[Unit<'_>], now_us: u64) -> Result<Held<'a>, StoreError> {
        let mut with_shards = false;
        let mut backoff = Backoff::default();
        loop {
            match self.try_lock(units, now_us, with_shards) {
                Ok(held) => return Ok(held),
                Err(LockError::NeedsShards) => with_shards = true,
                // The batch itself may hold them all: then trying again will not help.
                Err(LockError::Crowded) if backoff.rounds() >= CROWDED_ROUNDS_MAX => {
                    return Err(StoreError::Crowded);
                }
                Err(LockError::Crowded) => backoff.wait(),
            }
        }
    }

    fn try_lock<'a>(
        &'a self,
        units: &[Unit<'_>],
        now_us: u64,
        with_shards: bool,
    ) -> Result<Held<'a>, LockError> {
        let mut held = Held::default();
        if with_shards {
            let mut shards: ArrayVec<usize, BATCH_ENTRIES_MAX> =
                units.iter().map(|unit| self.shards.shard_of(unit.id)).collect();
            shards.sort_unstable();
            for (at, &shard) in shards.iter().enumerate() {
                if at == 0 || shards[at - 1] != shard {
                    held.shards.push(self.shards.lock_shard(shard));
                }
            }
        }
        for unit in units {
            let slot = match unit.packed() {
                Some((_, tag)) if unit.kind.fits_word() => match self.lock_present(unit.id, tag) {
                    Some(slot) => Some(slot),
                    None if with_shards => self.lock_newcomer(unit, &held, now_us)?,
                    None => return Err(LockError::NeedsShards),
                },
                _ if with_shards => None,
                _ => return Err(LockError::NeedsShards),
            };
            held.slots.push(slot);
        }
        Ok(held)
    }

    fn lock_present(&self, id: CounterId, tag: u64) -> Option<SlotGuard<'_>> {
        let mut backoff = Backoff::default();
        while let Some(slot) = self.table.find(id, tag) {
            match slot.read(tag) {
                Read::Seen(seen) => {
                    if let Some(guard) = slot.try_lock(seen, tag) {
                        return Some(guard);
                    }
                }
                Read::Locked => backoff.wait(),
                Read::Gone => {}
            }
        }
        None
    }

    /// Gives a counter that is not in the table a slot, fresh and locked; none where it is wide.
    fn lock_newcomer<'a>(
        &'a self,
        unit: &Unit<'_>,
        held: &Held<'a>,
        now_us: u64,
    ) -> Result<Option<SlotGuard<'a>>, LockError> {
        let (packed, tag) = unit.packed().ok_or(LockError::NeedsShards)?;
        match self.bring_back(self.guard_of(held, unit.id), packed, unit.id, now_us) {
            Whereabouts::New => {}
            Whereabouts::Wide => return Ok(None),
            Whereabouts::Table => {
                return self.lock_present(unit.id, tag).map(Some).ok_or(LockError::Crowded);
            }
        }
        let mut freed = self.table.free(unit.id, now_us).ok_or(LockError::Crowded)?;
        self.count_eviction(freed.was_live);
        freed.guard.hand_over(tag, 0);
        Ok(Some(freed.guard))
    }

    fn guard_of<'h, 'a>(&self, held: &'h Held<'a>, id: CounterId) -> &'h ShardGuard<'a> {
        let shard = self.shards.shard_of(id);
        let found = held.shards.iter().find(|guard| guard.shard() == shard);
        found.expect("every shard of the batch is locked before its slots")
    }

    fn read_held(&self, units: &[Unit<'_>], held: &Held<'_>, now_us: u64, states: &mut States) {
        zero(states, units);
        for (unit, slot) in units.iter().zip(&held.slots) {
            let state = &mut states[unit.words.clone()];
            match (slot, unit.packed()) {
                (Some(slot), Some((packed, _))) => packed.load(slot.word, state),
                _ => {
                    self.load_unit(self.guard_of(held, unit.id), unit, now_us, state);
                }
            }
        }
    }

    fn write_held(
        &self,
        units: &[Unit<'_>],
        held: &mut Held<'_>,
        before: &States,
        after: &States,
        now_us: u64,
    ) {
        for (at, unit) in units.iter().enumerate() {
            let state = &after[unit.words.clone()];
            if state == &before[unit.words.clone()] {
                continue;
            }
            if let (Some(slot), Some((packed, _))) = (&mut held.slots[at], unit.packed()) {
                let word = packed.save(state);
                slot.word = word.expect("a state from a word, charged under a limit that fits");
            } else {
                let guard = self.guard_of(held, unit.id);
                self.save_wide(guard, unit.kind.as_dyn(), unit.id, now_us, state);
            }
        }
    }
}

fn zero(states: &mut States, units: &[Unit<'_>]) {
    states.clear();
    states.extend(std::iter::repeat_n(0, units.last().map_or(0, |unit| unit.words.end)));
}

fn copy(from: &States, to: &mut States) {
    to.clear();
    to.extend(from.iter().copied());
}

impl Unit<'_> {
    /// Its word form and its tag in the table, where the algorithm has one.
    fn packed(&self) -> Option<(&dyn crate::algorithm::word::Packed, u64)> {
        let packed = self.kind.as_packed()?;
        Some((packed, self.id.tag(packed.word_shift())))
    }
}

/// The entries of a batch and the counters they ask for.
struct Deciding<'b, 'e> {
    entries: &'b mut [Entry<'e>],
    units: &'b [Unit<'e>],
    unit_of: &'b [usize],
    now_us: u64,
}

impl Deciding<'_, '_> {
    /// Decides every entry in order on `states`, charging as it goes: the enforced ones first, then
    /// the shadows. Where an enforced one denies, what was charged is not to be kept.
    fn decide(&mut self, states: &mut States) -> Tally {
        let mut tally = Tally { allowed: true, denial_writes: false };
        for role in [Role::Enforce, Role::Shadow] {
            for at in 0..self.entries.len() {
                if self.entries[at].role != role {
                    continue;
                }
                let state = &mut states[self.units[self.unit_of[at]].words.clone()];
                let mut next: ArrayVec<u64, STATE_WORDS_MAX> = state.iter().copied().collect();
                let decision = self.transition(at, &mut next);
                if role == Role::Enforce && !decision.is_allowed() {
                    tally.allowed = false;
                    tally.denial_writes |= state != &next[..];
                }
                state.copy_from_slice(&next);
                self.entries[at].decision = Some(decision);
            }
        }
        tally
    }

    fn transition(&self, at: usize, state: &mut [u64]) -> Decision {
        let entry = &self.entries[at];
        let now = Timestamp::from_micros(self.now_us);
        entry.policy.kind.for_key(entry.key).as_dyn().transition(state, now, entry.cost)
    }

    /// For a request that was denied: the entries that would have allowed say what remains now,
    /// since nothing was taken from them.
    fn report_uncharged(&mut self, before: &States) {
        let now = Timestamp::from_micros(self.now_us);
        for (entry, unit) in self.entries.iter_mut().zip(self.unit_of) {
            if entry.decision.is_some_and(|decision| decision.is_allowed()) {
                let state = &before[self.units[*unit].words.clone()];
                let mut state: ArrayVec<u64, STATE_WORDS_MAX> = state.iter().copied().collect();
                let kind = entry.policy.kind.for_key(entry.key);
                entry.decision = Some(kind.as_dyn().transition(&mut state, now, 0));
            }
        }
    }

    /// What a denied batch leaves behind: `states` as they were, but for debts above full, which a
    /// denial cuts to full so that the retry-after it has just told holds.
    fn cut_denied(&self, states: &mut States) {
        for at in 0..self.entries.len() {
            // A shadow of a denied request has seen nothing.
            if self.entries[at].role == Role::Shadow {
                continue;
            }
            let state = &mut states[self.units[self.unit_of[at]].words.clone()];
            let mut next: ArrayVec<u64, STATE_WORDS_MAX> = state.iter().copied().collect();
            if !self.transition(at, &mut next).is_allowed() {
                state.copy_from_slice(&next);
            }
        }
    }
}
