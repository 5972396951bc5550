//! Who makes room for whom in a slab that is too small, and that no block is ever lost.

mod restored;

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::Timestamp;
use crate::memory::counter_id::CounterHash;
use crate::{Batch, Entry, ManualClock, Policy, Store};

const START_US: u64 = 1_700_000_000_000_000;

/// All keys in few buckets, so that they meet: 256 shards have a bucket each.
fn store(stamps_max: usize) -> (MemoryStore, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_micros(START_US));
    let builder = MemoryStore::builder().max_keys(16).max_log_stamps(stamps_max);
    (builder.clock(clock.clone()).build_with(CounterHash::from_seeds([1, 2])), clock)
}

fn policy(rate: &str) -> Policy {
    Policy::sliding_window_log(rate).unwrap()
}

/// `count` keys whose logs under `policy` are in the same shard.
fn neighbours(store: &MemoryStore, policy: &Policy, count: usize) -> Vec<String> {
    let shard = |key: &str| store.shards.shard_of(store.hash.id(key.as_bytes(), policy));
    let keys = (0..100_000).map(|key| format!("key:{key}"));
    keys.filter(|key| shard(key) == shard("key:0")).take(count).collect()
}

fn pass(store: &MemoryStore, key: &str, policy: &Policy) -> bool {
    store.check_now(key.as_bytes(), policy, 1).is_allowed()
}

fn remaining(store: &MemoryStore, key: &str, policy: &Policy) -> u64 {
    store.check_now(key.as_bytes(), policy, 0).remaining().unwrap()
}

/// Charges `count` tokens, each a microsecond after the other.
fn charge(store: &MemoryStore, clock: &ManualClock, key: &str, policy: &Policy, count: usize) {
    for _ in 0..count {
        clock.advance(Duration::from_micros(1));
        assert!(pass(store, key, policy));
    }
}

/// Every block belongs to one list, and every sum is the sum of its stamps.
fn assert_accounted_for(store: &MemoryStore) {
    let mut blocks = 0;
    for shard in 0..store.shards.count() {
        let guard = store.shards.lock_shard(shard);
        store.for_each_log(&guard, 0, |_, _, log| {
            blocks += log.block_count();
            assert_eq!(log.tokens(), log.stamps().map(Stamp::tokens).sum::<u64>());
            assert_eq!(log.len(), log.stamps().count());
            assert!(log.stamps().map(Stamp::at_us).is_sorted());
        });
    }
    assert_eq!(store.lists.blocks.in_use_count(), blocks);
}

#[test]
fn a_key_with_one_instant_needs_no_block() {
    let (store, clock) = store(0);
    let policy = policy("100/h");
    for key in 0..100 {
        assert!(pass(&store, &key.to_string(), &policy));
        assert!(pass(&store, &key.to_string(), &policy));
    }
    assert_eq!(store.stats().log_blocks, 0);
    charge(&store, &clock, "0", &policy, 1);
    assert_eq!(store.stats().log_blocks, 1);
    assert_eq!(store.stats().forced_evictions, 0);
    assert_accounted_for(&store);
}

#[test]
fn a_log_gives_its_blocks_back_as_its_stamps_leave() {
    let (store, clock) = store(256 * 150);
    let policy = policy("100/s");
    charge(&store, &clock, "key", &policy, 100);
    // The newest is in the entry: 99 in blocks of 15.
    assert_eq!(store.stats().log_blocks, 7);
    clock.set(Timestamp::from_micros(START_US + 1_000_000 + 50));
    charge(&store, &clock, "key", &policy, 1);
    assert_eq!(store.stats().log_blocks, 4, "49 stamps and the one that was the newest");
    clock.advance(Duration::from_secs(2));
    charge(&store, &clock, "key", &policy, 1);
    assert_eq!((store.stats().log_blocks, remaining(&store, "key", &policy)), (0, 99));
    charge(&store, &clock, "key", &policy, 40);
    store.reset(b"key", &policy).wait().unwrap();
    assert_eq!((store.stats().log_blocks, remaining(&store, "key", &policy)), (0, 100));
    assert_eq!(store.stats().forced_evictions, 0);
}

#[test]
fn a_log_keeps_nothing_that_has_left_once_it_is_charged() {
    let (store, clock) = store(256 * 150);
    let policy = policy("1/ms");
    for _ in 0..100 {
        clock.advance(Duration::from_millis(1));
        assert!(pass(&store, "key", &policy));
        assert_eq!(store.stats().log_blocks, 0);
    }
}

#[test]
fn where_no_block_is_free_the_log_nearest_to_fresh_makes_room() {
    // Two blocks in each shard.
    let (store, clock) = store(256 * 30);
    let policy = policy("100/h");
    let keys = neighbours(&store, &policy, 3);
    charge(&store, &clock, &keys[0], &policy, 10);
    charge(&store, &clock, &keys[1], &policy, 10);
    // Now the first is farther from fresh.
    charge(&store, &clock, &keys[0], &policy, 1);
    assert_eq!(store.stats().forced_evictions, 0);
    charge(&store, &clock, &keys[2], &policy, 2);
    let left: Vec<u64> = keys.iter().map(|key| remaining(&store, key, &policy)).collect();
    assert_eq!(left, [89, 100, 98]);
    assert_eq!(store.stats().forced_evictions, 1);
    assert_accounted_for(&store);
}

#[test]
fn a_fresh_log_makes_room_first_and_is_not_counted() {
    let (store, clock) = store(256 * 30);
    let (long, short) = (policy("100/h"), policy("100/s"));
    let keys = neighbours(&store, &long, 2);
    let in_shard = |key: &str| store.shards.shard_of(store.hash.id(key.as_bytes(), &short));
    let shard = store.shards.shard_of(store.hash.id(keys[0].as_bytes(), &long));
    let rested = (0..100_000).map(|key| format!("rested:{key}")).find(|key| in_shard(key) == shard);
    charge(&store, &clock, &keys[0], &long, 10);
    charge(&store, &clock, &rested.unwrap(), &short, 10);
    clock.advance(Duration::from_secs(1));
    charge(&store, &clock, &keys[1], &long, 10);
    let left: Vec<u64> = keys.iter().map(|key| remaining(&store, key, &long)).collect();
    assert_eq!(left, [90, 90]);
    assert_eq!((store.stats().forced_evictions, store.stats().log_blocks), (0, 2));
    assert_accounted_for(&store);
}

#[test]
fn a_log_alone_in_its_shard_forgets_its_own_oldest_block() {
    let (store, clock) = store(256 * 30);
    let policy = policy("100/h");
    // 30 in two blocks, and the newest.
    charge(&store, &clock, "key", &policy, 31);
    assert_eq!((store.stats().forced_evictions, remaining(&store, "key", &policy)), (0, 69));
    charge(&store, &clock, "key", &policy, 1);
    assert_eq!((store.stats().forced_evictions, remaining(&store, "key", &policy)), (1, 83));
    assert_accounted_for(&store);
    // However long it asks, it is limited: to as much as it can remember.
    for _ in 0..1_000 {
        clock.advance(Duration::from_micros(1));
        pass(&store, "key", &policy);
    }
    assert!(remaining(&store, "key", &policy) < 100);
    assert_accounted_for(&store);
}

#[test]
fn by_default_the_longest_log_fits_every_shard() {
    let clock = ManualClock::at(Timestamp::from_micros(START_US));
    let store = MemoryStore::builder().max_keys(1).clock(clock.clone()).build();
    let policy = policy("10000/h");
    charge(&store, &clock, "key", &policy, 10_000);
    assert!(!pass(&store, "key", &policy));
    assert_eq!(store.stats().forced_evictions, 0);
}

#[test]
fn a_bucket_full_of_live_logs_loses_the_nearest_to_fresh_with_its_blocks() {
    // One bucket of eight in each shard.
    let (store, clock) = store(256 * 150);
    let policy = policy("100/h");
    let keys = neighbours(&store, &policy, 9);
    for key in &keys {
        charge(&store, &clock, key, &policy, 3);
    }
    assert_eq!(store.stats().forced_evictions, 1);
    assert_eq!(remaining(&store, &keys[0], &policy), 100);
    assert_eq!(store.stats().log_blocks, 8);
    assert_accounted_for(&store);
}

#[test]
fn a_restore_into_a_smaller_slab_keeps_the_logs_farthest_from_fresh_and_counts_the_others() {
    let (old, clock) = store(256 * 300);
    let policy = policy("100/h");
    let keys = neighbours(&old, &policy, 8);
    for key in &keys {
        charge(&old, &clock, key, &policy, 20);
    }
    assert_eq!(old.stats().forced_evictions, 0);
    let mut bytes = Vec::new();
    old.write_snapshot(&mut bytes).unwrap();
    let restore = |stamps_max: usize| {
        let builder = MemoryStore::builder().max_keys(16).max_log_stamps(stamps_max);
        builder.clock(clock.clone()).restore(&mut bytes.as_slice()).unwrap()
    };
    // Two blocks each: six blocks are enough for three.
    let new = restore(256 * 90);
    let left: Vec<u64> = keys.iter().map(|key| remaining(&new, key, &policy)).collect();
    assert_eq!(left, [100, 100, 100, 100, 100, 80, 80, 80]);
    assert_eq!(new.stats().forced_evictions, 5);
    assert_accounted_for(&new);
    let same = restore(256 * 300);
    assert!(keys.iter().all(|key| remaining(&same, key, &policy) == 80));
    assert_eq!(same.stats(), old.stats());
}

#[derive(Debug, Clone)]
enum Op {
    Check { key: usize, cost: u64 },
    Batch { keys: [usize; 2], costs: [u64; 2] },
    Refund { amount: u64 },
    Reset { key: usize },
    Restart { blocks: usize },
    Advance { us: u64 },
    Back { us: u64 },
}

fn op(keys: usize) -> impl Strategy<Value = Op> {
    let key = 0..keys;
    let cost = prop_oneof![6 => Just(1_u64), 1 => 0_u64..60, 1 => Just(5_000)];
    prop_oneof![
        12 => (key.clone(), cost.clone()).prop_map(|(key, cost)| Op::Check { key, cost }),
        4 => ([key.clone(), key.clone()], [cost.clone(), cost])
            .prop_map(|(keys, costs)| Op::Batch { keys, costs }),
        1 => (0_u64..70).prop_map(|amount| Op::Refund { amount }),
        1 => key.prop_map(|key| Op::Reset { key }),
        1 => (1_usize..6).prop_map(|blocks| Op::Restart { blocks }),
        8 => (1_u64..30).prop_map(|us| Op::Advance { us }),
        1 => (1_u64..200).prop_map(|us| Op::Back { us }),
    ]
}

proptest! {
    /// Whatever happens in a slab that is far too small, blocks and sums are right after each step.
    #[test]
    fn no_operation_loses_a_block(ops in vec(op(12), 1..100)) {
        let (mut store, clock) = store(256 * 30);
        let policies = ["50/ms", "9000/s"].map(policy);
        let keys = neighbours(&store, &policies[0], 6);
        let counter = |at: usize| (&keys[at % 6], &policies[at / 6]);
        let mut charged = (0, 0);
        for op in ops {
            match op {
                Op::Check { key, cost } => {
                    let (name, policy) = counter(key);
                    store.check_now(name.as_bytes(), policy, cost);
                }
                Op::Batch { keys, costs } => {
                    let [(a, p), (b, q)] = keys.map(counter);
                    let entry = |key, policy, cost| Entry::new(key, policy).with_cost(cost);
                    let mut entries = [entry(a, p, costs[0]), entry(b, q, costs[1])];
                    store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
                    charged = (keys[0], entries[0].stamp());
                }
                Op::Refund { amount } => {
                    let (name, policy) = counter(charged.0);
                    store.refund_now(name.as_bytes(), policy, charged.1, amount);
                }
                Op::Reset { key } => {
                    let (name, policy) = counter(key);
                    store.reset(name.as_bytes(), policy).wait().unwrap();
                }
                Op::Restart { blocks } => {
                    let mut bytes = Vec::new();
                    store.write_snapshot(&mut bytes).unwrap();
                    let builder = MemoryStore::builder().max_keys(16).clock(clock.clone());
                    let builder = builder.max_log_stamps(256 * 15 * blocks);
                    store = builder.restore(&mut bytes.as_slice()).unwrap();
                }
                Op::Advance { us } => clock.advance(Duration::from_micros(us)),
                Op::Back { us } => {
                    let now_us = crate::Clock::now(&clock).as_micros();
                    clock.set(Timestamp::from_micros(now_us - us));
                }
            }
            assert_accounted_for(&store);
        }
    }
}
