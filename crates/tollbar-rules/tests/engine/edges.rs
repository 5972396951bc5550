//! Two features of rules at once, and numbers at their bounds.

use tollbar::store::block_on;
use tollbar_rules::{Effect, Engine, Limit, LimitError, LimitOptions, Override, Reason};

use crate::support::{admit, answer, check, clock, engine, engine_without_store, expect, rules};

/// While the store is down, permits are counted in this process. Were a request that another limit
/// denied to give back a permit that it never took, one more than the limit would be in flight.
#[test]
fn a_request_that_is_denied_while_the_store_is_down_gives_no_permit_back() {
    let text = "rules:
      - { name: busy, per: [], algorithm: concurrency, limit: 2, on_store_failure: local }
      - { name: rate, per: user, limit: 1/h, on_store_failure: local }";
    let engine = engine_without_store(text);
    let first = admit(&engine, "GET / user=1").hold.unwrap();
    let denied = admit(&engine, "GET / user=1");
    assert_eq!(answer(&denied.verdict), "deny rate");
    assert!(denied.hold.is_none());
    expect(&engine, &[("GET / user=2", "allow busy 0"), ("GET / user=3", "busy busy")]);
    assert!(block_on(engine.release(&first)).unwrap());
    expect(&engine, &[("GET / user=4", "allow busy 0"), ("GET / user=5", "busy busy")]);
}

/// A denial in shadow mode denies nothing, so the request is in flight and its permit comes back.
#[test]
fn a_request_that_only_a_shadow_denies_while_the_store_is_down_holds_its_permit() {
    let text = "rules:
      - { name: busy, per: [], algorithm: concurrency, limit: 1, on_store_failure: local }
      - { name: rate, per: [], limit: 1/h, mode: shadow, on_store_failure: local }";
    let engine = engine_without_store(text);
    for denied_by_shadow in [0, 1, 1] {
        let admission = admit(&engine, "GET /");
        assert_eq!(admission.verdict.would_deny().count(), denied_by_shadow);
        expect(&engine, &[("GET /", "busy busy")]);
        assert!(block_on(engine.release(&admission.hold.unwrap())).unwrap());
    }
}

/// `general` is looked at first, so its ban is found before `partner` replaces it.
#[test]
fn a_ban_under_a_rule_that_is_replaced_denies_nothing() {
    let text = "rules:
      - { name: general, limit: 5/h }
      - { name: partner, match: { tenant: acme }, replaces: general, limit: 7/h }";
    let mut ban = Override::new("user:7", Effect::Ban);
    ban.rule = Some("general".into());
    let rules = rules(text).with_overrides(vec![ban]);
    let engine = Engine::builder(rules).clock(clock()).build();
    let banned = check(&engine, "GET / user=7");
    assert!(!banned.is_allowed() && matches!(banned.reason(), Reason::Banned { .. }));
    expect(
        &engine,
        &[("GET / user=7 tenant=acme", "allow partner 6"), ("GET / user=8", "allow general 4")],
    );
}

/// A path with an encoded slash has two readings. What loosens counts where it matches both.
#[test]
fn a_path_with_an_encoded_slash_is_free_where_both_of_its_readings_are() {
    let engine = engine(
        "rules:
         - { name: static, match: { path: /static/** }, unlimited: true }
         - { name: partner, match: { path: /partner/** }, replaces: all, limit: 9/h }
         - { name: all, per: [], limit: 1/h }",
    );
    let free = ("GET /static/a%2Fb", "allow static (unlimited)");
    expect(
        &engine,
        &[
            free,
            free,
            ("GET /partner/a%2Fb", "allow partner 8"),
            ("GET /x", "allow all 0"),
            // One reading of these is `/x`.
            ("GET /static/..%2Fx", "deny all"),
            ("GET /partner/..%2Fx", "deny all"),
            free,
        ],
    );
}

#[test]
fn as_many_limits_as_a_store_takes_are_decided_and_shadows_beyond_them_are_left_out() {
    let rule = |n: usize, mode: &str| {
        format!("{{ name: r{n}, match: {{ x: {{ prefix: a }} }}, per: [], limit: 9/h{mode} }}")
    };
    for shadows in 0..3 {
        let live = (0..32).map(|n| rule(n, ""));
        let shadow = (32..32 + shadows).map(|n| rule(n, ", mode: shadow"));
        let all: Vec<String> = live.chain(shadow).collect();
        let engine = engine(&format!("rules: [{}]", all.join(", ")));
        let verdict = check(&engine, "GET / x=ab");
        assert_eq!((answer(&verdict).as_str(), verdict.decisions().count()), ("allow r0 8", 32));
    }
}

#[test]
fn a_whole_number_is_digits_and_at_most_18_of_them() {
    let limit = |number: &str| {
        let text = format!("{number} per calendar day");
        Limit::new(&text, LimitOptions::default()).map(|limit| limit.policy().limit())
    };
    for (text, number) in [("7", 7), ("1_000", 1_000), ("1__0", 10), ("000000000000000020", 20)] {
        assert_eq!(limit(text).unwrap(), number, "{text}");
    }
    for text in ["", "_", "_5", "5_", "+5", "-5", "5x", "x5", "0000000000000000020"] {
        let refused = limit(text);
        assert!(matches!(refused, Err(LimitError::Number { .. })), "{text}: {refused:?}");
    }
}
