//! A store over another one that answers hot keys from tokens which it has borrowed.

mod claims;

use std::sync::Arc;

use tollbar::store::{Adjustment, ReservationIds, ReservationRef};
use tollbar::{
    Accuracy, Batch, Clock, Decision, Entry, Feature, Loan, LoanHolding, LoanRequest, MemoryStore,
    Policy, Reply, Store, StoreError, Timestamp,
};

use crate::borrower::Borrower;
use crate::clock::{BootClock, SystemBootClock};
use crate::stats::LendingStats;
use claims::Claims;

/// How many keys are counted here alone.
const LOCAL_KEYS_MAX: usize = 100_000;

/// Answers entries that may be [loaned](Accuracy::Loaned) from tokens that the store behind it has lent, counts
/// [local](Accuracy::Local) ones by itself, and hands everything else on.
///
/// It lends nothing until [`set_lending`](Self::set_lending) says so, because every process that counts in the same
/// store has to know loans. It borrows in the background, on the runtime of tokio that its callers are on; without
/// one, every check is exact.
///
/// # What is always exact
/// Requests with an id, reservations, peeks, [alternatives](tollbar::store::Alternative), a cost that is more than a loan may have, and [`check`](Store::check),
/// which cannot say how exact it is to be.
///
/// # Several limits at once
/// A batch of all or none takes the tokens that are held here first, and asks the store for the rest in one batch. If
/// that denies or fails, the tokens go back to their lots. Lots that are about to end are left alone in such a batch.
/// If some have ended all the same when the answer is there, because the store was slow or the process was stopped,
/// their tokens do not count: the store is asked once more, for the loaned entries. If it denies, what the rest was
/// charged is given back as far as [`Store::refund`] can: windows are, and the charge of a bucket, which could only be
/// given back had the batch been held, stands until time has paid for it. Nothing is over in either case.
///
/// # Local limits
/// They are charged here before the store is asked, and given back if the request is denied. The charge of a
/// reservation stands as it was made if other limits of the same request are in the store.
#[derive(Debug)]
pub struct LendingStore {
    borrower: Arc<Borrower>,
    local: MemoryStore,
    reservation_ids: ReservationIds,
}

/// Makes a [`LendingStore`] with clocks of a test's own.
#[derive(Debug)]
pub struct LendingStoreBuilder {
    inner: Arc<dyn Store>,
    boot_clock: Arc<dyn BootClock>,
    local: Option<MemoryStore>,
    jitter_seed: u64,
}

impl LendingStoreBuilder {
    /// Lots end by this clock.
    #[must_use]
    pub fn boot_clock(self, boot_clock: Arc<dyn BootClock>) -> Self {
        Self { boot_clock, ..self }
    }

    /// Local limits are counted in this store.
    #[must_use]
    pub fn local_store(self, local: MemoryStore) -> Self {
        Self { local: Some(local), ..self }
    }

    /// Makes pauses as long in every run.
    #[must_use]
    pub fn jitter_seed(self, jitter_seed: u64) -> Self {
        Self { jitter_seed, ..self }
    }

    /// Returns the store, which lends nothing yet.
    #[must_use]
    pub fn build(self) -> LendingStore {
        let Self { inner, boot_clock, local, jitter_seed } = self;
        let local =
            local.unwrap_or_else(|| MemoryStore::builder().max_keys(LOCAL_KEYS_MAX).build());
        LendingStore {
            borrower: Arc::new(Borrower::new(inner, boot_clock, jitter_seed)),
            local,
            reservation_ids: ReservationIds::new(),
        }
    }
}

impl LendingStore {
    /// Returns a store over `inner`. It borrows nothing until [`set_lending`](Self::set_lending) allows it.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self::builder(inner).build()
    }

    /// Returns a builder, for tests.
    #[must_use]
    pub fn builder(inner: Arc<dyn Store>) -> LendingStoreBuilder {
        let (boot_clock, jitter_seed) = (Arc::new(SystemBootClock), rand::random());
        LendingStoreBuilder { inner, boot_clock, local: None, jitter_seed }
    }

    /// Says whether tokens are borrowed and spent. If not, everything but local limits is exact.
    pub fn set_lending(&self, is_lending: bool) {
        self.borrower.set_lending(is_lending);
    }

    /// Counts what was borrowed and what became of it. Takes each lock once: for a scrape, not for every request.
    #[must_use]
    pub fn stats(&self) -> LendingStats {
        self.borrower.stats()
    }

    fn inner(&self) -> &dyn Store {
        &*self.borrower.inner
    }

    /// True if nothing of the batch is answered here.
    fn hands_on(&self, batch: &Batch<'_, '_>) -> bool {
        let may_lend =
            self.borrower.is_lending() && batch.charged_once().is_none() && batch.hold().is_none();
        !batch.entries().iter().any(|entry| match claims::accuracy_of(entry) {
            Accuracy::Local => true,
            Accuracy::Loaned(_) => may_lend && entry.cost() > 0,
            _ => false,
        })
    }
}

impl Store for LendingStore {
    fn supports(&self, feature: Feature<'_>) -> Result<(), StoreError> {
        self.inner().supports(feature)
    }

    fn check<'a>(&'a self, key: &'a [u8], policy: &'a Policy, cost: u64) -> Reply<'a, Decision> {
        self.inner().check(key, policy, cost)
    }

    fn decide<'a, 'e: 'a>(&'a self, mut batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        if self.hands_on(&batch) {
            return self.inner().decide(batch);
        }
        let is_local = |entry: &Entry<'_>| claims::accuracy_of(entry) == Accuracy::Local;
        if batch.entries().iter().all(is_local) {
            batch.entries_mut().iter_mut().for_each(claims::mark_local);
            return self.local.decide(batch);
        }
        let mut claims = Claims::new(self);
        if claims.take(&mut batch) {
            return Reply::Ready(Ok(()));
        }
        Reply::Pending(Box::pin(claims.ask_store(batch)))
    }

    fn refund<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
        amount: u64,
    ) -> Reply<'a, u64> {
        self.inner().refund(key, policy, stamp, amount)
    }

    fn renew<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
    ) -> Reply<'a, Option<Timestamp>> {
        self.inner().renew(key, policy, stamp)
    }

    /// A reservation of local limits alone is settled here, and any other in the store.
    fn settle<'a, 'e: 'a>(
        &'a self,
        reservation: ReservationRef<'a>,
        adjustments: &'a mut [Adjustment<'e>],
    ) -> Reply<'a, bool> {
        match self.local.settle(reservation, adjustments).wait() {
            Ok(true) => Reply::Ready(Ok(true)),
            _ => self.inner().settle(reservation, adjustments),
        }
    }

    fn forget_request<'a>(&'a self, request_id: &'a [u8], key: &'a [u8]) -> Reply<'a, ()> {
        if let Err(error) = self.local.forget_request(request_id, key).wait() {
            return Reply::Ready(Err(error));
        }
        self.inner().forget_request(request_id, key)
    }

    /// Asks the store behind this one: tokens that were borrowed here are not lent a second time.
    fn lend<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        request: LoanRequest,
    ) -> Reply<'a, Loan> {
        self.inner().lend(key, policy, request)
    }

    fn loan_holding(&self, key: &[u8], policy: &Policy) -> Option<LoanHolding> {
        self.borrower.holding(key, policy)
    }

    /// What is held here was charged before the reset, and is dropped first. Other processes spend what they hold
    /// within a term.
    fn reset<'a>(&'a self, key: &'a [u8], policy: &'a Policy) -> Reply<'a, ()> {
        self.borrower.forget(key, policy);
        if let Err(error) = self.local.reset(key, policy).wait() {
            return Reply::Ready(Err(error));
        }
        self.inner().reset(key, policy)
    }

    fn clock(&self) -> Option<&dyn Clock> {
        self.inner().clock()
    }
}

#[cfg(test)]
mod tests;
