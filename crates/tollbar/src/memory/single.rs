//! One counter: found, decided, charged.

use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;

use super::MemoryStore;
use super::counter_id::CounterId;
use super::rank::UsedShare;
use super::shards::ShardGuard;
use super::slot::SlotRead;
use super::sync::Backoff;
use crate::algorithm::warm_up::LIFE_WORDS;
use crate::algorithm::word::{PackedAlgorithm, Step, WORD_STATE_WORDS_MAX, WordParts, WordState};
use crate::algorithm::{Algorithm, STATE_WORDS_MAX};
use crate::memory::migration::CounterLocation;
use crate::policy::Kind;
use crate::store::Entry;
use crate::{Decision, Policy, Timestamp};

/// How many entries are hashed and asked for ahead of the first decision. Sixteen misses are what
/// a core of today keeps in flight.
const LOOKAHEAD: usize = 16;

/// The same expression for each algorithm, by its own type where its state fits one word. Only a
/// staggered window looks at the key.
macro_rules! by_algorithm {
    ($kind:expr, $key:expr, {
        word($algorithm:ident) => $word:expr,
        wide($other:ident) => $wide:expr $(,)?
    }) => {
        match $kind {
            Kind::Bucket($algorithm) if $algorithm.fits_word() => $word,
            Kind::LeakyQueue($algorithm) if $algorithm.fits_word() => $word,
            Kind::FixedWindow($algorithm) if $algorithm.fits_word() => $word,
            Kind::CalendarWindow($algorithm) if $algorithm.fits_word() => $word,
            Kind::SlidingWindow($algorithm) if $algorithm.fits_word() => $word,
            Kind::Concurrency($algorithm) => $word,
            Kind::StaggeredWindow(window) => {
                let window = window.for_key($key);
                if window.fits_word() {
                    let $algorithm = &window;
                    $word
                } else {
                    let $other = &Kind::StaggeredWindow(window);
                    $wide
                }
            }
            $other => $wide,
        }
    };
}

impl MemoryStore {
    /// What [`Store::check`](crate::Store::check) answers, at once.
    #[inline]
    pub fn check_now(&self, key: &[u8], policy: &Policy, cost: u64) -> Decision {
        let id = self.hash.id(key, policy);
        let now_us = self.now_us();
        by_algorithm!(&policy.kind, key, {
            word(algorithm) => self.check_word(algorithm, id, now_us, cost),
            wide(kind) => self.check_wide_of(kind, key, id, now_us, cost),
        })
    }

    /// The same, with the decision left where it is wanted: it is not cheap to move.
    #[inline]
    pub fn check_now_into(&self, key: &[u8], policy: &Policy, cost: u64, decision: &mut Decision) {
        let id = self.hash.id(key, policy);
        self.check_into(id, key, policy, self.now_us(), cost, decision);
    }

    /// Decides and charges one of many requests, and leaves the decision where it is wanted.
    ///
    /// Returned by value it would be copied from the stack in larger pieces than it was written
    /// in, which stalls the processor for about 5 ns.
    #[inline]
    fn check_into(
        &self,
        id: CounterId,
        key: &[u8],
        policy: &Policy,
        now_us: u64,
        cost: u64,
        decision: &mut Decision,
    ) {
        by_algorithm!(&policy.kind, key, {
            word(algorithm) => self.check_word_into(algorithm, id, now_us, cost, decision),
            wide(kind) => *decision = self.check_wide_of(kind, key, id, now_us, cost),
        });
    }

    /// Decides and charges requests that have nothing to do with each other, at one instant.
    pub(crate) fn check_independent(&self, entries: &mut [Entry<'_>]) {
        let now_us = self.now_us();
        let id = |entry: &&mut Entry<'_>| self.hash.id(entry.key, entry.policy);
        self.fetch_ahead(entries.iter_mut(), id, |entry, id| {
            let decision = entry.decision.insert(Decision::UNDECIDED);
            self.check_into(id, entry.key, entry.policy, now_us, entry.cost, decision);
        });
    }

    /// What [`check_now`](Self::check_now) answers for each of `keys` at cost 1, all at one
    /// instant. `decisions` is emptied first, and then holds one per key.
    pub fn check_many_now<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        policy: &Policy,
        decisions: &mut Vec<Decision>,
    ) {
        let now_us = self.now_us();
        decisions.clear();
        decisions.resize(keys.len(), Decision::UNDECIDED);
        let id = |(key, _): &(&K, _)| self.hash.id(key.as_ref(), policy);
        self.fetch_ahead(keys.iter().zip(decisions), id, |(key, decision), id| {
            self.check_into(id, key.as_ref(), policy, now_us, 1, decision);
        });
    }

    /// Hands every item and its name to `check`, its line being on its way for some time by then:
    /// the misses of a group overlap.
    #[inline]
    fn fetch_ahead<T>(
        &self,
        mut items: impl Iterator<Item = T>,
        id: impl Fn(&T) -> CounterId,
        mut check: impl FnMut(T, CounterId),
    ) {
        loop {
            let mut group = ArrayVec::<(T, CounterId), LOOKAHEAD>::new();
            for item in items.by_ref().take(LOOKAHEAD) {
                let id = id(&item);
                self.table.prefetch(id);
                group.push((item, id));
            }
            if group.is_empty() {
                return;
            }
            for (item, id) in group {
                check(item, id);
            }
        }
    }

    // These two are functions of their own for each algorithm: together in one they would spill
    // their registers.

    #[inline(never)]
    pub(super) fn check_word<A: WordState>(
        &self,
        algorithm: &A,
        id: CounterId,
        now_us: u64,
        cost: u64,
    ) -> Decision {
        self.decide_word(algorithm, id, now_us, cost)
    }

    #[inline(never)]
    fn check_word_into<A: WordState>(
        &self,
        algorithm: &A,
        id: CounterId,
        now_us: u64,
        cost: u64,
        decision: &mut Decision,
    ) {
        *decision = self.decide_word(algorithm, id, now_us, cost);
    }

    /// The path of almost every check: no lock, one compare-and-swap, and for a denial none.
    #[inline(always)]
    fn decide_word<A: WordState>(
        &self,
        algorithm: &A,
        id: CounterId,
        now_us: u64,
        cost: u64,
    ) -> Decision {
        match self.step_word(algorithm, id, now_us, cost) {
            Ok(step) => algorithm.decision(&step, now_us),
            Err((decision, _)) => decision,
        }
    }

    /// The step that was stored. Where the counter was not in the table, the decision and what its
    /// charge is called.
    ///
    /// `now_us` may be behind the state, because another thread has charged it in the meantime: then
    /// the algorithm counts by the state, and admits no more than it should (`algorithm/debt.rs` has
    /// the proof for buckets).
    #[inline(always)]
    fn step_word<A: WordState>(
        &self,
        algorithm: &A,
        id: CounterId,
        now_us: u64,
        cost: u64,
    ) -> Result<Step<A::State>, (Decision, u64)> {
        let shift = algorithm.shift();
        let tag = id.tag(shift);
        let mut backoff = Backoff::default();
        loop {
            let Some(slot) = self.table.find(id, tag) else {
                match self.check_absent(algorithm, id, now_us, cost) {
                    Ok(decided) => return Err(decided),
                    Err(CounterLocation::Wide) => {
                        let wide = self.check_wide(algorithm, Some(algorithm), id, now_us, cost);
                        return Err((wide, 0));
                    }
                    Err(CounterLocation::Table | CounterLocation::New) => backoff.wait(),
                }
                continue;
            };
            let mut read = slot.read(tag);
            while let SlotRead::Word(reading) = read {
                let state = algorithm.unpack(WordParts::from_word(reading.word, shift));
                let step = algorithm.step(state, now_us, cost);
                let stored = match step.next {
                    Some(next) => slot.replace(reading, algorithm.to_word(next, &step.basis), tag),
                    None if slot.is_unchanged(reading) => Ok(()),
                    None => Err(slot.read(tag)),
                };
                match stored {
                    Ok(()) => return Ok(step),
                    Err(newer) => read = newer,
                }
            }
            backoff.wait();
        }
    }

    /// Decides and charges a counter that was not found in the table; or says where it is.
    ///
    /// The clock is read again, under the lock. An absent counter may have been there a moment ago
    /// and been overwritten as fresh by a thread with a later reading; counted from an earlier one,
    /// the time between the two would be spent twice. Only a thread that holds this lock can insert
    /// the counter, so a reading taken under it is later than that of whoever overwrote it.
    #[cold]
    #[inline(never)]
    fn check_absent<A: WordState>(
        &self,
        algorithm: &A,
        id: CounterId,
        now_us: u64,
        cost: u64,
    ) -> Result<(Decision, u64), CounterLocation> {
        // A peek, or a cost that can never pass: absent stays absent.
        let is_charge = (1..=algorithm.capacity()).contains(&cost);
        let guard = is_charge.then(|| self.shards.lock(id));
        let now_us = if is_charge { self.now_us() } else { now_us };
        let step = algorithm.step(A::State::default(), now_us, cost);
        let (whereabouts, stamp) = match (&guard, step.next) {
            (Some(guard), Some(next)) => {
                let mut words = [0; WORD_STATE_WORDS_MAX];
                A::to_words(next, &mut words);
                let word = algorithm.to_word(next, &step.basis);
                let whereabouts = self.insert(guard, algorithm, id, word, now_us);
                (whereabouts, algorithm.stamp(&words[..algorithm.words()]))
            }
            // Not reached: a fresh counter allows whatever its capacity does.
            (Some(_), None) => (CounterLocation::New, 0),
            (None, _) => (self.recall(algorithm, id, now_us), 0),
        };
        match whereabouts {
            CounterLocation::New => Ok((algorithm.decision(&step, now_us), stamp)),
            elsewhere => Err(elsewhere),
        }
    }

    /// Puts a counter into the table, under the lock of its shard, if it is nowhere yet.
    pub(super) fn insert(
        &self,
        guard: &ShardGuard<'_>,
        packed: &dyn PackedAlgorithm,
        id: CounterId,
        word: u64,
        now_us: u64,
    ) -> CounterLocation {
        let tag = id.tag(packed.word_shift());
        if self.table.find(id, tag).is_some() {
            return CounterLocation::Table;
        }
        let whereabouts = self.bring_back(guard, packed, id, now_us);
        if whereabouts != CounterLocation::New {
            return whereabouts;
        }
        let Some(mut free_slot) = self.table.free(id, now_us) else {
            return CounterLocation::Table;
        };
        self.count_eviction(free_slot.was_live);
        free_slot.guard.hand_over(tag, word);
        CounterLocation::New
    }

    /// Whatever does not fit a word. Not inline, so that what it takes to bind a kind to a key costs
    /// the others nothing.
    #[inline(never)]
    fn check_wide_of(
        &self,
        kind: &Kind,
        key: &[u8],
        id: CounterId,
        now_us: u64,
        cost: u64,
    ) -> Decision {
        match kind {
            Kind::SlidingLog(log) => return self.check_log(log, id, now_us, cost),
            Kind::Leased(leased) => return self.check_lease(leased, id, now_us, cost),
            Kind::WarmUp(warming) if warming.rungs().is_list() => {
                return self.check_warming_list(warming, id, cost);
            }
            _ => {}
        }
        let kind = kind.for_key(key);
        self.check_wide(kind.as_dyn(), kind.as_packed(), id, now_us, cost)
    }

    #[inline(never)]
    fn check_wide(
        &self,
        algorithm: &dyn Algorithm,
        packed: Option<&dyn PackedAlgorithm>,
        id: CounterId,
        now_us: u64,
        cost: u64,
    ) -> Decision {
        let mut before = [0; STATE_WORDS_MAX];
        let before = &mut before[..algorithm.words()];
        let guard = self.shards.lock(id);
        let is_found = self.load_wide(&guard, algorithm, packed, id, now_us, before);
        // As in `check_absent`: an absent counter is decided at an instant after it was forgotten.
        let now_us = if is_found { now_us } else { self.now_us() };
        let mut state = [0; STATE_WORDS_MAX];
        let state = &mut state[..algorithm.words()];
        state.copy_from_slice(before);
        let decision = algorithm.transition(state, Timestamp::from_micros(now_us), cost);
        if state != before {
            let used = UsedShare::from_remaining(algorithm.capacity(), decision.remaining);
            self.save_wide(&guard, algorithm, id, now_us, state, used);
        }
        decision
    }

    /// Makes one counter fresh, wherever it is.
    pub(super) fn reset_one(&self, id: CounterId, policy: &Policy) {
        let guard = self.shards.lock(id);
        let logs = policy.kind.as_log().map(|_| &self.lists);
        let lists = logs.or_else(|| policy.kind.as_leased().map(|_| &self.leases));
        if let Some(lists) = lists
            && let Some(entry) = lists.find(&guard, id)
        {
            lists.forget(&guard, entry);
        }
        // Beside a list there is the life of a key that warms up.
        let words = if lists.is_some() { LIFE_WORDS } else { policy.algorithm().words() };
        if let Some(place) = self.wide.find(&guard, id, words) {
            self.wide.forget(&guard, place);
        }
        self.close_refunds(&guard, id);
        let Some(packed) = policy.kind.as_packed() else {
            return;
        };
        let tag = id.tag(packed.word_shift());
        let mut backoff = Backoff::default();
        while let Some(slot) = self.table.find(id, tag) {
            match slot.read(tag) {
                SlotRead::Word(reading) if slot.replace(reading, 0, tag).is_ok() => return,
                SlotRead::Locked => backoff.wait(),
                SlotRead::Word(_) | SlotRead::Gone => {}
            }
        }
    }

    pub(super) fn count_eviction(&self, was_live: bool) {
        if was_live {
            self.forced_evictions.fetch_add(1, Ordering::Relaxed);
        }
    }
}
