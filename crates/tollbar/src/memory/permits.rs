//! Permits in flight: taken and given back, each by one compare-and-swap.
//!
//! Time decides nothing here, so the clock is read only where a slot must be found for a newcomer,
//! or a denial is told. A counter whose permits have all come back keeps its slot, all zero, until
//! somebody else needs it: whoever comes next finds it there.

use super::MemoryStore;
use super::counter_id::CounterId;
use super::slot::SlotRead;
use super::sync::Backoff;
use crate::algorithm::concurrency::{ConcurrencyLimit, InFlight};
use crate::algorithm::word::{PERMITS_SHIFT, WordState};
use crate::{Decision, Policy};

/// Permits of one counter, in one hand.
#[derive(Debug)]
pub(crate) struct CounterPermits {
    id: CounterId,
    count: u64,
}

impl CounterPermits {
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
        permits: &ConcurrencyLimit,
        key: &[u8],
        policy: &Policy,
        count: u64,
    ) -> Result<CounterPermits, Decision> {
        let id = self.hash.id(key, policy);
        let tag = id.tag(PERMITS_SHIFT);
        if let Some(slot) = self.table.find(id, tag) {
            let mut read = slot.read(tag);
            while let SlotRead::Word(reading) = read {
                // The instant is for denials only.
                let Some(next) = permits.step(InFlight::from_word(reading.word), 0, count).next
                else {
                    break;
                };
                match slot.replace(reading, next.to_word(), tag) {
                    Ok(()) => return Ok(CounterPermits { id, count }),
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
        permits: &ConcurrencyLimit,
        id: CounterId,
        count: u64,
    ) -> Result<CounterPermits, Decision> {
        let decision = self.check_word(permits, id, self.now_us(), count);
        if decision.is_allowed() { Ok(CounterPermits { id, count }) } else { Err(decision) }
    }

    /// What a batch has taken of `key` under `policy`, to be given back.
    pub(crate) fn counter_permits(
        &self,
        key: &[u8],
        policy: &Policy,
        count: u64,
    ) -> CounterPermits {
        CounterPermits { id: self.hash.id(key, policy), count }
    }

    /// Gives back what was taken. Where the counter has been forgotten in the meantime, which was
    /// counted as a forced eviction, there is nothing to give back to.
    #[inline]
    pub(crate) fn put_back(&self, counter_permits: &CounterPermits) {
        let tag = counter_permits.id.tag(PERMITS_SHIFT);
        let mut backoff = Backoff::default();
        while let Some(slot) = self.table.find(counter_permits.id, tag) {
            let mut read = slot.read(tag);
            while let SlotRead::Word(reading) = read {
                let (left, _) = InFlight::from_word(reading.word).less(counter_permits.count);
                match slot.replace(reading, left.to_word(), tag) {
                    Ok(()) => return,
                    Err(newer) => read = newer,
                }
            }
            backoff.wait();
        }
    }
}
