//! Requests with an id: charged once, however often they are sent.
//!
//! The store remembers an allowed request by a name, and the name is a hash of the id, the client and
//! the keys that are counted: nobody meets, or can guess, what somebody else has called a request.
//! While the store cannot answer nothing is remembered, and each attempt is decided by itself.

use super::selection::{SelectedLimit, Selection};
use crate::rule::limit::is_unleased;
use crate::rule::subject::{KeyBuffer, write_key};
use crate::snapshot::Snapshot;
use crate::{OnMissing, Per, Request};

/// The most limits whose answers are remembered together.
const LIMITS_ONCE_MAX: usize = 20;

/// The length of a request's name, a hash.
pub(super) const REQUEST_NAME_BYTES: usize = 32;

/// What a store remembers a request by, if it is to.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestName(Option<[u8; REQUEST_NAME_BYTES]>);

impl RequestName {
    /// None for a request that has no id, charges nothing, or holds permits without a lease: nobody could
    /// tell the second return of those from the first, so each attempt holds its own.
    ///
    /// Limits that only report give way if there are more than can be remembered.
    pub(super) fn new(
        request: &Request<'_>,
        snapshot: &Snapshot,
        selection: &mut Selection,
    ) -> Self {
        let Some(id) = request.request_id().filter(|_| request.cost() > 0) else {
            return Self(None);
        };
        let is_unleased = |selected: &SelectedLimit| is_unleased(selected.policy(snapshot));
        if selection.has_permits && selection.limits.iter().any(is_unleased) {
            return Self(None);
        }
        selection.limit_to(LIMITS_ONCE_MAX);
        let mut client = KeyBuffer::new();
        write_key(&[Per::Client], OnMissing::Shared, request, &mut client);
        let mut hasher = blake3::Hasher::new();
        for part in [id.as_bytes(), &client, &selection.keys] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(Some(*hasher.finalize().as_bytes()))
    }

    pub(super) fn as_bytes(&self) -> Option<&[u8]> {
        self.0.as_ref().map(<[u8; REQUEST_NAME_BYTES]>::as_slice)
    }
}
