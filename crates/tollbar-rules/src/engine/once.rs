//! Requests with an id: charged once, however often they are sent.
//!
//! The store remembers an allowed request by a name, and the name is a hash of the id, the client and
//! the keys that are counted: nobody meets, or can guess, what somebody else has called a request.
//! While the store cannot answer nothing is remembered, and each attempt is decided by itself.

use std::sync::Arc;
use std::time::Duration;

use tollbar::store::{Hold, Once};
use tollbar::{Batch, Reply, StoreError};

use super::selection::{Ask, Selection};
use super::{Engine, Entries};
use crate::permits::is_unleased;
use crate::snapshot::Snapshot;
use crate::subject::{KeyBuffer, write_key};
use crate::verdict::Why;
use crate::{Missing, Per, Request, Verdict};

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
    pub(super) hold: Option<Hold>,
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

impl Engine {
    /// The names of a request that is charged once, that can be settled for a while, or both.
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
            Some(name) => self.texts.reservations.id_of_request(name.as_bytes()),
            None => self.reservations.next(),
        };
        Marks { name, hold: reserve_for.map(|ttl| Hold { id: id(), ttl }) }
    }

    /// Asks the store under the names that the question has; `None` where it has answered already.
    pub(super) fn ask_marked<'a, 'e: 'a>(
        &'a self,
        entries: &'a mut Entries<'e>,
        has_permits: bool,
        marks: &'a Marks,
    ) -> Option<Reply<'a, ()>> {
        if marks.name.is_none() && marks.hold.is_none() {
            return self.ask(entries, has_permits);
        }
        let mut batch = Batch::all_or_none(entries);
        if let Some(name) = &marks.name {
            batch = batch.once(Once { request_id: name.as_bytes(), ttl: self.request_id_ttl });
        }
        if let Some(hold) = marks.hold {
            batch = batch.held(hold);
        }
        Some(self.store.decide(batch))
    }

    /// The verdict on what was selected, charged once where the request has an id.
    pub(super) async fn verdict_on(
        &self,
        snapshot: &Arc<Snapshot>,
        selection: &mut Selection,
        request: &Request<'_>,
    ) -> Verdict {
        let mut verdict = Verdict::unmade(Arc::clone(snapshot));
        // What it holds is in the verdict as well.
        let _holding = self.decide_selected(request, None, selection, &mut verdict).await;
        verdict
    }
}
