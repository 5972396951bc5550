//! What the tests of this crate share.

use std::sync::Arc;
use std::time::Duration;

use tollbar::store::block_on;
use tollbar::{Clock, ManualClock, MemoryStore, Timestamp};
use tollbar_rules::{AsyncEngine, Engine, Request, RuleFile, RuleSet, Verdict};
use tollbar_testkit::later_store::LaterStore;

/// A Sunday in 2023; 1,700,000,000 is divisible by 100 s, so windows of 100 s begin at it.
pub(crate) const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

pub(crate) fn rules(yaml: &str) -> RuleSet {
    RuleFile::parse("rules.yaml", yaml).unwrap_or_else(|error| panic!("{error}")).rules
}

pub(crate) fn engine(yaml: &str) -> (Engine, ManualClock) {
    engine_of(rules(yaml))
}

pub(crate) fn engine_of(rules: RuleSet) -> (Engine, ManualClock) {
    let clock = ManualClock::at(START);
    // A small store: properties make hundreds of engines.
    let store = MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build();
    (Engine::builder(rules).store(Arc::new(store)).clock(clock.clone()).build(), clock)
}

pub(crate) fn check(engine: &AsyncEngine, cost: u64) -> Verdict {
    let attributes = [("ip", "203.0.113.7")];
    let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
    block_on(engine.check(&request.with_cost(cost)))
}

/// An engine whose store cannot answer.
pub(crate) fn engine_without_store(yaml: &str) -> AsyncEngine {
    let store = LaterStore::new(Arc::new(MemoryStore::builder().max_keys(1).build()));
    store.set_down(true);
    AsyncEngine::builder(rules(yaml), Arc::new(store))
        .clock(ManualClock::at(START))
        .build()
        .unwrap()
}

/// A clock that goes with tokio's, which tests pause.
#[derive(Debug)]
pub(crate) struct TokioClock(tokio::time::Instant);

impl TokioClock {
    pub(crate) fn start() -> Self {
        Self(tokio::time::Instant::now())
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        START.after(self.0.elapsed())
    }
}

/// A store that answers, but later, by tokio's clock.
pub(crate) fn later_by(delay: Duration) -> LaterStore {
    let inner = MemoryStore::builder().max_keys(1_000).clock(TokioClock::start()).build();
    LaterStore::new(Arc::new(inner)).with_delay(move || tokio::time::sleep(delay))
}
