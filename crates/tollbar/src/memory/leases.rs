//! Leases: one counter each, decided and changed under the lock of its shard.
//!
//! A counter keeps its leases as a list, and beside it how many permits they are and when the first
//! of them ends. Until then nothing need be looked through to decide.

mod counter_leases;

#[cfg(all(test, not(tollbar_loom)))]
mod tests;

use std::sync::atomic::Ordering;

use super::MemoryStore;
use super::counter_id::CounterId;
use super::rank::{EntryRank, UsedShare};
use super::shards::ShardGuard;
use crate::algorithm::Algorithm;
use crate::algorithm::leased::{LeaseList, LeaseRecord, LeasedConcurrency};
use crate::memory::leases::counter_leases::CounterLeases;
use crate::{Decision, Policy, Timestamp};

/// A name for a lease, of random bits: having one does not help to guess another. Never 0, which is no lease.
/// A name needs to differ only from those of its counter that are held at the same time.
pub(crate) fn lease_name() -> u64 {
    rand::random::<u64>().max(1)
}

impl MemoryStore {
    /// What [`Store::renew`](crate::Store::renew) answers, at once.
    pub fn renew_now(&self, key: &[u8], policy: &Policy, stamp: u64) -> Option<Timestamp> {
        let algorithm = policy.kind.as_leased()?;
        let id = self.hash.id(key, policy);
        let now_us = self.now_us();
        let guard = self.shards.lock(id);
        let mut leases = self.counter_leases(&guard, id, now_us);
        let ends_at_us = algorithm.renew(&mut leases, now_us, stamp);
        leases.save(algorithm.limit());
        ends_at_us.map(Timestamp::from_micros)
    }

    #[inline(never)]
    pub(super) fn check_lease(
        &self,
        algorithm: &LeasedConcurrency,
        id: CounterId,
        now_us: u64,
        cost: u64,
    ) -> Decision {
        let guard = self.shards.lock(id);
        let leases = self.counter_leases(&guard, id, now_us);
        // As in `check_absent`: an absent counter is decided at an instant after it was forgotten.
        let now_us = if leases.is_absent() { self.now_us() } else { now_us };
        let count = leases.in_flight(now_us);
        let decision = algorithm.decide(count, now_us, cost);
        if cost > 0 && decision.is_allowed() {
            self.grant_lease(&guard, algorithm, id, now_us, LeaseGrant { id: lease_name(), cost });
        }
        decision
    }

    /// Writes down a lease that was decided to be granted.
    pub(super) fn grant_lease(
        &self,
        guard: &ShardGuard<'_>,
        algorithm: &LeasedConcurrency,
        id: CounterId,
        now_us: u64,
        grant: LeaseGrant,
    ) {
        let mut leases = self.counter_leases(guard, id, now_us);
        leases.enter(id);
        algorithm.charge(&mut leases, now_us, grant.id, grant.cost);
        leases.save(algorithm.limit());
        self.forced_evictions.fetch_add(leases.evicted, Ordering::Relaxed);
    }

    /// How many permits are in flight.
    pub(super) fn leases_in_flight(
        &self,
        guard: &ShardGuard<'_>,
        id: CounterId,
        now_us: u64,
    ) -> u64 {
        self.counter_leases(guard, id, now_us).in_flight(now_us)
    }

    /// Gives back up to `amount` permits of the lease that is called `stamp`.
    pub(super) fn refund_lease(
        &self,
        algorithm: &LeasedConcurrency,
        id: CounterId,
        stamp: u64,
        amount: u64,
    ) -> u64 {
        let now_us = self.now_us();
        let guard = self.shards.lock(id);
        let mut leases = self.counter_leases(&guard, id, now_us);
        let returned = LeasedConcurrency::give_back(&mut leases, now_us, stamp, amount);
        leases.save(algorithm.limit());
        returned
    }

    /// Puts in a lease of a snapshot.
    pub(super) fn restore_lease(
        &self,
        id: CounterId,
        used: UsedShare,
        now_us: u64,
        lease: LeaseRecord,
    ) {
        let guard = self.shards.lock(id);
        let mut leases = self.counter_leases(&guard, id, now_us);
        leases.enter(id);
        leases.push(lease);
        leases.save_with_share(used);
        self.forced_evictions.fetch_add(leases.evicted, Ordering::Relaxed);
    }

    /// Hands out every counter of the guarded shard that has leases: its name, its rank, and they.
    pub(super) fn for_each_leases(
        &self,
        guard: &ShardGuard<'_>,
        now_us: u64,
        mut visit: impl FnMut(u64, EntryRank, &CounterLeases<'_>),
    ) {
        self.leases.for_each_live(guard, now_us, |id, rank, state| {
            visit(id, rank, &CounterLeases::from_state(&self.leases, guard, state, now_us));
        });
    }

    fn counter_leases<'a>(
        &'a self,
        guard: &'a ShardGuard<'a>,
        id: CounterId,
        now_us: u64,
    ) -> CounterLeases<'a> {
        CounterLeases::find(&self.leases, guard, id, now_us)
    }
}

/// A lease that is to be written down.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseGrant {
    pub(super) id: u64,
    pub(super) cost: u64,
}
