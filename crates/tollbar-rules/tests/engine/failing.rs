//! What rules say while the store cannot answer.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Down, check, clock, expect, rules};
use tollbar::Degraded;
use tollbar_rules::Engine;

#[test]
fn each_rule_says_what_happens_while_the_store_cannot_answer() {
    let engine =
        |text: &str| Engine::builder(rules(text)).clock(clock()).store(Arc::new(Down)).build();
    let of = |failure: &str| {
        engine(&format!(
            "nodes: 4\nrules: [{{ name: a, limit: 10/h, on_store_failure: {failure} }}]"
        ))
    };
    let allow = of("allow");
    for _ in 0..20 {
        let verdict = check(&allow, "GET /");
        assert!(verdict.is_allowed() && verdict.degraded().is_some());
        assert_eq!(verdict.binding().unwrap().degraded(), Some(Degraded::Allowed));
    }
    let verdict = check(&of("deny"), "GET /");
    assert_eq!(verdict.retry_after(), Some(Duration::from_secs(1)));
    assert_eq!(verdict.binding().unwrap().degraded(), Some(Degraded::Denied));
    assert_eq!(verdict.degraded().unwrap().to_string(), "the store cannot answer");
    // A fourth of ten, rounded down.
    let local = of("local");
    expect(
        &local,
        &[
            ("GET / ip=1", "allow a 1"),
            ("GET / ip=1", "allow a 0"),
            ("GET / ip=1", "deny a"),
            ("GET / ip=2", "allow a 1"),
        ],
    );
    assert_eq!(check(&local, "GET /").binding().unwrap().degraded(), Some(Degraded::Fallback));
    let shed = of("shed");
    expect(
        &shed,
        &[
            ("GET /", "deny a"),
            ("GET / criticality=low", "deny a"),
            ("GET / criticality=high", "allow a 0"),
            ("GET / criticality=critical", "allow a 0"),
        ],
    );
    expect(
        &of("{ shed: critical }"),
        &[("GET / criticality=high", "deny a"), ("GET / criticality=critical", "allow a 0")],
    );
    expect(&of("{ shed: low }"), &[("GET / criticality=low", "allow a 0")]);

    // A rule that denies keeps the share of another from being charged.
    let both = engine(
        "rules:
         - { name: counted, per: [], limit: 1/h, on_store_failure: local }
         - { name: denied, match: { path: /x }, limit: 9/h, on_store_failure: deny }",
    );
    expect(
        &both,
        &[
            ("GET /x", "deny denied"),
            ("GET /x", "deny denied"),
            ("GET /", "allow counted 0"),
            ("GET /", "deny counted"),
        ],
    );
}
