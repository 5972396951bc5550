//! Denials that are known to hold: a client that keeps asking is answered here, and costs the server
//! next to nothing.
//!
//! A denial with a retry-after holds until then, whatever others do; it only gets longer. So it is told
//! again, by as much shorter as time has passed since it was *asked for*: the server decided later than
//! that. It lives for a second at most, because a reset or a refund elsewhere may end it early.
//!
//! An entry answers the same question, and the same at a higher cost, whose retry-after is then a lower
//! bound. Another number in the policy is another question. What has no retry-after is never kept.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Decision, Outcome};

/// The longest a denial is told again.
const LIFE_US_MAX: u64 = 1_000_000;

/// A table of denials, each in the one slot that its question hashes to: the newest stays.
#[derive(Debug)]
pub struct DenyCache {
    slots: Box<[Mutex<Option<CachedDenial>>]>,
    hasher: RandomState,
    /// Denials from before the last reset do not count.
    generation: AtomicU64,
}

#[derive(Debug)]
struct CachedDenial {
    question: Box<[u8]>,
    generation: u64,
    cost: u64,
    sent_us: u64,
    ends_us: u64,
    decisions: Box<[Decision]>,
}

/// A question that has been sent, and what to remember its answer by.
#[derive(Debug)]
pub struct SentRequest {
    question: Box<[u8]>,
    generation: u64,
    cost: u64,
    at_us: u64,
}

impl DenyCache {
    /// A cache with room for `denials_max` denials; `None` where that is 0.
    #[must_use]
    pub fn with_capacity(denials_max: usize) -> Option<Self> {
        (denials_max > 0).then(|| Self {
            slots: (0..denials_max).map(|_| Mutex::new(None)).collect(),
            hasher: RandomState::new(),
            generation: AtomicU64::new(0),
        })
    }

    /// What `question` at `cost` is answered at `now_us`, handed to `emit` one by one; false where that
    /// is not known.
    pub fn answer(
        &self,
        question: &[u8],
        cost: u64,
        now_us: u64,
        emit: impl FnMut(Decision),
    ) -> bool {
        let slot = self.slot(question);
        let Some(denial) = slot.as_ref() else {
            return false;
        };
        let is_it = *denial.question == *question
            && denial.cost <= cost
            && (denial.sent_us..denial.ends_us).contains(&now_us)
            && denial.generation == self.generation.load(Ordering::Relaxed);
        if is_it {
            let elapsed_us = now_us - denial.sent_us;
            denial.decisions.iter().map(|decision| aged(decision, elapsed_us)).for_each(emit);
        }
        is_it
    }

    /// To be called before the question is sent.
    pub fn start_request(&self, question: Box<[u8]>, cost: u64, now_us: u64) -> SentRequest {
        let generation = self.generation.load(Ordering::Relaxed);
        SentRequest { question, generation, cost, at_us: now_us }
    }

    /// Keeps what a question was answered, if it is a denial that holds for some time.
    pub fn record(&self, request: SentRequest, decisions: &[Decision]) {
        let SentRequest { question, generation, cost, at_us: sent_us } = request;
        let retries = decisions.iter().filter_map(|decision| match decision.outcome() {
            Outcome::Deny { retry_after_us } => Some(retry_after_us),
            _ => None,
        });
        // The first that ends ends them all: none may say that it is over.
        let Some(least_us) = retries.min() else {
            return;
        };
        let ends_us = sent_us.saturating_add(least_us.min(LIFE_US_MAX));
        let mut slot = self.slot(&question);
        let decisions = decisions.into();
        *slot = Some(CachedDenial { question, generation, cost, sent_us, ends_us, decisions });
    }

    /// A counter was made fresh: whoever it denied is asked for anew.
    pub fn forget_all(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    fn slot(&self, question: &[u8]) -> MutexGuard<'_, Option<CachedDenial>> {
        let at = self.hasher.hash_one(question) % self.slots.len() as u64;
        // A slot is replaced whole, so there is nothing that could be half done.
        self.slots[at as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same decision when so much of its retry-after is over.
fn aged(decision: &Decision, elapsed_us: u64) -> Decision {
    let Outcome::Deny { retry_after_us } = decision.outcome() else {
        return *decision;
    };
    let outcome = Outcome::Deny { retry_after_us: retry_after_us - elapsed_us.min(retry_after_us) };
    Decision::new(outcome, decision.limit, decision.remaining, decision.reset_at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;

    fn denied(retry_after_us: u64) -> Decision {
        Decision::new(Outcome::Deny { retry_after_us }, 10, 3, Timestamp::from_micros(99))
    }

    fn cache_with(cost: u64, sent_us: u64, decisions: &[Decision]) -> DenyCache {
        let cache = DenyCache::with_capacity(16).unwrap();
        cache.record(cache.start_request(b"question".as_slice().into(), cost, sent_us), decisions);
        cache
    }

    fn emitted(
        cache: &DenyCache,
        question: &[u8],
        cost: u64,
        now_us: u64,
    ) -> Option<Vec<Decision>> {
        let mut emitted = Vec::new();
        cache.answer(question, cost, now_us, |decision| emitted.push(decision)).then_some(emitted)
    }

    #[test]
    fn a_denial_is_told_again_until_its_time_is_up_counted_from_when_it_was_asked_for() {
        let cache = cache_with(5, 1_000, &[denied(400)]);
        assert_eq!(emitted(&cache, b"question", 5, 1_000), Some(vec![denied(400)]));
        assert_eq!(emitted(&cache, b"question", 5, 1_399), Some(vec![denied(1)]));
        assert_eq!(emitted(&cache, b"question", 5, 1_400), None);
    }

    #[test]
    fn it_answers_for_its_cost_and_above_and_for_no_other_question() {
        let cache = cache_with(5, 1_000, &[denied(400)]);
        assert_eq!(emitted(&cache, b"question", 4, 1_001), None);
        assert!(emitted(&cache, b"question", 6, 1_001).is_some());
        assert_eq!(emitted(&cache, b"questions", 5, 1_001), None);
    }

    #[test]
    fn it_lives_for_a_second_at_most_and_not_where_the_clock_goes_back() {
        let cache = cache_with(1, 5, &[denied(u64::MAX)]);
        assert!(emitted(&cache, b"question", 1, 1_000_004).is_some());
        assert_eq!(emitted(&cache, b"question", 1, 1_000_005), None);
        assert_eq!(emitted(&cache, b"question", 1, 4), None);
    }

    #[test]
    fn a_cache_keeps_as_many_denials_as_it_has_room_for() {
        assert!(DenyCache::with_capacity(0).is_none());
        for denials_max in [1, 2] {
            let cache = DenyCache::with_capacity(denials_max).unwrap();
            let questions: Vec<[u8; 1]> = (0..64).map(|number| [number]).collect();
            for question in &questions {
                cache.record(cache.start_request(Box::new(*question), 1, 5), &[denied(400)]);
            }
            let known =
                questions.iter().filter(|question| emitted(&cache, *question, 1, 6).is_some());
            assert_eq!(known.count(), denials_max);
        }
    }

    #[test]
    fn only_denials_that_know_their_end_are_kept() {
        for outcome in [Outcome::Allow, Outcome::Busy, Outcome::Never] {
            let decision = Decision::new(outcome, 10, 3, Timestamp::ZERO);
            assert_eq!(emitted(&cache_with(1, 5, &[decision]), b"question", 1, 6), None);
        }
        // Of several decisions of one request, some may be.
        let allowed = Decision::new(Outcome::Allow, 10, 3, Timestamp::ZERO);
        let cache = cache_with(1, 5, &[allowed, denied(300), denied(200)]);
        assert_eq!(
            emitted(&cache, b"question", 1, 105),
            Some(vec![allowed, denied(200), denied(100)])
        );
        assert_eq!(emitted(&cache, b"question", 1, 205), None);
    }

    #[test]
    fn a_reset_ends_what_was_sent_before_it() {
        let cache = DenyCache::with_capacity(16).unwrap();
        let request = cache.start_request(b"question".as_slice().into(), 1, 5);
        cache.forget_all();
        cache.record(request, &[denied(400)]);
        assert_eq!(emitted(&cache, b"question", 1, 6), None);
    }
}
