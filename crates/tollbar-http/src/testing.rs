//! What the tests of this crate share.

use std::sync::Arc;

use tollbar::store::{Adjustment, ReservationId};
use tollbar::{Batch, Decision, ManualClock, Policy, Reply, Store, StoreError, Timestamp};
use tollbar_rules::{Engine, Request, RuleFile, RuleSet, Verdict};

/// A Sunday in 2023; 1,700,000,000 is divisible by 100 s, so windows of 100 s begin at it.
pub(crate) const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

pub(crate) fn rules(yaml: &str) -> RuleSet {
    RuleFile::parse("rules.yaml", yaml).unwrap_or_else(|error| panic!("{error}")).rules
}

pub(crate) fn engine(yaml: &str) -> (Engine, ManualClock) {
    let clock = ManualClock::at(START);
    (Engine::builder(rules(yaml)).clock(clock.clone()).build(), clock)
}

pub(crate) fn check(engine: &Engine, cost: u64) -> Verdict {
    let attributes = [("ip", "203.0.113.7")];
    let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
    engine.check(&request.with_cost(cost))
}

/// A store that cannot answer.
#[derive(Debug)]
pub(crate) struct Down;

fn down<'a, T>() -> Reply<'a, T> {
    Reply::Ready(Err(StoreError::Unavailable { source: Arc::new(std::fmt::Error) }))
}

impl Store for Down {
    fn check<'a>(&'a self, _: &'a [u8], _: &'a Policy, _: u64) -> Reply<'a, Decision> {
        down()
    }

    fn check_all<'a, 'e: 'a>(&'a self, _: Batch<'a, 'e>) -> Reply<'a, ()> {
        down()
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
    Engine::builder(rules(yaml)).store(Arc::new(Down)).clock(ManualClock::at(START)).build()
}
