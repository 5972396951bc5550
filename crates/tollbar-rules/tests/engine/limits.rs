//! What requests pay: limits, tiers, costs.

use std::time::Duration;

use crate::support::{check, clock, engine, engine_at, expect};

#[test]
fn several_limits_of_one_rule_hold_together() {
    let clock = clock();
    let engine =
        engine_at("rules: [{ name: a, limit: [2/s, 3/h], algorithm: fixed_window }]", &clock);
    expect(&engine, &[("GET /", "allow a 1"), ("GET /", "allow a 0"), ("GET /", "deny a")]);
    clock.advance(Duration::from_secs(1));
    expect(&engine, &[("GET /", "allow a 0"), ("GET /", "deny a")]);
    let verdict = check(&engine, "GET /");
    let binding = verdict.binding().unwrap();
    assert_eq!((binding.limit().text(), binding.place()), ("3/h", 1));
    assert_eq!(verdict.decisions().count(), 2);
}

#[test]
fn a_request_waits_for_the_longest_of_its_queues() {
    let engine = engine(
        "rules:
         - { name: a, limit: 10/s, queue: 5 }
         - { name: b, limit: 4/s, queue: 5 }
         - { name: c, limit: 1/s, queue: 5, mode: shadow }",
    );
    let delay = || check(&engine, "GET /").delay();
    assert_eq!([delay(), delay(), delay()], [0, 250, 500].map(Duration::from_millis));
}

#[test]
fn tiers_have_limits_of_their_own() {
    let engine = engine(
        "rules:
         - name: a
           tiers: { free: 1/h, gold: { limit: 2/h, burst: 3 }, staff: unlimited, default: free }
         - name: b
           match: { path: /b }
           limit: 2/h
           tiers: { gold: 3/h }",
    );
    expect(
        &engine,
        &[
            ("GET / user=1", "allow a 0"),
            ("GET / user=1 tier=what", "deny a"),
            // The same window counts on: one of the two is spent.
            ("GET / user=2 tier=gold", "allow a 2"),
            ("GET / user=3 tier=staff", "allow a (unlimited)"),
            ("GET /b user=4 tier=staff", "allow b 1"),
            ("GET /b user=5 tier=gold", "allow b 2"),
        ],
    );
    assert_eq!(check(&engine, "GET / user=9 tier=gold").binding().unwrap().tier(), Some("gold"));
}

#[test]
fn costs_go_by_route_and_attribute() {
    let engine = engine(
        r#"rules:
         - { name: a, match: { path: /a/** }, limit: 100/h, cost: { "GET /a/search": 5, "/a/big": 50, attribute: weight } }
         - { name: b, match: { path: /b }, limit: 100/h, cost: [{ match: { plan: { prefix: bulk } }, cost: 7 }] }"#,
    );
    expect(
        &engine,
        &[
            ("GET /a/x", "allow a 99"),
            ("GET /a/search", "allow a 94"),
            ("POST /a/search", "allow a 93"),
            ("GET /a/search cost=2", "allow a 83"),
            ("GET /a/big", "allow a 33"),
            ("GET /a/big", "deny a"),
            ("GET /a/x weight=30", "allow a 3"),
            ("GET /a/x weight=101", "never a"),
            ("GET /b plan=bulk-9", "allow b 93"),
            ("GET /b plan=x", "allow b 92"),
        ],
    );
}
