//! Which rules apply to a request.

use std::time::Duration;

use tollbar::{ManualClock, Timestamp};

use crate::support::{answer, check, engine, engine_at, expect};

#[test]
fn no_rule_allows_and_says_so() {
    let engine = engine("rules: [{ name: a, match: { path: /a }, limit: 1/h }]");
    expect(
        &engine,
        &[("GET /b", "allow (no rule)"), ("GET /a", "allow a 0"), ("GET /a", "deny a")],
    );
}

#[test]
fn all_matching_rules_apply_and_all_are_paid_or_none() {
    let engine = engine(
        "rules:
         - { name: everybody, per: [], limit: 3/h }
         - { name: per_user, per: user, limit: 2/h }",
    );
    expect(
        &engine,
        &[
            ("GET / user=1", "allow per_user 1"),
            ("GET / user=1", "allow per_user 0"),
            // Denied by the user's limit: the limit of all is not charged.
            ("GET / user=1", "deny per_user"),
            ("GET / user=1", "deny per_user"),
            ("GET / user=2", "allow everybody 0"),
            ("GET / user=2", "deny everybody"),
            ("GET / user=2 cost=0", "allow everybody 0"),
        ],
    );
}

#[test]
fn exemptions_end_when_they_say() {
    let clock = ManualClock::at(Timestamp::from_micros(1_798_761_599_999_999));
    let engine = engine_at(
        "rules:
         - name: a
           limit: 1/h
           exempt: [{ api_key: internal }, { ip: 10.0.0.0/8, until: 2027-01-01, reason: move }]",
        &clock,
    );
    let internal = ("GET / api_key=internal", "allow a (exempt)");
    expect(&engine, &[internal, internal, ("GET / ip=10.1.1.1", "allow a (exempt)")]);
    clock.advance(Duration::from_micros(1));
    expect(
        &engine,
        &[internal, ("GET / ip=10.1.1.1", "allow a 0"), ("GET / ip=10.1.1.1", "deny a")],
    );
}

#[test]
fn many_exemptions_are_found() {
    let exempt: Vec<String> = (0..100).map(|n| format!("{{ api_key: k{n} }}")).collect();
    let costs: Vec<String> = (0..100).map(|n| format!("/p{n}: {n}")).collect();
    let engine = engine(&format!(
        "rules: [{{ name: a, per: [], limit: 1000/h, exempt: [{}], cost: {{ {} }} }}]",
        exempt.join(", "),
        costs.join(", ")
    ));
    expect(
        &engine,
        &[
            ("GET /p9 api_key=k77", "allow a (exempt)"),
            ("GET /p99 api_key=k100", "allow a 901"),
            ("GET /x", "allow a 900"),
        ],
    );
}

#[test]
fn unlimited_rules_lift_what_is_not_above_them() {
    let engine = engine(
        "rules:
         - { name: z_health, match: { path: /health/** }, unlimited: true }
         - { name: a_all, limit: 1/h }
         - { name: ddos, priority: 1, match: { path: /health/deep }, limit: 2/h }
         - { name: other, fallback: true, limit: 1/h }",
    );
    let free = ("GET /health", "allow z_health (unlimited)");
    expect(
        &engine,
        &[
            free,
            free,
            ("GET /health/deep", "allow ddos 1"),
            ("GET /health/deep", "allow ddos 0"),
            ("GET /health/deep", "deny ddos"),
            ("GET /x", "allow a_all 0"),
        ],
    );
}

#[test]
fn stop_and_replaces_keep_others_from_applying() {
    let engine = engine(
        "rules:
         - { name: general, limit: 1/h }
         - { name: partner, match: { tenant: acme }, replaces: general, limit: 2/h }
         - { name: admin, priority: 5, match: { path: /admin/** }, stop: true, limit: 3/h }
         - { name: same_level, priority: 5, match: { path: /admin/x }, limit: 4/h }",
    );
    expect(
        &engine,
        &[
            ("GET / user=1", "allow general 0"),
            ("GET / user=1", "deny general"),
            ("GET / user=2 tenant=acme", "allow partner 1"),
            ("GET /admin user=1", "allow admin 2"),
            ("GET /admin user=1 tenant=acme", "allow admin 1"),
        ],
    );
    assert_eq!(check(&engine, "GET /admin/x user=1").decisions().count(), 2);
}

#[test]
fn fallbacks_are_for_requests_that_no_live_rule_matches() {
    let engine = engine(
        "rules:
         - { name: a, match: { path: /a }, limit: 9/h, exempt: { user: vip } }
         - { name: s, match: { path: /s }, limit: 9/h, mode: shadow }
         - { name: f, fallback: true, limit: 5/h }
         - { name: f_posts, fallback: true, match: { method: POST }, limit: 4/h }
         - { name: off, enabled: false, limit: 1/h }",
    );
    expect(
        &engine,
        &[
            ("GET /a", "allow a 8"),
            ("GET /a user=vip", "allow a (exempt)"),
            ("GET /b", "allow f 4"),
            ("POST /b", "allow f 3"),
            // What is tried out in the shadow changes nothing.
            ("GET /s", "allow f 2"),
        ],
    );
}

#[test]
fn more_limits_than_a_store_takes_deny_and_say_so() {
    let many: Vec<String> = (0..33)
        .map(|n| format!("{{ name: r{n}, match: {{ x: {{ prefix: a }} }}, per: [], limit: 9/h }}"))
        .collect();
    let engine = engine(&format!("rules: [{}]", many.join(", ")));
    expect(&engine, &[("GET / x=ab", "busy (33 limits)"), ("GET / x=b", "allow (no rule)")]);
    let shadows = many.join(", ").replace("limit: 9/h", "limit: 9/h, mode: shadow");
    let shadows = shadows.replacen(", mode: shadow", "", 3);
    let engine = self::engine(&format!("rules: [{shadows}]"));
    let verdict = check(&engine, "GET / x=ab");
    assert_eq!((answer(&verdict).as_str(), verdict.decisions().count()), ("allow r0 8", 32));
}

/// 50 of 50 requests passed: `loose` replaces `strict`, but the rules that `strict` had replaced or stopped
/// stayed away as well.
#[test]
fn a_rule_that_is_replaced_has_no_effect_at_all() {
    // In a chain: `a` replaces `b`, so `b` replaces nothing, and `c` is in force.
    for (a, b, c) in [(2, 1, 0), (0, 1, 2), (1, 1, 1), (0, 2, 1), (1, 0, 2)] {
        let engine = engine(&format!(
            "rules:
             - {{ name: a, priority: {a}, per: [], replaces: b, limit: 9/h }}
             - {{ name: b, priority: {b}, per: [], replaces: c, limit: 1/h }}
             - {{ name: c, priority: {c}, per: [], limit: 2/h }}"
        ));
        let answers = [("GET /", "allow c 1"), ("GET /", "allow c 0"), ("GET /", "deny c")];
        expect(&engine, &answers);
    }
    // A `stop` that is replaced by a rule of its own priority stops nothing.
    let stopped = engine(
        "rules:
         - { name: a_strict, priority: 5, per: [], stop: true, limit: 1/h }
         - { name: b_loose, priority: 5, per: [], replaces: a_strict, limit: 9/h }
         - { name: c_all, per: [], limit: 2/h }",
    );
    let answers = [("GET /", "allow c_all 1"), ("GET /", "allow c_all 0"), ("GET /", "deny c_all")];
    expect(&stopped, &answers);
    // An unlimited rule that is replaced lifts nothing.
    let lifted = engine(
        "rules:
         - { name: a_free, unlimited: true, priority: 5 }
         - { name: b_paid, priority: 5, per: [], replaces: a_free, limit: 1/h }
         - { name: c_all, per: [], limit: 9/h }",
    );
    expect(&lifted, &[("GET /", "allow b_paid 0"), ("GET /", "deny b_paid")]);
}

#[test]
fn what_replaces_counts_only_where_it_is_looked_at_and_applies() {
    // `loose` is below the stop, so it replaces nothing.
    let below = engine(
        "rules:
         - { name: strict, priority: 5, per: [], stop: true, limit: 1/h }
         - { name: loose, per: [], replaces: strict, limit: 9/h }",
    );
    expect(&below, &[("GET /", "allow strict 0"), ("GET /", "deny strict")]);
    // Neither does one that the request is exempt from.
    let exempt = engine(
        "rules:
         - { name: strict, per: [], limit: 1/h }
         - { name: loose, per: [], replaces: strict, limit: 9/h, exempt: { user: vip } }",
    );
    expect(
        &exempt,
        &[
            ("GET / user=1", "allow loose 8"),
            ("GET / user=vip", "allow strict 0"),
            ("GET / user=vip", "deny strict"),
        ],
    );
    // Of two that replace each other the first stays.
    let circle = engine(
        "rules:
         - { name: b, priority: 1, per: [], replaces: a, limit: 1/h }
         - { name: a, per: [], replaces: b, limit: 9/h }",
    );
    expect(&circle, &[("GET /", "allow b 0"), ("GET /", "deny b")]);
    // The limits above an unlimited rule stay, without those that are replaced there.
    let above = engine(
        "rules:
         - { name: a, priority: 5, per: [], limit: 1/h }
         - { name: b, priority: 5, per: [], replaces: a, limit: 2/h }
         - { name: free, unlimited: true }
         - { name: c, per: [], limit: 1/h }",
    );
    expect(&above, &[("GET /", "allow b 1"), ("GET /", "allow b 0"), ("GET /", "deny b")]);
}
