//! Deciding a batch on the values of its counters.

use std::borrow::Cow;

use super::backend::{CounterKey, Value};
use super::value::Counter;
use super::{Change, micros};
use crate::Timestamp;
use crate::algorithm::word::NUMBER_MAX;
use crate::counter::backend_keys::BackendKeys;
use crate::policy::Kind;
use crate::store::alternative::{EntryDecider, decide_entries};
use crate::store::decision_words;
use crate::store::{Entry, Hold, Once, StoreError};

/// The counters of several entries or adjustments, each once, and which one each asks for.
#[derive(Debug, Default)]
pub(super) struct Counters<'p> {
    pub(super) keys: Vec<CounterKey>,
    /// Of the first that asks for the counter, bound to its key.
    kinds: Vec<Cow<'p, Kind>>,
    of: Vec<usize>,
}

impl<'p> Counters<'p> {
    pub(super) fn push(&mut self, key: CounterKey, kind: Cow<'p, Kind>) {
        let known = self.keys.iter().position(|known| *known == key);
        self.of.push(known.unwrap_or_else(|| {
            self.keys.push(key);
            self.kinds.push(kind);
            self.keys.len() - 1
        }));
    }

    /// The counter of the entry or adjustment at `at`, of those that [`read`](Self::read) returned.
    pub(super) fn at<'c>(&self, counters: &'c mut [Counter], at: usize) -> &'c mut Counter {
        &mut counters[self.of[at]]
    }

    pub(super) fn read(&self, values: &[Value]) -> Result<Vec<Counter>, StoreError> {
        values.iter().take(self.keys.len()).map(Counter::read).collect()
    }

    /// What `after` changes of `before`.
    pub(super) fn changes(&self, before: &[Counter], after: &[Counter]) -> Vec<Change> {
        let each = before.iter().zip(after).enumerate();
        let changed = each.filter(|(_, (before, after))| before.to_words() != after.to_words());
        changed
            .map(|(at, (_, after))| Change {
                at,
                after: after.to_words(),
                forgettable_at: after.forgettable_at(&self.kinds[at]),
            })
            .collect()
    }

    fn from_entries(backend_keys: &BackendKeys, entries: &[Entry<'p>]) -> Self {
        let mut counters = Self::default();
        for entry in entries {
            counters.push(backend_keys.counter(entry.key, entry.policy), kind_of(entry));
        }
        counters
    }
}

fn kind_of<'p>(entry: &Entry<'p>) -> Cow<'p, Kind> {
    entry.policy.kind.for_key(entry.key)
}

/// The entries of one step, and what they need of the backend.
#[derive(Debug)]
pub(super) struct BatchStep<'b, 'e> {
    pub(super) entries: &'b mut [Entry<'e>],
    counters: Counters<'e>,
    once: Option<(CounterKey, u64)>,
    hold: Option<(CounterKey, u64)>,
    fingerprint: u64,
    replays_max: u8,
}

impl<'b, 'e> BatchStep<'b, 'e> {
    pub(super) fn new(
        backend_keys: &BackendKeys,
        entries: &'b mut [Entry<'e>],
        once: Option<Once<'_>>,
        hold: Option<Hold>,
    ) -> Self {
        let counters = Counters::from_entries(backend_keys, entries);
        let keys: Vec<CounterKey> = counters.of.iter().map(|at| counters.keys[*at]).collect();
        let fingerprint =
            once.map_or(0, |once| backend_keys.fingerprint(once.content, entries, &keys));
        let replays_max = once.map_or(0, |once| once.replays_max);
        let once = once.map(|once| (backend_keys.request(once.request_id), micros(once.ttl)));
        let hold = hold.map(|hold| (backend_keys.reservation(hold.id), micros(hold.ttl)));
        Self { entries, counters, once, hold, fingerprint, replays_max }
    }

    /// The keys it reads: the counters', then those of the request id and of the reservation.
    pub(super) fn keys(&self) -> Vec<CounterKey> {
        let marks = self.once.iter().chain(&self.hold).map(|(key, _)| *key);
        self.counters.keys.iter().copied().chain(marks).collect()
    }

    /// Decides all entries at `now`: all are charged or none.
    pub(super) fn all_or_none(
        &mut self,
        values: &[Value],
        now: Timestamp,
    ) -> Result<Vec<Change>, StoreError> {
        let marks = &values[self.counters.keys.len()..];
        if self.once.is_some()
            && let Some(replayed) = self.replay(&marks[0], now)?
        {
            return Ok(vec![replayed]);
        }
        let before = self.counters.read(values)?;
        let mut after = before.clone();
        let is_allowed = decide_entries(&mut StepAttempt { step: self, states: &mut after, now });
        if !is_allowed {
            self.report_uncharged(&before, now);
            return Ok(Vec::new());
        }
        if self.hold.is_some() {
            let paid = self.entries.iter_mut().enumerate().filter(|(_, entry)| !entry.is_unused);
            for (at, entry) in paid {
                let counter = self.counters.at(&mut after, at);
                entry.stamp = counter.reserve(&kind_of(entry), entry.stamp, now);
            }
        }
        let mut changes = self.counters.changes(&before, &after);
        let mut at = self.counters.keys.len();
        if let Some((_, ttl_us)) = self.once {
            changes.push(mark(
                at,
                now,
                ttl_us,
                &decision_words::write(self.fingerprint, self.entries)?,
            ));
            at += 1;
        }
        if let Some((_, ttl_us)) = self.hold {
            changes.push(mark(at, now, ttl_us, &[]));
        }
        Ok(changes)
    }

    /// Decides all entries at `now`, each by itself.
    pub(super) fn independent(
        &mut self,
        values: &[Value],
        now: Timestamp,
    ) -> Result<Vec<Change>, StoreError> {
        let before = self.counters.read(values)?;
        let mut after = before.clone();
        for at in 0..self.entries.len() {
            self.charge(at, &mut after, now);
        }
        Ok(self.counters.changes(&before, &after))
    }

    /// Answers a request that was allowed under its id before: its entries then hold the answer it got.
    /// Returns the mark that counts the replay; `None` if the request is to be decided.
    fn replay(&mut self, mark: &Value, now: Timestamp) -> Result<Option<Change>, StoreError> {
        let Some(words @ [first, ..]) = mark_words(mark, now) else {
            return Ok(None);
        };
        let len =
            decision_words::len(*first, self.fingerprint).ok_or(StoreError::RequestIdReused)?;
        let Some(replayed) = decision_words::replay(*first, self.replays_max) else {
            return Ok(None);
        };
        let mut after = mark.words.clone();
        let ttl_us = self.once.map_or(0, |(_, ttl_us)| ttl_us);
        let charged_at = Timestamp::from_micros(after[0].saturating_sub(ttl_us));
        decision_words::read(words.get(..len).unwrap_or(words), charged_at, self.entries);
        after[1] = replayed;
        let forgettable_at = Timestamp::from_micros(after[0]);
        Ok(Some(Change { at: self.counters.keys.len(), after, forgettable_at }))
    }

    fn charge(&mut self, at: usize, counters: &mut [Counter], now: Timestamp) {
        let entry = &mut self.entries[at];
        let counter = self.counters.at(counters, at);
        let (decision, stamp) = counter.charge(&kind_of(entry), now, entry.cost);
        (entry.decision, entry.stamp) = (Some(decision), stamp);
        // An attempt before, which lost the race to swap, may have found a request that is forgotten by now.
        entry.repeat_of = None;
    }

    /// For a request that was denied: the entries that would have allowed, and those that were not asked, say what
    /// remains now, since nothing was taken from them.
    fn report_uncharged(&mut self, before: &[Counter], now: Timestamp) {
        for at in 0..self.entries.len() {
            if self.entries[at].decision.is_none_or(|decision| decision.is_allowed()) {
                self.peek(at, before, now);
            }
        }
    }

    /// Has an entry say what remains of its counter.
    fn peek(&mut self, at: usize, counters: &[Counter], now: Timestamp) {
        let mut counter = counters[self.counters.of[at]].clone();
        let entry = &mut self.entries[at];
        entry.decision = Some(counter.charge(&kind_of(entry), now, 0).0);
    }
}

/// A batch that is being decided on the states of its counters.
struct StepAttempt<'s, 'b, 'e> {
    step: &'s mut BatchStep<'b, 'e>,
    states: &'s mut Vec<Counter>,
    now: Timestamp,
}

impl<'e> EntryDecider<'e> for StepAttempt<'_, '_, 'e> {
    type Saved = Vec<Counter>;

    fn entries(&mut self) -> &mut [Entry<'e>] {
        self.step.entries
    }

    fn charge(&mut self, at: usize) {
        self.step.charge(at, self.states, self.now);
    }

    fn peek(&mut self, at: usize) {
        self.step.peek(at, self.states, self.now);
    }

    fn save(&self) -> Self::Saved {
        self.states.clone()
    }

    fn restore(&mut self, saved: Self::Saved) {
        *self.states = saved;
    }
}

/// Remembers something until `ttl_us` from now: when that ends, and `words`.
fn mark(at: usize, now: Timestamp, ttl_us: u64, words: &[u64]) -> Change {
    let ends_at_us = now.as_micros().saturating_add(ttl_us).min(NUMBER_MAX);
    let after = [&[ends_at_us], words].concat();
    Change { at, after, forgettable_at: Timestamp::from_micros(ends_at_us) }
}

/// What a [`mark`] says, unless its time is up or there is none.
pub(super) fn mark_words(value: &Value, now: Timestamp) -> Option<&[u64]> {
    let (ends_at_us, words) = value.words.split_first()?;
    (*ends_at_us > now.as_micros()).then_some(words)
}
