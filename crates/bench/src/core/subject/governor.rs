//! governor: its two keyed stores, the one that also tells what remains, and its plain limiter.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use governor::middleware::StateInformationMiddleware;
use governor::{Quota, RateLimiter};

use super::{FamilyTable, count, unkeyed};
use crate::core::workloads::{self, Table};

pub(crate) fn build_dashmap(table: &Table) -> FamilyTable {
    let limiter = RateLimiter::dashmap(quota(table.quota));
    FamilyTable::keyed("governor_dashmap", move |keys| {
        count(keys, |key| limiter.check_key(key).is_ok())
    })
}

/// A `HashMap` behind the mutex that governor puts around it.
pub(crate) fn build_hashmap(table: &Table) -> FamilyTable {
    let limiter = RateLimiter::hashmap(quota(table.quota));
    FamilyTable::keyed("governor_hashmap", move |keys| {
        count(keys, |key| limiter.check_key(key).is_ok())
    })
}

/// Tells what remains, as we always do.
pub(crate) fn build_state_information(table: &Table) -> FamilyTable {
    let limiter =
        RateLimiter::dashmap(quota(table.quota)).with_middleware::<StateInformationMiddleware>();
    FamilyTable::keyed("governor_dashmap_state_information", move |keys| {
        count(keys, |key| {
            limiter.check_key(key).map(|state| black_box(state.remaining_burst_capacity())).is_ok()
        })
    })
}

pub(crate) fn build_direct(table: &Table) -> FamilyTable {
    let once_a_day =
        workloads::Quota { interval: Duration::from_hours(24), burst: NonZeroU32::MIN };
    let limiters = [table.quota, once_a_day].map(|limit| RateLimiter::direct(quota(limit)));
    unkeyed("governor_direct", limiters, |limiter| limiter.check().is_ok())
}

fn quota(quota: workloads::Quota) -> Quota {
    Quota::with_period(quota.interval).expect("no interval is zero").allow_burst(quota.burst)
}
