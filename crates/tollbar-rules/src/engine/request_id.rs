//! Requests with an id: charged once, however often they are sent.
//!
//! The store remembers an allowed request by a name, and the name is a hash of the id, the client and
//! the keys that are counted: nobody meets, or can guess, what somebody else has called a request.
//! The id stands for one request: its method, its path, and the attributes that the rules look at. With
//! another one it is refused. Decision 0069.
//!
//! While the store cannot answer nothing is remembered, and each attempt is decided by itself.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tollbar::charge::{ChargeIds, Marks};

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
pub(super) struct RequestName(Option<([u8; REQUEST_NAME_BYTES], u128)>);

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
        let name = hash(&[id.as_bytes(), &client, &selection.keys]);
        Self(Some((name, content(request, snapshot, selection))))
    }

    /// The marks of the request, for `reserve_for` if it is a reservation.
    pub(super) fn marks(&self, ids: &ChargeIds, reserve_for: Option<Duration>) -> Marks<'_> {
        match &self.0 {
            Some((name, content)) => ids.marks(Some(name), reserve_for).with_content(*content),
            None => ids.marks(None, reserve_for),
        }
    }
}

/// Returns a hash of what makes it the same request when its id comes back: the method, the path in both
/// readings, and the values of the attributes that the rules with a limit on it test or price it by. What they
/// count by is in the keys. Any other attribute may change from one attempt to the next.
fn content(request: &Request<'_>, snapshot: &Snapshot, selection: &Selection) -> u128 {
    let kept = request.path_with_slashes_kept().unwrap_or_default();
    let mut parts: SmallVec<[&[u8]; 16]> =
        smallvec![request.method().as_bytes(), request.path().as_bytes(), kept.as_bytes()];
    let mut last = None;
    for selected in &selection.limits {
        // The limits of one rule stand together.
        if last.replace(selected.rule) == Some(selected.rule) {
            continue;
        }
        for name in &snapshot.plan(selected.rule).attributes_tested {
            let value = request.attribute(name).unwrap_or_default();
            parts.extend([name.as_bytes(), value.as_bytes()]);
        }
    }
    let mut content = [0; 16];
    content.copy_from_slice(&hash(&parts)[..16]);
    u128::from_le_bytes(content)
}

/// Hashes parts with their lengths, so that no two lists of parts look the same.
fn hash(parts: &[&[u8]]) -> [u8; REQUEST_NAME_BYTES] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}
