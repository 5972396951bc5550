//! Leases that are renewed and released by a text.

use std::sync::Arc;
use std::time::Duration;

use tollbar::store::block_on;
use tollbar::{MemoryStore, Timestamp};
use tollbar_rules::{AsyncEngine, Engine, Request, TokenError};

use crate::support::{
    admit, answer, clock, engine, engine_at, engine_without_store, expect, rules,
};

const JOBS: &str = "rules:
  - { name: jobs, algorithm: concurrency, limit: 2, lease: 30s }
  - { name: short, per: [], algorithm: concurrency, limit: 9, lease: 10s }
  - { name: rate, limit: 9/h }";

fn lease(engine: &AsyncEngine, line: &str) -> String {
    engine.token(admit(engine, line).hold.unwrap()).unwrap()
}

fn release(engine: &AsyncEngine, text: &str) -> Result<bool, TokenError> {
    block_on(engine.release(&engine.resume(text)?))
}

fn renew(engine: &AsyncEngine, text: &str) -> Result<Option<Timestamp>, TokenError> {
    block_on(engine.renew(&engine.resume(text)?))
}

#[test]
fn a_lease_is_held_until_it_is_released_or_ends() {
    let clock = clock();
    let engine = engine_at(JOBS, &clock);
    let first = admit(&engine, "GET /").hold.unwrap();
    assert_eq!(first.lease_ends_at(), Some(engine.now().after(Duration::from_secs(10))));
    let first = engine.token(first).unwrap();
    let second = lease(&engine, "GET /");
    let denied = admit(&engine, "GET /");
    assert_eq!(answer(&denied.verdict), "busy jobs");
    assert!(denied.hold.is_none());
    assert!(release(&engine, &first).unwrap());
    assert!(!release(&engine, &first).unwrap(), "once");
    assert_eq!(renew(&engine, &first).unwrap(), None);
    expect(&engine, &[("GET / cost=0", "allow jobs 1")]);
    clock.advance(Duration::from_secs(9));
    let until = renew(&engine, &second).unwrap();
    assert_eq!(until, Some(engine.now().after(Duration::from_secs(10))), "the shortest");
    clock.advance(Duration::from_secs(10));
    assert_eq!(renew(&engine, &second).unwrap(), None, "one of them has ended");
    expect(&engine, &[("GET / cost=0", "allow jobs 1")]);
    assert!(release(&engine, &second).unwrap(), "the other is given back");
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
    let text = lease(&one, "GET /");
    let stranger = of(JOBS, [2; 32]);
    assert!(matches!(release(&stranger, &text), Err(TokenError::NotAccepted(_))));
    one.replace(rules("rules: []"));
    assert!(renew(&one, &text).unwrap().is_some());
    assert!(release(&other, &text).unwrap());
    assert!(!release(&one, &text).unwrap());
}

#[test]
fn there_is_no_text_where_no_lease_is_held() {
    let engine = engine(
        "rules:
         - { name: plain, match: { path: /plain }, algorithm: concurrency, limit: 1 }
         - { name: rate, match: { path: /rate }, limit: 9/h }",
    );
    for line in ["GET /rate", "GET /other", "GET /rate cost=0", "GET /plain cost=0"] {
        let admission = admit(&engine, line);
        assert!(admission.verdict.is_allowed() && admission.hold.is_none(), "{line}");
    }
    // A permit without a lease has no token: a second return could not be told from the first.
    let plain = admit(&engine, "GET /plain").hold.unwrap();
    assert_eq!((plain.lease_ends_at(), engine.token(plain)), (None, None));
}

#[test]
fn a_lease_is_no_receipt() {
    let engine = engine(JOBS);
    let hold = engine.resume(&lease(&engine, "GET /")).unwrap();
    for settled in [engine.settle(&hold, None), engine.settle(&hold, Some(0)), engine.cancel(&hold)]
    {
        assert!(matches!(settled, Err(TokenError::IsLease)));
    }
    expect(&engine, &[("GET / cost=0", "allow jobs 1")]);
}

#[test]
fn leases_of_a_store_that_is_down_are_released_where_they_were_granted() {
    let text = "nodes: 2
rules: [{ name: jobs, algorithm: concurrency, limit: 3, lease: 30s, on_store_failure: local }]";
    let (one, other) = (engine_without_store(text), engine_without_store(text));
    let text = lease(&one, "GET /");
    expect(&one, &[("GET /", "busy jobs")]);
    assert!(matches!(release(&other, &text), Err(TokenError::NotAccepted(_))));
    assert!(renew(&one, &text).unwrap().is_some());
    assert!(release(&one, &text).unwrap());
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
    assert_eq!(answer(&engine.check(&request)), "busy (too long)");
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
    fn sent<T: Send>(future: T) -> T {
        future
    }
    let engine = engine(JOBS);
    let hold = admit(&engine, "GET /").hold.unwrap();
    let engine: Arc<AsyncEngine> = engine.into();
    let request = Request::new("GET", "/").unwrap();
    drop(sent(engine.check(&request)));
    drop(sent(engine.admit(&request, Some(Duration::ZERO))));
    let rule = engine.rule("jobs").unwrap();
    drop(sent(rule.admit(&request)));
    drop(sent(rule.usage(&request)));
    drop(sent(rule.reset(&request)));
    drop(sent(engine.settle(&hold, None)));
    drop(sent(engine.renew(&hold)));
    drop(sent(engine.release(&hold)));
}
