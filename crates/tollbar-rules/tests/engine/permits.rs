//! What is in flight comes back.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{check, clock, engine, engine_at, expect, rules};
use tollbar_rules::Engine;
use tollbar_testkit::failing_store::FailingStore;

#[test]
fn permits_are_held_until_they_are_released_or_their_lease_ends() {
    let clock = clock();
    let engine = engine_at(
        "rules:
         - { name: busy, algorithm: concurrency, limit: 2, lease: 30s }
         - { name: rate, limit: 9/h }",
        &clock,
    );
    let first = check(&engine, "GET /");
    let second = check(&engine, "GET /");
    assert!(first.holds_permits() && second.is_allowed());
    expect(&engine, &[("GET /", "busy busy"), ("GET / user=1", "allow busy 1")]);
    assert!(engine.release(&first));
    // Once, however often it is said, and by whichever copy.
    assert!(!engine.release(&first) && !engine.release(&first.clone()) && !first.holds_permits());
    expect(&engine, &[("GET /", "allow busy 0"), ("GET /", "busy busy")]);
    clock.advance(Duration::from_secs(29));
    assert!(engine.renew(&second));
    clock.advance(Duration::from_secs(1));
    // The other's lease has ended, the second's goes on.
    expect(&engine, &[("GET /", "allow busy 0"), ("GET /", "busy busy")]);
    assert!(engine.release(&second));
    // A denied request and a peek hold nothing.
    assert!(!check(&engine, "GET / cost=0").holds_permits());
}

#[test]
fn permits_in_the_shadow_come_back_too() {
    let engine = engine(
        "rules:
         - { name: busy, algorithm: concurrency, mode: shadow, limit: 1 }
         - { name: rate, per: user, limit: 1/h }",
    );
    let first = check(&engine, "GET / user=1 api_key=k");
    assert_eq!(first.would_deny().count(), 0);
    // Denied by the rate: the shadow's permit is not taken.
    assert!(!check(&engine, "GET / user=1 api_key=j").holds_permits());
    assert_eq!(check(&engine, "GET / user=2 api_key=k").would_deny().count(), 1);
    assert!(engine.release(&first));
    assert_eq!(check(&engine, "GET / user=3 api_key=k").would_deny().count(), 0);
}

#[test]
fn permits_of_a_store_that_is_down_are_held_in_this_process() {
    let text = "nodes: 2\nrules: [{ name: busy, algorithm: concurrency, limit: 3, on_store_failure: local }]";
    let engine = Engine::builder(rules(text))
        .clock(clock())
        .store(Arc::new(FailingStore::unavailable()))
        .build();
    let first = check(&engine, "GET /");
    expect(&engine, &[("GET /", "busy busy")]);
    assert!(engine.release(&first));
    expect(&engine, &[("GET /", "allow busy 0")]);
}
