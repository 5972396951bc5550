//! What a request holds while it lasts: a charge to be settled, permits to be returned.
//!
//! A [`Hold`] is kept in this process, or travels as text. A text says everything, keys and numbers
//! included, and is authenticated. So it is redeemed after the rules have changed, after a restart, and
//! by another engine over the same store with the same secret. Whether it is still open only the store
//! knows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thiserror::Error;
use tollbar::receipt::Draft;
use tollbar::store::{Adjustment, Due, ReservationId, Spending};
use tollbar::{
    Decision, Entry, Outcome, Policy, RECEIPT_BYTES_MAX, Receipt, ReceiptKey, Store, StoreError,
    Timestamp,
};

use super::AsyncEngine;
use super::deciding::Asked;
use super::selection::Selection;
use crate::snapshot::Snapshot;

/// What a request that was let through holds until it is over.
///
/// A reservation is [settled](AsyncEngine::settle) or [cancelled](AsyncEngine::cancel), permits alone are
/// [released](AsyncEngine::release); a hold ends once. One that is dropped stands: its charge stays as it
/// is, and its permits come back when their leases end. [`AsyncEngine::token`] turns it into text.
#[derive(Debug)]
#[must_use = "it has to be settled or released: permits that are not returned are gone"]
pub struct Hold {
    /// What the store calls the reservation; `None` if only permits are held.
    reservation: Option<ReservationId>,
    charges: Vec<HeldCharge>,
    /// When the first lease ends, unless it is renewed. Not known of a hold that was resumed.
    lease_ends_at: Option<Timestamp>,
    /// Counted in this process, because the store could not answer.
    is_local: bool,
    /// Made from a text, which others may have too.
    is_resumed: bool,
    is_over: AtomicBool,
}

/// What was charged to one counter.
#[derive(Debug)]
struct HeldCharge {
    key: Box<[u8]>,
    policy: Policy,
    reserved: u64,
    /// What the rule multiplies the request's cost by.
    factor: u64,
    /// What the store calls the charge.
    stamp: u64,
}

/// What settling a reservation came to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleSettlement {
    /// Each limit that was charged, in the order of the rules.
    pub limits: Vec<LimitSettlement>,
    /// How many permits have come back. Leases that had ended are not among them.
    pub permits_returned: u64,
}

/// What became of one charge of a reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitSettlement {
    /// What the rule's counters are kept under: its id, or its name.
    pub rule: String,
    /// Tokens charged at first.
    pub reserved: u64,
    /// Tokens it came to.
    pub spent: u64,
    /// Tokens given back. Fewer than were left over if time has given back the rest already, or their
    /// window is gone.
    pub refunded: u64,
    /// Tokens charged in addition. Fewer than were missing if a bucket can owe no more.
    pub overdrawn: u64,
}

/// Why a hold, or the text of one, did nothing.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum TokenError {
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

/// The keys under which holds are written as text. Each kind has its own, so that none passes for
/// another.
#[derive(Debug)]
pub(super) struct TokenKeys {
    pub(super) reservations: ReceiptKey,
    leases: ReceiptKey,
    /// For leases that this process counts because the store could not answer. No other process has
    /// them, so no other accepts them.
    local_leases: ReceiptKey,
}

/// Leases are known by what the store calls each of them: they have no name together.
const NO_RESERVATION: ReservationId = ReservationId(0);

/// An upper bound for what a token takes per charge besides the key: a policy's numbers and its name, which is a
/// rule's.
const CHARGE_BYTES_MAX: usize = 512;

impl TokenKeys {
    pub(super) fn new(key: ReceiptKey) -> Self {
        Self {
            leases: key.for_purpose("lease"),
            local_leases: ReceiptKey::random(),
            reservations: key,
        }
    }
}

/// Returns true if permits under `policy` stay taken until they are returned.
pub(crate) fn is_unleased(policy: &Policy) -> bool {
    policy.has_permits() && policy.lease_ttl().is_none()
}

/// Returns true if what would be held can be written down.
#[inline]
pub(super) fn has_token(snapshot: &Snapshot, selection: &Selection, is_reservation: bool) -> bool {
    let key_bytes = selection.asks.iter().map(|ask| ask.key.1 - ask.key.0).sum::<usize>();
    key_bytes + selection.asks.len() * CHARGE_BYTES_MAX <= RECEIPT_BYTES_MAX
        || has_exactly(snapshot, selection, is_reservation)
}

/// Writes the token, but for the store's part of it.
#[cold]
fn has_exactly(snapshot: &Snapshot, selection: &Selection, is_reservation: bool) -> bool {
    let entries = selection.asks.iter().map(|ask| ask.entry(snapshot, selection));
    let is_on_it = |it: &Entry<'_>| is_reservation || it.policy().lease_ttl().is_some();
    let entries: Vec<Entry<'_>> = entries.filter(is_on_it).collect();
    Draft::new(NO_RESERVATION, entries.iter().map(|entry| (entry, u64::MAX))).is_ok()
}

impl Hold {
    /// What a request that was reserved has paid and taken. A shadow that denied has paid nothing.
    pub(super) fn of_reservation(id: ReservationId, asked: &Asked<'_>) -> Self {
        let &Asked { snapshot, request, selection, entries } = asked;
        let once = request.clone().with_cost(1);
        let charges =
            selection.asks.iter().zip(entries).filter_map(|(ask, entry)| {
                HeldCharge::of(entry, || snapshot.cost(ask.rule, &once))
            });
        Self::new(Some(id), charges.collect(), entries, false)
    }

    /// The permits that a request has taken; `None` if there are none.
    pub(super) fn of_permits(entries: &[Entry<'_>], is_local: bool) -> Option<Self> {
        let is_taken = |entry: &&Entry<'_>| entry.policy().has_permits() && entry.cost() > 0;
        let taken = entries.iter().filter(is_taken);
        let charges: Vec<_> = taken.filter_map(|entry| HeldCharge::of(entry, || 1)).collect();
        (!charges.is_empty()).then(|| Self::new(None, charges, entries, is_local))
    }

    fn new(
        reservation: Option<ReservationId>,
        charges: Vec<HeldCharge>,
        entries: &[Entry<'_>],
        is_local: bool,
    ) -> Self {
        let lease_end = |entry: &Entry<'_>| {
            // A decision about permits resets at the present.
            let decision = entry.decision().filter(|it| entry.cost() > 0 && it.is_allowed())?;
            Some(decision.reset_at().after(entry.policy().lease_ttl()?))
        };
        Self {
            reservation,
            charges,
            lease_ends_at: entries.iter().filter_map(lease_end).min(),
            is_local,
            is_resumed: false,
            is_over: AtomicBool::new(false),
        }
    }

    /// Returns true for a reservation, which is settled or cancelled. Any other hold is of permits only,
    /// which are released.
    #[must_use]
    pub fn is_reservation(&self) -> bool {
        self.reservation.is_some()
    }

    /// How long the shortest of its leases lasts; `None` if it has none.
    #[must_use]
    pub fn lease_ttl(&self) -> Option<Duration> {
        self.leases().filter_map(|charge| charge.policy.lease_ttl()).min()
    }

    /// When the first of its leases ends, by the store's clock, unless it is renewed. `None` if it has
    /// none, and for a hold that was resumed.
    #[must_use]
    pub fn lease_ends_at(&self) -> Option<Timestamp> {
        self.lease_ends_at
    }

    fn leases(&self) -> impl Iterator<Item = &HeldCharge> {
        self.charges.iter().filter(|it| it.policy.lease_ttl().is_some())
    }

    /// Returns true for the first caller.
    fn end(&self) -> bool {
        !self.is_over.swap(true, Ordering::AcqRel)
    }
}

impl HeldCharge {
    /// What was charged for an entry; `None` if it did not allow.
    fn of(entry: &Entry<'_>, factor: impl FnOnce() -> u64) -> Option<Self> {
        entry.decision().filter(Decision::is_allowed)?;
        Some(Self {
            key: entry.key().into(),
            policy: entry.policy().clone(),
            reserved: entry.cost(),
            factor: factor(),
            stamp: entry.stamp(),
        })
    }

    /// The entry that was charged.
    fn entry(&self) -> Entry<'_> {
        let mut entry = Entry::new(&self.key, &self.policy).with_cost(self.reserved);
        entry.set_stamp(self.stamp);
        entry.decide(Decision::new(Outcome::Allow, self.policy.limit(), 0, Timestamp::ZERO));
        entry
    }

    /// What was spent of the charge. Permits are not spent: all of them come back.
    fn spent(&self, spent: Option<u64>) -> u64 {
        match spent {
            _ if self.policy.has_permits() => 0,
            Some(spent) => spent.saturating_mul(self.factor),
            None => self.reserved,
        }
    }

    fn adjustment(&self, spent: Option<u64>) -> Adjustment<'_> {
        let spending = Spending { reserved: self.reserved, spent: self.spent(spent) };
        Adjustment::new(&self.key, &self.policy, self.stamp, spending)
    }
}

impl AsyncEngine {
    /// Settles a reservation that came to `spent`, which each rule multiplies by its own cost as it did
    /// with the request's; `None` is as much as was reserved. What was reserved beyond that is given
    /// back, what is missing is charged, and permits come back.
    ///
    /// Works once, on every engine over the same store, whatever has become of the rules. After the time
    /// for which it was reserved a reservation is [not open](TokenError::NotOpen): its charge stands, and
    /// its permits come back all the same, except those without a lease of a hold that was resumed.
    pub async fn settle(
        &self,
        hold: &Hold,
        spent: Option<u64>,
    ) -> Result<RuleSettlement, TokenError> {
        let id = hold.reservation.ok_or(TokenError::IsLease)?;
        if !hold.end() {
            return Err(TokenError::NotOpen);
        }
        let mut adjustments: Vec<_> =
            hold.charges.iter().map(|charge| charge.adjustment(spent)).collect();
        match self.store().settle(id, &mut adjustments).await {
            Ok(true) => Ok(RuleSettlement::of(hold, &adjustments, spent)),
            Ok(false) => {
                self.return_permits(hold).await?;
                Err(TokenError::NotOpen)
            }
            Err(error) => {
                hold.is_over.store(false, Ordering::Release);
                Err(error.into())
            }
        }
    }

    /// Gives a whole reservation back: the request was never served.
    pub async fn cancel(&self, hold: &Hold) -> Result<RuleSettlement, TokenError> {
        self.settle(hold, Some(0)).await
    }

    /// Gives permits back: the request is done. Returns false if they were given back before, or their
    /// leases had ended.
    pub async fn release(&self, hold: &Hold) -> Result<bool, TokenError> {
        if hold.is_reservation() {
            return Err(TokenError::IsReservation);
        }
        Ok(hold.end() && self.return_permits(hold).await? > 0)
    }

    /// Begins the leases of a hold anew: the request goes on. Returns until when the shortest lasts now;
    /// `None` if one has ended or was given back, and if there are none.
    pub async fn renew(&self, hold: &Hold) -> Result<Option<Timestamp>, TokenError> {
        if hold.is_over.load(Ordering::Acquire) {
            return Ok(None);
        }
        let store = self.store_of(hold);
        let (mut first_end, mut has_ended) = (None, false);
        for HeldCharge { key, policy, stamp, .. } in hold.leases() {
            match store.renew(key, policy, *stamp).await? {
                Some(end) => first_end = Some(first_end.map_or(end, |it: Timestamp| it.min(end))),
                None => has_ended = true,
            }
        }
        Ok(first_end.filter(|_| !has_ended))
    }

    /// Turns a hold into text, to be [resumed](Self::resume) by whoever ends it: letters, digits, `-` and
    /// `_`. With a [request id](crate::Request::with_request_id) the same request gets the same text.
    ///
    /// `None` if nothing in it can be written down. Permits without a lease are on the text of
    /// a reservation only: of others, nobody could tell the second return from the first.
    #[must_use]
    pub fn token(&self, hold: Hold) -> Option<String> {
        let Hold { reservation, charges, is_local, .. } = hold;
        let (id, key) = match (reservation, is_local) {
            (Some(id), _) => (id, &self.token_keys.reservations),
            (None, false) => (NO_RESERVATION, &self.token_keys.leases),
            (None, true) => (NO_RESERVATION, &self.token_keys.local_leases),
        };
        let is_on_it = |it: &HeldCharge| reservation.is_some() || it.policy.lease_ttl().is_some();
        let charges: Vec<HeldCharge> = charges.into_iter().filter(is_on_it).collect();
        if charges.is_empty() {
            return None;
        }
        let entries: Vec<Entry<'_>> = charges.iter().map(HeldCharge::entry).collect();
        let factors = charges.iter().map(|charge| charge.factor);
        // A hold that is too long for this was not made.
        let draft = Draft::new(id, entries.iter().zip(factors)).ok()?;
        Some(draft.sign(&entries, key).to_string())
    }

    /// Reads the text of a hold that was given out here, or by an engine with the same
    /// [secret](super::EngineBuilder::receipt_secret).
    pub fn resume(&self, token: &str) -> Result<Hold, TokenError> {
        let receipt: Receipt = token.parse().map_err(TokenError::NotAccepted)?;
        let TokenKeys { reservations, leases, local_leases } = &self.token_keys;
        let (content, is_lease, is_local) = if let Ok(content) = receipt.content(leases) {
            (content, true, false)
        } else if let Ok(content) = receipt.content(local_leases) {
            (content, true, true)
        } else {
            (receipt.content(reservations)?, false, false)
        };
        let charge = |it: tollbar::receipt::Charge| HeldCharge {
            key: it.key,
            policy: it.policy,
            reserved: it.reserved,
            factor: it.factor,
            stamp: it.stamp,
        };
        Ok(Hold {
            reservation: (!is_lease).then_some(content.id),
            charges: content.charges.into_iter().map(charge).collect(),
            lease_ends_at: None,
            is_local,
            is_resumed: true,
            is_over: AtomicBool::new(false),
        })
    }

    /// Gives the permits of a hold back, and returns how many they were. Leases that have ended, or were
    /// given back before, are none. A store that cannot be reached gives leases back itself when they end.
    async fn return_permits(&self, hold: &Hold) -> Result<u64, StoreError> {
        let store = self.store_of(hold);
        let (mut returned, mut failure) = (0, None);
        for charge in hold.charges.iter().filter(|it| it.policy.has_permits()) {
            // Of permits without a lease nobody could tell the second return from the first.
            if hold.is_resumed && is_unleased(&charge.policy) {
                continue;
            }
            let HeldCharge { key, policy, stamp, reserved, .. } = charge;
            match store.refund(key, policy, *stamp, *reserved).await {
                Ok(count) => returned += count,
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(returned), Err)
    }

    /// The store that has counted a hold.
    fn store_of(&self, hold: &Hold) -> &dyn Store {
        if hold.is_local { &*self.local } else { &*self.store }
    }
}

impl RuleSettlement {
    fn of(hold: &Hold, adjustments: &[Adjustment<'_>], spent: Option<u64>) -> Self {
        let mut settlement = Self { limits: Vec::new(), permits_returned: 0 };
        for (charge, adjustment) in hold.charges.iter().zip(adjustments) {
            if charge.policy.has_permits() {
                settlement.permits_returned += adjustment.adjusted();
                continue;
            }
            let (refunded, overdrawn) = match adjustment.due() {
                Due::Refund(_) => (adjustment.adjusted(), 0),
                Due::Overdraw(_) => (0, adjustment.adjusted()),
            };
            settlement.limits.push(LimitSettlement {
                rule: charge.policy.name().unwrap_or_default().to_owned(),
                reserved: charge.reserved,
                spent: charge.spent(spent),
                refunded,
                overdrawn,
            });
        }
        settlement
    }
}
