//! ratelimit: one limiter without keys.

use std::time::Duration;

use ratelimit::Ratelimiter;

use super::{FamilyTable, unkeyed};
use crate::core::workloads::Table;

pub(crate) fn build(table: &Table) -> FamilyTable {
    let burst = u64::from(table.quota.burst.get());
    let allowing = Ratelimiter::builder(1)
        .period(table.quota.interval)
        .max_tokens(burst)
        .initial_available(burst)
        .build()
        .expect("as many tokens as it may hold");
    let denying = Ratelimiter::builder(1)
        .period(Duration::from_hours(24))
        .build()
        .expect("a day is a period");
    unkeyed("ratelimit", [allowing, denying], |limiter| limiter.try_wait().is_ok())
}
