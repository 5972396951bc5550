//! Charges that outlive the call: requests that pay once, reservations, permits and leases.
//!
//! A [`Limiter`](crate::Limiter) uses these pieces, and so can anything else that sends batches to a
//! [`Store`](crate::Store) itself. Each piece runs before or after the store's answer, so the same
//! code serves callers that wait for a reply and callers that do not:
//!
//! | step | piece |
//! |---|---|
//! | name the request and the reservation | [`ChargeIds::marks`] |
//! | make the batch | [`Marks::batch`] |
//! | check that there can be a receipt | [`Draft::new`](crate::receipt::Draft::new) |
//! | write down what was paid | [`Draft::sign`](crate::receipt::Draft::sign), [`Content::of_paid`](crate::receipt::Content::of_paid) |
//! | write down what is held | [`HeldPermits::from_entry`], [`Content::of_leases`](crate::receipt::Content::of_leases) |
//! | settle it | [`settle`], or [`Content::adjustments`](crate::receipt::Content::adjustments) and [`Settlement::from_adjustments`] |
//! | return it, prolong it | [`HeldPermits::release`], [`release_all`], [`HeldPermits::renew`], [`renew_all`] |

mod marks;
mod permits;
mod settlement;

pub use marks::{ChargeIds, Marks};
pub use permits::{HeldPermits, release_all, renew_all};
pub use settlement::{ChargeSettlement, SettleError, Settlement, Spent, settle};
