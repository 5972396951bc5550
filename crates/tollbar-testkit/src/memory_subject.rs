//! The in-memory store with a clock by hand.

use tollbar::{Decision, ManualClock, MemoryStats, MemoryStore, Policy, Store, Timestamp};

use crate::subject::Subject;

/// Enough for any test here, and quick to set up.
const KEYS_MAX: usize = 1_000;

/// The default has room for 600,000, and a property makes thousands of stores: to clear that memory took most of
/// the time of these tests.
const REQUEST_IDS_MAX: usize = 20_000;

/// A [`MemoryStore`] and its clock.
#[derive(Debug)]
pub struct MemorySubject {
    store: MemoryStore,
    clock: ManualClock,
}

impl MemorySubject {
    /// An empty store whose clock stands at `now`.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        Self::with_keys_max(now, KEYS_MAX)
    }

    /// One with room for `keys_max` keys of each kind.
    #[must_use]
    pub fn with_keys_max(now: Timestamp, keys_max: usize) -> Self {
        let clock = ManualClock::at(now);
        let builder = MemoryStore::builder().max_keys(keys_max).max_wide_keys(keys_max);
        let builder = builder.max_request_ids(REQUEST_IDS_MAX);
        Self { store: builder.clock(clock.clone()).build(), clock }
    }

    /// The same, as the suite's factories return it.
    #[must_use]
    pub fn boxed(now: Timestamp) -> Box<dyn Subject> {
        Box::new(Self::at(now))
    }

    /// How full the store is.
    #[must_use]
    pub fn stats(&self) -> MemoryStats {
        self.store.stats()
    }
}

impl Subject for MemorySubject {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn set_now(&self, now: Timestamp) {
        self.clock.set(now);
    }

    fn decide_many(&self, keys: &[&[u8]], policy: &Policy) -> Vec<Decision> {
        let mut decisions = Vec::new();
        self.store.check_many_now(keys, policy, &mut decisions);
        decisions
    }
}
