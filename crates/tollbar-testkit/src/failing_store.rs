//! A store that answers every question with one error.

use std::fmt;
use std::sync::Arc;

use tollbar::store::{Adjustment, ReservationRef};
use tollbar::{Batch, Feature, Policy, Reply, Store, StoreError, Timestamp};

/// Decides nothing, and always says why.
#[derive(Debug, Clone)]
pub struct FailingStore(pub StoreError);

impl FailingStore {
    /// A store that cannot be reached.
    #[must_use]
    pub fn unavailable() -> Self {
        Self(StoreError::Unavailable { source: Arc::new(fmt::Error) })
    }

    /// A store for each kind of outage.
    #[must_use]
    pub fn outages() -> [Self; 4] {
        let source = || Arc::new(fmt::Error);
        [
            Self(StoreError::Unavailable { source: source() }),
            Self(StoreError::Timeout { source: source() }),
            Self(StoreError::Overloaded { source: source() }),
            Self(StoreError::Refused { source: source() }),
        ]
    }

    /// A store for each mistake that a caller can make.
    #[must_use]
    pub fn mistakes() -> [Self; 3] {
        [
            Self(StoreError::CrossSlot { detail: "the keys lie apart".into() }),
            Self(StoreError::unsupported("this store has no reservations")),
            Self(StoreError::BatchTooLarge { entries: 64, entries_max: 32 }),
        ]
    }
}

impl FailingStore {
    fn fail<'a, T>(&self) -> Reply<'a, T> {
        Reply::Ready(Err(self.0.clone()))
    }
}

impl Store for FailingStore {
    /// Everything, so that limiters and engines are built over it.
    fn supports(&self, _: Feature<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn decide<'a, 'e: 'a>(&'a self, _: Batch<'a, 'e>) -> Reply<'a, ()> {
        self.fail()
    }

    fn refund<'a>(&'a self, _: &'a [u8], _: &'a Policy, _: u64, _: u64) -> Reply<'a, u64> {
        self.fail()
    }

    fn renew<'a>(&'a self, _: &'a [u8], _: &'a Policy, _: u64) -> Reply<'a, Option<Timestamp>> {
        self.fail()
    }

    fn settle<'a, 'e: 'a>(
        &'a self,
        _: ReservationRef<'a>,
        _: &'a mut [Adjustment<'e>],
    ) -> Reply<'a, bool> {
        self.fail()
    }

    fn forget_request<'a>(&'a self, _: &'a [u8], _: &'a [u8]) -> Reply<'a, ()> {
        self.fail()
    }

    fn reset<'a>(&'a self, _: &'a [u8], _: &'a Policy) -> Reply<'a, ()> {
        self.fail()
    }
}
