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

use tollbar::{Limiter, MemoryStore, Policy};

/// A limiter over a store that a test looks into, under a policy that has a name.
fn limiter_over(store: &Arc<MemoryStore>, policy: Policy) -> Limiter {
    Limiter::builder(policy).store(Arc::clone(store)).build().unwrap()
}
