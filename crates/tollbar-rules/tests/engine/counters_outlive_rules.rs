//! Counters outlive the rules and the engines that count by them.

use crate::support::{answer, check, clock, engine, expect, rules};
use std::sync::Arc;
use tollbar::MemoryStore;
use tollbar_rules::{AsyncEngine, Engine, Request};

#[test]
fn an_async_engine_over_memory_answers_without_suspending() {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    let engine: Arc<AsyncEngine> = engine("rules: [{ name: a, limit: 1/h }]").into();
    let request = Request::new("GET", "/").unwrap();
    let mut context = Context::from_waker(Waker::noop());
    for expected in ["allow a 0", "deny a"] {
        let Poll::Ready(verdict) = pin!(engine.check(&request)).poll(&mut context) else {
            panic!("the memory store answers at once");
        };
        assert_eq!(answer(&verdict), expected);
    }
}

#[test]
fn rules_that_change_keep_their_counters() {
    let clock = clock();
    let text = |limit: &str| {
        rules(&format!("rules: [{{ name: a, per: [], limit: {limit}, algorithm: fixed_window }}]"))
    };
    let engine = Engine::builder(text("3/h")).clock(clock).build();
    expect(&engine, &[("GET /", "allow a 2"), ("GET /", "allow a 1")]);
    let diff = engine.replace(text("5/h"));
    assert_eq!(diff.to_string(), "~ a: limit\n0 unchanged");
    expect(&engine, &[("GET /", "allow a 2")]);
    engine.replace(text("2/h"));
    expect(&engine, &[("GET /", "deny a")]);
    let diff = engine.replace(text("2/min"));
    assert_eq!(diff.to_string(), "~ a: limit (counters start fresh: 2/min)\n0 unchanged");
    expect(&engine, &[("GET /", "allow a 1")]);
    assert_eq!(check(&engine, "GET /").rules_version(), 4);
}

#[test]
fn counters_are_shared_by_engines_over_one_store() {
    let store = Arc::new(MemoryStore::builder().max_keys(100).clock(clock()).build());
    let build = |text| Engine::builder(rules(text)).store(store.clone()).clock(clock()).build();
    let one = build("rules: [{ name: a, limit: 1/h }]");
    let two = build("rules: [{ name: a, limit: 1/h }]");
    let other = build("rules: [{ name: b, limit: 1/h }]");
    expect(&one, &[("GET /", "allow a 0")]);
    expect(&two, &[("GET /", "deny a")]);
    expect(&other, &[("GET /", "allow b 0")]);
}
