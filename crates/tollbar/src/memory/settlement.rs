//! Charges that are given back, and charges that come after the fact.
//!
//! Neither decides anything, so neither has a fast path of its own: the state is taken out of its
//! word, changed by the algorithm and put back by one compare-and-swap, or under the lock of its
//! shard where it is wide. The clock is read after the state: as long as that has not changed by the
//! time it is put back, all happened at that reading, and nothing is given back that time has paid
//! in the meantime.
//!
//! What is kept beside a counter for refunds is a [`RefundRecord`].

use super::MemoryStore;
use super::counter_id::CounterId;
use super::rank::{EntryRank, UsedShare};
use super::shards::ShardGuard;
use super::slot::SlotRead;
use super::sync::Backoff;
use crate::algorithm::word::PackedAlgorithm;
use crate::algorithm::{Algorithm, Refund, STATE_WORDS_MAX};
use crate::memory::migration::CounterLocation;
use crate::policy::Kind;
use crate::store::refund_record::RefundRecord;
use crate::{Policy, Timestamp};

/// The length of the state that holds the record, which has the counter's name, and with it the same
/// lock. Names of reservations are shorter, so that the two are never taken for each other.
const RECORD_WORDS: usize = 8;

impl MemoryStore {
    /// What [`Store::refund`](crate::Store::refund) answers, at once.
    pub fn refund_now(&self, key: &[u8], policy: &Policy, stamp: u64, amount: u64) -> u64 {
        let id = self.hash.id(key, policy);
        let kind = policy.kind.for_key(key);
        if let Some(log) = kind.as_log() {
            return self.refund_log(log, id, stamp, amount);
        }
        if let Some(leased) = kind.as_leased() {
            return self.refund_lease(leased, id, stamp, amount);
        }
        let refund = |guard: Option<&ShardGuard<'_>>, stamp: u64| -> Refund {
            self.alter(&kind, id, guard, |algorithm, state, now| {
                algorithm.refund(state, now, stamp, amount)
            })
        };
        if !RefundRecord::is_needed(&kind, stamp) {
            return refund(None, stamp).tokens;
        }
        let guard = self.shards.lock(id);
        let Some(record) = self.refund_record(&guard, id) else {
            return 0;
        };
        let refunded = refund(Some(&guard), record.stamp_today(stamp));
        self.save_refund_record(&guard, id, record.refunded(refunded), self.now_us());
        refunded.tokens
    }

    /// Charges what was spent already, whether or not there is room, and answers how much of it.
    pub(super) fn overdraw_now(&self, key: &[u8], policy: &Policy, amount: u64) -> u64 {
        // Nobody is in flight who was not let in.
        if policy.kind.is_in_flight() {
            return 0;
        }
        let id = self.hash.id(key, policy);
        if let Some(charged) = self.overdraw_log(&policy.kind, id, amount) {
            return charged;
        }
        self.alter(&policy.kind.for_key(key), id, None, |algorithm, state, now| {
            algorithm.overdraw(state, now, amount)
        })
    }

    /// The stamp of a charge that may be given back, made to last.
    pub(super) fn lasting_stamp(
        &self,
        guard: &ShardGuard<'_>,
        kind: &Kind,
        id: CounterId,
        stamp: u64,
        now_us: u64,
    ) -> u64 {
        if !kind.needs_refund_record() {
            return stamp;
        }
        let before = self.refund_record(guard, id);
        let (record, stamp) = RefundRecord::reserve(before, kind, stamp, now_us);
        self.save_refund_record(guard, id, record, now_us);
        stamp
    }

    fn refund_record(&self, guard: &ShardGuard<'_>, id: CounterId) -> Option<RefundRecord> {
        let place = self.reservations.find(guard, id, RECORD_WORDS)?;
        let mut state = [0; RECORD_WORDS];
        self.reservations.load(guard, place, &mut state);
        let [sum_us, open_until_us, ..] = state;
        Some(RefundRecord { sum_us, open_until_us })
    }

    fn save_refund_record(
        &self,
        guard: &ShardGuard<'_>,
        id: CounterId,
        record: RefundRecord,
        now_us: u64,
    ) {
        let mut state = [0; RECORD_WORDS];
        state[..2].copy_from_slice(&[record.sum_us, record.open_until_us]);
        let found = self.reservations.find(guard, id, RECORD_WORDS);
        let rank = EntryRank::until(record.kept_until_us());
        let saved = self.reservations.save(guard, id, found, &state, rank, now_us);
        self.count_eviction(saved.evicted_live);
    }

    /// For a counter that is made fresh: nothing charged before can be given back.
    pub(super) fn close_refunds(&self, guard: &ShardGuard<'_>, id: CounterId) {
        if let Some(before) = self.refund_record(guard, id) {
            let now_us = self.now_us();
            self.save_refund_record(guard, id, before.closed(now_us), now_us);
        }
    }

    /// Changes the state of one counter, wherever it is; but not of a log, which is no few words and
    /// has ways of its own in `logs.rs`. `change` may be called more than once; the last call is the
    /// one that counts. `guard_held` is the lock of its shard, where that is held already.
    fn alter<T>(
        &self,
        kind: &Kind,
        id: CounterId,
        guard_held: Option<&ShardGuard<'_>>,
        change: impl Fn(&dyn Algorithm, &mut [u64], Timestamp) -> T,
    ) -> T {
        let algorithm = kind.as_dyn();
        let change =
            |state: &mut [u64], now_us| change(algorithm, state, Timestamp::from_micros(now_us));
        if let Some(packed) = kind.as_packed().filter(|_| kind.fits_word())
            && let Some(changed) = self.alter_word(packed, id, guard_held, &change)
        {
            return changed;
        }
        let mut state = [0; STATE_WORDS_MAX];
        let state = &mut state[..algorithm.words()];
        let own_guard = guard_held.is_none().then(|| self.shards.lock(id));
        let guard = guard_held.or(own_guard.as_ref()).expect("either was held or is held now");
        let now_us = self.now_us();
        self.load_wide(guard, algorithm, kind.as_packed(), id, now_us, state);
        let mut before = [0; STATE_WORDS_MAX];
        let before = &mut before[..state.len()];
        before.copy_from_slice(state);
        let changed = change(state, now_us);
        if state != before {
            let used = UsedShare::at(algorithm, state, now_us);
            self.save_wide(guard, algorithm, id, now_us, state, used);
        }
        changed
    }

    /// Changes a state that fits a word, and still does afterwards; otherwise nothing has happened,
    /// and it is to be changed among the wide ones.
    fn alter_word<T>(
        &self,
        packed: &dyn PackedAlgorithm,
        id: CounterId,
        guard_held: Option<&ShardGuard<'_>>,
        change: &impl Fn(&mut [u64], u64) -> T,
    ) -> Option<T> {
        let tag = id.tag(packed.word_shift());
        let mut state = [0; STATE_WORDS_MAX];
        let state = &mut state[..packed.state_words()];
        let mut backoff = Backoff::default();
        loop {
            let Some(slot) = self.table.find(id, tag) else {
                state.fill(0);
                let own_guard = guard_held.is_none().then(|| self.shards.lock(id));
                let guard =
                    guard_held.or(own_guard.as_ref()).expect("either was held or is held now");
                let now_us = self.now_us();
                let changed = change(state, now_us);
                let word = packed.save(state, now_us)?;
                let whereabouts = if self.table.find(id, tag).is_some() {
                    CounterLocation::Table
                } else if word == 0 {
                    self.bring_back(guard, packed, id, now_us)
                } else {
                    self.insert(guard, packed, id, word, now_us)
                };
                match whereabouts {
                    CounterLocation::New => return Some(changed),
                    CounterLocation::Wide => return None,
                    CounterLocation::Table => backoff.wait(),
                }
                continue;
            };
            match slot.read(tag) {
                SlotRead::Word(reading) => {
                    packed.load(reading.word, state);
                    let now_us = self.now_us();
                    let changed = change(state, now_us);
                    let word = packed.save(state, now_us)?;
                    if slot.replace(reading, word, tag).is_ok() {
                        return Some(changed);
                    }
                }
                SlotRead::Locked => backoff.wait(),
                SlotRead::Gone => {}
            }
        }
    }
}

#[cfg(all(test, not(tollbar_loom)))]
mod tests {
    use super::*;

    /// Among the wide ones there is room for few.
    #[test]
    fn a_counter_of_one_word_is_still_one_after_a_settlement() {
        let clock = crate::ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
        let store = MemoryStore::builder().max_keys(10).clock(clock).build();
        let policy = Policy::fixed_window("10/h").unwrap();
        assert!(store.check_now(b"key", &policy, 2).is_allowed());
        assert_eq!(store.overdraw_now(b"key", &policy, 3), 3);
        assert_eq!(store.overdraw_now(b"another", &policy, 1), 1);
        assert_eq!(store.wide.live_count(store.now_us()), 0);
        assert_eq!(store.stats().live_keys, 2);
        assert_eq!(store.check_now(b"key", &policy, 0).remaining().unwrap(), 5);
    }
}
