//! What the tests of this crate share.

use std::sync::Arc;
use std::time::Duration;

use tollbar::store::{Adjustment, ReservationId};
use tollbar::{
    Batch, Clock, Decision, ManualClock, MemoryStore, Outcome, Policy, Reply, Store, StoreError,
    Timestamp,
};
use tollbar_rules::{Engine, Request, RuleFile, RuleSet, Verdict};

/// A Sunday in 2023; 1,700,000,000 is divisible by 100 s, so windows of 100 s begin at it.
pub(crate) const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

pub(crate) fn rules(yaml: &str) -> RuleSet {
    RuleFile::parse("rules.yaml", yaml).unwrap_or_else(|error| panic!("{error}")).rules
}

pub(crate) fn engine(yaml: &str) -> (Engine, ManualClock) {
    let clock = ManualClock::at(START);
    // A small store: properties make hundreds of engines.
    let store = MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build();
    (Engine::builder(rules(yaml)).store(Arc::new(store)).clock(clock.clone()).build(), clock)
}

pub(crate) fn check(engine: &Engine, cost: u64) -> Verdict {
    let attributes = [("ip", "203.0.113.7")];
    let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
    engine.check(&request.with_cost(cost))
}

/// A store that cannot answer; but where it has a queue, all are let into it.
#[derive(Debug)]
pub(crate) struct Down {
    pub(crate) queue_us: Option<u64>,
}

fn down<'a, T>() -> Reply<'a, T> {
    Reply::Ready(Err(StoreError::Unavailable { source: Arc::new(std::fmt::Error) }))
}

impl Store for Down {
    fn check<'a>(&'a self, _: &'a [u8], _: &'a Policy, _: u64) -> Reply<'a, Decision> {
        down()
    }

    fn check_all<'a, 'e: 'a>(&'a self, mut batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        let Some(queue_us) = self.queue_us else {
            return down();
        };
        for entry in batch.entries_mut() {
            let decision = Decision::new(Outcome::Allow, 5, 4, START);
            entry.decide(decision.with_delay_us(queue_us));
        }
        Reply::Ready(Ok(()))
    }

    fn refund<'a>(&'a self, _: &'a [u8], _: &'a Policy, _: u64, _: u64) -> Reply<'a, u64> {
        down()
    }

    fn renew<'a>(&'a self, _: &'a [u8], _: &'a Policy, _: u64) -> Reply<'a, Option<Timestamp>> {
        down()
    }

    fn settle<'a, 'e: 'a>(
        &'a self,
        _: ReservationId,
        _: &'a mut [Adjustment<'e>],
    ) -> Reply<'a, bool> {
        down()
    }

    fn reset<'a>(&'a self, _: &'a [u8], _: &'a Policy) -> Reply<'a, ()> {
        down()
    }
}

/// An engine whose store cannot answer.
pub(crate) fn engine_without_store(yaml: &str) -> Engine {
    let store = Arc::new(Down { queue_us: None });
    Engine::builder(rules(yaml)).store(store).clock(ManualClock::at(START)).build()
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

/// A store that answers, but later.
#[derive(Debug)]
pub(crate) struct Later {
    store: MemoryStore,
    delay: Duration,
}

impl Later {
    pub(crate) fn by(delay: Duration) -> Self {
        let clock = TokioClock::start();
        Self { store: MemoryStore::builder().max_keys(1_000).clock(clock).build(), delay }
    }

    fn reply<'a, T: Send + 'a>(
        &'a self,
        ask: impl FnOnce(&'a MemoryStore) -> Reply<'a, T> + Send + 'a,
    ) -> Reply<'a, T> {
        Reply::Pending(Box::pin(async move {
            tokio::time::sleep(self.delay).await;
            ask(&self.store).wait()
        }))
    }
}

impl Store for Later {
    fn check<'a>(&'a self, key: &'a [u8], policy: &'a Policy, cost: u64) -> Reply<'a, Decision> {
        self.reply(move |store| store.check(key, policy, cost))
    }

    fn check_all<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        self.reply(move |store| store.check_all(batch))
    }

    fn refund<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
        amount: u64,
    ) -> Reply<'a, u64> {
        self.reply(move |store| store.refund(key, policy, stamp, amount))
    }

    fn renew<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
    ) -> Reply<'a, Option<Timestamp>> {
        self.reply(move |store| store.renew(key, policy, stamp))
    }

    fn settle<'a, 'e: 'a>(
        &'a self,
        id: ReservationId,
        adjustments: &'a mut [Adjustment<'e>],
    ) -> Reply<'a, bool> {
        self.reply(move |store| store.settle(id, adjustments))
    }

    fn reset<'a>(&'a self, key: &'a [u8], policy: &'a Policy) -> Reply<'a, ()> {
        self.reply(move |store| store.reset(key, policy))
    }
}
