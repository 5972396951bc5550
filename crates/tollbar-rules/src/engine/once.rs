//! Requests with an id: charged once, however often they are sent.
//!
//! The store remembers an allowed request by a name, and the name is a hash of the id, the client and
//! the keys that are counted: nobody meets, or can guess, what somebody else has called a request.
//! While the store cannot answer nothing is remembered, and each attempt is decided by itself.

use std::time::Duration;

use tollbar::StoreError;
use tollbar::store::Hold as Reservation;

use super::AsyncEngine;
use super::hold::is_unleased;
use super::selection::{Ask, Selection};
use crate::snapshot::Snapshot;
use crate::subject::{KeyBuffer, write_key};
use crate::verdict::Why;
use crate::{Missing, Per, Request};

/// For how long an allowed request is remembered, unless the builder says otherwise.
pub(super) const REQUEST_ID_TTL_DEFAULT: Duration = Duration::from_mins(10);

/// The most limits whose answers are remembered together.
const LIMITS_ONCE_MAX: usize = 20;

/// What a store remembers a request by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Name([u8; 32]);

impl Name {
    /// `None` where the request has no id, charges nothing, or holds permits without a lease: nobody
    /// could tell the second return of those from the first, so each attempt holds its own.
    ///
    /// Limits that only report give way where there are more than can be remembered.
    pub(super) fn of(
        request: &Request<'_>,
        snapshot: &Snapshot,
        selection: &mut Selection,
    ) -> Option<Self> {
        let id = request.request_id().filter(|_| request.cost() > 0)?;
        let is_unleased = |ask: &Ask| is_unleased(ask.policy(snapshot));
        if selection.has_permits && selection.asks.iter().any(is_unleased) {
            return None;
        }
        selection.keep(LIMITS_ONCE_MAX);
        let mut client = KeyBuffer::new();
        write_key(&[Per::Client], Missing::Shared, request, &mut client);
        let mut hasher = blake3::Hasher::new();
        for part in [id.as_bytes(), &client, &selection.keys] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Some(Self(*hasher.finalize().as_bytes()))
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// By which names a batch is known.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Marks {
    pub(super) name: Option<Name>,
    pub(super) reservation: Option<Reservation>,
}

/// The reason to deny a request that the store cannot handle. `None` for an outage, which the rules'
/// failure policies answer.
pub(super) fn refusal(error: &StoreError) -> Option<Why> {
    match error {
        StoreError::RequestIdReused => Some(Why::RequestIdReused),
        StoreError::BatchTooLarge { entries, .. } => Some(Why::TooMany { count: *entries }),
        StoreError::CrossSlot { .. } => Some(Why::CrossSlot),
        error => (!error.is_outage()).then_some(Why::Unsupported),
    }
}

impl AsyncEngine {
    /// Names a request that is charged once, that can be settled for a while, or both.
    pub(super) fn marks(
        &self,
        request: &Request<'_>,
        snapshot: &Snapshot,
        selection: &mut Selection,
        reserve_for: Option<Duration>,
    ) -> Marks {
        let name = Name::of(request, snapshot, selection);
        let id = || match &name {
            // The same reservation again where the request is the same.
            Some(name) => self.token_keys.reservations.id_of_request(name.as_bytes()),
            None => self.reservations.next(),
        };
        Marks { name, reservation: reserve_for.map(|ttl| Reservation { id: id(), ttl }) }
    }
}
