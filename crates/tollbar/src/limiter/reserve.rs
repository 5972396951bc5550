//! Reserving now and settling later.

use std::fmt;

use thiserror::Error;

use super::{Limiter, LimiterParts};
use crate::charge::{Marks, SettleError, Settlement, Spent, settle};
use crate::limiter::outage::StoreRef;
use crate::receipt::Draft;
use crate::store::{Entry, Store, StoreError, answer_now};
use crate::{AsyncLimiter, Decision, Denied, Key, Policies, Receipt, ReceiptError};

/// A request that was charged in advance, from [`Limiter::reserve`] or [`AsyncLimiter::reserve`].
///
/// Settle it when it is known what the request cost. If it is dropped, the charge stands.
#[must_use = "settle it, or the charge stands as it is"]
pub struct Reservation<L = Limiter> {
    limiter: L,
    decision: Decision,
    /// `None` where the store could not answer: then nothing was charged.
    receipt: Option<Receipt>,
}

/// Why a request was not reserved. Nothing was charged.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// The limit denies.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The reservation cannot have a receipt.
    #[error(transparent)]
    Receipt(#[from] ReceiptError),
    /// The store cannot reserve, or there is an outage and
    /// [`OutagePolicy::Error`](crate::OutagePolicy::Error).
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Limiter {
    /// Charges `key` with what a request is expected to cost, to be settled when it is known.
    ///
    /// ```
    /// use tollbar::{Limiter, Policy};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::token_bucket("1000/min")?.with_overdraft(1000)?;
    /// let limiter = Limiter::new(policy);
    ///
    /// // A prompt that may take up to 300 tokens.
    /// let reservation = limiter.reserve("user:42", 300)?;
    /// // It took 120. The rest is given back.
    /// reservation.commit(120)?;
    /// assert_eq!(limiter.peek("user:42").remaining(), Some(880));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A reservation that is not settled within
    /// [`reservation_ttl`](super::LimiterBuilder::reservation_ttl) stays charged as it is.
    ///
    /// # Errors
    /// If the limit denies, or the policy cannot be written down (a custom algorithm, or a key that
    /// is too long).
    pub fn reserve<'k>(
        &self,
        key: impl Into<Key<'k>>,
        cost: u64,
    ) -> Result<Reservation, ReserveError> {
        let (store, limiter) = (self.store_ref(), self.clone());
        answer_now(self.parts.reserve(store, &self.policies, key.into(), cost, limiter))
    }

    /// Settles a reservation of one charge by its receipt: it came to `actual` tokens. What was not
    /// needed is given back, what was missing is charged as far as the bucket's
    /// [overdraft](crate::Policy::with_overdraft) allows.
    ///
    /// Works once, on every limiter with the same store and the same
    /// [receipt key](super::LimiterBuilder::receipt_key). Tokens that a bucket has earned back in the
    /// meantime, and those of a window that is gone, are not given back again.
    ///
    /// # Errors
    /// If the receipt was not given out under this limiter's key, or is not open any more.
    pub fn commit(&self, receipt: &Receipt, actual: u64) -> Result<Settlement, SettleError> {
        self.settle(receipt, Spent::Each(&[actual]))
    }

    /// Settles a reservation of several charges with an amount for each, in their order. Shadows that
    /// denied were not charged and have no amount; nor have permits, which all come back.
    ///
    /// # Errors
    /// As [`commit`](Self::commit), and if there are not as many amounts as charges.
    pub fn commit_each(
        &self,
        receipt: &Receipt,
        actual: &[u64],
    ) -> Result<Settlement, SettleError> {
        self.settle(receipt, Spent::Each(actual))
    }

    /// Gives a whole reservation back: the request was never served.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn cancel(&self, receipt: &Receipt) -> Result<Settlement, SettleError> {
        self.settle(receipt, Spent::Total(0))
    }

    pub(super) fn settle(
        &self,
        receipt: &Receipt,
        spent: Spent<'_>,
    ) -> Result<Settlement, SettleError> {
        answer_now(self.parts.settle(&*self.store, receipt, spent))
    }
}

impl AsyncLimiter {
    /// Charges `key` with what a request is expected to cost, to be settled when it is known: see
    /// [`Limiter::reserve`].
    ///
    /// # Errors
    /// As [`Limiter::reserve`], and if the store has no reservations.
    pub async fn reserve<'k>(
        &self,
        key: impl Into<Key<'k>>,
        cost: u64,
    ) -> Result<Reservation<Self>, ReserveError> {
        let (store, limiter) = (self.store_ref(), self.clone());
        self.parts.reserve(store, &self.policies, key.into(), cost, limiter).await
    }

    /// Settles a reservation of one charge by its receipt: see [`Limiter::commit`].
    ///
    /// # Errors
    /// As [`Limiter::commit`], and if the store cannot answer. Trying again is safe.
    pub async fn commit(&self, receipt: &Receipt, actual: u64) -> Result<Settlement, SettleError> {
        self.settle(receipt, Spent::Each(&[actual])).await
    }

    /// Settles a reservation of several charges: see [`Limiter::commit_each`].
    ///
    /// # Errors
    /// As [`commit`](Self::commit), and if there are not as many amounts as charges.
    pub async fn commit_each(
        &self,
        receipt: &Receipt,
        actual: &[u64],
    ) -> Result<Settlement, SettleError> {
        self.settle(receipt, Spent::Each(actual)).await
    }

    /// Gives a whole reservation back: the request was never served.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub async fn cancel(&self, receipt: &Receipt) -> Result<Settlement, SettleError> {
        self.settle(receipt, Spent::Total(0)).await
    }

    pub(super) async fn settle(
        &self,
        receipt: &Receipt,
        spent: Spent<'_>,
    ) -> Result<Settlement, SettleError> {
        self.parts.settle(&*self.store, receipt, spent).await
    }
}

impl LimiterParts {
    async fn reserve<L>(
        &self,
        store: StoreRef<'_>,
        policies: &Policies,
        key: Key<'_>,
        cost: u64,
        limiter: L,
    ) -> Result<Reservation<L>, ReserveError> {
        let key = key.as_bytes();
        let policy = policies.resolve_rate(key)?;
        let marks = self.charge_ids.marks(None, Some(self.reservation_ttl));
        let mut entries = [Entry::new(key, policy.as_policy()).with_cost(cost)];
        let draft = draft(marks, &entries)?;
        store.decide(marks, &mut entries).await?;
        let decision = entries[0].decision.unwrap_or(Decision::UNDECIDED).ok()?;
        let is_charged = decision.degraded().is_none();
        let receipt = is_charged.then(|| draft.sign(&entries, self.charge_ids.receipt_key()));
        Ok(Reservation { limiter, decision, receipt })
    }

    async fn settle(
        &self,
        store: &dyn Store,
        receipt: &Receipt,
        spent: Spent<'_>,
    ) -> Result<Settlement, SettleError> {
        let content = receipt.content(self.charge_ids.receipt_key())?;
        settle(store, &content, spent).await
    }
}

/// Checks that there can be a receipt, before anything is charged. Costs are what they are here:
/// nothing multiplies them.
pub(super) fn draft(marks: Marks<'_>, entries: &[Entry<'_>]) -> Result<Draft, ReceiptError> {
    Draft::new(marks.reservation(), entries.iter().map(|entry| (entry, 1)))
}

impl<L> Reservation<L> {
    /// The decision that let the request through.
    #[must_use]
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// The receipt, which can be sent elsewhere as text and settled there. `None` where the store
    /// could not answer: then nothing was charged, and there is nothing to settle.
    #[must_use]
    pub fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_ref()
    }
}

impl Reservation {
    /// Settles the reservation: the request came to `actual` tokens.
    ///
    /// # Errors
    /// If the reservation's time is up.
    pub fn commit(self, actual: u64) -> Result<Settlement, SettleError> {
        let settle = |receipt| self.limiter.commit(receipt, actual);
        self.receipt.as_ref().map_or(Ok(Settlement::from_adjustments(&[])), settle)
    }

    /// Gives the whole reservation back: the request was never served.
    ///
    /// # Errors
    /// If the reservation's time is up.
    pub fn cancel(self) -> Result<Settlement, SettleError> {
        let settle = |receipt| self.limiter.cancel(receipt);
        self.receipt.as_ref().map_or(Ok(Settlement::from_adjustments(&[])), settle)
    }
}

impl Reservation<AsyncLimiter> {
    /// Settles the reservation: the request came to `actual` tokens.
    ///
    /// # Errors
    /// If the reservation's time is up, or the store cannot answer.
    pub async fn commit(self, actual: u64) -> Result<Settlement, SettleError> {
        let Some(receipt) = &self.receipt else { return Ok(Settlement::from_adjustments(&[])) };
        self.limiter.commit(receipt, actual).await
    }

    /// Gives the whole reservation back: the request was never served.
    ///
    /// # Errors
    /// If the reservation's time is up, or the store cannot answer.
    pub async fn cancel(self) -> Result<Settlement, SettleError> {
        let Some(receipt) = &self.receipt else { return Ok(Settlement::from_adjustments(&[])) };
        self.limiter.cancel(receipt).await
    }
}

impl<L> fmt::Debug for Reservation<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("decision", &self.decision)
            .field("receipt", &self.receipt)
            .finish_non_exhaustive()
    }
}
