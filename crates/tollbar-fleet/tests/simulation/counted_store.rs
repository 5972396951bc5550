//! The real store of counters, in memory and in simulated time.

use std::sync::Arc;

use tollbar::counter::CounterStore;
use tollbar::{Batch, Loan, LoanRequest, ManualClock, Policy, Reply, Store, Timestamp};
use tollbar_testkit::memory_backend::MemoryBackend;

use crate::network::true_now_us;

/// Sets its clock before it counts.
#[derive(Debug)]
pub(crate) struct CountedStore {
    store: CounterStore<Arc<MemoryBackend>>,
    clock: ManualClock,
}

impl CountedStore {
    pub(crate) fn new() -> Self {
        let clock = ManualClock::default();
        let backend = Arc::new(MemoryBackend::new(clock.clone(), usize::MAX));
        Self { store: CounterStore::new(backend, [7; 32]), clock }
    }

    fn now(&self) -> &CounterStore<Arc<MemoryBackend>> {
        self.clock.set(Timestamp::from_micros(true_now_us()));
        &self.store
    }
}

impl Store for CountedStore {
    fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        self.now().decide(batch)
    }

    fn lend<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        request: LoanRequest,
    ) -> Reply<'a, Loan> {
        self.now().lend(key, policy, request)
    }
}
