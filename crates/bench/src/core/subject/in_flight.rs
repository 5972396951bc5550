//! Permits in flight: taken and given back at once.

use ::tollbar::{Concurrency, ConcurrencyLimiter};

use super::tollbar::store;
use super::{FamilyTable, count};
use crate::core::workloads::Table;

/// More than there are threads.
const LIMIT: u64 = 1_000;

pub(crate) fn build(table: &Table) -> FamilyTable {
    let permits = Concurrency::new(LIMIT).expect("a thousand permits are within bounds");
    let limiter = ConcurrencyLimiter::builder(permits.with_name("bench"));
    let limiter = limiter.store(store(table.key_count)).build().expect("the permits have a name");
    FamilyTable::keyed("tollbar", move |keys| count(keys, |key| limiter.try_acquire(key).is_ok()))
}

/// One semaphore without keys.
#[cfg(feature = "tokio")]
pub(crate) fn build_tokio(_: &Table) -> FamilyTable {
    let semaphore = tokio::sync::Semaphore::new(LIMIT as usize);
    FamilyTable::keyed("tokio_semaphore", move |keys| {
        count(keys, |_| semaphore.try_acquire().is_ok())
    })
}
