//! Requests with an id are charged once.

use std::time::Duration;

use tollbar_rules::{Engine, Request};

use crate::support::{
    admit, answer, ask, check, clock, engine, engine_at, engine_without_store, expect, reserve,
    rules,
};

const TWO_RULES: &str = "rules:
  - { name: everybody, per: [], limit: 100/h }
  - { name: per_user, per: user, limit: 10/h }";

#[test]
fn a_request_sent_again_gets_the_same_answer_and_pays_nothing() {
    let engine = engine(TWO_RULES);
    expect(
        &engine,
        &[
            ("GET / user=1 cost=3 id=a", "allow per_user 7"),
            ("GET / user=1 cost=3 id=a", "allow per_user 7"),
            ("GET / user=1 cost=2 id=b", "allow per_user 5"),
            // What has happened in between is no matter to who asks again.
            ("GET / user=1 cost=3 id=a", "allow per_user 7"),
            ("GET / user=1 cost=0", "allow per_user 5"),
            ("GET / user=2 cost=0", "allow everybody 95"),
        ],
    );
}

#[test]
fn every_way_of_asking_knows_the_id() {
    let engine = engine(TWO_RULES);
    let line = "GET / user=1 cost=3 id=a";
    let left = || answer(&check(&engine, "GET / user=1 cost=0"));
    assert_eq!(answer(&check(&engine, line)), "allow per_user 7");
    let checked = ask(line, |request| engine.check(request));
    let admitted = ask(line, |request| engine.admit(request, None));
    let awaited = admit(&engine, line);
    for verdict in [&checked, &admitted.verdict, &awaited.verdict] {
        assert_eq!(answer(verdict), "allow per_user 7");
    }
    assert_eq!(left(), "allow per_user 7");
    let minute = Duration::from_mins(1);
    for _ in 0..2 {
        let admission = reserve(&engine, "GET / user=1 cost=2 id=b", minute);
        assert_eq!(answer(&admission.verdict), "allow per_user 5");
    }
    // Two holds of one reservation: it is settled once.
    let hold = || reserve(&engine, "GET / user=1 cost=2 id=b", minute).hold.unwrap();
    let (one, other) = (hold(), hold());
    assert!(engine.settle(&one, Some(1)).is_ok());
    assert!(engine.settle(&other, Some(0)).is_err());
    assert_eq!(left(), "allow per_user 6");
}

#[test]
fn a_denied_request_is_decided_anew() {
    let clock = clock();
    let engine = engine_at("rules: [{ name: a, algorithm: fixed_window, limit: 2/h }]", &clock);
    expect(
        &engine,
        &[("GET / cost=2", "allow a 0"), ("GET / id=a", "deny a"), ("GET / id=a", "deny a")],
    );
    clock.advance(Duration::from_hours(1));
    expect(&engine, &[("GET / id=a", "allow a 1"), ("GET / id=a", "allow a 1")]);
}

#[test]
fn an_id_is_remembered_as_long_as_the_engine_says() {
    let clock = clock();
    let text = rules("rules: [{ name: a, algorithm: fixed_window, limit: 9/day }]");
    let ttl = Duration::from_mins(1);
    let engine = Engine::builder(text).clock(clock.clone()).request_id_ttl(ttl).build();
    expect(&engine, &[("GET / id=a", "allow a 8")]);
    clock.advance(Duration::from_micros(59_999_999));
    expect(&engine, &[("GET / id=a", "allow a 8"), ("GET / cost=0", "allow a 8")]);
    clock.advance(Duration::from_micros(1));
    expect(&engine, &[("GET / id=a", "allow a 7")]);
}

#[test]
fn another_question_under_the_same_id_is_denied_and_not_charged() {
    let engine = engine(
        "rules:
         - { name: a, limit: 10/h }
         - { name: b, match: { path: /b }, limit: 20/h, on_store_failure: allow }",
    );
    expect(
        &engine,
        &[
            ("GET / id=x", "allow a 9"),
            // Another cost, and other rules.
            ("GET / id=x cost=2", "busy (id reused)"),
            ("GET /b id=x", "busy (id reused)"),
            ("GET / cost=0", "allow a 9"),
            ("GET /b cost=0", "allow a 9"),
        ],
    );
    let verdict = check(&engine, "GET /b id=x");
    assert!(verdict.degraded().is_none() && verdict.binding().is_none());
    assert!(verdict.rule().is_none() && verdict.retry_after().is_none());
    let minute = Duration::from_mins(1);
    let reserved = reserve(&engine, "GET /b id=x", minute);
    assert_eq!(answer(&reserved.verdict), "busy (id reused)");
    assert!(reserved.hold.is_none());
}

/// Otherwise one client could find out another's ids, have its requests denied, or pass for free.
#[test]
fn ids_of_different_clients_never_meet() {
    let engine = engine("rules: [{ name: all, per: [], limit: 10/h }]");
    expect(
        &engine,
        &[
            ("GET / user=1 id=x", "allow all 9"),
            ("GET / user=2 id=x", "allow all 8"),
            ("GET / user=2 id=x cost=2", "busy (id reused)"),
            ("GET / api_key=1 id=x", "allow all 7"),
            ("GET / ip=192.0.2.1 id=x", "allow all 6"),
            ("GET / id=x", "allow all 5"),
        ],
    );
    let engine = self::engine("rules: [{ name: t, per: [tenant], limit: 10/h }]");
    expect(
        &engine,
        &[
            ("GET / tenant=1 id=x", "allow t 9"),
            ("GET / tenant=2 id=x cost=3", "allow t 7"),
            ("GET / tenant=1 id=x", "allow t 9"),
        ],
    );
}

#[test]
fn a_peek_has_no_id() {
    let engine = engine("rules: [{ name: a, limit: 10/h }]");
    expect(
        &engine,
        &[
            ("GET / id=x cost=0", "allow a 10"),
            ("GET / id=x", "allow a 9"),
            ("GET / id=x cost=0", "allow a 9"),
        ],
    );
}

#[test]
fn more_limits_than_can_be_remembered_deny_and_what_reports_gives_way() {
    let rule = |n: usize| format!("{{ name: r{n}, match: {{ x: a }}, per: [], limit: 9/h }}");
    let many = |count: usize| (0..count).map(rule).collect::<Vec<_>>().join(", ");
    let fits = engine(&format!("rules: [{}]", many(20)));
    expect(&fits, &[("GET / x=a id=1", "allow r0 8"), ("GET / x=a id=1", "allow r0 8")]);
    let too_many = engine(&format!("rules: [{}]", many(21)));
    expect(&too_many, &[("GET / x=a id=1", "busy (21 limits)"), ("GET / x=a", "allow r0 8")]);
    let shadows = many(30).replace("limit: 9/h", "limit: 9/h, mode: shadow");
    let engine = engine(&format!("rules: [{}]", shadows.replacen(", mode: shadow", "", 3)));
    let verdict = check(&engine, "GET / x=a id=1");
    assert_eq!((answer(&verdict).as_str(), verdict.decisions().count()), ("allow r0 8", 20));
}

/// Answers of queues and warm-ups take more room: the store says when it is too much.
#[test]
fn limits_whose_answers_are_long_deny_where_they_are_too_many() {
    let rule = |n: usize| {
        format!("{{ name: q{n}, per: [], algorithm: leaky_queue, queue: 9, limit: 1/s }}")
    };
    let many = (0..20).map(rule).collect::<Vec<_>>().join(", ");
    let engine = engine(&format!("rules: [{many}]"));
    assert_eq!(answer(&check(&engine, "GET / id=1")), "allow q0 9");
    // The first goes on at once; the second has a delay, which is one word more for each.
    expect(&engine, &[("GET / id=2", "busy (20 limits)"), ("GET / cost=0", "allow q0 9")]);
}

#[test]
fn permits_without_a_lease_are_held_by_each_attempt() {
    let engine = engine("rules: [{ name: busy, algorithm: concurrency, limit: 2 }]");
    let first = admit(&engine, "GET / id=x").hold.unwrap();
    let again = admit(&engine, "GET / id=x").hold.unwrap();
    expect(&engine, &[("GET / id=x", "busy busy")]);
    assert!(engine.release(&first).unwrap() && engine.release(&again).unwrap());
    // Two have come back, and not more.
    expect(
        &engine,
        &[("GET /", "allow busy 1"), ("GET /", "allow busy 0"), ("GET /", "busy busy")],
    );
}

#[test]
fn leases_are_the_same_ones_again() {
    let engine = engine("rules: [{ name: busy, algorithm: concurrency, limit: 2, lease: 30s }]");
    let lease = || engine.token(admit(&engine, "GET / id=x").hold.unwrap()).unwrap();
    let (first, again) = (lease(), lease());
    assert_eq!(first, again);
    expect(&engine, &[("GET / cost=0", "allow busy 1")]);
    let release = |text: &str| engine.release(&engine.resume(text).unwrap()).unwrap();
    assert!(release(&first) && !release(&again));
    expect(&engine, &[("GET / cost=0", "allow busy 2")]);
}

#[test]
fn a_store_that_cannot_answer_remembers_nothing() {
    let engine = engine_without_store("rules: [{ name: a, limit: 2/h, on_store_failure: local }]");
    expect(
        &engine,
        &[("GET / id=x", "allow a 1"), ("GET / id=x", "allow a 0"), ("GET / id=x", "deny a")],
    );
    assert!(check(&engine, "GET / id=x").degraded().is_some());
}

#[test]
fn ids_are_of_any_length() {
    let engine = engine("rules: [{ name: a, limit: 10/h }]");
    let long = "x".repeat(100_000);
    for id in ["", &long, &long[1..], "\0\u{1F600}"] {
        let request = Request::new("GET", "/").unwrap().with_request_id(id);
        assert_eq!(answer(&engine.check(&request)), answer(&engine.check(&request)));
    }
    expect(&engine, &[("GET / cost=0", "allow a 6")]);
}

/// One id paid for any number of paths under one rule.
#[test]
fn an_id_is_bound_to_the_request_and_not_to_what_no_rule_looks_at() {
    let engine = engine(
        "rules:
         - name: a
           per: user
           match: { region: [eu, us] }
           exempt: [{ partner: gold }]
           cost: [{ match: { size: big }, cost: 2 }]
           tiers: { free: 9/h, pro: 9/h }
           limit: 9/h
         - { name: other, match: { beta: x }, per: user, limit: 9/h, mode: shadow }",
    );
    let first = "GET /p user=1 region=eu partner=no size=s tier=free trace=1 beta=y id=x";
    assert_eq!(answer(&check(&engine, first)), "allow a 8");
    for (from, to, expected) in [
        ("trace=1", "trace=2", "allow a 8"),
        ("beta=y", "beta=z", "allow a 8"),
        ("GET /p", "GET //p/", "allow a 8"),
        ("GET", "POST", "busy (id reused)"),
        ("/p", "/q", "busy (id reused)"),
        ("region=eu", "region=us", "busy (id reused)"),
        ("partner=no", "partner=none", "busy (id reused)"),
        ("size=s", "size=t", "busy (id reused)"),
        ("tier=free", "tier=pro", "busy (id reused)"),
    ] {
        assert_eq!(answer(&check(&engine, &first.replace(from, to))), expected, "{to}");
    }
    assert_eq!(answer(&check(&engine, &first.replace(" id=x", " cost=0"))), "allow a 8");
}

#[test]
fn a_request_is_answered_again_as_often_as_the_engine_says() {
    let text = rules("rules: [{ name: a, algorithm: fixed_window, limit: 2/day }]");
    let engine = Engine::builder(text).clock(clock()).request_id_replays(2).build();
    for left in [1, 1, 1, 0, 0, 0] {
        expect(&engine, &[("GET / id=x", &format!("allow a {left}"))]);
    }
    expect(&engine, &[("GET / id=x", "deny a"), ("GET / cost=0", "allow a 0")]);
}
