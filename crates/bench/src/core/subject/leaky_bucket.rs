//! leaky-bucket: one limiter without keys, asked without waiting.

use std::time::Duration;

use leaky_bucket::RateLimiter;

use super::{FamilyTable, unkeyed};
use crate::core::workloads::Table;

pub(crate) fn build(table: &Table) -> FamilyTable {
    let burst = table.quota.burst.get() as usize;
    let allowing =
        RateLimiter::builder().max(burst).initial(burst).interval(table.quota.interval).build();
    let denying =
        RateLimiter::builder().max(1).initial(0).interval(Duration::from_hours(24)).build();
    unkeyed("leaky_bucket", [allowing, denying], |limiter| limiter.try_acquire(1))
}
