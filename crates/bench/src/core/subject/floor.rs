//! The floor table, checked one by one and in groups.

use std::sync::Arc;

use tollbar::SystemClock;
use tollbar_bench::floor::{Floor, FloorQuota, GROUP};

use super::{FamilyTable, Trial, count};
use crate::core::workloads::{KEY_COUNT_MAX_LEAST, Table};

pub(crate) fn build(table: &Table) -> FamilyTable {
    let quota = FloorQuota {
        interval_us: u64::try_from(table.quota.interval.as_micros()).expect("minutes at most"),
        burst: table.quota.burst.get().into(),
    };
    let key_count_max = table.key_count.max(KEY_COUNT_MAX_LEAST) as usize;
    let single = Arc::new(Floor::new(key_count_max, quota, SystemClock::new()));
    let batched = Arc::clone(&single);
    let mut built =
        FamilyTable::keyed("floor", move |keys| count(keys, |key| single.check(key.as_bytes())));
    built.trials.push(Trial::allowing("floor_batched_256", move |keys| {
        keys.chunks(GROUP).map(|group| batched.check_group(group)).sum()
    }));
    built
}
