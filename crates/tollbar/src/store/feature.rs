//! What a store can count and do, as it declares it.

use crate::store::StoreError;
use crate::{Algorithm, Policy};

/// Something that a store may be able to do. [`Store::supports`](crate::Store::supports) answers for each.
///
/// Limiters and rule engines ask when they are built, so that a policy a store cannot count is an error
/// at start and not a surprise under load.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Feature<'a> {
    /// Counts by this policy: its algorithm, custom ones included, and its numbers. A policy with
    /// [permits](crate::Concurrency) also needs [`Refunds`](Self::Refunds), and one with
    /// [leases](crate::Concurrency::with_lease) [`LeaseRenewals`](Self::LeaseRenewals); stores say so themselves.
    Policy(&'a Policy),
    /// Charges one request to several counters: all of them or none.
    SeveralCounters,
    /// Decides [alternatives](crate::store::Alternative) that are counted under different keys.
    SplitAlternatives,
    /// Charges a request once however often it is sent: [`Batch::once`](crate::Batch::once).
    RequestIds,
    /// Charges now and settles later: [`Batch::held`](crate::Batch::held) and
    /// [`Store::settle`](crate::Store::settle).
    Reservations,
    /// Gives back charges and permits: [`Store::refund`](crate::Store::refund).
    Refunds,
    /// Keeps a lease for longer: [`Store::renew`](crate::Store::renew).
    LeaseRenewals,
    /// Makes one counter fresh: [`Store::reset`](crate::Store::reset).
    Resets,
}

impl Feature<'_> {
    /// For stores without this feature: an error that says what the store cannot do and what to use
    /// instead.
    #[must_use]
    pub fn unsupported(self) -> StoreError {
        StoreError::unsupported(match self {
            Self::Policy(policy) => return unsupported_policy(policy),
            Self::SeveralCounters => {
                "this store cannot charge several counters all or none: use one limit per request, or \
                 another store"
            }
            Self::SplitAlternatives => {
                "this store cannot decide alternatives that are counted under different keys: count all of them by the \
                 same attributes, without a `per` of their own, or use another store"
            }
            Self::RequestIds => {
                "this store cannot remember request ids: send requests without an id, or use another \
                 store"
            }
            Self::Reservations => {
                "this store cannot settle reservations: charge by `check`, or use another store"
            }
            Self::Refunds => {
                "this store cannot give tokens or permits back: limit a rate instead, or use another \
                 store"
            }
            Self::LeaseRenewals => {
                "this store cannot renew leases: limit a rate instead, or use another store"
            }
            Self::Resets => {
                "this store cannot reset counters: wait until they are fresh, or use another store"
            }
        })
    }
}

fn unsupported_policy(policy: &Policy) -> StoreError {
    let algorithm = policy.algorithm();
    let name = Algorithm::name(algorithm);
    let instead = if policy.is_custom() {
        "use a built-in algorithm, or a store that runs custom ones, such as `MemoryStore`"
    } else if policy.has_permits() {
        "limit a rate instead, or use another store"
    } else {
        "use another algorithm, or another store"
    };
    StoreError::unsupported(format!("this store cannot count `{name}`: {instead}"))
}
