//! A counter as a backend keeps it, and what a policy does to it.
//!
//! The first word says how the rest is to be read: the format, and how many words of the counter's own follow: a
//! refund record of two, and the cut of a bucket of one. Then comes the algorithm's state without the zeros at
//! its end. A counter that is fresh and has no record is no words at all.

mod loan;

use std::sync::Arc;

use thiserror::Error;

use super::backend::Value;
use crate::memory::lease_name;
use crate::policy::Kind;
use crate::store::{StoreError, refund_record::RefundRecord};
use crate::{Decision, Policy, Timestamp};

/// The format of values, above the number of own words.
const FORMAT: u64 = 1 << 8;

const WITH_RECORD: u64 = FORMAT + RECORD_WORDS as u64;
const WITH_CUT: u64 = FORMAT + CUT_WORDS as u64;
const WITH_RECORD_AND_CUT: u64 = FORMAT + (RECORD_WORDS + CUT_WORDS) as u64;

const RECORD_WORDS: usize = 2;
const CUT_WORDS: usize = 1;

/// The value of a key that holds something else.
#[derive(Debug, Error)]
#[error("a counter's key holds something else: give tollbar a namespace of its own")]
struct ForeignValueError;

/// A counter out of its backend.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Counter {
    state: Vec<u64>,
    record: Option<RefundRecord>,
    /// By how much the tolerance of a bucket was cut when its state was written; 0 where nothing is lent.
    cut_us: u64,
}

impl Counter {
    pub(super) fn read(value: &Value) -> Result<Self, StoreError> {
        let record = |sum_us, open_until_us| Some(RefundRecord { sum_us, open_until_us });
        let (record, cut_us, state) = match *value.words.as_slice() {
            [] => return Ok(Self::default()),
            [FORMAT, ref state @ ..] => (None, 0, state),
            [WITH_RECORD, sum_us, open_until_us, ref state @ ..] => {
                (record(sum_us, open_until_us), 0, state)
            }
            [WITH_CUT, cut_us, ref state @ ..] => (None, cut_us, state),
            [WITH_RECORD_AND_CUT, sum_us, open_until_us, cut_us, ref state @ ..] => {
                (record(sum_us, open_until_us), cut_us, state)
            }
            _ => return Err(StoreError::Refused { source: Arc::new(ForeignValueError) }),
        };
        Ok(Self { state: state.to_vec(), record, cut_us })
    }

    pub(super) fn to_words(&self) -> Vec<u64> {
        let used = self.state.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        let state = &self.state[..used];
        let cut_us = self.cut_us;
        match self.record {
            None if state.is_empty() => Vec::new(),
            None if cut_us == 0 => [&[FORMAT], state].concat(),
            None => [&[WITH_CUT, cut_us], state].concat(),
            Some(RefundRecord { sum_us, open_until_us }) if cut_us == 0 => {
                [&[WITH_RECORD, sum_us, open_until_us], state].concat()
            }
            Some(RefundRecord { sum_us, open_until_us }) => {
                [&[WITH_RECORD_AND_CUT, sum_us, open_until_us, cut_us], state].concat()
            }
        }
    }

    /// From when on it may be forgotten: it is fresh, its cut has shrunk to nothing, and no refund asks for its
    /// record.
    pub(super) fn forgettable_at(&self, kind: &Kind) -> Timestamp {
        let mut counter = self.clone();
        let fresh_at = kind.as_dyn().fresh_at(counter.fit(kind));
        let fresh_at = Timestamp::from_micros(fresh_at.as_micros().saturating_add(self.cut_us));
        let record = self.record.map_or(0, |record| record.kept_until_us());
        fresh_at.max(Timestamp::from_micros(record))
    }

    /// Decides `cost` and charges it if it is allowed; also names the charge.
    pub(super) fn charge(&mut self, kind: &Kind, now: Timestamp, cost: u64) -> (Decision, u64) {
        if let Kind::Bucket(meter) = kind
            && self.cut_us > 0
        {
            return self.charge_with_cut(kind, meter, now, cost);
        }
        let state = self.fit(kind);
        if let Some(leased) = kind.as_leased() {
            let lease_id = lease_name();
            let decision = match kind.as_warming_list() {
                Some(warming) => warming.grant(state, now, cost, lease_id),
                None => leased.grant(state, now, cost, lease_id),
            };
            let is_granted = cost > 0 && decision.is_allowed();
            return (decision, if is_granted { lease_id } else { 0 });
        }
        let decision = kind.as_dyn().transition(state, now, cost);
        (decision, kind.as_dyn().stamp(state))
    }

    /// The stamp of a charge that may be given back, made to last.
    pub(super) fn reserve(&mut self, kind: &Kind, stamp: u64, now: Timestamp) -> u64 {
        if !kind.needs_refund_record() {
            return stamp;
        }
        let (record, stamp) = RefundRecord::reserve(self.record, kind, stamp, now.as_micros());
        self.record = Some(record);
        stamp
    }

    /// Gives back up to `amount` tokens of the charge called `stamp`, and answers how many.
    pub(super) fn refund(&mut self, kind: &Kind, now: Timestamp, stamp: u64, amount: u64) -> u64 {
        if !RefundRecord::is_needed(kind, stamp) {
            return kind.as_dyn().refund(self.fit(kind), now, stamp, amount).tokens;
        }
        let Some(record) = self.record else {
            return 0;
        };
        let stamp = record.stamp_today(stamp);
        let refund = kind.as_dyn().refund(self.fit(kind), now, stamp, amount);
        self.record = Some(record.refunded(refund));
        refund.tokens
    }

    /// Charges what was spent already, whether or not there is room, and answers how much of it.
    pub(super) fn overdraw(&mut self, kind: &Kind, now: Timestamp, amount: u64) -> u64 {
        // Nothing is in flight that was not let in.
        if kind.is_in_flight() {
            return 0;
        }
        let cut_left_us = self.cut_left_us(kind, now);
        let charged = kind.as_dyn().overdraw(self.fit(kind), now, amount);
        if charged > 0 {
            self.cut_us = cut_left_us;
        }
        charged
    }

    /// Until when the lease `id` is held from now on; `None` if it has ended.
    pub(super) fn renew(&mut self, kind: &Kind, now: Timestamp, id: u64) -> Option<Timestamp> {
        let (algorithm, state) = (kind.as_leased()?, self.fit(kind));
        let leases = match kind.as_warming_list() {
            Some(warming) => warming.inner_mut(state),
            None => state,
        };
        algorithm.extend(leases, now, id)
    }

    /// Makes it fresh.
    pub(super) fn reset(&mut self, now: Timestamp) {
        self.state.clear();
        self.cut_us = 0;
        self.record = self.record.map(|record| record.closed(now.as_micros()));
    }

    /// The state, as long as the algorithm expects. Lists may be longer: they were written under a
    /// larger limit.
    fn fit(&mut self, kind: &Kind) -> &mut [u64] {
        let words = kind.as_dyn().words();
        let is_list = kind.as_log().is_some() || kind.as_leased().is_some();
        let words = if is_list { words.max(self.state.len()) } else { words };
        self.state.resize(words, 0);
        &mut self.state
    }
}

/// The most words that a counter of `policy` may need.
pub(super) fn words_max(policy: &Policy) -> usize {
    let cut_words = if matches!(policy.kind, Kind::Bucket(_)) { CUT_WORDS } else { 0 };
    1 + RECORD_WORDS + cut_words + policy.algorithm().words()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_the_same_after_a_way_through_words() {
        let record = Some(RefundRecord { sum_us: 7, open_until_us: 0 });
        for state in [vec![], vec![0, 5], vec![3, 0, 1]] {
            for record in [None, record] {
                let counter = Counter { state: state.clone(), record, cut_us: 0 };
                let value = Value { words: counter.to_words(), version: 0 };
                assert_eq!(Counter::read(&value).unwrap(), counter);
            }
        }
        for record in [None, record] {
            let counter = Counter { state: vec![3, 1], record, cut_us: 9 };
            let value = Value { words: counter.to_words(), version: 0 };
            assert_eq!(Counter::read(&value).unwrap(), counter);
        }
        let zeros = Counter { state: vec![0; 4], record: None, cut_us: 0 };
        assert_eq!(zeros.to_words(), Vec::<u64>::new());
    }

    #[test]
    fn words_of_others_are_refused() {
        for words in [vec![0], vec![FORMAT + 2, 1], vec![u64::MAX, 1, 2]] {
            let error = Counter::read(&Value { words, version: 0 }).unwrap_err();
            assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
        }
    }
}
