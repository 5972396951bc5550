//! Charges that are given back, and charges that come after the fact.
//!
//! Neither decides anything, so neither has a fast path of its own: the state is taken out of its
//! word, changed by the algorithm and put back by one compare-and-swap, or under the lock of its
//! shard where it is wide. The clock is read after the state: as long as that has not changed by the
//! time it is put back, all happened at that reading, and nothing is given back that time has paid
//! in the meantime.
//!
//! # Debts that move up
//!
//! Time pays the charges of a bucket in their order, and a charge can be given back until it is
//! paid. When one is given back, those behind it are paid sooner than their stamps say. So for each
//! bucket with reservations there is a sum of all the time that was ever given back, beside its
//! counter and under the same lock. A stamp has the sum of its moment added, and less the sum of
//! today it tells when the charge is paid, or would be if all that was given back since was ahead
//! of it.
//!
//! Two tokens of 2 s each, X paid at 2 s and Y at 4 s. X is given back: Y is paid at 2 s, and so says
//! 4 + 0 - 2. Without the sum, Y could be given back at 3 s once more, though time has given it back.
//!
//! # Resets
//!
//! A reset makes a counter fresh, so nothing charged before it may be given back: that would be taken
//! from what was charged since. A window only counts, and cannot tell. So a window with reservations
//! has a sum as well, which no refund adds to. A reset adds to the sum as much time as it takes until
//! nothing charged so far could be given back, and a day in case the clock goes back; from then on the
//! stamps of those charges, less the sum, name instants that are over.
//!
//! Whoever takes tokens back from a window without having reserved them names the window alone. The
//! stamp of a reservation has [`RESERVED_BIT`] set, so that the two are told apart.

use super::MemoryStore;
use super::counter_id::CounterId;
use super::moving::Whereabouts;
use super::rank::{EntryRank, UsedShare};
use super::shards::ShardGuard;
use super::slot::Read;
use super::sync::Backoff;
use crate::algorithm::word::Packed;
use crate::algorithm::{Algorithm, Refund, STATE_WORDS_MAX};
use crate::policy::Kind;
use crate::{Policy, Timestamp};

/// The length of the state that holds the sum, which has the counter's name, and with it the same
/// lock. Names of reservations are shorter, so that the two are never taken for each other.
const SUM_WORDS: usize = 8;

/// What of a stamp is an instant, or an instant and a sum. Above it are [`RESERVED_BIT`] and the step
/// of a warm-up.
const TIME_MASK: u64 = (1 << 55) - 1;

/// How far the clock may go back after a reset before a charge from before it looks as if it could be
/// given back.
const CLOCK_STEP_MAX_US: u64 = 24 * 3_600_000_000;

/// Set in the stamp of a charge to a window that can be given back because it was reserved.
const RESERVED_BIT: u64 = 1 << 55;

/// A stamp whose time is changed, and nothing else of it: a time that does not fit is cut to the
/// largest, which gives back less.
fn with_time(stamp: u64, change: impl FnOnce(u64) -> u64) -> u64 {
    stamp & !TIME_MASK | change(stamp & TIME_MASK).min(TIME_MASK)
}

/// The time that was given back to a bucket, and until when somebody might ask for it.
struct GivenBack {
    sum_us: u64,
    asked_until_us: u64,
}

impl MemoryStore {
    /// What [`Store::refund`](crate::Store::refund) answers, at once.
    pub fn refund_now(&self, key: &[u8], policy: &Policy, stamp: u64, amount: u64) -> u64 {
        let id = self.hash.id(key, policy);
        let kind = policy.kind.for_key(key);
        if let Kind::SlidingLog(log) = &*kind {
            return self.refund_log(log, id, stamp, amount);
        }
        if let Kind::Leased(leased) = &*kind {
            return self.refund_lease(leased, id, stamp, amount);
        }
        let refund = |guard: Option<&ShardGuard<'_>>, stamp: u64| -> Refund {
            self.alter(&kind, id, guard, |algorithm, state, now| {
                algorithm.refund(state, now, stamp, amount)
            })
        };
        let names_the_window_alone = kind.is_counted_window() && stamp & RESERVED_BIT == 0;
        if !kind.needs_refund_record() || names_the_window_alone {
            return refund(None, stamp).tokens;
        }
        let guard = self.shards.lock(id);
        let Some(given_back) = self.given_back(&guard, id) else {
            return 0;
        };
        let stamp = with_time(stamp & !RESERVED_BIT, |time| time.saturating_sub(given_back.sum_us));
        let refunded = refund(Some(&guard), stamp);
        let sum_us = given_back.sum_us.saturating_add(refunded.sooner_us);
        self.give_back(&guard, id, &GivenBack { sum_us, ..given_back }, self.now_us());
        refunded.tokens
    }

    /// Charges what was spent already, whether or not there is room, and answers how much of it.
    pub(super) fn overdraw_now(&self, key: &[u8], policy: &Policy, amount: u64) -> u64 {
        // Nobody is in flight who was not let in.
        if policy.kind.is_in_flight() {
            return 0;
        }
        let id = self.hash.id(key, policy);
        if let Kind::SlidingLog(log) = &policy.kind {
            return self.overdraw_log(log, id, amount);
        }
        self.alter(&policy.kind.for_key(key), id, None, |algorithm, state, now| {
            algorithm.overdraw(state, now, amount)
        })
    }

    /// The stamp of a charge that may be given back, made to last: see above.
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
        let before = self.given_back(guard, id);
        // Sums begin where the clock is, so that a stamp from a sum that was forgotten before its
        // time tells little when it is read by another.
        let sum_us = before.as_ref().map_or(now_us, |before| before.sum_us);
        let until_us = kind.refundable_until_us(stamp & TIME_MASK);
        let asked_until_us = before.map_or(0, |before| before.asked_until_us).max(until_us);
        self.give_back(guard, id, &GivenBack { sum_us, asked_until_us }, now_us);
        let reserved = if kind.is_counted_window() { RESERVED_BIT } else { 0 };
        with_time(stamp, |time| time.saturating_add(sum_us)) | reserved
    }

    fn given_back(&self, guard: &ShardGuard<'_>, id: CounterId) -> Option<GivenBack> {
        let place = self.reservations.find(guard, id, SUM_WORDS)?;
        let mut state = [0; SUM_WORDS];
        self.reservations.load(guard, place, &mut state);
        let [sum_us, asked_until_us, ..] = state;
        Some(GivenBack { sum_us, asked_until_us })
    }

    fn give_back(&self, guard: &ShardGuard<'_>, id: CounterId, given: &GivenBack, now_us: u64) {
        let mut state = [0; SUM_WORDS];
        state[..2].copy_from_slice(&[given.sum_us, given.asked_until_us]);
        let found = self.reservations.find(guard, id, SUM_WORDS);
        // Kept until the clock has passed the sum as well: the next one begins at the clock, and one
        // that is less would make charges that are paid look as if they were not.
        let rank = EntryRank::until(given.asked_until_us.max(given.sum_us));
        let saved = self.reservations.save(guard, id, found, &state, rank, now_us);
        self.count_eviction(saved.evicted_live);
    }

    /// For a counter that is made fresh: nothing charged before can be given back. The sum is not
    /// forgotten, because the next one would begin at the clock, and within the same microsecond that
    /// may be where this one began.
    pub(super) fn close_refunds(&self, guard: &ShardGuard<'_>, id: CounterId) {
        if let Some(before) = self.given_back(guard, id) {
            let now_us = self.now_us();
            let open_us = before.asked_until_us.saturating_sub(now_us);
            let sum_us = before.sum_us.saturating_add(open_us + CLOCK_STEP_MAX_US);
            self.give_back(guard, id, &GivenBack { sum_us, asked_until_us: 0 }, now_us);
        }
    }

    /// Changes the state of one counter, wherever it is; but not of a log, which is no few words and
    /// has ways of its own in `logs.rs`. `change` may be called more than once; the last call is the
    /// one that counts. `held` is the lock of its shard, where that is held already.
    fn alter<T>(
        &self,
        kind: &Kind,
        id: CounterId,
        held: Option<&ShardGuard<'_>>,
        change: impl Fn(&dyn Algorithm, &mut [u64], Timestamp) -> T,
    ) -> T {
        let algorithm = kind.as_dyn();
        let change =
            |state: &mut [u64], now_us| change(algorithm, state, Timestamp::from_micros(now_us));
        if let Some(packed) = kind.as_packed().filter(|_| kind.fits_word())
            && let Some(changed) = self.alter_word(packed, id, held, &change)
        {
            return changed;
        }
        let mut state = [0; STATE_WORDS_MAX];
        let state = &mut state[..algorithm.words()];
        let own_guard = held.is_none().then(|| self.shards.lock(id));
        let guard = held.or(own_guard.as_ref()).expect("either was held or is held now");
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
        packed: &dyn Packed,
        id: CounterId,
        held: Option<&ShardGuard<'_>>,
        change: &impl Fn(&mut [u64], u64) -> T,
    ) -> Option<T> {
        let tag = id.tag(packed.word_shift());
        let mut state = [0; STATE_WORDS_MAX];
        let state = &mut state[..packed.state_words()];
        let mut backoff = Backoff::default();
        loop {
            let Some(slot) = self.table.find(id, tag) else {
                state.fill(0);
                let own_guard = held.is_none().then(|| self.shards.lock(id));
                let guard = held.or(own_guard.as_ref()).expect("either was held or is held now");
                let now_us = self.now_us();
                let changed = change(state, now_us);
                let word = packed.save(state, now_us)?;
                let whereabouts = if self.table.find(id, tag).is_some() {
                    Whereabouts::Table
                } else if word == 0 {
                    self.bring_back(guard, packed, id, now_us)
                } else {
                    self.insert(guard, packed, id, word, now_us)
                };
                match whereabouts {
                    Whereabouts::New => return Some(changed),
                    Whereabouts::Wide => return None,
                    Whereabouts::Table => backoff.wait(),
                }
                continue;
            };
            match slot.read(tag) {
                Read::Seen(seen) => {
                    packed.load(seen.word, state);
                    let now_us = self.now_us();
                    let changed = change(state, now_us);
                    let word = packed.save(state, now_us)?;
                    if slot.replace(seen, word, tag).is_ok() {
                        return Some(changed);
                    }
                }
                Read::Locked => backoff.wait(),
                Read::Gone => {}
            }
        }
    }
}

#[cfg(all(test, not(tollbar_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_sum_never_reaches_the_step_of_a_warm_up() {
        let stamp = (3 << 56) + 1_000;
        let later = with_time(stamp, |time| time.saturating_add(500));
        assert_eq!((later >> 56, later & TIME_MASK), (3, 1_500));
        let none_left = with_time(later, |time| time.saturating_sub(2_000));
        assert_eq!((none_left >> 56, none_left & TIME_MASK), (3, 0));
        let too_late = with_time(stamp, |time| time.saturating_add(u64::MAX));
        assert_eq!((too_late >> 56, too_late & TIME_MASK), (3, TIME_MASK));
    }

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
        assert_eq!(store.check_now(b"key", &policy, 0).remaining(), 5);
    }
}
