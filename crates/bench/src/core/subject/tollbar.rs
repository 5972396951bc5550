//! Tollbar: through its limiter, through its store, and in groups.

use std::sync::Arc;

use tollbar::{Limiter, MemoryStore, Policy, Rate, Store};
use tollbar_bench::timer::Stopwatch;

use super::{FamilyTable, Trial, count};
use crate::core::targets::{FORCED_EVICTIONS_PERCENT, STORE_BYTES_PER_KEY};
use crate::core::workloads::{KEY_COUNT_MAX_LEAST, Quota, Table};

/// Keys per call of `check_many`.
const GROUP: usize = 16;

pub(crate) fn build(table: &Table) -> FamilyTable {
    let store = store(table.key_count);
    let policy = policy(table.quota);
    let limiter = Arc::new(limiter(&store, &policy));

    let single = Arc::clone(&limiter);
    let mut built = FamilyTable::keyed("tollbar", move |keys| {
        count(keys, |key| single.check(key).is_allowed())
    });
    let direct = Arc::clone(&store);
    built.trials.push(Trial::allowing("tollbar_store", move |keys| {
        count(keys, |key| {
            direct
                .check(key.as_bytes(), &policy, 1)
                .wait()
                .is_ok_and(|decision| decision.is_allowed())
        })
    }));
    built.trials.push(Trial::allowing("tollbar_check_many_16", move |keys| {
        let mut decisions = Vec::with_capacity(GROUP);
        let mut allowed = 0;
        for group in keys.chunks(GROUP) {
            decisions.clear();
            limiter.check_many(group, &mut decisions);
            allowed += decisions.iter().filter(|decision| decision.is_allowed()).count() as u64;
        }
        allowed
    }));

    // Told only where the store is as full as it may be.
    let key_count = table.key_count;
    if key_count >= KEY_COUNT_MAX_LEAST {
        built.facts = Box::new(move || {
            let stats = store.stats();
            let share = |count: f64| count / key_count as f64;
            let mut facts = vec![
                (STORE_BYTES_PER_KEY.to_owned(), share(stats.bytes as f64)),
                (FORCED_EVICTIONS_PERCENT.to_owned(), 100.0 * share(stats.forced_evictions as f64)),
            ];
            if key_count == KEY_COUNT_MAX_LEAST {
                facts.extend(restart(&store).map(|(metric, ns)| (metric.to_owned(), share(ns))));
            }
            facts
        });
    }
    built
}

/// What it takes to write all counters down, and to have them back in a store of the same size.
fn restart(store: &MemoryStore) -> [(&'static str, f64); 2] {
    let mut bytes = Vec::new();
    let writing = Stopwatch::start();
    store.write_snapshot(&mut bytes).expect("memory can be written to");
    let written_ns = writing.elapsed().as_nanos() as f64;
    let restoring = Stopwatch::start();
    let builder = MemoryStore::builder().max_keys(KEY_COUNT_MAX_LEAST as usize);
    builder.restore(&mut &bytes[..]).expect("a snapshot can be read");
    let restored_ns = restoring.elapsed().as_nanos() as f64;
    [("snapshot_ns_per_key", written_ns), ("restore_ns_per_key", restored_ns)]
}

/// A store for `key_count` keys, and for no fewer than by default.
pub(crate) fn store(key_count: u64) -> Arc<MemoryStore> {
    let key_count_max = key_count.max(KEY_COUNT_MAX_LEAST) as usize;
    Arc::new(MemoryStore::builder().max_keys(key_count_max).build())
}

pub(crate) fn limiter(store: &Arc<MemoryStore>, policy: &Policy) -> Limiter {
    let policy = policy.clone().with_name("bench");
    let limiter = Limiter::builder(policy).store(Arc::clone(store)).build();
    limiter.expect("the policy has a name")
}

fn policy(quota: Quota) -> Policy {
    Policy::token_bucket(Rate::new(1, quota.interval))
        .and_then(|policy| policy.with_burst(quota.burst.get().into()))
        .expect("the plan's quotas are within bounds")
        .with_name("bench")
}
