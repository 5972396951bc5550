//! What a batch comes to: the decisions of its entries on the states of their counters.
//!
//! Knows no table and no lock; `batch.rs` brings the states and takes them back.

use std::borrow::Cow;
use std::ops::Range;

use arrayvec::ArrayVec;
use smallvec::SmallVec;

use super::counter_id::CounterId;
use crate::algorithm::STATE_WORDS_MAX;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::warm_up::{LIFE_WORDS, Life, Rungs, StepQuery, WarmUpAlgorithm};
use crate::algorithm::word::PackedAlgorithm;
use crate::policy::Kind;
use crate::store::Entry;
use crate::store::alternative::{EntryDecider, decide_entries};
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
    pub(super) words: Range<usize>,
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

/// A batch that is being decided on the states of its counters.
struct BatchAttempt<'d, 'b, 'e> {
    batch: &'d mut BatchDecider<'b, 'e>,
    states: &'d mut States,
}

impl<'e> EntryDecider<'e> for BatchAttempt<'_, '_, 'e> {
    type Saved = SmallVec<[u64; 32]>;

    fn entries(&mut self) -> &mut [Entry<'e>] {
        self.batch.entries
    }

    fn charge(&mut self, at: usize) {
        let cost = self.batch.entries[at].cost;
        let state = &mut self.states[self.batch.words_of(at)];
        let (decision, stamp) = self.batch.transition(at, state, cost);
        let entry = &mut self.batch.entries[at];
        (entry.decision, entry.stamp) = (Some(decision), stamp);
    }

    fn peek(&mut self, at: usize) {
        self.batch.peek(at, self.states);
    }

    fn save(&self) -> Self::Saved {
        self.states.as_slice().into()
    }

    fn restore(&mut self, saved: Self::Saved) {
        self.states.copy_from_slice(&saved);
    }
}

impl BatchDecider<'_, '_> {
    /// Decides every entry on `states`, charging as it goes. Returns false if the request is denied; then what was
    /// charged is not to be kept.
    pub(super) fn decide(&mut self, states: &mut States) -> bool {
        decide_entries(&mut BatchAttempt { batch: self, states })
    }

    /// Decides an entry at `cost` and charges its state; also says what the charge is called.
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

    /// For a request that was denied: the entries that would have allowed, and those that were not asked, say what
    /// remains now, since nothing was taken from them.
    pub(super) fn report_uncharged(&mut self, before: &States) {
        for at in 0..self.entries.len() {
            if self.entries[at].decision.is_none_or(|decision| decision.is_allowed()) {
                self.peek(at, before);
            }
        }
    }

    /// Has an entry say what remains of its counter.
    fn peek(&mut self, at: usize, states: &States) {
        let mut state: ArrayVec<u64, STATE_WORDS_MAX> =
            states[self.words_of(at)].iter().copied().collect();
        let (decision, _) = self.transition(at, &mut state, 0);
        self.entries[at].decision = Some(decision);
    }

    /// Returns where the state of an entry's counter is.
    fn words_of(&self, at: usize) -> Range<usize> {
        self.counters[self.counter_of[at]].words.clone()
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
