//! Locks by shard: held to insert a key into the table, and for anything done to wide counters.
//!
//! Threads that insert the same key hold the same lock, so the second one sees what the first one
//! did. Locks are taken in the order of their shards; a slot's lock bit may be waited for under
//! them, never the other way round.

use super::counter_id::CounterId;
use super::sync::{Mutex, MutexGuard, lock};

#[cfg(not(tollbar_loom))]
const SHARD_COUNT: usize = 256;
#[cfg(tollbar_loom)]
const SHARD_COUNT: usize = 2;

#[derive(Debug)]
pub(super) struct Shards {
    locks: Box<[PaddedMutex]>,
}

/// On a cache line of its own, so that two threads inserting into two shards do not share one.
#[derive(Debug)]
#[repr(align(64))]
struct PaddedMutex(Mutex<()>);

/// Proof that a shard's lock is held.
pub(super) struct ShardGuard<'a> {
    shard: usize,
    _lock: MutexGuard<'a, ()>,
}

impl Shards {
    pub(super) fn new() -> Self {
        Self { locks: (0..SHARD_COUNT).map(|_| PaddedMutex(Mutex::new(()))).collect() }
    }

    pub(super) fn count(&self) -> usize {
        self.locks.len()
    }

    pub(super) fn lock(&self, id: CounterId) -> ShardGuard<'_> {
        self.lock_shard(self.shard_of(id))
    }

    pub(super) fn shard_of(&self, id: CounterId) -> usize {
        id.shard(self.locks.len())
    }

    pub(super) fn lock_shard(&self, shard: usize) -> ShardGuard<'_> {
        ShardGuard { shard, _lock: lock(&self.locks[shard].0) }
    }
}

impl ShardGuard<'_> {
    pub(super) fn shard(&self) -> usize {
        self.shard
    }
}
