//! Where counters live: what a limiter asks of any store.
//!
//! The store owns atomicity and the clock; the policy it is handed owns the arithmetic. A store in
//! process answers at once ([`Reply::Ready`]); one across a network answers with a future
//! ([`Reply::Pending`]), and no caller needs a runtime for the first.

pub(crate) mod alternative;
mod batch;
pub(crate) mod decision_words;
mod feature;
mod loan;
pub(crate) mod refund_record;
mod reply;
mod settlement;

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::{Clock, Decision, Policy, Timestamp};

pub use alternative::{Alternative, binding_place, is_allowed, mark_unused};
pub use batch::{Batch, Charge, Entry, Role};
pub use feature::Feature;
pub use loan::{Accuracy, Loan, LoanError, LoanHolding, LoanMode, LoanRequest, LoanTerms, Source};
pub(crate) use reply::answer_now;
pub use reply::{Reply, block_on};
pub use settlement::{
    Adjustment, Due, Hold, Once, ReservationId, ReservationIds, ReservationRef, Spending,
};

/// A place where counters live.
///
/// Only [`decide`](Self::decide) is required. Every other method answers
/// [`StoreError::Unsupported`] until a store implements it, and
/// [`supports`](Self::supports) declares which ones it does.
pub trait Store: Any + fmt::Debug + Send + Sync + 'static {
    /// Returns `Ok` if the store can do `feature`, and otherwise an error that says what to use
    /// instead. The answer never changes for as long as the store lives.
    ///
    /// The default declares what [`decide`](Self::decide) alone can do: policies without permits, and
    /// several counters in one request. A store that declares less, or more, writes its own.
    fn supports(&self, feature: Feature<'_>) -> Result<(), StoreError> {
        match feature {
            Feature::SeveralCounters | Feature::SplitAlternatives => Ok(()),
            Feature::Policy(policy) if !policy.has_permits() => Ok(()),
            missing => Err(missing.unsupported()),
        }
    }

    /// Decides one request under one policy, and charges it if it is allowed. Cost 0 peeks.
    fn check<'a>(&'a self, key: &'a [u8], policy: &'a Policy, cost: u64) -> Reply<'a, Decision> {
        Reply::Pending(Box::pin(async move {
            let mut entries = [Entry::new(key, policy).with_cost(cost)];
            self.decide(Batch::all_or_none(&mut entries)).await?;
            Ok(entries[0].decision().unwrap_or(Decision::UNDECIDED))
        }))
    }

    /// Decides every entry of `batch` at one instant and leaves each decision in its entry.
    ///
    /// With [`Charge::AllOrNone`] either every enforced entry allows and all are charged, or
    /// nothing is. With [`Charge::Independent`] each entry is decided and charged by itself.
    ///
    /// Of [alternatives](Alternative), the first that allows is charged, and [`mark_unused`] says of the entries which
    /// ones are not.
    ///
    /// A batch of all or none may be charged [once](Batch::once): sent again, it gets the answer it
    /// got when it was allowed, and pays nothing. It may be [held](Batch::held): then, if it is
    /// allowed, it can be settled. A store without [`Feature::RequestIds`] or
    /// [`Feature::Reservations`] answers such a batch with [`StoreError::Unsupported`].
    fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()>;

    /// Gives back `amount` tokens of a charge to `key` under `policy`, as far as it still counts,
    /// and answers how many. `stamp` is what [`Entry::stamp`] called the charge.
    fn refund<'a>(
        &'a self,
        _key: &'a [u8],
        _policy: &'a Policy,
        _stamp: u64,
        _amount: u64,
    ) -> Reply<'a, u64> {
        unsupported(Feature::Refunds)
    }

    /// Renews the lease that `stamp` names, of `key` under a
    /// [leased](crate::Concurrency::with_lease) `policy`: from now on it lasts as long as if it had just
    /// been granted. Answers until when; `None`, having done nothing, where it has ended or was given
    /// back.
    ///
    /// A lease is released by [`refund`](Self::refund), which answers 0 where it is gone.
    fn renew<'a>(
        &'a self,
        _key: &'a [u8],
        _policy: &'a Policy,
        _stamp: u64,
    ) -> Reply<'a, Option<Timestamp>> {
        unsupported(Feature::LeaseRenewals)
    }

    /// Settles a reservation: gives back what it did not need, and charges what it needed more.
    ///
    /// Answers false, having done nothing, where there is no such reservation: it was settled
    /// before, its time is up, or the store has forgotten it. Where something
    /// [comes back](Adjustment::gives_back), the request id of the reservation is forgotten as well.
    fn settle<'a, 'e: 'a>(
        &'a self,
        _reservation: ReservationRef<'a>,
        _adjustments: &'a mut [Adjustment<'e>],
    ) -> Reply<'a, bool> {
        unsupported(Feature::Reservations)
    }

    /// Forgets that a request was charged under `request_id`, so that it pays when it is sent again. `key`
    /// is one of the keys it was charged to, for stores that keep the id beside them.
    ///
    /// Whoever gives back what such a request holds calls this first: otherwise a request that is sent
    /// again in between would pass and hold nothing.
    fn forget_request<'a>(&'a self, _request_id: &'a [u8], _key: &'a [u8]) -> Reply<'a, ()> {
        unsupported(Feature::RequestIds)
    }

    /// Charges up to as many tokens as `request` asks for to `key` under `policy`, for the caller to spend by
    /// itself until they end. The default lends nothing.
    ///
    /// While loans of a bucket are out, and until its cut has shrunk to nothing, every check of the counter
    /// compares with a tolerance that is shorter by [`LoanTerms::cut`]. A store that cannot keep that must not
    /// lend.
    fn lend<'a>(
        &'a self,
        _key: &'a [u8],
        _policy: &'a Policy,
        _request: LoanRequest,
    ) -> Reply<'a, Loan> {
        Reply::Ready(Ok(Loan::NONE))
    }

    /// Returns what this process holds of the counter of `key` under `policy`; `None` if it is counted exactly.
    fn loan_holding(&self, _key: &[u8], _policy: &Policy) -> Option<LoanHolding> {
        None
    }

    /// Makes the counter of `key` under `policy` fresh.
    fn reset<'a>(&'a self, _key: &'a [u8], _policy: &'a Policy) -> Reply<'a, ()> {
        unsupported(Feature::Resets)
    }

    /// The clock it goes by, where that can be read from here. One that is across a network has
    /// none to offer; whoever waits for a turn then goes by a clock of this process, counted from
    /// the answer.
    fn clock(&self) -> Option<&dyn Clock> {
        None
    }
}

fn unsupported<'a, T>(feature: Feature<'_>) -> Reply<'a, T> {
    Reply::Ready(Err(feature.unsupported()))
}

/// Why a store did not decide. Nothing was decided and, as far as the store knows, nothing charged.
///
/// An [outage](Self::is_outage) is a fault of the store, or of the way to it: the outage policy
/// answers in the store's place. Everything else is a mistake in what was asked. No outage policy
/// answers those, because a question that is wrong would be let through for as long as it is asked.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Outage: the store cannot be reached.
    #[error("the store cannot be reached")]
    Unavailable {
        /// What the store's client reported.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// Outage: the store did not answer in time. It may have charged the request all the same.
    #[error("the store did not answer in time")]
    Timeout {
        /// What the store's client reported.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// Outage: the store has more to do than it can.
    #[error("the store is overloaded")]
    Overloaded {
        /// What the store or its client reported.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// Outage: the store answers, and refuses: it is out of memory, read-only, does not grant the
    /// permission, or holds something that is no counter. It goes on refusing until somebody acts.
    #[error("the store refuses to count")]
    Refused {
        /// What the store said.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// Mistake: more entries than one batch may have.
    #[error("a batch of {entries} entries is too large: send at most {entries_max}")]
    BatchTooLarge {
        /// How many there were.
        entries: usize,
        /// How many there may be.
        entries_max: usize,
    },
    /// Mistake: a request id that came back with another question.
    #[error(
        "this request id was used for other keys or another cost: send a new id with a new request"
    )]
    RequestIdReused,
    /// Mistake: a request that a store across several servers would have to remember on all of them.
    #[error("{detail}")]
    CrossSlot {
        /// What lies apart, and how to bring it together.
        detail: Cow<'static, str>,
    },
    /// Mistake: something that this store cannot do.
    #[error("{detail}")]
    Unsupported {
        /// What it cannot do, and what to use instead.
        detail: Cow<'static, str>,
    },
}

impl StoreError {
    /// True where the store, or the way to it, is at fault: the outage policy answers then.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Unavailable { .. }
            | Self::Timeout { .. }
            | Self::Overloaded { .. }
            | Self::Refused { .. } => true,
            Self::BatchTooLarge { .. }
            | Self::RequestIdReused
            | Self::CrossSlot { .. }
            | Self::Unsupported { .. } => false,
        }
    }

    /// For a store that cannot do something: `detail` says what, and what to use instead.
    pub fn unsupported(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::Unsupported { detail: detail.into() }
    }
}
