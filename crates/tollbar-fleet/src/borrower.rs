//! Borrows tokens of hot keys in the background, and answers single entries from what it holds.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tollbar::{LoanHolding, LoanTerms, Policy, Store};

use crate::clock::BootClock;
use crate::heat::Heat;
use crate::holdings::{Counter, Holdings, Question, TakenTokens, Taking, is_hot};
use crate::stats::LendingStats;

/// The most keys for which tokens are held.
const HOLDINGS_MAX: usize = 4_096;
/// Holdings are divided over this many shards, and each shard has a lock.
const SHARDS: usize = 16;
/// The most questions that are under way at once. Further keys are checked exactly until one is answered.
const QUESTIONS_MAX: usize = 256;

/// Borrows for a [`LendingStore`](crate::LendingStore), and keeps the tokens that were lent.
pub(crate) struct Borrower {
    pub(crate) inner: Arc<dyn Store>,
    clock: Arc<dyn BootClock>,
    heat: Heat,
    shards: [Mutex<Holdings>; SHARDS],
    /// Keyed, so that no client can look for keys that meet in one place.
    hasher: RandomState,
    is_lending: AtomicBool,
    questions: Arc<Semaphore>,
    jitter: Mutex<Rng>,
}

impl Borrower {
    pub(crate) fn new(inner: Arc<dyn Store>, clock: Arc<dyn BootClock>, jitter_seed: u64) -> Self {
        Self {
            inner,
            clock,
            heat: Heat::new(),
            shards: std::array::from_fn(|_| Mutex::new(Holdings::new(HOLDINGS_MAX / SHARDS))),
            hasher: RandomState::new(),
            is_lending: AtomicBool::new(false),
            questions: Arc::new(Semaphore::new(QUESTIONS_MAX)),
            jitter: Mutex::new(Rng::with_seed(jitter_seed)),
        }
    }

    pub(crate) fn is_lending(&self) -> bool {
        self.is_lending.load(Ordering::Relaxed)
    }

    pub(crate) fn set_lending(&self, is_lending: bool) {
        self.is_lending.store(is_lending, Ordering::Relaxed);
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.clock.now_us()
    }

    /// Answers a request of `cost` from what is held, and asks for more where that runs low.
    pub(crate) fn take(
        self: &Arc<Self>,
        key: &[u8],
        policy: &Policy,
        terms: &LoanTerms,
        cost: u64,
    ) -> Taking {
        // No loan is that large, so it is no reason to ask for one.
        if cost > terms.tokens_max {
            return Taking::Exact;
        }
        let now_us = self.now_us();
        let counter = self.counter(key, policy);
        let answer = self.shard(counter.hash).take(counter, terms, cost, now_us);
        if let Some(question) = answer.question {
            self.ask(question);
        }
        if !matches!(answer.outcome, Taking::NotHeld) {
            return answer.outcome;
        }
        let rate = self.heat.offer(counter.hash, cost, now_us);
        if is_hot(&rate, terms, now_us) {
            let question = self.shard(counter.hash).promote(counter, terms, rate, now_us);
            if let Some(question) = question {
                self.ask(question);
            }
        }
        Taking::Exact
    }

    pub(crate) fn put_back(&self, taken: &TakenTokens) {
        self.shard(taken.hash()).put_back(taken, self.now_us());
    }

    /// Drops what is held of a counter, and what is on its way.
    pub(crate) fn forget(&self, key: &[u8], policy: &Policy) {
        let counter = self.counter(key, policy);
        self.shard(counter.hash).forget(counter);
    }

    pub(crate) fn holding(&self, key: &[u8], policy: &Policy) -> Option<LoanHolding> {
        let counter = self.counter(key, policy);
        let now_us = self.now_us();
        let state = self.shard(counter.hash).state(counter, now_us)?;
        let left = |until_us: Option<u64>| {
            Duration::from_micros(until_us.unwrap_or(0).saturating_sub(now_us))
        };
        Some(LoanHolding {
            tokens: state.tokens,
            ends_in: left(state.end_us),
            paused_for: left(state.paused_until_us),
        })
    }

    pub(crate) fn stats(&self) -> LendingStats {
        let now_us = self.now_us();
        let mut stats = LendingStats { is_lending: self.is_lending(), ..LendingStats::default() };
        for shard in &self.shards {
            let mut holdings = lock(shard);
            let keys = holdings.sweep(now_us);
            stats.add(&holdings.fates, keys);
        }
        stats
    }

    /// Asks the store for a loan in the background. Without a runtime, or with too many questions under way, the key
    /// is checked exactly for now.
    fn ask(self: &Arc<Self>, question: Question) {
        let permit = Arc::clone(&self.questions).try_acquire_owned();
        let (Ok(permit), Ok(runtime)) = (permit, Handle::try_current()) else {
            self.shard(question.hash).withdraw(&question);
            return;
        };
        let borrower = Arc::clone(self);
        #[expect(
            clippy::disallowed_methods,
            reason = "a question that is lost is asked again after its term, and a loan that is lost is forfeited"
        )]
        runtime.spawn(async move {
            let _permit = permit;
            borrower.borrow(&question).await;
        });
    }

    async fn borrow(&self, question: &Question) {
        let Question { key, policy, terms, tokens, .. } = question;
        let answer = self.inner.lend(key, policy, terms.request(*tokens)).await.ok();
        let jitter_ppm = lock(&self.jitter).u32(0..=1_000_000);
        self.shard(question.hash).add(question, answer, jitter_ppm, self.now_us());
    }

    fn counter<'a>(&self, key: &'a [u8], policy: &'a Policy) -> Counter<'a> {
        Counter { hash: self.hasher.hash_one((key, policy.identity())), key, policy }
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Holdings> {
        // The sketch goes by the lowest bits and the highest.
        lock(&self.shards[(hash >> 32) as usize % SHARDS])
    }
}

impl fmt::Debug for Borrower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Borrower");
        debug.field("inner", &self.inner).field("is_lending", &self.is_lending);
        debug.finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
