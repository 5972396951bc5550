//! What a batch comes to: the decisions of its entries on the states of their counters.
//!
//! Knows no table and no lock; `batch.rs` brings the states and takes them back.

use std::borrow::Cow;

use arrayvec::ArrayVec;

use super::counter_id::CounterId;
use crate::algorithm::STATE_WORDS_MAX;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::warm_up::{LIFE_WORDS, Life, Rungs, StepQuery, WarmUpAlgorithm};
use crate::algorithm::word::PackedAlgorithm;
use crate::policy::Kind;
use crate::store::{Entry, Role};
use crate::{Decision, Timestamp};

/// The most entries a batch of all or none may have. Loom's threads have small stacks.
pub(super) const BATCH_ENTRIES_MAX: usize = if cfg!(tollbar_loom) { 4 } else { 32 };

/// The states of all counters of a batch, one after the other.
pub(super) type States = ArrayVec<u64, { BATCH_ENTRIES_MAX * STATE_WORDS_MAX }>;

/// One counter of a batch; several entries may share it.
pub(super) struct BatchCounter<'a> {
    pub(super) id: CounterId,
    /// Of the first entry that asks for it; one whose state is wide comes first.
    pub(super) kind: Cow<'a, Kind>,
    /// Where its state is among the batch's. Of a log, that is one word: what the batch charges; of a log
    /// or leases that warm up the life of the key comes after it.
    pub(super) words: std::ops::Range<usize>,
}

/// A charge to a log that a batch is about to make.
pub(super) struct LogCharge<'q> {
    pub(super) log: &'q SlidingLog,
    pub(super) id: CounterId,
    /// What the entries before this one charge to it, and when.
    pub(super) pending: u64,
    pub(super) pending_at_us: u64,
    /// When it is decided: later than that where a warm-up asks about its next step.
    pub(super) now_us: u64,
    pub(super) cost: u64,
}

/// Decides an entry on a log, which is not copied here: it stays where it is, under its lock. Also
/// says what the charge is called.
pub(super) type DecideLog<'f> = dyn Fn(&LogCharge<'_>) -> (Decision, u64) + 'f;

/// The entries of a batch and the counters they ask for.
pub(super) struct BatchDecider<'b, 'e> {
    pub(super) entries: &'b mut [Entry<'e>],
    pub(super) counters: &'b [BatchCounter<'e>],
    pub(super) counter_of: &'b [usize],
    pub(super) now_us: u64,
    pub(super) decide_log: &'b DecideLog<'b>,
}

impl BatchDecider<'_, '_> {
    /// Decides every entry in order on `states`, charging as it goes: the enforced ones first, then
    /// the shadows. False where an enforced one denies; then what was charged is not to be kept.
    pub(super) fn decide(&mut self, states: &mut States) -> bool {
        let mut is_allowed = true;
        for role in [Role::Enforce, Role::Shadow] {
            for at in 0..self.entries.len() {
                if self.entries[at].role != role {
                    continue;
                }
                let state = &mut states[self.counters[self.counter_of[at]].words.clone()];
                let (decision, stamp) = self.transition(at, state, self.entries[at].cost);
                is_allowed &= role == Role::Shadow || decision.is_allowed();
                self.entries[at].decision = Some(decision);
                self.entries[at].stamp = stamp;
            }
        }
        is_allowed
    }

    /// Decides an entry at `cost` and charges `state`; also says what the charge is called.
    fn transition(&self, at: usize, state: &mut [u64], cost: u64) -> (Decision, u64) {
        let (entry, now_us) = (&self.entries[at], self.now_us);
        let id = self.counters[self.counter_of[at]].id;
        if let Some(warming) = entry.policy.kind.as_warming_list() {
            return decide_warming_list(warming, id, state, now_us, cost, self.decide_log);
        }
        if let Kind::SlidingLog(log) = &entry.policy.kind {
            let pending = state[0];
            let (decision, stamp) = (self.decide_log)(&LogCharge {
                log,
                id,
                pending,
                pending_at_us: now_us,
                now_us,
                cost,
            });
            state[0] += if decision.is_allowed() { cost } else { 0 };
            return (decision, stamp);
        }
        let kind = entry.policy.kind.for_key(entry.key);
        let now = Timestamp::from_micros(now_us);
        let decision = kind.batch_algorithm().transition(state, now, cost);
        (decision, kind.batch_algorithm().stamp(state))
    }

    /// For a request that was denied: the entries that would have allowed say what remains now,
    /// since nothing was taken from them.
    pub(super) fn report_uncharged(&mut self, before: &States) {
        for at in 0..self.entries.len() {
            if self.entries[at].decision.is_some_and(|decision| decision.is_allowed()) {
                let state = &before[self.counters[self.counter_of[at]].words.clone()];
                let mut state: ArrayVec<u64, STATE_WORDS_MAX> = state.iter().copied().collect();
                let (decision, _) = self.transition(at, &mut state, 0);
                self.entries[at].decision = Some(decision);
            }
        }
    }
}

impl BatchCounter<'_> {
    /// How many words of state it has in a batch.
    pub(super) fn state_words(kind: &Kind) -> usize {
        match kind {
            Kind::SlidingLog(_) => 1,
            _ if kind.as_warming_list().is_some() => WARMING_LIST_WORDS,
            _ => kind.batch_algorithm().words(),
        }
    }

    pub(super) fn is_log(&self) -> bool {
        matches!(*self.kind, Kind::SlidingLog(_))
    }

    /// Its word form and its tag in the table, where the algorithm has one.
    pub(super) fn packed(&self) -> Option<(&dyn PackedAlgorithm, u64)> {
        let packed = self.kind.as_packed()?;
        Some((packed, self.id.tag(packed.word_shift())))
    }
}

/// A log or leases that warm up, in a batch: what a batch charges or how many permits are in flight, and
/// the life of the key.
pub(super) const WARMING_LIST_WORDS: usize = 1 + LIFE_WORDS;

/// Decides `cost` on a log or leases that warm up, and charges `state`; also says what the charge to a log
/// is called.
pub(super) fn decide_warming_list(
    warming: &WarmUpAlgorithm,
    id: CounterId,
    state: &mut [u64],
    now_us: u64,
    cost: u64,
    decide_log: &DecideLog<'_>,
) -> (Decision, u64) {
    let (own, life_words) = state.split_at_mut(1);
    let mut life = Life::from_words(life_words);
    let mut stamp = 0;
    let decision =
        warming.decide(&mut life, now_us, cost, |StepQuery { step, at_us, may_charge }| {
            let limit = warming.limit_at(step);
            match warming.rungs() {
                Rungs::Leased(leased) => leased.with_limit(limit).decide(own[0], at_us, cost),
                Rungs::SlidingLog(log) => {
                    let (log, pending) = (&log.with_limit(limit), own[0]);
                    let (decision, named) = decide_log(&LogCharge {
                        log,
                        id,
                        pending,
                        pending_at_us: now_us,
                        now_us: at_us,
                        cost,
                    });
                    stamp = if may_charge { named } else { stamp };
                    decision
                }
                _ => Decision::UNDECIDED,
            }
        });
    if decision.is_allowed() {
        own[0] += cost;
        life.to_words(life_words);
    }
    (decision, stamp)
}

pub(super) fn zero(states: &mut States, counters: &[BatchCounter<'_>]) {
    states.clear();
    states.extend(std::iter::repeat_n(0, counters.last().map_or(0, |counter| counter.words.end)));
}

pub(super) fn copy(from: &States, to: &mut States) {
    to.clear();
    to.extend(from.iter().copied());
}
