//! Where counters live: what a limiter asks of any store.
//!
//! The store owns atomicity and the clock; the policy it is handed owns the arithmetic. A store in
//! process answers at once ([`Reply::Ready`]); one across a network answers with a future
//! ([`Reply::Pending`]), and no caller needs a runtime for the first.

mod batch;
mod reply;
mod settlement;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::{Clock, Decision, Policy, Timestamp};

pub use batch::{Batch, Charge, Consistency, Entry, Role};
pub use reply::{Reply, block_on};
pub use settlement::{Adjustment, Due, Hold, Once, ReservationId, ReservationIds, Spending};

/// A place where counters live.
pub trait Store: Any + fmt::Debug + Send + Sync + 'static {
    /// Decides one request under one policy, and charges it if it is allowed. Cost 0 peeks.
    fn check<'a>(&'a self, key: &'a [u8], policy: &'a Policy, cost: u64) -> Reply<'a, Decision>;

    /// Decides every entry of `batch` at one instant and leaves each decision in its entry.
    ///
    /// With [`Charge::AllOrNone`] either every enforced entry allows and all are charged, or
    /// nothing is. With [`Charge::Independent`] each entry is decided and charged by itself.
    ///
    /// A batch of all or none may be charged [once](Batch::once): sent again, it gets the answer it
    /// got when it was allowed, and pays nothing. It may be [held](Batch::held): then, if it is
    /// allowed, it can be settled.
    fn check_all<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()>;

    /// Gives back `amount` tokens of a charge to `key` under `policy`, as far as it still counts,
    /// and answers how many. `stamp` is what [`Entry::stamp`] called the charge.
    fn refund<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
        amount: u64,
    ) -> Reply<'a, u64>;

    /// Renews the lease that `stamp` names, of `key` under a [leased](Policy::leased) `policy`: from
    /// now on it lasts as long as if it had just been granted. Answers until when; `None`, having
    /// done nothing, where it has ended or was given back.
    ///
    /// A lease is released by [`refund`](Self::refund), which answers 0 where it is gone.
    fn renew<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
    ) -> Reply<'a, Option<Timestamp>>;

    /// Settles a reservation: gives back what it did not need, and charges what it needed more.
    ///
    /// Answers false, having done nothing, where there is no such reservation: it was settled
    /// before, its time is up, or the store has forgotten it.
    fn settle<'a, 'e: 'a>(
        &'a self,
        id: ReservationId,
        adjustments: &'a mut [Adjustment<'e>],
    ) -> Reply<'a, bool>;

    /// Makes the counter of `key` under `policy` fresh.
    fn reset<'a>(&'a self, key: &'a [u8], policy: &'a Policy) -> Reply<'a, ()>;

    /// The clock it goes by, where that can be read from here. One that is across a network has
    /// none to offer; whoever waits for a turn then goes by a clock of this process, counted from
    /// the answer.
    fn clock(&self) -> Option<&dyn Clock> {
        None
    }
}

/// Why a store could not answer. Nothing was decided and, as far as the store knows, nothing
/// charged.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// More entries than one batch may have.
    #[error("a batch of {entries} entries is too large: send at most {entries_max}")]
    BatchTooLarge {
        /// How many there were.
        entries: usize,
        /// How many there may be.
        entries_max: usize,
    },
    /// A request id that came back with another question.
    #[error(
        "this request id was used for other keys or another cost: send a new id with a new request"
    )]
    RequestIdReused,
    /// Every place a key could take is held by other checks at this moment.
    #[error("every slot for this key is in use by other checks: make the store larger")]
    Crowded,
    /// The store cannot be reached, or has refused.
    #[error("the store cannot answer")]
    Unavailable {
        /// What the store's client reported.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
}
