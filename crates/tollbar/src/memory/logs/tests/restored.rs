//! Logs of a snapshot that find other logs in a slab that is too small.

use super::*;

/// Charges the logs of `keys` with 20 tokens each and then with one more in the reverse order, so that
/// the first in the snapshot is the farthest from fresh.
fn snapshot_farthest_first(keys: usize) -> (Vec<u8>, Vec<String>, ManualClock) {
    let (old, clock) = store(256 * 300);
    let policy = policy("100/h");
    let keys = neighbours(&old, &policy, keys);
    for key in &keys {
        charge(&old, &clock, key, &policy, 20);
    }
    for key in keys.iter().rev() {
        charge(&old, &clock, key, &policy, 1);
    }
    assert_eq!(old.stats().forced_evictions, 0);
    let mut bytes = Vec::new();
    old.write_snapshot(&mut bytes).unwrap();
    (bytes, keys, clock)
}

/// With as many logs as there are in the snapshot, and `blocks` for each shard.
fn restore(bytes: &[u8], clock: &ManualClock, blocks: usize) -> MemoryStore {
    let builder = MemoryStore::builder().max_keys(16).max_log_stamps(256 * 15 * blocks);
    builder.clock(clock.clone()).restore(&mut &*bytes).unwrap()
}

#[test]
fn a_log_that_is_nearest_to_fresh_displaces_no_other_in_a_full_slab() {
    let (bytes, keys, clock) = snapshot_farthest_first(8);
    let policy = policy("100/h");
    // A log of 21 stamps takes two blocks.
    for (blocks, kept) in [(2, 1), (6, 3), (7, 3), (14, 7), (16, 8)] {
        let new = restore(&bytes, &clock, blocks);
        let left: Vec<u64> = keys.iter().map(|key| remaining(&new, key, &policy)).collect();
        let expected: Vec<u64> = (0..8).map(|key| if key < kept { 79 } else { 100 }).collect();
        assert_eq!(left, expected, "with {blocks} blocks");
        assert_eq!(new.stats().forced_evictions, 8 - kept);
        assert_accounted_for(&new);
    }
}

/// The newest stamp of a log is kept in its entry.
#[test]
fn a_log_of_one_stamp_is_restored_into_a_slab_without_a_free_block() {
    let (old, clock) = store(256 * 300);
    let policy = policy("100/h");
    let keys = neighbours(&old, &policy, 3);
    for (key, count) in [(0, 20), (1, 20), (2, 1), (1, 1), (0, 1)] {
        charge(&old, &clock, &keys[key], &policy, count);
    }
    let mut bytes = Vec::new();
    old.write_snapshot(&mut bytes).unwrap();
    let new = restore(&bytes, &clock, 4);
    let left: Vec<u64> = keys.iter().map(|key| remaining(&new, key, &policy)).collect();
    assert_eq!((left, new.stats().forced_evictions), (vec![79, 79, 99], 0));
    assert_eq!(new.stats().log_blocks, 4);
}
