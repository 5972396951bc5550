//! The library as its users have it, and its store judged by the testkit.

mod clocks;
mod crowded;
mod enumerate;
mod flood;
mod invariants;
mod leases;
mod limiter;
mod mistakes;
mod permits;
mod plain_words;
mod receipts;
mod reserve;
mod rule_numbers;
mod settled_late;
mod snapshot;
mod soak;
mod strict;
mod suite;
mod threads;
#[cfg(feature = "until-ready")]
mod until_ready;

use std::sync::Arc;

use tollbar::{Limiter, MemoryStore, Policies, Policy};

/// A limiter over a store that a test looks into. Its policy needs no name, so that the test can ask
/// the store under the same policy.
fn limiter_over(store: &Arc<MemoryStore>, policy: Policy) -> Limiter {
    let policies = Policies::from_fn(move |_| policy.clone());
    Limiter::builder(policies).store(Arc::clone(store)).build().unwrap()
}
