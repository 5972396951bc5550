//! Receipts and leases as text: given out to whoever asked over a wire, and read when they come back.
//!
//! A text says everything, keys and numbers included, and is authenticated. So it is redeemed after
//! the rules have changed, after a restart, and by another engine over the same store with the same
//! secret. Whether it is still open only the store knows.

use thiserror::Error;
use tollbar::receipt::Content;
use tollbar::{Receipt, ReceiptKey, Store, StoreError};

use super::Engine;

/// Why a receipt or a lease did nothing.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum ReceiptError {
    /// No text of ours.
    #[error(transparent)]
    NotAccepted(#[from] tollbar::ReceiptError),
    /// There is nothing to settle.
    #[error("this reservation is not open: it was settled before, or its time is up")]
    NotOpen,
    /// A lease cannot be settled.
    #[error("this is a lease, not a receipt: release or renew it")]
    IsLease,
    /// A reservation is not released.
    #[error("this is the receipt of a reservation, not a lease: commit or cancel it")]
    IsReservation,
    /// The store cannot be reached. Trying again is safe.
    #[error("the store cannot answer")]
    Store(#[from] StoreError),
}

/// The keys under which texts are given out: each kind has its own, so that none passes for another.
#[derive(Debug)]
pub(super) struct Texts {
    pub(super) reservations: ReceiptKey,
    pub(super) leases: ReceiptKey,
    /// Of leases that are counted in this process, because the store could not answer: nobody else
    /// has them, so nobody else accepts them.
    pub(super) leases_here: ReceiptKey,
}

/// A text that was given out here.
pub(super) enum Opened {
    Reservation(Content),
    Lease { content: Content, is_local: bool },
}

impl Texts {
    pub(super) fn new(key: ReceiptKey) -> Self {
        Self {
            leases: key.for_purpose("lease"),
            leases_here: ReceiptKey::random(),
            reservations: key,
        }
    }

    pub(super) fn open(&self, text: &str) -> Result<Opened, ReceiptError> {
        let receipt: Receipt = text.parse()?;
        if let Ok(content) = receipt.content(&self.leases) {
            return Ok(Opened::Lease { content, is_local: false });
        }
        if let Ok(content) = receipt.content(&self.leases_here) {
            return Ok(Opened::Lease { content, is_local: true });
        }
        Ok(Opened::Reservation(receipt.content(&self.reservations)?))
    }
}

impl Engine {
    /// Gives the leases of a text back, and says how many permits that were. Those that have ended,
    /// or were given back before, are none.
    pub(super) async fn return_leases(
        &self,
        content: &Content,
        is_local: bool,
    ) -> Result<u64, StoreError> {
        let store: &dyn Store = self.store_of(is_local);
        let mut returned = 0;
        for charge in content.charges.iter().filter(|it| it.policy.lease_ttl().is_some()) {
            returned +=
                store.refund(&charge.key, &charge.policy, charge.stamp, charge.reserved).await?;
        }
        Ok(returned)
    }
}
