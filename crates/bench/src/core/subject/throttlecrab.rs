//! throttlecrab: its periodic store, behind a mutex, because it wants `&mut self`.

use std::sync::{Mutex, PoisonError};

use throttlecrab::{PeriodicStore, RateLimiter};
use tollbar_bench::timer::wall_clock;

use super::{FamilyTable, count};
use crate::core::workloads::Table;

pub(crate) fn build(table: &Table) -> FamilyTable {
    let store = PeriodicStore::builder().capacity(table.key_count as usize).build();
    let limiter = Mutex::new(RateLimiter::new(store));
    let burst = i64::from(table.quota.burst.get());
    // It counts `count` per `period` whole seconds.
    let interval_ms = i64::try_from(table.quota.interval.as_millis()).expect("minutes at most");
    let (per_period, period_s) =
        if interval_ms < 1_000 { (1_000 / interval_ms, 1) } else { (1, interval_ms / 1_000) };
    FamilyTable::keyed("throttlecrab", move |keys| {
        count(keys, |key| {
            let now = wall_clock();
            let mut limiter = limiter.lock().unwrap_or_else(PoisonError::into_inner);
            limiter
                .rate_limit(key, burst, per_period, period_s, 1, now)
                .is_ok_and(|(allowed, _)| allowed)
        })
    })
}
