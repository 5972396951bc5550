//! Logs and leases that warm up: the list stays as it is without a warm-up, and beside it, under the same
//! name and lock, the life of the key is kept as a wide counter of two words.
//!
//! Either may be forgotten without the other. Without its life a key is new, and admits less: so a life
//! ranks lowest where room is needed.

use super::MemoryStore;
use super::counter_id::CounterId;
use super::leases::{LeaseGrant, lease_name};
use super::rank::EntryRank;
use super::shards::ShardGuard;
use crate::Decision;
use crate::algorithm::warm_up::{LIFE_WORDS, Life, Rungs, WarmUpAlgorithm};
use crate::memory::batch_decision::{LogCharge, WARMING_LIST_WORDS, decide_warming_list};

impl MemoryStore {
    #[inline(never)]
    pub(super) fn check_warming_list(
        &self,
        warming: &WarmUpAlgorithm,
        id: CounterId,
        cost: u64,
    ) -> Decision {
        let guard = self.shards.lock(id);
        // As in `check_absent`: an absent counter is decided at an instant after it was forgotten.
        let now_us = self.now_us();
        let mut state = [0; WARMING_LIST_WORDS];
        self.load_warming_list(&guard, warming, id, now_us, &mut state);
        let decide_log = |charge: &LogCharge<'_>| self.decide_log(&guard, charge);
        let (decision, _) = decide_warming_list(warming, id, &mut state, now_us, cost, &decide_log);
        if cost > 0 && decision.is_allowed() {
            match warming.rungs() {
                Rungs::SlidingLog(log) => self.charge_log(&guard, log, id, now_us, cost),
                Rungs::Leased(leased) => {
                    let grant = LeaseGrant { id: lease_name(), cost };
                    self.grant_lease(&guard, leased, id, now_us, grant);
                }
                _ => {}
            }
            self.save_life(&guard, id, Life::from_words(&state[1..]), now_us);
        }
        decision
    }

    /// What is decided on: of leases how many permits are in flight, of a log nothing, and the life.
    pub(super) fn load_warming_list(
        &self,
        guard: &ShardGuard<'_>,
        warming: &WarmUpAlgorithm,
        id: CounterId,
        now_us: u64,
        state: &mut [u64],
    ) {
        if let Rungs::Leased(_) = warming.rungs() {
            state[0] = self.leases_in_flight(guard, id, now_us);
        }
        if let Some(place) = self.wide.find(guard, id, LIFE_WORDS) {
            self.wide.load(guard, place, &mut state[1..]);
        }
    }

    pub(super) fn save_life(&self, guard: &ShardGuard<'_>, id: CounterId, life: Life, now_us: u64) {
        let mut words = [0; LIFE_WORDS];
        life.to_words(&mut words);
        let found = self.wide.find(guard, id, LIFE_WORDS);
        let rank = EntryRank::until(life.new_at_us());
        let saved = self.wide.save(guard, id, found, &words, rank, now_us);
        self.count_eviction(saved.evicted_live);
    }

    /// After tokens were charged that were spent already.
    pub(super) fn prolong_life(
        &self,
        guard: &ShardGuard<'_>,
        warming: &WarmUpAlgorithm,
        id: CounterId,
        now_us: u64,
    ) {
        let mut state = [0; WARMING_LIST_WORDS];
        self.load_warming_list(guard, warming, id, now_us, &mut state);
        let life = warming.charged(Life::from_words(&state[1..]), now_us);
        self.save_life(guard, id, life, now_us);
    }
}
