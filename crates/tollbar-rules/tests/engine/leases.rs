//! Leases that are renewed and released by a text.

use std::sync::Arc;
use std::time::Duration;

use tollbar::MemoryStore;
use tollbar_rules::{Engine, Leased, ReceiptError, Request};

use crate::support::{answer, ask, clock, engine, engine_at, expect, rules};
use tollbar_testkit::failing_store::FailingStore;

const JOBS: &str = "rules:
  - { name: jobs, algorithm: concurrency, limit: 2, lease: 30s }
  - { name: short, per: [], algorithm: concurrency, limit: 9, lease: 10s }
  - { name: rate, limit: 9/h }";

fn lease(engine: &Engine, line: &str) -> Leased {
    ask(line, |request| engine.lease(request))
}

#[test]
fn a_lease_is_held_until_it_is_released_or_ends() {
    let clock = clock();
    let engine = engine_at(JOBS, &clock);
    let first = lease(&engine, "GET /");
    assert_eq!(first.ends_at, Some(engine.now().after(Duration::from_secs(10))));
    let second = lease(&engine, "GET /").lease.unwrap();
    let denied = lease(&engine, "GET /");
    assert_eq!((answer(&denied.verdict).as_str(), denied.lease), ("busy jobs", None));
    let first = first.lease.unwrap();
    assert!(engine.release_text(&first).unwrap());
    assert!(!engine.release_text(&first).unwrap(), "once");
    assert_eq!(engine.renew_text(&first).unwrap(), None);
    expect(&engine, &[("GET / cost=0", "allow jobs 1")]);
    clock.advance(Duration::from_secs(9));
    let until = engine.renew_text(&second).unwrap();
    assert_eq!(until, Some(engine.now().after(Duration::from_secs(10))), "the shortest");
    clock.advance(Duration::from_secs(10));
    assert_eq!(engine.renew_text(&second).unwrap(), None, "one of them has ended");
    expect(&engine, &[("GET / cost=0", "allow jobs 1")]);
    assert!(engine.release_text(&second).unwrap(), "the other is given back");
    // All permits are back, so that the rate has least left.
    expect(&engine, &[("GET / cost=0", "allow rate 7")]);
}

#[test]
fn a_lease_is_known_wherever_the_store_and_the_secret_are() {
    let clock = clock();
    let store = Arc::new(MemoryStore::builder().max_keys(100).clock(clock.clone()).build());
    let of = |text: &str, secret| {
        Engine::builder(rules(text)).store(store.clone()).receipt_secret(secret).build()
    };
    let (one, other) = (of(JOBS, [1; 32]), of("rules: []", [1; 32]));
    let text = lease(&one, "GET /").lease.unwrap();
    let stranger = of(JOBS, [2; 32]);
    assert!(matches!(stranger.release_text(&text), Err(ReceiptError::NotAccepted(_))));
    one.replace(rules("rules: []"));
    assert!(one.renew_text(&text).unwrap().is_some());
    assert!(other.release_text(&text).unwrap());
    assert!(!one.release_text(&text).unwrap());
}

#[test]
fn there_is_no_text_where_no_lease_is_held() {
    let engine = engine(
        "rules:
         - { name: plain, match: { path: /plain }, algorithm: concurrency, limit: 1 }
         - { name: rate, match: { path: /rate }, limit: 9/h }",
    );
    for line in ["GET /rate", "GET /other", "GET /rate cost=0", "GET /plain cost=0"] {
        let leased = lease(&engine, line);
        assert!(leased.verdict.is_allowed(), "{line}");
        assert_eq!((leased.lease, leased.ends_at), (None, None), "{line}");
    }
    // Not in the text, but not lost.
    let plain = lease(&engine, "GET /plain");
    assert!(plain.lease.is_none() && plain.verdict.holds_permits());
    assert!(engine.release(&plain.verdict));
}

#[test]
fn a_lease_is_no_receipt() {
    let engine = engine(JOBS);
    let text = lease(&engine, "GET /").lease.unwrap();
    for settled in [engine.commit(&text, None), engine.commit(&text, Some(0)), engine.cancel(&text)]
    {
        assert!(matches!(settled, Err(ReceiptError::IsLease)));
    }
    expect(&engine, &[("GET / cost=0", "allow jobs 1")]);
}

#[test]
fn leases_of_a_store_that_is_down_are_released_where_they_were_granted() {
    let text = "nodes: 2
rules: [{ name: jobs, algorithm: concurrency, limit: 3, lease: 30s, on_store_failure: local }]";
    let engine = || {
        let builder = Engine::builder(rules(text)).clock(clock());
        builder.store(Arc::new(FailingStore::unavailable())).receipt_secret([1; 32]).build()
    };
    let (one, other) = (engine(), engine());
    let text = lease(&one, "GET /").lease.unwrap();
    expect(&one, &[("GET /", "busy jobs")]);
    assert!(matches!(other.release_text(&text), Err(ReceiptError::NotAccepted(_))));
    assert!(one.renew_text(&text).unwrap().is_some());
    assert!(one.release_text(&text).unwrap());
    expect(&one, &[("GET /", "allow jobs 0")]);
}

#[test]
fn keys_that_do_not_fit_a_lease_are_denied_before_anything_is_held() {
    let rules: Vec<String> = (0..8)
        .map(|n| {
            format!("{{ name: r{n}, per: user, algorithm: concurrency, limit: 1, lease: 30s }}")
        })
        .collect();
    let engine = engine(&format!("rules: [{}]", rules.join(", ")));
    let user = "u".repeat(8_000);
    let attributes = [("user", &*user)];
    let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
    assert_eq!(answer(&engine.lease(&request).verdict), "busy (too long)");
    assert_eq!(answer(&engine.check(&request.with_cost(0))), "allow r0 1");
}

#[test]
fn rules_whose_permits_could_be_lost_are_found() {
    let found = |text: &str| {
        let rules = rules(text);
        rules.rule_with_unleased_permits().map(|rule| rule.name.to_string())
    };
    assert_eq!(found(JOBS), None);
    let plain = "algorithm: concurrency, limit: 1";
    assert_eq!(found(&format!("rules: [{{ name: a, {plain} }}]")).as_deref(), Some("a"));
    let shadow = format!("rules: [{{ name: b, mode: shadow, {plain} }}]");
    assert_eq!(found(&shadow).as_deref(), Some("b"));
    let candidate = format!("rules: [{{ name: c, limit: 9/h, candidate: {{ {plain} }} }}]");
    assert_eq!(found(&candidate).as_deref(), Some("c"));
}

/// What listeners spawn has to be.
#[test]
fn the_futures_can_be_sent_to_another_thread() {
    fn sent<T: Send>(it: T) -> T {
        it
    }
    let engine = engine(JOBS);
    let request = Request::new("GET", "/").unwrap();
    drop(sent(engine.check_async(&request)));
    drop(sent(engine.check_rule_async("jobs", &request)));
    drop(sent(engine.check_subject_async("jobs", "1", 1, None)));
    drop(sent(engine.reserve_async(&request, Duration::ZERO)));
    drop(sent(engine.commit_async("", None)));
    drop(sent(engine.lease_async(&request)));
    drop(sent(engine.renew_text_async("")));
}
