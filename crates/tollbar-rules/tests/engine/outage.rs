//! What rules say while the store cannot answer.

use std::time::Duration;

use crate::support::{check, engine_over, engine_without_store, expect, reserve};
use tollbar::{Degraded, MemoryStore, Outcome};
use tollbar_rules::DenialCode;
use tollbar_testkit::failing_store::FailingStore;

#[test]
fn each_rule_says_what_happens_while_the_store_cannot_answer() {
    let of = |failure: &str| {
        engine_without_store(&format!(
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
    assert_eq!(verdict.degraded().unwrap().to_string(), "the store cannot be reached");
    // A fourth of ten, rounded down.
    let local = of("local");
    expect(
        &local,
        &[
            ("GET / ip=192.0.2.1", "allow a 1"),
            ("GET / ip=192.0.2.1", "allow a 0"),
            ("GET / ip=192.0.2.1", "deny a"),
            ("GET / ip=192.0.2.2", "allow a 1"),
        ],
    );
    assert_eq!(check(&local, "GET /").binding().unwrap().degraded(), Some(Degraded::Fallback));
    let shed = of("shed");
    expect(
        &shed,
        &[
            ("GET /", "deny a"),
            ("GET / criticality=low", "deny a"),
            ("GET / criticality=high", "allow a ?"),
            ("GET / criticality=critical", "allow a ?"),
        ],
    );
    expect(
        &of("{ shed: critical }"),
        &[("GET / criticality=high", "deny a"), ("GET / criticality=critical", "allow a ?")],
    );
    expect(&of("{ shed: low }"), &[("GET / criticality=low", "allow a ?")]);

    // A rule that denies keeps the share of another from being charged.
    let both = engine_without_store(
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

/// However lenient the rule is: a request that the store cannot take would pass for as long as it is sent.
#[test]
fn a_mistake_is_denied_whatever_the_rule_says_about_outages() {
    let codes = [DenialCode::CrossSlot, DenialCode::Unsupported, DenialCode::TooManyLimits];
    for failure in ["allow", "deny", "local", "shed"] {
        for (store, code) in FailingStore::mistakes().into_iter().zip(codes) {
            let text = format!("rules: [{{ name: a, limit: 10/h, on_store_failure: {failure} }}]");
            let engine = engine_over(store, &text);
            for line in ["GET /", "GET / id=7", "GET / criticality=critical"] {
                let verdict = check(&engine, line);
                assert_eq!(verdict.denial_code(), Some(code), "{failure}, {line}");
                assert!(verdict.degraded().is_none() && verdict.retry_after().is_none());
                assert!(verdict.denial_message().is_some());
            }
            let reserved = reserve(&engine, "GET /", Duration::from_secs(9));
            assert_eq!(reserved.verdict.denial_code(), Some(code), "{failure}");
            assert!(reserved.hold.is_none());
        }
    }
}

/// A store for 16 keys was taken for one that is down, and 240 of 240 requests under 32 limits passed.
#[test]
fn a_memory_store_that_is_too_small_denies_and_never_answers_as_in_an_outage() {
    let rule = |at| format!("- {{ name: rule_{at}, limit: 9/h, on_store_failure: allow }}\n");
    let text = format!("rules:\n{}", (0..32).map(rule).collect::<String>());
    for keys_max in [1, 16, 32] {
        let engine = engine_over(MemoryStore::builder().max_keys(keys_max).build(), &text);
        let mut is_denied = false;
        for user in 0..240 {
            let verdict = check(&engine, &format!("GET / user={user}"));
            assert!(verdict.degraded().is_none(), "{keys_max} keys: {verdict:?}");
            let code = verdict.denial_code();
            assert!([None, Some(DenialCode::Unsupported)].contains(&code), "{code:?}");
            is_denied |= code.is_some();
        }
        assert!(is_denied || keys_max == 32, "all fit {keys_max} keys");
    }
}

#[test]
fn every_outage_is_answered_as_the_rule_says() {
    for store in FailingStore::outages() {
        let text = "rules: [{ name: a, limit: 10/h, on_store_failure: allow }]";
        let engine = engine_over(store, text);
        let verdict = check(&engine, "GET /");
        assert!(verdict.is_allowed() && verdict.degraded().is_some());
    }
}

#[test]
fn what_costs_more_than_its_limit_never_passes_during_an_outage() {
    for failure in ["allow", "deny", "local", "shed"] {
        let text = format!("rules: [{{ name: a, limit: 10/h, on_store_failure: {failure} }}]");
        let engine = engine_without_store(&text);
        let verdict = check(&engine, "GET / cost=11 criticality=critical");
        assert_eq!(verdict.outcome(), Outcome::Never, "{failure}");
        assert_eq!(verdict.denial_code(), Some(DenialCode::CostExceedsLimit));
        assert!(check(&engine, "GET / cost=10").outcome() != Outcome::Never, "{failure}");
    }
}
