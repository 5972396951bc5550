//! Paths that are compared as the server behind reads them.

use crate::support::{answer, check, engine, expect};

const FOLDED: &str = "paths: { case: insensitive, matrix: strip }";

#[test]
fn everything_that_looks_at_a_path_looks_at_the_folded_one() {
    let engine = engine(&format!(
        "{FOLDED}
rules:
  - {{ name: login, match: {{ path: /V1/Login }}, per: [], limit: 9/day }}
  - {{ name: except, match: {{ path: {{ not: '/v1/**' }} }}, per: [path], limit: 9/day }}
  - name: priced
    match: {{ path: /v1/Priced/** }}
    per: []
    cost: {{ '/v1/Priced/Dear': 5 }}
    exempt: [{{ path: /v1/priced/Free }}]
    limit: 9/day"
    ));
    expect(
        &engine,
        &[
            ("GET /v1/LOGIN", "allow login 8"),
            ("GET /V1;a=b/login;x", "allow login 7"),
            ("GET /x/..;/v1/login", "allow login 6"),
            ("GET /v1%2FLogin", "allow login 5"),
            ("GET /V1/x", "allow (no rule)"),
            ("GET /Other", "allow except 8"),
            ("GET /OTHER;x", "allow except 7"),
            ("GET /v1/priced/DEAR", "allow priced 4"),
            ("GET /v1/PRICED/free;x", "allow priced (exempt)"),
            ("GET /v1/priced/other", "allow priced 3"),
        ],
    );
    // A retry in another spelling is the same request.
    expect(
        &engine,
        &[("GET /v1/login id=a", "allow login 4"), ("GET /V1/LOGIN id=a", "allow login 4")],
    );
}

#[test]
fn a_change_of_the_options_alone_is_a_change() {
    let rules = "rules: [{ name: a, match: { path: /Login }, per: [], limit: 9/day }]";
    let engine = engine(rules);
    assert_eq!(answer(&check(&engine, "GET /login")), "allow (no rule)");
    engine.replace(crate::support::rules(&format!("{FOLDED}\n{rules}")));
    assert_eq!(answer(&check(&engine, "GET /login")), "allow a 8");
    engine.replace(crate::support::rules(rules));
    assert_eq!(answer(&check(&engine, "GET /login")), "allow (no rule)");
    assert_eq!(answer(&check(&engine, "GET /Login")), "allow a 7");
}

#[test]
fn an_ambiguous_path_is_denied_whatever_the_rules_are() {
    let one = "rules: [{ name: a, limit: 9/day }]";
    for text in [one, "rules: []", "rules: [{ name: a, unlimited: true }]"] {
        let engine = engine(text);
        expect(
            &engine,
            &[("GET /a\\b", "busy (ambiguous path)"), ("GET /%00", "busy (ambiguous path)")],
        );
    }
    let engine = engine(&format!("paths: {{ ambiguous: allow }}\n{one}"));
    expect(&engine, &[("GET /a\\b", "allow a 8")]);
}

#[test]
fn a_cost_that_is_no_number_denies_where_the_rule_is_live() {
    let engine = engine(
        "rules:
  - { name: a, match: { path: /live }, cost: { attribute: n }, limit: 9/day }
  - { name: b, match: { path: /shadow }, cost: { attribute: n }, limit: 9/day, mode: shadow }
  - { name: c, match: { path: /both }, cost: { attribute: n }, limit: 9/day, tiers: { t: 5/day } }",
    );
    expect(
        &engine,
        &[
            ("GET /live n=x", "busy a (bad n)"),
            ("GET /live n=2", "allow a 7"),
            ("GET /both n=x tier=t", "busy c (bad n)"),
            ("GET /both n=2 tier=t", "allow c 3"),
        ],
    );
    assert!(check(&engine, "GET /shadow n=x").is_allowed());
}
