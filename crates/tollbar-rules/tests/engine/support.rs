//! An engine, a line that is a request, and its verdict in a word or two.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollbar::store::block_on;
use tollbar::{
    Accuracy, Batch, Entry, LoanHolding, ManualClock, MemoryStore, Outcome, Policy, Reply, Source,
    Store, Timestamp,
};
use tollbar_rules::{
    Admission, AsyncEngine, Criticality, Engine, Reason, Request, RuleFile, RuleSet, Verdict,
};
use tollbar_testkit::failing_store::FailingStore;

pub(crate) fn rules(text: &str) -> RuleSet {
    RuleFile::parse("rules.yaml", text).unwrap_or_else(|error| panic!("{error}")).rules
}

pub(crate) fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000))
}

pub(crate) fn engine(text: &str) -> Engine {
    engine_at(text, &clock())
}

pub(crate) fn engine_at(text: &str, clock: &ManualClock) -> Engine {
    Engine::builder(rules(text)).clock(clock.clone()).build()
}

/// An engine whose store cannot be reached.
pub(crate) fn engine_without_store(text: &str) -> AsyncEngine {
    engine_over(FailingStore::unavailable(), text)
}

/// An engine whose store answers every question with one error.
pub(crate) fn engine_over(store: impl Store + 'static, text: &str) -> AsyncEngine {
    AsyncEngine::builder(rules(text), Arc::new(store))
        .clock(clock())
        .receipt_secret([1; 32])
        .build()
        .unwrap()
}

/// `GET /path name=value ..`
pub(crate) fn ask<T>(text: &str, then: impl FnOnce(&Request<'_>) -> T) -> T {
    let mut words = text.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let mut attributes: Vec<(&str, &str)> = Vec::new();
    let mut request = Request::new(method, path).unwrap();
    for word in words {
        match word.split_once('=').unwrap() {
            ("cost", cost) => request = request.with_cost(cost.parse().unwrap()),
            ("criticality", name) => {
                request = request.with_criticality(Criticality::of_name(name).unwrap());
            }
            ("id", id) => request = request.with_request_id(id),
            pair => attributes.push(pair),
        }
    }
    then(&request.with_attributes(&attributes).unwrap())
}

pub(crate) fn check(engine: &AsyncEngine, text: &str) -> Verdict {
    ask(text, |request| block_on(engine.check(request)))
}

pub(crate) fn admit(engine: &AsyncEngine, text: &str) -> Admission {
    ask(text, |request| block_on(engine.admit(request, None)))
}

pub(crate) fn reserve(engine: &AsyncEngine, text: &str, ttl: Duration) -> Admission {
    ask(text, |request| block_on(engine.admit(request, Some(ttl))))
}

/// The verdict in a word or two: `allow per_client 9`, `deny per_client`, `allow (no rule)`.
pub(crate) fn answer(verdict: &Verdict) -> String {
    let outcome = match verdict.outcome() {
        Outcome::Allow => "allow",
        Outcome::Deny { .. } => "deny",
        Outcome::Busy => "busy",
        Outcome::Never => "never",
    };
    let reason = match verdict.reason() {
        Reason::NoRule => "(no rule)".to_owned(),
        Reason::Unlimited(rule) => format!("{} (unlimited)", rule.name),
        Reason::Exempt(rule, _) => format!("{} (exempt)", rule.name),
        Reason::MissingAttribute { rule, attribute } => format!("{} (no {attribute})", rule.name),
        Reason::InvalidCost { rule, attribute } => format!("{} (bad {attribute})", rule.name),
        Reason::AmbiguousPath => "(ambiguous path)".to_owned(),
        Reason::TooManyLimits { count } => format!("({count} limits)"),
        Reason::RequestIdReused => "(id reused)".to_owned(),
        Reason::ReceiptTooLong => "(too long)".to_owned(),
        Reason::Limits => {
            let binding = verdict.binding().unwrap();
            let remaining = if binding.decision().is_allowed() {
                binding.remaining().map_or_else(|| " ?".to_owned(), |tokens| format!(" {tokens}"))
            } else {
                String::new()
            };
            format!("{}{remaining}", binding.rule().name)
        }
        Reason::CrossSlot => "(several slots)".to_owned(),
        Reason::Unsupported => "(unsupported)".to_owned(),
        reason @ Reason::Banned { .. } => panic!("{reason:?}"),
    };
    format!("{outcome} {reason}")
}

#[track_caller]
pub(crate) fn expect(engine: &AsyncEngine, steps: &[(&str, &str)]) {
    for (step, (request, expected)) in steps.iter().enumerate() {
        assert_eq!(answer(&check(engine, request)), *expected, "step {step}: {request}");
    }
}

/// A node of a fleet: counters that all nodes share, as in Redis, and those that it counts by itself. It lends
/// nothing.
#[derive(Debug)]
pub(crate) struct NodeStore {
    shared: Arc<MemoryStore>,
    own: MemoryStore,
    is_down: AtomicBool,
    /// The limit and the accuracy of each entry that it was asked for.
    asked: Mutex<Vec<(u64, Accuracy)>>,
}

impl NodeStore {
    pub(crate) fn new(shared: &Arc<MemoryStore>, clock: &ManualClock) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            own: MemoryStore::builder().clock(clock.clone()).max_keys(1_000).build(),
            is_down: AtomicBool::new(false),
            asked: Mutex::default(),
        })
    }

    pub(crate) fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::Relaxed);
    }

    /// What it was asked since it was last looked at.
    pub(crate) fn take_asked(&self) -> Vec<(u64, Accuracy)> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Store for NodeStore {
    fn decide<'a, 'e: 'a>(&'a self, mut batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        let asked = |entry: &Entry<'_>| (entry.policy().limit(), entry.accuracy());
        self.asked.lock().unwrap().extend(batch.entries().iter().map(asked));
        let is_local = |entry: &Entry<'_>| entry.accuracy() == Accuracy::Local;
        if batch.entries().iter().all(is_local) {
            batch.entries_mut().iter_mut().for_each(|entry| entry.set_source(Source::Local));
            return self.own.decide(batch);
        }
        if self.is_down.load(Ordering::Relaxed) {
            return Reply::Ready(Err(FailingStore::unavailable().0));
        }
        self.shared.decide(batch)
    }

    /// As if it had borrowed.
    fn loan_holding(&self, _: &[u8], _: &Policy) -> Option<LoanHolding> {
        let (ends_in, paused_for) = (Duration::from_millis(1), Duration::ZERO);
        Some(LoanHolding { tokens: 7, ends_in, paused_for })
    }
}
