//! Reserving now and settling later, and requests that pay once.

use std::time::Duration;

use thiserror::Error;

use super::Limiter;
use crate::charge::{Marks, SettleError, Settlement, Spent, settle};
use crate::receipt::Draft;
use crate::store::{Entry, Reply, ReservationId, StoreError, block_on};
use crate::{Decision, Receipt, ReceiptError, Verdict};

/// A request that was charged in advance, or not.
#[derive(Debug, Clone)]
pub struct Reservation {
    verdict: Verdict,
    receipt: Option<Receipt>,
}

/// Why a request was not reserved or not checked. Nothing was charged.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The reservation cannot have a receipt.
    #[error(transparent)]
    Receipt(#[from] ReceiptError),
    /// The request id came with another question before.
    #[error(
        "this request id was used for other keys or another cost: send a new id with a new request"
    )]
    RequestIdReused,
    /// Something that the store cannot do: a batch that is too large, or keys that lie apart.
    #[error(transparent)]
    Store(StoreError),
}

impl From<StoreError> for RequestError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::RequestIdReused => Self::RequestIdReused,
            error => Self::Store(error),
        }
    }
}

impl Reservation {
    /// True where the request may pass, and has paid what was reserved.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.verdict.is_allowed()
    }

    /// What the decisions came to.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// The receipt. None where the request was denied, and where it was let through without the
    /// store: then nothing was charged, and there is nothing to settle.
    #[must_use]
    pub fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_ref()
    }

    /// The same, to keep.
    #[must_use]
    pub fn into_receipt(self) -> Option<Receipt> {
        self.receipt
    }
}

impl Limiter {
    /// Charges `key` with what a request is expected to cost, to be settled when it is known.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollbar::{Limiter, Policy};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::token_bucket("1000/min")?.with_overdraft(1000)?;
    /// let limiter = Limiter::new(policy);
    ///
    /// // A prompt that may take up to 300 tokens.
    /// let reservation = limiter.reserve("user:42", 300, Duration::from_secs(60))?;
    /// if let Some(receipt) = reservation.receipt() {
    ///     // It took 120. The rest is given back.
    ///     limiter.commit(receipt, 120)?;
    /// }
    /// assert_eq!(limiter.peek("user:42").remaining(), 880);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A reservation that is not settled within `ttl` stays charged as it is.
    pub fn reserve(
        &self,
        key: impl AsRef<[u8]>,
        cost: u64,
        ttl: Duration,
    ) -> Result<Reservation, RequestError> {
        let key = key.as_ref();
        self.policies.with(key, |policy| {
            self.reserve_all(&mut [Entry::new(key, policy).with_cost(cost)], ttl)
        })
    }

    /// Charges one request under several policies or keys in advance: all of them, or none.
    pub fn reserve_all(
        &self,
        entries: &mut [Entry<'_>],
        ttl: Duration,
    ) -> Result<Reservation, RequestError> {
        self.reserve_marked(entries, self.charge_ids.marks(None, Some(ttl)))
    }

    /// The same, once: sent again with the same id it gets the same receipt, and pays nothing.
    pub fn reserve_all_once(
        &self,
        request_id: impl AsRef<[u8]>,
        entries: &mut [Entry<'_>],
        ttl: Duration,
    ) -> Result<Reservation, RequestError> {
        let marks = self.charge_ids.marks(Some(request_id.as_ref()), Some(ttl));
        self.reserve_marked(entries, marks)
    }

    fn reserve_marked(
        &self,
        entries: &mut [Entry<'_>],
        marks: Marks<'_>,
    ) -> Result<Reservation, RequestError> {
        let draft = draft(marks, entries)?;
        let answer = self.ask(entries, marks).wait();
        let verdict = self.verdict(answer, entries)?;
        Ok(self.reservation(draft, verdict, entries))
    }

    /// [`reserve_all`](Self::reserve_all) without blocking the thread while a store across a network
    /// answers.
    pub async fn reserve_all_async(
        &self,
        entries: &mut [Entry<'_>],
        ttl: Duration,
    ) -> Result<Reservation, RequestError> {
        let marks = self.charge_ids.marks(None, Some(ttl));
        let draft = draft(marks, entries)?;
        let answer = self.ask(entries, marks).await;
        let verdict = self.verdict(answer, entries)?;
        Ok(self.reservation(draft, verdict, entries))
    }

    fn reservation(&self, draft: Draft, verdict: Verdict, entries: &[Entry<'_>]) -> Reservation {
        let is_charged = verdict.is_allowed() && !verdict.is_degraded();
        let receipt = is_charged.then(|| draft.sign(entries, self.charge_ids.receipt_key()));
        Reservation { verdict, receipt }
    }

    /// May `key` pay `cost`? However often it is asked with the same id, it pays once: an allowed
    /// request gets the same answer again for as long as
    /// [`request_id_ttl`](super::LimiterBuilder::request_id_ttl), a denied one is decided anew.
    ///
    /// ```
    /// use tollbar::{Limiter, Policy};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(Policy::token_bucket("10/min")?);
    /// limiter.check_once("request-7f3a", "user:42", 3)?;
    /// // The client has not got the answer, and asks again.
    /// assert_eq!(limiter.check_once("request-7f3a", "user:42", 3)?.remaining(), 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn check_once(
        &self,
        request_id: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
        cost: u64,
    ) -> Result<Decision, RequestError> {
        let key = key.as_ref();
        self.policies.with(key, |policy| {
            let mut entries = [Entry::new(key, policy).with_cost(cost)];
            let verdict = self.check_all_once(request_id, &mut entries)?;
            Ok(verdict.decision().unwrap_or(Decision::UNDECIDED))
        })
    }

    /// One request under several policies or keys that pays once: see
    /// [`check_once`](Self::check_once).
    pub fn check_all_once(
        &self,
        request_id: impl AsRef<[u8]>,
        entries: &mut [Entry<'_>],
    ) -> Result<Verdict, RequestError> {
        let marks = self.charge_ids.marks(Some(request_id.as_ref()), None);
        let answer = self.ask(entries, marks).wait();
        self.verdict(answer, entries)
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn check_all_once_async(
        &self,
        request_id: impl AsRef<[u8]>,
        entries: &mut [Entry<'_>],
    ) -> Result<Verdict, RequestError> {
        let marks = self.charge_ids.marks(Some(request_id.as_ref()), None);
        let answer = self.ask(entries, marks).await;
        self.verdict(answer, entries)
    }

    fn ask<'a, 'e: 'a>(&'a self, entries: &'a mut [Entry<'e>], marks: Marks<'a>) -> Reply<'a, ()> {
        self.store.decide(marks.batch(entries))
    }

    /// Settles a reservation of one charge that has spent `spent` tokens: what it did not need is
    /// given back, what it needed more becomes debt.
    ///
    /// Works once. Given back is what still counts: tokens that a bucket has earned back in the
    /// meantime, and those of a window that is gone, are not given back again.
    pub fn commit(&self, receipt: &Receipt, spent: u64) -> Result<Settlement, SettleError> {
        self.commit_each(receipt, &[spent])
    }

    /// The same with an amount for each charge, in the order of the entries. Shadows that denied
    /// were not charged, and have none; nor have permits, which all come back.
    pub fn commit_each(&self, receipt: &Receipt, spent: &[u64]) -> Result<Settlement, SettleError> {
        block_on(self.commit_each_async(receipt, spent))
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn commit_each_async(
        &self,
        receipt: &Receipt,
        spent: &[u64],
    ) -> Result<Settlement, SettleError> {
        let content = receipt.content(self.charge_ids.receipt_key())?;
        settle(&*self.store, &content, Spent::Each(spent)).await
    }

    /// Gives a whole reservation back: the request was never served.
    pub fn cancel(&self, receipt: &Receipt) -> Result<Settlement, SettleError> {
        let content = receipt.content(self.charge_ids.receipt_key())?;
        block_on(settle(&*self.store, &content, Spent::Total(0)))
    }
}

/// Costs are what they are here: nothing multiplies them.
fn draft(marks: Marks<'_>, entries: &[Entry<'_>]) -> Result<Draft, ReceiptError> {
    let id = marks.hold.map_or(ReservationId::NONE, |hold| hold.id);
    Draft::new(id, entries.iter().map(|entry| (entry, 1)))
}
