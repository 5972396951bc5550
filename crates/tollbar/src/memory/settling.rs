//! Charges that are given back, and charges that come after the fact.
//!
//! Neither decides anything, so neither has a fast path of its own: the state is taken out of its
//! word, changed by the algorithm and put back by one compare-and-swap, or under the lock of its
//! shard where it is wide.

use super::MemoryStore;
use super::counter_id::CounterId;
use super::moving::Whereabouts;
use super::slot::Read;
use super::sync::Backoff;
use crate::algorithm::word::Packed;
use crate::algorithm::{Algorithm, STATE_WORDS_MAX};
use crate::policy::Kind;
use crate::{Policy, Timestamp};

impl MemoryStore {
    /// What [`Store::refund`](crate::Store::refund) answers, at once.
    pub fn refund_now(&self, key: &[u8], policy: &Policy, stamp: u64, amount: u64) -> u64 {
        let now = Timestamp::from_micros(self.now_us());
        if let Kind::SlidingLog(log) = &policy.kind {
            return self.refund_log(log, self.hash.id(key, policy), now, stamp, amount);
        }
        self.alter(key, policy, now, |algorithm, state| algorithm.refund(state, now, stamp, amount))
    }

    /// Changes the state of one counter, wherever it is; but not of a log, which is no few words and
    /// has ways of its own in `logs.rs`. `change` may be asked more than once; the last time is the
    /// one that counts.
    fn alter(
        &self,
        key: &[u8],
        policy: &Policy,
        now: Timestamp,
        change: impl Fn(&dyn Algorithm, &mut [u64]) -> u64,
    ) -> u64 {
        let id = self.hash.id(key, policy);
        let kind = policy.kind.for_key(key);
        let algorithm = kind.as_dyn();
        let change = |state: &mut [u64]| change(algorithm, state);
        if let Some(packed) = kind.as_packed().filter(|_| kind.fits_word())
            && let Some(changed) = self.alter_word(packed, id, now.as_micros(), &change)
        {
            return changed;
        }
        let mut state = [0; STATE_WORDS_MAX];
        let state = &mut state[..algorithm.words()];
        let guard = self.shards.lock(id);
        self.load_wide(&guard, algorithm, kind.as_packed(), id, now.as_micros(), state);
        let mut before = [0; STATE_WORDS_MAX];
        let before = &mut before[..state.len()];
        before.copy_from_slice(state);
        let changed = change(state);
        if state != before {
            self.save_wide(&guard, algorithm, id, now.as_micros(), state);
        }
        changed
    }

    /// Changes a state that fits a word, and still does afterwards; otherwise nothing has happened,
    /// and it is to be changed among the wide ones.
    fn alter_word(
        &self,
        packed: &dyn Packed,
        id: CounterId,
        now_us: u64,
        change: &impl Fn(&mut [u64]) -> u64,
    ) -> Option<u64> {
        let tag = id.tag(packed.word_shift());
        let mut state = [0; STATE_WORDS_MAX];
        let state = &mut state[..packed.state_words()];
        let mut backoff = Backoff::default();
        loop {
            let Some(slot) = self.table.find(id, tag) else {
                state.fill(0);
                let changed = change(state);
                let word = packed.save(state)?;
                let whereabouts = if word == 0 {
                    self.recall(packed, id, now_us)
                } else {
                    self.insert(packed, id, word, now_us)
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
                    let changed = change(state);
                    let word = packed.save(state)?;
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
