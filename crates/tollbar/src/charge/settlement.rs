//! Settling a reservation: what was needed is paid, the rest is given back.

use thiserror::Error;

use crate::ReceiptError;
use crate::charge::permits::release_all;
use crate::receipt::{Charge, Content};
use crate::store::{Adjustment, Due, Entry, ReservationRef, Spending, Store, StoreError};

/// What a reserved request has spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spent<'a> {
    /// As much as was reserved.
    Reserved,
    /// So much for the request, which each charge multiplies by its own
    /// [factor](crate::receipt::Charge::factor).
    Total(u64),
    /// An amount for each charge of tokens, in their order. Permits have none: all come back.
    Each(&'a [u64]),
}

/// What settling a reservation came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    charges: Vec<ChargeSettlement>,
    permits_returned: u64,
    is_repeat: bool,
}

/// What became of one charge of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChargeSettlement {
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
    /// The request was not reserved.
    #[error("this request was not reserved: write `Charges::reserve_for`")]
    NotReserved,
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

/// Settles what a receipt says, once: gives back what was not needed, charges what was missing, and
/// returns all permits. Where the reservation is no longer open its leases come back all the same.
pub async fn settle(
    store: &dyn Store,
    content: &Content,
    spent: Spent<'_>,
) -> Result<Settlement, SettleError> {
    let mut adjustments = content.adjustments(spent)?;
    if store.settle(content.reservation(), &mut adjustments).await? {
        return Ok(Settlement::from_adjustments(&adjustments));
    }
    let leases: Vec<_> = content.leases().collect();
    release_all(store, &leases).await?;
    Err(SettleError::NotOpen)
}

impl Settlement {
    /// Reads what the store has written into the adjustments of a reservation that was open.
    #[must_use]
    pub fn from_adjustments(adjustments: &[Adjustment<'_>]) -> Self {
        let (permits, tokens): (Vec<_>, Vec<_>) =
            adjustments.iter().partition(|adjustment| adjustment.policy.has_permits());
        Self {
            charges: tokens.into_iter().map(ChargeSettlement::from_adjustment).collect(),
            permits_returned: permits.into_iter().map(Adjustment::adjusted).sum(),
            is_repeat: adjustments.iter().any(Adjustment::is_repeat),
        }
    }

    /// True where another call has settled the reservation in the same way, and accounts for it.
    #[must_use]
    pub fn is_repeat(&self) -> bool {
        self.is_repeat
    }

    /// Each charge of tokens, in the order of the reservation.
    #[must_use]
    pub fn charges(&self) -> &[ChargeSettlement] {
        &self.charges
    }

    /// How many permits came back. Those whose lease had ended are not among them.
    #[must_use]
    pub fn permits_returned(&self) -> u64 {
        self.permits_returned
    }
}

impl ChargeSettlement {
    fn from_adjustment(adjustment: &Adjustment<'_>) -> Self {
        let (refunded, overdrawn) = match adjustment.due() {
            Due::Refund(_) => (adjustment.adjusted(), 0),
            Due::Overdraw(_) => (0, adjustment.adjusted()),
        };
        let Adjustment { reserved, spent, .. } = *adjustment;
        Self { reserved, spent, refunded, overdrawn }
    }
}

impl Content {
    /// Writes down what an allowed batch has paid, each entry with what the request's own cost was
    /// multiplied by. A shadow that denied has paid nothing.
    #[must_use]
    pub fn of_paid<'a, 'e: 'a>(
        reservation: ReservationRef<'_>,
        entries: impl IntoIterator<Item = (&'a Entry<'e>, u64)>,
    ) -> Self {
        let paid = entries.into_iter().filter(|(entry, _)| entry.is_paid());
        let charge = |(entry, factor): (&Entry<'_>, u64)| Charge {
            key: entry.key.into(),
            policy: entry.policy.clone(),
            reserved: entry.cost,
            factor,
            stamp: entry.stamp,
        };
        let ReservationRef { id, request_id } = reservation;
        let request_id = request_id.map(Into::into);
        Self { id, request_id, note: Box::default(), charges: paid.map(charge).collect() }
    }

    /// Turns what was charged and what was spent into what the store has to adjust.
    pub fn adjustments(&self, spent: Spent<'_>) -> Result<Vec<Adjustment<'_>>, SettleError> {
        let tokens = |charge: &&Charge| !charge.policy.has_permits();
        let charges = self.charges.iter().filter(tokens).count();
        let mut each = match spent {
            Spent::Each(amounts) if amounts.len() != charges => {
                return Err(SettleError::AmountCount { charges, amounts: amounts.len() });
            }
            Spent::Each(amounts) => amounts.iter(),
            Spent::Reserved | Spent::Total(_) => [].iter(),
        };
        let mut adjustments = Vec::with_capacity(self.charges.len());
        for Charge { key, policy, reserved, factor, stamp } in &self.charges {
            let spent = match spent {
                // A request that is settled has done with its permits.
                _ if policy.has_permits() => 0,
                Spent::Reserved => *reserved,
                Spent::Total(spent) => spent.saturating_mul(*factor),
                Spent::Each(_) => each.next().copied().unwrap_or(0),
            };
            let spending = Spending { reserved: *reserved, spent };
            adjustments.push(Adjustment::new(key, policy, *stamp, spending));
        }
        Ok(adjustments)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::charge::{HeldPermits, renew_all};
    use crate::store::{Batch, ReservationId, block_on};
    use crate::{ManualClock, MemoryStore, Policy, ReceiptKey, Timestamp};

    const LEASE: Duration = Duration::from_secs(30);

    struct Fixture {
        store: MemoryStore,
        clock: ManualClock,
        tokens: Policy,
        leased: Policy,
    }

    impl Fixture {
        fn new() -> Self {
            let clock = ManualClock::at(Timestamp::from_micros(1_000_000));
            Self {
                store: MemoryStore::builder().max_keys(100).clock(clock.clone()).build(),
                clock,
                tokens: Policy::fixed_window("100/h").unwrap(),
                leased: Policy::concurrency(3).unwrap().leased(LEASE).unwrap(),
            }
        }

        /// Reserves 10 tokens at a factor of 5, and 2 permits.
        fn reserve(&self) -> (Content, Vec<HeldPermits>) {
            let ids = super::super::ChargeIds::new(ReceiptKey::new([1; 32]), LEASE);
            let marks = ids.marks(None, Some(Duration::from_mins(10)));
            let mut entries = [
                Entry::new("user:42", &self.tokens).with_cost(10),
                Entry::new("user:42", &self.leased).with_cost(2),
            ];
            self.store.decide(marks.batch(&mut entries)).wait().unwrap();
            let factors = entries.iter().zip([5, 1]);
            let content = Content::of_paid(marks.reservation(), factors);
            (content, entries.iter().filter_map(HeldPermits::from_entry).collect())
        }

        fn remaining(&self) -> [u64; 2] {
            [&self.tokens, &self.leased].map(|policy| {
                self.store.check(b"user:42", policy, 0).wait().unwrap().remaining().unwrap()
            })
        }
    }

    #[test]
    fn what_was_spent_is_said_in_three_ways_and_permits_come_back_in_each() {
        let cases = [(Spent::Reserved, 90), (Spent::Total(1), 95), (Spent::Each(&[3]), 97)];
        for (spent, left) in cases {
            let fixture = Fixture::new();
            let (content, _) = fixture.reserve();
            assert_eq!(fixture.remaining(), [90, 1]);
            let settlement = block_on(settle(&fixture.store, &content, spent)).unwrap();
            assert_eq!((settlement.charges().len(), settlement.permits_returned()), (1, 2));
            assert_eq!(settlement.charges()[0].refunded, left - 90, "{spent:?}");
            assert_eq!(fixture.remaining(), [left, 3]);
        }
    }

    #[test]
    fn amounts_are_counted_without_permits() {
        let (content, _) = Fixture::new().reserve();
        let error = content.adjustments(Spent::Each(&[3, 2])).unwrap_err();
        assert!(matches!(error, SettleError::AmountCount { charges: 1, amounts: 2 }));
    }

    #[test]
    fn a_reservation_whose_time_is_up_still_returns_renewed_leases() {
        let fixture = Fixture::new();
        let (content, held) = fixture.reserve();
        for _ in 0..25 {
            fixture.clock.advance(Duration::from_secs(29));
            assert!(block_on(renew_all(&fixture.store, &held)).unwrap().is_some());
        }
        let settled = block_on(settle(&fixture.store, &content, Spent::Total(0)));
        assert!(matches!(settled, Err(SettleError::NotOpen)));
        assert_eq!(fixture.remaining(), [90, 3]);
    }

    #[test]
    fn leases_that_were_written_down_are_renewed_and_released() {
        let fixture = Fixture::new();
        let (_, held) = fixture.reserve();
        assert_eq!(held[0].ends_at(), Some(Timestamp::from_micros(31_000_000)));
        let key = ReceiptKey::new([2; 32]);
        let receipt = Content::of_leases(&held).sign(&key).unwrap();
        let leases: Vec<_> = receipt.content(&key).unwrap().leases().collect();
        fixture.clock.advance(Duration::from_secs(10));
        let ends_at = block_on(renew_all(&fixture.store, &leases)).unwrap();
        assert_eq!(ends_at, Some(Timestamp::from_micros(41_000_000)));
        assert_eq!(block_on(release_all(&fixture.store, &leases)).unwrap(), 2);
        assert_eq!(block_on(release_all(&fixture.store, &leases)).unwrap(), 0);
        assert_eq!(block_on(renew_all(&fixture.store, &leases)).unwrap(), None);
    }

    #[test]
    fn a_shadow_that_denied_has_paid_and_holds_nothing() {
        let fixture = Fixture::new();
        let (_, _) = fixture.reserve();
        let mut entries = [
            Entry::new("user:42", &fixture.tokens),
            Entry::new("user:42", &fixture.leased).with_cost(2).with_role(crate::Role::Shadow),
        ];
        fixture.store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
        let content =
            Content::of_paid(ReservationId::NONE.into(), entries.iter().map(|entry| (entry, 1)));
        assert_eq!(content.charges.len(), 1);
        assert_eq!(entries.iter().filter_map(HeldPermits::from_entry).count(), 0);
    }
}
