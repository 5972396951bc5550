//! Permits in flight: taken and given back, each by one compare-and-swap.
//!
//! Time decides nothing here, so the clock is read only where a slot must be found for a newcomer,
//! or a denial is told. A counter whose permits have all come back keeps its slot, all zero, until
//! somebody else needs it: whoever comes next finds it there.

use super::MemoryStore;
use super::counter_id::CounterId;
use super::slot::Read;
use super::sync::Backoff;
use crate::algorithm::concurrency::{Concurrency, InFlight};
use crate::algorithm::word::{PERMITS_SHIFT, WordState};
use crate::{Decision, Policy};

/// Permits of one counter, in one hand.
#[derive(Debug)]
pub(crate) struct Taken {
    id: CounterId,
    count: u64,
}

impl Taken {
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    #[cfg(feature = "until-ready")]
    pub(crate) fn id(&self) -> CounterId {
        self.id
    }
}

impl MemoryStore {
    /// Takes `count` permits of `key` under `policy`, whose algorithm is `permits`.
    #[inline]
    pub(crate) fn take(
        &self,
        permits: &Concurrency,
        key: &[u8],
        policy: &Policy,
        count: u64,
    ) -> Result<Taken, Decision> {
        let id = self.hash.id(key, policy);
        let tag = id.tag(PERMITS_SHIFT);
        if let Some(slot) = self.table.find(id, tag) {
            let mut read = slot.read(tag);
            while let Read::Seen(seen) = read {
                // The instant is for denials only.
                let Some(next) = permits.step(InFlight::of_word(seen.word), 0, count).next else {
                    break;
                };
                match slot.replace(seen, next.to_word(), tag) {
                    Ok(()) => return Ok(Taken { id, count }),
                    Err(newer) => read = newer,
                }
            }
        }
        self.take_slowly(permits, id, count)
    }

    /// Newcomers, denials, peeks, and slots that are locked at this moment.
    #[cold]
    fn take_slowly(
        &self,
        permits: &Concurrency,
        id: CounterId,
        count: u64,
    ) -> Result<Taken, Decision> {
        let decision = self.check_word(permits, id, self.now_us(), count);
        if decision.is_allowed() { Ok(Taken { id, count }) } else { Err(decision) }
    }

    /// What a batch has taken of `key` under `policy`, to be given back.
    pub(crate) fn taken(&self, key: &[u8], policy: &Policy, count: u64) -> Taken {
        Taken { id: self.hash.id(key, policy), count }
    }

    /// Gives back what was taken. Where the counter has been forgotten in the meantime, which was
    /// counted as a forced eviction, there is nothing to give back to.
    #[inline]
    pub(crate) fn put_back(&self, taken: &Taken) {
        let tag = taken.id.tag(PERMITS_SHIFT);
        let mut backoff = Backoff::default();
        while let Some(slot) = self.table.find(taken.id, tag) {
            let mut read = slot.read(tag);
            while let Read::Seen(seen) = read {
                let (left, _) = InFlight::of_word(seen.word).less(taken.count);
                match slot.replace(seen, left.to_word(), tag) {
                    Ok(()) => return,
                    Err(newer) => read = newer,
                }
            }
            backoff.wait();
        }
    }
}
