//! What is remembered of requests rather than of keys: which ones have paid under their request id,
//! and which ones are reservations that can be settled.
//!
//! Both are kept as wide states are, under the lock of their shard and until their time is up, each in
//! a share of memory of its own: so that neither counters nor the other kind can crowd them out.
//! Forgetting one early, which is counted, lets a request pay twice or leaves a reservation charged
//! as it is; it never mints.

use std::sync::atomic::Ordering;
use std::time::Duration;

use arrayvec::ArrayVec;

use super::MemoryStore;
use super::batch::BatchLocks;
use super::counter_id::CounterId;
use super::rank::EntryRank;
use super::shards::ShardGuard;
use crate::Timestamp;
use crate::algorithm::STATE_WORDS_MAX;
use crate::algorithm::word::NUMBER_MAX;
use crate::memory::wide_table::WideTable;
use crate::store::decision_words::{self, DecisionWords, FIRST_WORDS};
use crate::store::{Adjustment, Due, Entry, Hold, Once, ReservationId, ReservationRef, StoreError};

/// The most marks that one batch can have.
pub(super) const MARKS_MAX: usize = 2;

/// The marks of one batch.
#[derive(Default)]
pub(super) struct BatchMarks {
    once: Option<Mark>,
    hold: Option<(Mark, ReservationId)>,
    /// Of the question: what has to be the same when a request id comes back.
    fingerprint: u64,
    replays_max: u8,
}

#[derive(Clone, Copy)]
struct Mark {
    id: CounterId,
    ttl_us: u64,
}

/// Keep the names of requests and reservations apart from those of counters.
const ONCE_SALT: u64 = 0x6f6e_6365_0000_0001;
const HOLD_SALT: u64 = 0x686f_6c64_0000_0002;

impl BatchMarks {
    pub(super) fn is_empty(&self) -> bool {
        self.once.is_none() && self.hold.is_none()
    }

    pub(super) fn ids(&self) -> ArrayVec<CounterId, MARKS_MAX> {
        let hold = self.hold.map(|(mark, _)| mark);
        self.once.into_iter().chain(hold).map(|mark| mark.id).collect()
    }
}

impl MemoryStore {
    pub(super) fn marks(
        &self,
        once: Option<Once<'_>>,
        hold: Option<Hold>,
        entries: &[Entry<'_>],
    ) -> BatchMarks {
        let hold = hold
            .map(|hold| (Mark { id: self.hold_id(hold.id), ttl_us: micros(hold.ttl) }, hold.id));
        let Some(once) = once else {
            return BatchMarks { hold, ..BatchMarks::default() };
        };
        BatchMarks {
            once: Some(Mark {
                id: self.hash.salted(once.request_id, ONCE_SALT),
                ttl_us: micros(once.ttl),
            }),
            hold,
            fingerprint: self.fingerprint(once.content, entries),
            replays_max: once.replays_max,
        }
    }

    fn hold_id(&self, id: ReservationId) -> CounterId {
        self.hash.salted(&id.0.to_le_bytes(), HOLD_SALT)
    }

    fn fingerprint(&self, content: u128, entries: &[Entry<'_>]) -> u64 {
        const CONTENT_BYTES: usize = 16;
        // The counter, the cost, and the role with the place among alternatives.
        const BYTES_PER_ENTRY: usize = 8 + 8 + 3;
        let mut bytes = ArrayVec::<
            u8,
            { CONTENT_BYTES + BYTES_PER_ENTRY * crate::memory::batch_decision::BATCH_ENTRIES_MAX },
        >::new();
        bytes.extend(content.to_le_bytes());
        for entry in entries {
            bytes.extend(self.hash.id(entry.key, entry.policy).get().to_le_bytes());
            bytes.extend(entry.cost.to_le_bytes());
            entry.write_role(&mut bytes);
        }
        self.hash.salted(&bytes, ONCE_SALT).get()
    }

    /// True where the request was allowed under its id before: its entries now hold the answer it
    /// got then. False once it was answered so too often: it is decided anew.
    pub(super) fn is_answered(
        &self,
        marks: &BatchMarks,
        locks: &BatchLocks<'_>,
        entries: &mut [Entry<'_>],
        now_us: u64,
    ) -> Result<bool, StoreError> {
        let Some(once) = marks.once else {
            return Ok(false);
        };
        let guard = self.guard_of(locks, once.id);
        let mut words = [0; STATE_WORDS_MAX];
        let (first, more) = words.split_at_mut(FIRST_WORDS);
        let Some(ends_at_us) = self.request_ids.load_live(guard, once.id, now_us, first) else {
            return Ok(false);
        };
        let Some(len) = decision_words::len(first[0], marks.fingerprint) else {
            return Err(StoreError::RequestIdReused);
        };
        let Some(replayed) = decision_words::replay(first[0], marks.replays_max) else {
            return Ok(false);
        };
        let more = &mut more[..len.saturating_sub(FIRST_WORDS)];
        if !more.is_empty() && self.request_ids.load_live(guard, once.id, now_us, more).is_none() {
            // Forgotten early, in part. That was counted; the request is as new.
            return Ok(false);
        }
        self.request_ids.set_first_word(guard, once.id, FIRST_WORDS, replayed);
        let charged_at = Timestamp::from_micros(ends_at_us.saturating_sub(once.ttl_us));
        decision_words::read(&words[..len], charged_at, entries);
        Ok(true)
    }

    /// Remembers an allowed batch by its marks.
    pub(super) fn remember(
        &self,
        marks: &BatchMarks,
        locks: &BatchLocks<'_>,
        answers: &DecisionWords,
        now_us: u64,
    ) {
        if let Some(once) = marks.once {
            let guard = self.guard_of(locks, once.id);
            let (first, more) = answers.split_at(FIRST_WORDS.min(answers.len()));
            for words in [first, more].into_iter().filter(|words| !words.is_empty()) {
                let forgotten = Self::mark(&self.request_ids, guard, once, words, now_us);
                self.request_ids_forgotten.fetch_add(forgotten, Ordering::Relaxed);
            }
        }
        if let Some((mark, id)) = marks.hold {
            let guard = self.guard_of(locks, mark.id);
            let forgotten = Self::mark(&self.reservations, guard, mark, &name_words(id), now_us);
            self.forced_evictions.fetch_add(forgotten, Ordering::Relaxed);
        }
    }

    /// The answers of an allowed batch, where they are to be remembered.
    pub(super) fn answers(
        marks: &BatchMarks,
        entries: &[Entry<'_>],
    ) -> Result<DecisionWords, StoreError> {
        match marks.once {
            Some(_) => decision_words::write(marks.fingerprint, entries),
            None => Ok(DecisionWords::new()),
        }
    }

    /// Writes a mark, and says how many live ones had to make room for it.
    fn mark(
        share: &WideTable,
        guard: &ShardGuard<'_>,
        mark: Mark,
        words: &[u64],
        now_us: u64,
    ) -> u64 {
        let rank = EntryRank::until((now_us + mark.ttl_us).min(NUMBER_MAX));
        let found = share.find(guard, mark.id, words.len());
        u64::from(share.save(guard, mark.id, found, words, rank, now_us).evicted_live)
    }

    /// What [`Store::settle`](crate::Store::settle) answers, at once.
    pub fn settle_now(
        &self,
        reservation: ReservationRef<'_>,
        adjustments: &mut [Adjustment<'_>],
    ) -> bool {
        if !self.take_hold(reservation.id) {
            return false;
        }
        // Before anything comes back: a request that is sent again in between must not pass for nothing.
        if let Some(request_id) = reservation.request_id
            && Adjustment::gives_back(adjustments)
        {
            self.forget_request_now(request_id);
        }
        for adjustment in adjustments {
            let Adjustment { key, policy, stamp, .. } = *adjustment;
            let adjusted = match adjustment.due() {
                Due::Refund(tokens) => self.refund_now(key, policy, stamp, tokens),
                Due::Overdraw(tokens) => self.overdraw_now(key, policy, tokens),
            };
            adjustment.adjust(adjusted);
        }
        true
    }

    /// What [`Store::forget_request`](crate::Store::forget_request) does, at once.
    pub(super) fn forget_request_now(&self, request_id: &[u8]) {
        let id = self.hash.salted(request_id, ONCE_SALT);
        let guard = self.shards.lock(id);
        let mut words = [0; STATE_WORDS_MAX];
        let first = &mut words[..FIRST_WORDS];
        // Also a mark that has ended: a clock that goes back would bring it to life again.
        let Some(place) = self.request_ids.find(&guard, id, FIRST_WORDS) else {
            return;
        };
        self.request_ids.load(&guard, place, first);
        let len = decision_words::stored_len(first[0]);
        for words in [FIRST_WORDS, len.saturating_sub(FIRST_WORDS)] {
            if words > 0
                && let Some(place) = self.request_ids.find(&guard, id, words)
            {
                self.request_ids.forget(&guard, place);
            }
        }
    }

    /// Takes an open reservation away, so that nobody can settle it again.
    fn take_hold(&self, id: ReservationId) -> bool {
        let name = name_words(id);
        let counter_id = self.hold_id(id);
        let guard = self.shards.lock(counter_id);
        let mut words = name.map(|_| 0);
        let found = self.reservations.load_live(&guard, counter_id, self.now_us(), &mut words);
        let is_open = found.is_some() && words == name;
        if is_open && let Some(place) = self.reservations.find(&guard, counter_id, name.len()) {
            self.reservations.forget(&guard, place);
        }
        is_open
    }
}

fn name_words(id: ReservationId) -> [u64; 2] {
    [(id.0 >> 64) as u64, id.0 as u64]
}

/// Longer than a clock runs is for ever.
fn micros(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX).min(NUMBER_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_reservation_is_kept_in_full() {
        assert_eq!(name_words(ReservationId(0x7 << 64 | 0x9)), [0x7, 0x9]);
    }
}
