//! What a request holds while it lasts: a charge to be settled, permits to be returned.
//!
//! A [`Hold`] is kept in this process, or travels as text. A text says everything, keys and numbers
//! included, and is authenticated. So it is redeemed after the rules have changed, after a restart, and
//! by another engine over the same store with the same secret. Whether it is still open only the store
//! knows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thiserror::Error;
use tollbar::charge::{
    self, HeldPermits, Marks, SettleError, Settlement, Spent, release_all, renew_all,
};
use tollbar::receipt::{Content, Draft};
use tollbar::store::{ReservationId, ReservationRef};
use tollbar::{Entry, RECEIPT_BYTES_MAX, Receipt, ReceiptKey, Store, StoreError, Timestamp};

use super::AsyncEngine;
use super::decide::AnsweredCheck;
use super::request_id::REQUEST_NAME_BYTES;
use super::selection::Selection;
use crate::rule::alternative::rule_of_counter;
use crate::rule::limit::is_unleased;
use crate::snapshot::Snapshot;
use crate::verdict::usage_record::{self, NOTE_BYTES_MAX};
use crate::{Request, UsageRecord, Verdict};

/// What a request that was let through holds until it is over.
///
/// A reservation is [settled](AsyncEngine::settle) or [cancelled](AsyncEngine::cancel), permits alone are
/// [released](AsyncEngine::release); a hold ends once. One that is dropped stands: its charge stays as it
/// is, and its permits come back when their leases end. [`AsyncEngine::token`] turns it into text.
#[derive(Debug)]
#[must_use = "it has to be settled or released: permits that are not returned are gone"]
pub struct Hold {
    /// What was paid and taken, if it is a reservation.
    reservation: Option<Content>,
    /// The permits that were taken. Those without a lease are not known of a hold that was resumed: others
    /// may have its text, and nobody could tell the second return from the first.
    permits: Vec<HeldPermits>,
    /// Counted in this process, because the store could not answer.
    is_local: bool,
    is_over: AtomicBool,
}

/// What settling a reservation came to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleSettlement {
    /// Each limit that was charged, in the order of the rules.
    pub limits: Vec<LimitSettlement>,
    /// How many permits have come back. Leases that had ended are not among them.
    pub permits_returned: u64,
    /// True if another call has settled the reservation in the same way, and accounts for it.
    pub is_repeat: bool,
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
    /// No text of a lease.
    #[error("this is no lease: send the text exactly as a check gave it out")]
    MalformedLease,
    /// The text of a lease that another engine gave out, or that was changed.
    #[error(
        "this lease was not given out here: send it unchanged, and give all engines that take each other's leases \
         the same receipt secret"
    )]
    ForeignLease,
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
    /// A lease has ended although its request goes on: no renewal got through in time. Others can take its
    /// permits, so that more than the limit may be in flight.
    #[error("a lease has ended and its request goes on, above the limit: no renewal came in time")]
    LeaseEnded {
        /// Why the last renewal failed; `None` if the store said that the lease had ended before.
        #[source]
        source: Option<StoreError>,
    },
    /// Nothing runs that could renew leases or give them back.
    #[error(
        "there is no runtime of tokio here, so leases are not renewed, and what a request holds comes \
         back only when they end"
    )]
    NoRuntime,
}

/// The keys under which holds of permits are written as text; reservations have the engine's receipt key.
/// Each kind has its own, so that none passes for another.
#[derive(Debug)]
pub(super) struct TokenKeys {
    leases: ReceiptKey,
    /// For leases that this process counts because the store could not answer. No other process has
    /// them, so no other accepts them.
    local_leases: ReceiptKey,
}

/// An upper bound for what a token takes per charge besides the key: a policy's numbers and its name, which is a
/// rule's.
const CHARGE_BYTES_MAX: usize = 512;

impl TokenKeys {
    pub(super) fn new(receipt_key: &ReceiptKey) -> Self {
        Self { leases: receipt_key.for_purpose("lease"), local_leases: ReceiptKey::random() }
    }
}

impl From<SettleError> for TokenError {
    fn from(error: SettleError) -> Self {
        match error {
            SettleError::Receipt(error) => Self::NotAccepted(error),
            SettleError::Store(error) => Self::Store(error),
            // An engine gives one amount for all charges, so their count is never wrong.
            _ => Self::NotOpen,
        }
    }
}

/// Returns true if what would be held can be written down.
#[inline]
pub(super) fn has_token(snapshot: &Snapshot, selection: &Selection, is_reservation: bool) -> bool {
    let key_bytes =
        selection.limits.iter().map(|selected| selected.key.1 - selected.key.0).sum::<usize>();
    let charge_bytes = (selection.limits.len() + 1) * CHARGE_BYTES_MAX;
    key_bytes + charge_bytes + NOTE_BYTES_MAX <= RECEIPT_BYTES_MAX
        || has_exactly(snapshot, selection, is_reservation)
}

/// Writes the token, but for the store's part of it.
#[cold]
fn has_exactly(snapshot: &Snapshot, selection: &Selection, is_reservation: bool) -> bool {
    let entries = selection.limits.iter().map(|selected| selected.entry(snapshot, selection));
    let is_on_token = |entry: &Entry<'_>| is_reservation || entry.policy().lease_ttl().is_some();
    let entries: Vec<Entry<'_>> = entries.filter(is_on_token).collect();
    // As long as the name of a request and the note of its account are together.
    let request_id = Some(&[0; REQUEST_NAME_BYTES + NOTE_BYTES_MAX][..]);
    let reservation = ReservationRef { id: ReservationId::NONE, request_id };
    Draft::new(reservation, entries.iter().map(|entry| (entry, u64::MAX))).is_ok()
}

impl Hold {
    /// What a request that was reserved has paid and taken.
    pub(super) fn of_reservation(marks: Marks<'_>, check: &AnsweredCheck<'_>) -> Self {
        let &AnsweredCheck { snapshot, request, selection, entries } = check;
        let once = request.clone().with_cost(1);
        let factors = selection.limits.iter().map(|selected| snapshot.cost(selected.rule, &once));
        let content = Content::of_paid(marks.reservation(), entries.iter().zip(factors));
        Self::new(Some(content), held_permits(entries, marks), false)
    }

    /// The permits that a request has taken; `None` if there are none.
    pub(super) fn of_permits(
        entries: &[Entry<'_>],
        marks: Marks<'_>,
        is_local: bool,
    ) -> Option<Self> {
        let permits = held_permits(entries, marks);
        (!permits.is_empty()).then(|| Self::new(None, permits, is_local))
    }

    fn new(reservation: Option<Content>, permits: Vec<HeldPermits>, is_local: bool) -> Self {
        Self { reservation, permits, is_local, is_over: AtomicBool::new(false) }
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
        self.permits.iter().filter_map(|permit| permit.policy.lease_ttl()).min()
    }

    /// When the first of its leases ends, by the store's clock, unless it is renewed. `None` if it has
    /// none, and for a hold that was resumed.
    #[must_use]
    pub fn lease_ends_at(&self) -> Option<Timestamp> {
        let granted = self.permits.iter().filter(|permit| permit.granted_at > Timestamp::ZERO);
        granted.filter_map(HeldPermits::ends_at).min()
    }

    /// Notes whose usage this reservation is, which `verdict` on `request` has charged at `at`. Whatever node
    /// settles it then knows, also from its text.
    pub fn note_usage(&mut self, verdict: &Verdict, request: &Request<'_>, at: Timestamp) {
        if let Some(content) = &mut self.reservation {
            content.note = verdict.usage_note(request, at);
        }
    }

    /// Tells by how much the usage of this reservation differs from what [`Verdict::meter`] has told, now that
    /// it is settled at `spent` (`None`: as much as was reserved): rule by rule, with a time on the day of the
    /// charge. Tells nothing if it has [no note](Self::note_usage).
    pub fn meter_settlement(
        &self,
        spent: Option<u64>,
        each: impl FnMut(Timestamp, UsageRecord<'_>),
    ) {
        if let Some(content) = &self.reservation {
            usage_record::meter_settlement(content, spent, each);
        }
    }

    /// Returns true for the first caller.
    fn end(&self) -> bool {
        !self.is_over.swap(true, Ordering::AcqRel)
    }
}

fn held_permits(entries: &[Entry<'_>], marks: Marks<'_>) -> Vec<HeldPermits> {
    let held = entries.iter().filter_map(HeldPermits::from_entry);
    held.map(|held| held.with_request_id(marks.request_id())).collect()
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
        let content = hold.reservation.as_ref().ok_or(TokenError::IsLease)?;
        if !hold.end() {
            return Err(TokenError::NotOpen);
        }
        let spent = spent.map_or(Spent::Reserved, Spent::Total);
        match charge::settle(self.store(), content, spent).await {
            Ok(settlement) => Ok(RuleSettlement::new(content, &settlement)),
            Err(SettleError::Store(error)) => {
                hold.is_over.store(false, Ordering::Release);
                Err(error.into())
            }
            Err(error) => {
                // Its leases have come back. Nobody else has what has none.
                let permits = hold.permits.iter();
                let unleased: Vec<_> =
                    permits.filter(|permit| is_unleased(&permit.policy)).collect();
                release_all(self.store(), unleased).await?;
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
        Ok(hold.end() && release_all(self.store_of(hold), &hold.permits).await? > 0)
    }

    /// Begins the leases of a hold anew: the request goes on. Returns until when the shortest lasts now;
    /// `None` if one has ended or was given back, and if there are none.
    pub async fn renew(&self, hold: &Hold) -> Result<Option<Timestamp>, TokenError> {
        if hold.is_over.load(Ordering::Acquire) {
            return Ok(None);
        }
        Ok(renew_all(self.store_of(hold), &hold.permits).await?)
    }

    /// Turns a hold into text, which [`resume`](Self::resume) reads back: letters, digits, `-` and `_`.
    /// With a [request id](crate::Request::with_request_id) the same request gets the same text.
    ///
    /// `None` if nothing in it can be written down. Permits without a lease are on the text of
    /// a reservation only: of others, nobody could tell the second return from the first.
    #[must_use]
    pub fn token(&self, hold: Hold) -> Option<String> {
        let Hold { reservation, permits, is_local, .. } = hold;
        let (content, key) = match (reservation, is_local) {
            (Some(content), _) => (content, self.charge_ids.receipt_key()),
            (None, false) => (Content::of_leases(&permits), &self.token_keys.leases),
            (None, true) => (Content::of_leases(&permits), &self.token_keys.local_leases),
        };
        if content.charges.is_empty() {
            return None;
        }
        // A hold that is too long for this was not made.
        content.sign(key).ok().map(|receipt| receipt.to_string())
    }

    /// Reads the text of a hold that was given out here, or by an engine with the same
    /// [secret](super::EngineBuilder::receipt_secret).
    pub fn resume(&self, token: &str) -> Result<Hold, TokenError> {
        let receipt: Receipt = token.parse().map_err(TokenError::NotAccepted)?;
        let TokenKeys { leases, local_leases } = &self.token_keys;
        let (content, is_lease, is_local) = if let Ok(content) = receipt.content(leases) {
            (content, true, false)
        } else if let Ok(content) = receipt.content(local_leases) {
            (content, true, true)
        } else {
            (receipt.content(self.charge_ids.receipt_key())?, false, false)
        };
        let permits = content.leases().collect();
        Ok(Hold::new((!is_lease).then_some(content), permits, is_local))
    }

    /// Reads the text of a lease, as [`resume`](Self::resume) does, or of a reservation that holds leases. Errors speak of
    /// a lease.
    pub fn resume_lease(&self, token: &str) -> Result<Hold, TokenError> {
        self.resume(token).map_err(|error| match error {
            TokenError::NotAccepted(tollbar::ReceiptError::Malformed) => TokenError::MalformedLease,
            TokenError::NotAccepted(_) => TokenError::ForeignLease,
            error => error,
        })
    }

    /// The store that has counted a hold.
    fn store_of(&self, hold: &Hold) -> &dyn Store {
        if hold.is_local { self.local() } else { &*self.store }
    }
}

impl RuleSettlement {
    fn new(content: &Content, settlement: &Settlement) -> Self {
        let paid = content.charges.iter().filter(|charge| !charge.policy.has_permits());
        let limits = paid.zip(settlement.charges()).map(|(charge, settled)| LimitSettlement {
            rule: rule_of_counter(charge.policy.name().unwrap_or_default()).to_owned(),
            reserved: settled.reserved,
            spent: settled.spent,
            refunded: settled.refunded,
            overdrawn: settled.overdrawn,
        });
        let (permits_returned, is_repeat) = (settlement.permits_returned(), settlement.is_repeat());
        Self { limits: limits.collect(), permits_returned, is_repeat }
    }
}
