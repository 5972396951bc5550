//! Reserving now and settling later, and requests that pay once.

use std::time::Duration;

use thiserror::Error;

use super::Limiter;
use crate::receipt::{Content, Draft};
use crate::store::{
    Adjustment, Batch, Due, Entry, Hold, Once, Reply, ReservationId, Spending, StoreError,
};
use crate::{Decision, Receipt, ReceiptError, Verdict};

/// A request that was charged in advance, or not.
#[derive(Debug, Clone)]
pub struct Reservation {
    verdict: Verdict,
    receipt: Option<Receipt>,
}

/// What settling a reservation came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    charges: Vec<SettledCharge>,
}

/// What became of one charge of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettledCharge {
    /// Tokens charged at first.
    pub reserved: u64,
    /// Tokens it came to.
    pub spent: u64,
    /// Tokens given back. Fewer than were left over where time has given back the rest already, or
    /// their window is gone.
    pub refunded: u64,
    /// Tokens charged in addition. Fewer than were missing where the bucket's
    /// [overdraft](crate::Policy::with_overdraft) is exhausted.
    pub overdrawn: u64,
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

/// Why a reservation was not settled. Its charges stand as they are.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum SettleError {
    /// The receipt is not accepted.
    #[error(transparent)]
    Receipt(#[from] ReceiptError),
    /// There is nothing to settle.
    #[error("this reservation is not open: it was settled before, or its time is up")]
    NotOpen,
    /// Not as many amounts as charges.
    #[error("the receipt has {charges} charges: give {charges} amounts instead of {amounts}")]
    AmountCount {
        /// How many charges are on the receipt, permits apart.
        charges: usize,
        /// How many amounts there were.
        amounts: usize,
    },
    /// The store cannot be reached. The reservation may or may not be settled: trying again is safe.
    #[error("the store cannot settle the reservation")]
    Store(#[from] StoreError),
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

impl Settlement {
    /// Each charge, in the order of the reservation.
    #[must_use]
    pub fn charges(&self) -> &[SettledCharge] {
        &self.charges
    }
}

/// Which of the two calls a batch is for.
#[derive(Clone, Copy)]
struct Marks<'a> {
    once: Option<Once<'a>>,
    hold: Option<Hold>,
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
        let hold = Hold { id: self.next_reservation(), ttl };
        self.reserve_marked(entries, hold, None)
    }

    /// The same, once: sent again with the same id it gets the same receipt, and pays nothing.
    pub fn reserve_all_once(
        &self,
        request_id: impl AsRef<[u8]>,
        entries: &mut [Entry<'_>],
        ttl: Duration,
    ) -> Result<Reservation, RequestError> {
        let hold = Hold { id: self.receipt_key.id_of_request(request_id.as_ref()), ttl };
        self.reserve_marked(entries, hold, Some(self.once(request_id.as_ref())))
    }

    fn reserve_marked(
        &self,
        entries: &mut [Entry<'_>],
        hold: Hold,
        once: Option<Once<'_>>,
    ) -> Result<Reservation, RequestError> {
        let draft = draft(hold, entries)?;
        let marks = Marks { once, hold: Some(hold) };
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
        let hold = Hold { id: self.next_reservation(), ttl };
        let draft = draft(hold, entries)?;
        let answer = self.ask(entries, Marks { once: None, hold: Some(hold) }).await;
        let verdict = self.verdict(answer, entries)?;
        Ok(self.reservation(draft, verdict, entries))
    }

    fn reservation(&self, draft: Draft, verdict: Verdict, entries: &[Entry<'_>]) -> Reservation {
        let is_charged = verdict.is_allowed() && !verdict.is_degraded();
        let receipt = is_charged.then(|| draft.sign(entries, &self.receipt_key));
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
        let marks = Marks { once: Some(self.once(request_id.as_ref())), hold: None };
        let answer = self.ask(entries, marks).wait();
        self.verdict(answer, entries)
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn check_all_once_async(
        &self,
        request_id: impl AsRef<[u8]>,
        entries: &mut [Entry<'_>],
    ) -> Result<Verdict, RequestError> {
        let marks = Marks { once: Some(self.once(request_id.as_ref())), hold: None };
        let answer = self.ask(entries, marks).await;
        self.verdict(answer, entries)
    }

    fn once<'a>(&self, request_id: &'a [u8]) -> Once<'a> {
        Once { request_id, ttl: self.request_id_ttl }
    }

    fn ask<'a, 'e: 'a>(&'a self, entries: &'a mut [Entry<'e>], marks: Marks<'a>) -> Reply<'a, ()> {
        let mut batch = Batch::all_or_none(entries);
        batch.once = marks.once;
        batch.hold = marks.hold;
        self.store.decide(batch)
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
        let content = receipt.content(&self.receipt_key)?;
        let mut adjustments = adjustments(&content, spent)?;
        let settled = self.store.settle(content.id, &mut adjustments).wait()?;
        settlement(settled, &adjustments)
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn commit_each_async(
        &self,
        receipt: &Receipt,
        spent: &[u64],
    ) -> Result<Settlement, SettleError> {
        let content = receipt.content(&self.receipt_key)?;
        let mut adjustments = adjustments(&content, spent)?;
        let settled = self.store.settle(content.id, &mut adjustments).await?;
        settlement(settled, &adjustments)
    }

    /// Gives a whole reservation back: the request was never served.
    pub fn cancel(&self, receipt: &Receipt) -> Result<Settlement, SettleError> {
        let content = receipt.content(&self.receipt_key)?;
        let mut adjustments = adjustments(&content, &vec![0; content.paid_count()])?;
        let settled = self.store.settle(content.id, &mut adjustments).wait()?;
        settlement(settled, &adjustments)
    }

    fn next_reservation(&self) -> ReservationId {
        self.reservations.next()
    }
}

/// Costs are what they are here: nothing multiplies them.
fn draft(hold: Hold, entries: &[Entry<'_>]) -> Result<Draft, ReceiptError> {
    Draft::new(hold.id, entries.iter().map(|entry| (entry, 1)))
}

fn adjustments<'c>(
    content: &'c Content,
    spent: &[u64],
) -> Result<Vec<Adjustment<'c>>, SettleError> {
    let charges = content.paid_count();
    if spent.len() != charges {
        return Err(SettleError::AmountCount { charges, amounts: spent.len() });
    }
    let mut spent = spent.iter().copied();
    let mut adjustments = Vec::with_capacity(content.charges.len());
    for charge in &content.charges {
        // Whoever settles has done with its permits, however many tokens it has spent.
        let spent = if charge.policy.has_permits() { 0 } else { spent.next().unwrap_or(0) };
        let spending = Spending { reserved: charge.reserved, spent };
        adjustments.push(Adjustment::new(&charge.key, &charge.policy, charge.stamp, spending));
    }
    Ok(adjustments)
}

fn settlement(settled: bool, adjustments: &[Adjustment<'_>]) -> Result<Settlement, SettleError> {
    if !settled {
        return Err(SettleError::NotOpen);
    }
    let charges = adjustments.iter().map(|adjustment| {
        let (refunded, overdrawn) = match adjustment.due() {
            Due::Refund(_) => (adjustment.adjusted(), 0),
            Due::Overdraw(_) => (0, adjustment.adjusted()),
        };
        let Adjustment { reserved, spent, .. } = *adjustment;
        SettledCharge { reserved, spent, refunded, overdrawn }
    });
    Ok(Settlement { charges: charges.collect() })
}
