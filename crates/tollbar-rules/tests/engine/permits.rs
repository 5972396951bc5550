//! What is in flight comes back.

use std::time::Duration;

use tollbar::store::block_on;
use tollbar_rules::Request;

use crate::support::{
    admit, answer, check, clock, engine, engine_at, engine_without_store, expect,
};

#[test]
fn permits_are_held_until_they_are_released_or_their_lease_ends() {
    let clock = clock();
    let engine = engine_at(
        "rules:
         - { name: busy, algorithm: concurrency, limit: 2, lease: 30s }
         - { name: rate, limit: 9/h }",
        &clock,
    );
    let first = admit(&engine, "GET /").hold.unwrap();
    let second = admit(&engine, "GET /").hold.unwrap();
    assert_eq!(first.lease_ttl(), Some(Duration::from_secs(30)));
    expect(&engine, &[("GET /", "busy busy"), ("GET / user=1", "allow busy 1")]);
    assert!(engine.release(&first).unwrap());
    // Once, however often it is said.
    assert!(!engine.release(&first).unwrap() && engine.renew(&first).unwrap().is_none());
    expect(&engine, &[("GET /", "allow busy 0"), ("GET /", "busy busy")]);
    clock.advance(Duration::from_secs(29));
    assert!(engine.renew(&second).unwrap().is_some());
    clock.advance(Duration::from_secs(1));
    // The other's lease has ended, the second's goes on.
    expect(&engine, &[("GET /", "allow busy 0"), ("GET /", "busy busy")]);
    assert!(engine.release(&second).unwrap());
    // A denied request and a peek hold nothing.
    assert!(admit(&engine, "GET / cost=0").hold.is_none());
}

#[test]
fn permits_in_the_shadow_come_back_too() {
    let engine = engine(
        "rules:
         - { name: busy, algorithm: concurrency, mode: shadow, limit: 1 }
         - { name: rate, per: user, limit: 1/h }",
    );
    let first = admit(&engine, "GET / user=1 api_key=k");
    assert_eq!(first.verdict.would_deny().count(), 0);
    // Denied by the rate: the shadow's permit is not taken.
    assert!(admit(&engine, "GET / user=1 api_key=j").hold.is_none());
    assert_eq!(check(&engine, "GET / user=2 api_key=k").would_deny().count(), 1);
    assert!(engine.release(&first.hold.unwrap()).unwrap());
    assert_eq!(check(&engine, "GET / user=3 api_key=k").would_deny().count(), 0);
}

#[test]
fn permits_without_a_lease_come_back_once() {
    let engine = engine("rules: [{ name: busy, algorithm: concurrency, limit: 2 }]");
    let (first, _second) = (admit(&engine, "GET /").hold.unwrap(), admit(&engine, "GET /"));
    assert!(engine.release(&first).unwrap() && !engine.release(&first).unwrap());
    expect(&engine, &[("GET / cost=0", "allow busy 1")]);
    assert!(first.lease_ttl().is_none() && first.lease_ends_at().is_none());
}

/// A request that outlives its reservation has still taken a permit, which nobody else gives back.
#[test]
fn permits_of_a_reservation_whose_time_is_up_come_back_once() {
    let clock = clock();
    let engine = engine_at(
        "rules:
         - { name: plain, per: [], algorithm: concurrency, limit: 2 }
         - { name: rate, per: [], limit: 9/h, algorithm: fixed_window }",
        &clock,
    );
    let reserve = || crate::support::reserve(&engine, "GET /", Duration::from_mins(1));
    let (hold, _other) = (reserve().hold.unwrap(), reserve().hold.unwrap());
    clock.advance(Duration::from_mins(1));
    assert!(engine.settle(&hold, Some(0)).is_err());
    expect(&engine, &[("GET / cost=0", "allow plain 1")]);
    assert!(engine.cancel(&hold).is_err());
    expect(&engine, &[("GET / cost=0", "allow plain 1")]);
}

#[test]
fn permits_of_a_store_that_is_down_are_held_in_this_process() {
    let text = "nodes: 2\nrules: [{ name: busy, algorithm: concurrency, limit: 3, on_store_failure: local }]";
    let engine = engine_without_store(text);
    let first = admit(&engine, "GET /").hold.unwrap();
    expect(&engine, &[("GET /", "busy busy")]);
    assert!(block_on(engine.release(&first)).unwrap());
    expect(&engine, &[("GET /", "allow busy 0")]);
}

/// A caller that cannot give permits back takes none, and is limited by everything else: by other limits, by
/// fallbacks, and by rules that a rule of permits would replace, stop or lift.
#[test]
fn a_request_without_permits_is_under_all_other_limits() {
    let text = "rules:
      - { name: jobs, per: [], priority: 5, stop: true, replaces: rate, algorithm: concurrency, limit: 1, lease: 9s }
      - { name: tried, per: [], priority: 5, mode: shadow, algorithm: concurrency, limit: 1, lease: 9s }
      - { name: mixed, per: [], limit: 9/h, candidate: { algorithm: concurrency, limit: 1, lease: 9s } }
      - { name: rate, per: [], limit: 2/h }";
    let engine = engine(text);
    let request = || Request::new("GET", "/").unwrap().without_permits();
    for expected in [Some(1), Some(0)] {
        let admission = engine.admit(&request(), None);
        assert_eq!(admission.verdict.binding().unwrap().remaining(), expected);
        assert_eq!(admission.verdict.permit_limits_skipped(), 3);
        assert!(admission.hold.is_none());
    }
    assert_eq!(answer(&engine.check(&request())), "deny rate");
    // Others take permits, and find both the permit and the rule as they should be.
    let verdict = engine.check(&Request::new("GET", "/").unwrap());
    assert_eq!((answer(&verdict), verdict.permit_limits_skipped()), ("allow jobs 0".to_owned(), 0));
}

#[test]
fn a_fallback_applies_where_only_permits_match_a_request_without_them() {
    let text = "rules:
      - { name: jobs, per: [], algorithm: concurrency, limit: 1, lease: 9s }
      - { name: others, per: [], fallback: true, limit: 1/h }";
    let engine = engine(text);
    let request = || Request::new("GET", "/").unwrap().without_permits();
    assert_eq!(answer(&engine.check(&request())), "allow others 0");
    assert_eq!(answer(&engine.check(&request())), "deny others");
}
