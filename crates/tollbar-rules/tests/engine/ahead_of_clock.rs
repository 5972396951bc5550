//! Counters that owe more than their policy can: found, counted, told once, and made fresh when somebody asks for it.

use std::sync::Arc;
use std::time::Duration;

use tollbar::store::{Adjustment, ReservationRef, block_on};
use tollbar::{
    Batch, Clock, Decision, Feature, ManualClock, MemoryStore, Policy, Reply, Store, StoreError,
    Timestamp,
};
use tollbar_rules::{AsyncEngine, Engine};
use tollbar_testkit::later_store::LaterStore;

use crate::support::{answer, check, clock, engine_at, reserve, rules};

const DAY: Duration = Duration::from_hours(24);
const TEN_MINUTES: Duration = Duration::from_mins(10);

/// What a rule says, with a limit of five a minute.
const RULES: [&str; 9] = [
    "limit: 5/min, algorithm: token_bucket",
    "limit: 5/min, algorithm: leaky_bucket",
    "limit: 5/min, algorithm: leaky_queue, queue: 4",
    "limit: 5/min, algorithm: fixed_window",
    "limit: 5/min, algorithm: fixed_window, staggered: true",
    "limit: 5/min, algorithm: sliding_window_counter",
    "limit: 5/min, algorithm: sliding_window_strict",
    "limit: 5/min, algorithm: sliding_window_log",
    "limit: 5/min, algorithm: token_bucket, warm_up: { start: 4, over: 1h, steps: 2 }",
];

/// By which way a request is decided: alone, as one of several, over a store that answers later.
const WAYS: [&str; 3] = ["alone", "together", "later"];

fn step_back(clock: &ManualClock, by: Duration) {
    let by_us = u64::try_from(by.as_micros()).unwrap();
    clock.set(Timestamp::from_micros(clock.now().as_micros() - by_us));
}

fn memory(clock: &ManualClock) -> Arc<MemoryStore> {
    Arc::new(MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build())
}

fn engine_over(rule: &str, way: &str, clock: &ManualClock) -> AsyncEngine {
    let more = if way == "together" { ", { name: other, limit: 999/min }" } else { "" };
    let text = format!("rules: [{{ name: a, {rule} }}{more}]");
    let store: Arc<dyn Store> = match way {
        "later" => Arc::new(LaterStore::new(memory(clock))),
        _ => memory(clock),
    };
    AsyncEngine::builder(rules(&text), store).clock(clock.clone()).build().unwrap()
}

fn passes(engine: &AsyncEngine) -> bool {
    check(engine, "GET / user=7").is_allowed()
}

/// How many requests pass until one is denied.
fn exhaust(engine: &AsyncEngine) -> usize {
    (0..100).take_while(|_| passes(engine)).count()
}

/// A clock that had run a day ahead left clients denied for a day, and nothing said why.
#[test]
fn a_counter_ahead_of_the_clock_is_found_and_made_fresh_when_that_is_asked_for() {
    for rule in RULES {
        for way in WAYS {
            let clock = clock();
            let engine = engine_over(rule, way, &clock);
            clock.advance(DAY);
            let fresh = exhaust(&engine);
            assert!(fresh >= 4, "{rule} {way}");
            assert_eq!(engine.ahead_of_clock().denials, 0, "{rule} {way}: a usual denial");

            step_back(&clock, DAY);
            assert!(!passes(&engine) && !passes(&engine), "{rule} {way}");
            let found = engine.ahead_of_clock();
            assert_eq!((found.denials, found.cleared), (2, 0), "{rule} {way}");
            let newest = found.newest.unwrap();
            assert_eq!((&*newest.rule, newest.at), ("a", clock.now()));
            let hours = newest.by.as_secs_f64() / 3_600.0;
            assert!((22.9..24.1).contains(&hours), "{rule} {way}: {hours} h");

            engine.clear_ahead_for(TEN_MINUTES);
            assert!(!passes(&engine), "{rule} {way}: the denial stands");
            assert_eq!(exhaust(&engine), fresh, "{rule} {way}: the counter is fresh");
            let found = engine.ahead_of_clock();
            assert_eq!((found.denials, found.cleared, found.clear_failures), (3, 1, 0));
            assert_eq!(found.clearing_until, Some(clock.now().after(TEN_MINUTES)));
        }
    }
}

#[test]
fn after_its_time_is_up_nothing_is_made_fresh() {
    let clock = clock();
    let engine = engine_at("rules: [{ name: a, limit: 5/min }]", &clock);
    clock.advance(DAY);
    exhaust(&engine);
    step_back(&clock, DAY);
    engine.clear_ahead_for(TEN_MINUTES);
    clock.advance(TEN_MINUTES);
    assert!(!passes(&engine) && !passes(&engine));
    let found = engine.ahead_of_clock();
    assert_eq!((found.denials, found.cleared, found.clearing_until), (2, 0, None));
}

/// Threads hold on to a reading of the clock for a moment, and machines of a fleet differ by some milliseconds.
#[test]
fn a_second_is_forgiven_and_a_microsecond_more_is_not() {
    for (ahead_us, denials) in [(0, 0), (1_000_000, 0), (1_000_001, 1)] {
        let clock = clock();
        let engine = engine_at("rules: [{ name: a, limit: 1/s, burst: 1 }]", &clock);
        let ahead = Duration::from_micros(ahead_us);
        clock.advance(ahead);
        assert!(passes(&engine));
        step_back(&clock, ahead);
        assert!(!passes(&engine));
        assert_eq!(engine.ahead_of_clock().denials, denials, "{ahead_us} us");
    }
}

#[test]
fn a_lowered_burst_leaves_counters_that_owe_more_than_they_can() {
    let clock = clock();
    let text = |burst: u32| format!("rules: [{{ name: a, limit: 60/min, burst: {burst} }}]");
    let engine = engine_at(&text(600), &clock);
    assert!(check(&engine, "GET / user=7 cost=600").is_allowed());
    engine.replace(rules(&text(6)));
    assert!(!passes(&engine));
    // 600 s are owed, all but five of them have to be paid, and six can be owed.
    let newest = engine.ahead_of_clock().newest.unwrap();
    assert_eq!(newest.by, Duration::from_secs(595 - 6));
}

#[test]
fn each_rule_is_told_once_and_counted_for_ever() {
    let clock = clock();
    let text = "rules: [{ name: a, match: { path: /a }, limit: 1/min }, { name: b, match: { path: /b }, tiers: { gold: 1/min, default: gold } }]";
    let engine = engine_at(text, &clock);
    let requests = ["GET /a user=7", "GET /b user=7 tier=gold"];
    clock.advance(DAY);
    for request in requests {
        assert!(check(&engine, request).is_allowed());
    }
    step_back(&clock, DAY);
    for request in [requests[0], requests[1], requests[1]] {
        assert!(!check(&engine, request).is_allowed());
    }
    let told: Vec<_> =
        engine.take_ahead_news().first.into_iter().map(|denial| denial.rule).collect();
    assert_eq!(told.iter().map(|name| &**name).collect::<Vec<_>>(), ["a", "b"]);
    // Rules that change around them do not make them new.
    engine.replace(rules(&text.replace("name: a,", "name: a, priority: 1,")));
    assert!(!check(&engine, requests[0]).is_allowed());
    assert!(engine.take_ahead_news().first.is_empty());
    let tallies = engine.tallies();
    let of = |name: &str| {
        tallies
            .iter()
            .filter(|tally| *tally.rule.name == *name)
            .map(|tally| tally.counts.ahead_of_clock)
            .sum::<u64>()
    };
    assert_eq!((of("a"), of("b"), engine.ahead_of_clock().denials), (2, 2, 4));
}

#[test]
fn what_denies_nobody_is_not_found() {
    let clock = clock();
    let text = "rules: [{ name: a, mode: shadow, limit: 1/min }, { name: b, algorithm: concurrency, limit: 1 }]";
    let engine = engine_at(text, &clock);
    clock.advance(DAY);
    let held = check(&engine, "GET / user=7");
    step_back(&clock, DAY);
    engine.clear_ahead_for(TEN_MINUTES);
    assert_eq!(answer(&check(&engine, "GET / user=7")), "busy b");
    let found = engine.ahead_of_clock();
    assert_eq!((found.denials, found.cleared), (0, 0));
    drop(held);
}

#[test]
fn only_the_counters_that_deny_are_made_fresh() {
    let clock = clock();
    let text = "rules: [{ name: a, limit: 1/min }, { name: b, limit: 9/min }, { name: c, mode: shadow, limit: 1/min }]";
    let engine = engine_at(text, &clock);
    clock.advance(DAY);
    assert_eq!(answer(&check(&engine, "GET / user=7")), "allow a 0");
    step_back(&clock, DAY);
    engine.clear_ahead_for(TEN_MINUTES);
    assert_eq!(answer(&check(&engine, "GET / user=7")), "deny a");
    let passed = check(&engine, "GET / user=7");
    assert_eq!(answer(&passed), "allow a 0");
    assert_eq!(passed.would_deny().count(), 1, "the shadow owes as before");
    assert_eq!(engine.ahead_of_clock().cleared, 1);
}

#[test]
fn a_reservation_that_is_denied_clears_as_well() {
    let clock = clock();
    let engine = engine_at("rules: [{ name: a, limit: 1/min }]", &clock);
    let reserves = || reserve(&engine, "GET / user=7", TEN_MINUTES).verdict.is_allowed();
    clock.advance(DAY);
    assert!(reserves());
    step_back(&clock, DAY);
    engine.clear_ahead_for(TEN_MINUTES);
    assert!(!reserves() && reserves());
    assert_eq!(engine.ahead_of_clock().cleared, 1);
}

#[test]
fn what_was_denied_without_a_rule_is_found_and_made_fresh() {
    let clock = clock();
    let store = memory(&clock);
    let rules = rules("rules: [{ name: a, limit: 1/min }]");
    let engine = Engine::builder(rules).clock(clock.clone()).store(store.clone()).build();
    let policy = Policy::token_bucket("1/s").unwrap();
    let denied = |wait: Duration| {
        block_on(engine.denied_elsewhere("a command", b"key", &policy, wait));
    };
    assert!(store.check(b"key", &policy, 1).wait().unwrap().is_allowed());
    engine.clear_ahead_for(TEN_MINUTES);
    denied(Duration::from_secs(2));
    assert_eq!(engine.ahead_of_clock().denials, 0);
    assert!(!store.check(b"key", &policy, 1).wait().unwrap().is_allowed());
    denied(DAY);
    assert!(store.check(b"key", &policy, 1).wait().unwrap().is_allowed());
    let found = engine.ahead_of_clock();
    assert_eq!((found.denials, found.denials_without_rule, found.cleared), (1, 1, 1));
    assert_eq!(&*found.newest.unwrap().rule, "a command");
}

/// A store that counts and cannot reset.
#[derive(Debug)]
struct UnresettableStore(Arc<MemoryStore>);

impl Store for UnresettableStore {
    fn supports(&self, feature: Feature<'_>) -> Result<(), StoreError> {
        self.0.supports(feature)
    }

    fn check<'a>(&'a self, key: &'a [u8], policy: &'a Policy, cost: u64) -> Reply<'a, Decision> {
        self.0.check(key, policy, cost)
    }

    fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        self.0.decide(batch)
    }

    fn refund<'a>(&'a self, key: &'a [u8], policy: &'a Policy, s: u64, n: u64) -> Reply<'a, u64> {
        self.0.refund(key, policy, s, n)
    }

    fn renew<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
    ) -> Reply<'a, Option<Timestamp>> {
        self.0.renew(key, policy, stamp)
    }

    fn settle<'a, 'e: 'a>(
        &'a self,
        reservation: ReservationRef<'a>,
        adjustments: &'a mut [Adjustment<'e>],
    ) -> Reply<'a, bool> {
        self.0.settle(reservation, adjustments)
    }

    fn reset<'a>(&'a self, _: &'a [u8], _: &'a Policy) -> Reply<'a, ()> {
        Reply::Ready(Err(StoreError::Unavailable { source: Arc::new(std::fmt::Error) }))
    }
}

#[test]
fn a_counter_that_cannot_be_made_fresh_is_counted_and_told() {
    let clock = clock();
    let rules = rules("rules: [{ name: a, limit: 1/min }]");
    let store = Arc::new(UnresettableStore(memory(&clock)));
    let engine = AsyncEngine::builder(rules, store).clock(clock.clone()).build().unwrap();
    clock.advance(DAY);
    assert!(passes(&engine));
    step_back(&clock, DAY);
    engine.clear_ahead_for(TEN_MINUTES);
    for _ in 0..2 {
        assert!(!passes(&engine));
        let failure = engine.take_ahead_news().failure.unwrap();
        assert_eq!(failure.to_string(), "the store cannot be reached");
    }
    assert!(engine.take_ahead_news().failure.is_none());
    let found = engine.ahead_of_clock();
    assert_eq!((found.denials, found.cleared, found.clear_failures), (2, 0, 2));
}
