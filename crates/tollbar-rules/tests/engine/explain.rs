//! Why was I limited: every rule, its counters, and what they say; usage besides.

use tollbar::{ManualClock, Timestamp};
use tollbar_rules::{Engine, Request, RuleFate, RuleFile};

const RULES: &str = r#"
rules:
  - { name: general, limit: 3/h, candidate: { limit: 1/h } }
  - { name: tenants, match: { tenant: { prefix: ac } }, per: tenant, limit: 9/h, cost: { "GET /v1/**": 2 } }
  - { name: partner, match: { tenant: acme }, replaces: tenants, tiers: { gold: 5/h, default: gold } }
  - { name: internal, match: { path: "/v1/**" }, limit: 1/h, exempt: [{ user: root, reason: on call }] }
  - { name: named, match: { path: /named }, per: user, missing: deny, limit: 1/h }
  - { name: maybe, match: { path: /maybe }, per: session, missing: skip, limit: 1/h }
  - { name: tried, match: { path: "/v1/**" }, mode: shadow, per: [], limit: 1/h }
  - { name: off, enabled: false, limit: 1/h }
  - { name: health, priority: 5, match: { path: /health }, unlimited: true }
  - { name: rest, fallback: true, limit: 1/h }
"#;

type Attributes = &'static [(&'static str, &'static str)];

fn engine() -> Engine {
    let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    let rules = RuleFile::parse("rules.yaml", RULES).unwrap().rules;
    Engine::builder(rules).clock(clock).build()
}

#[test]
fn an_explanation_says_what_became_of_every_rule() {
    let engine = engine();
    let attributes = [("user", "root"), ("tenant", "acme")];
    let request = Request::new("GET", "/v1/x").unwrap().with_attributes(&attributes).unwrap();
    assert!(engine.check(&request).is_allowed());
    let expected = "\
GET /v1/x
allowed: `general` binds

[ ] health: it asks that `path` matches `/health`, and the request has `/v1/x`

[x] general: all its conditions hold
    counts user:root at a cost of 1
    3/h (sliding_window_counter): 2 of 3 left, binds
    1/h (sliding_window_counter): 0 of 1 left, would deny were it not a candidate

[o] internal: the request is exempt from it: on call

[ ] maybe: it asks that `path` matches `/maybe`, and the request has `/v1/x`

[ ] named: it asks that `path` matches `/named`, and the request has `/v1/x`

[ ] off: it is not enabled

[x] partner: all its conditions hold
    counts user:root at a cost of 1, tier gold
    5/h (sliding_window_counter): 4 of 5 left

[ ] rest: it is a fallback, and another rule matches

[ ] tenants: `partner` applies, which replaces it

[x] tried: all its conditions hold
    counts (everybody) at a cost of 1
    1/h (sliding_window_counter): 0 of 1 left, would deny were it not in the shadow
";
    let explanation = engine.explain(&request);
    assert_eq!(explanation.to_string(), expected);
    // It has charged nothing.
    assert_eq!(engine.explain(&request), explanation);
    assert!(engine.check(&request).is_allowed() && engine.check(&request).is_allowed());
    assert!(!engine.check(&request).is_allowed());
    let explanation = engine.explain(&request);
    assert!(!explanation.is_allowed);
    assert_eq!(explanation.summary, "denied: `general` binds");
}

#[test]
fn every_summary_is_a_sentence() {
    let engine = engine();
    let table: &[(&str, Attributes, &str, &str, RuleFate)] = &[
        ("/health", &[], "allowed: `health` sets no limit", "health", RuleFate::Unlimited),
        ("/health", &[], "allowed: `health` sets no limit", "general", RuleFate::Overruled),
        (
            "/named",
            &[],
            "denied: `named` needs `user`, which the request lacks",
            "named",
            RuleFate::Denied,
        ),
        ("/maybe", &[], "allowed: `general` binds", "maybe", RuleFate::Skipped),
        ("/x", &[("tenant", "ac")], "allowed: `general` binds", "tenants", RuleFate::Applied),
        ("/x", &[], "allowed: `general` binds", "tenants", RuleFate::NotMatched),
    ];
    for (path, attributes, summary, rule, fate) in table {
        let request = Request::new("GET", path).unwrap().with_attributes(attributes).unwrap();
        let explanation = engine.explain(&request);
        assert_eq!(explanation.summary, *summary, "{path}");
        let explained = explanation.rules.iter().find(|entry| entry.name == *rule).unwrap();
        assert_eq!(explained.fate, *fate, "{path} {rule}");
    }
    let none = Engine::new(tollbar_rules::RuleSet::empty());
    let request = Request::new("GET", "/").unwrap();
    assert_eq!(none.explain(&request).summary, "allowed: no rule limits the request");
}

#[test]
fn an_explanation_agrees_with_the_verdict() {
    let engine = engine();
    for path in ["/v1/x", "/health", "/named", "/maybe", "/", "/v1%2Fx"] {
        for attributes in [
            &[][..],
            &[("user", "1")],
            &[("tenant", "acme")],
            &[("tenant", "acorn"), ("user", "root")],
        ] {
            for _ in 0..4 {
                let request =
                    Request::new("GET", path).unwrap().with_attributes(attributes).unwrap();
                let explanation = engine.explain(&request);
                let verdict = engine.check(&request);
                assert_eq!(explanation.is_allowed, verdict.is_allowed(), "{explanation}");
                let applied = explanation.rules.iter().map(|rule| rule.limits.len()).sum::<usize>();
                if verdict.decisions().count() > 0 {
                    assert_eq!(applied, verdict.decisions().count(), "{explanation}");
                }
            }
        }
    }
}

#[test]
fn usage_is_told_without_charging() {
    let engine = engine();
    let attributes = [("tenant", "acorn")];
    let request = Request::new("GET", "/v1/x").unwrap().with_attributes(&attributes).unwrap();
    let left = |rule| engine.rule(rule).unwrap().usage(&request).unwrap()[0].remaining;
    assert_eq!((left("tenants"), left("general"), left("partner")), (9, 3, 5));
    assert!(engine.check(&request).is_allowed());
    assert_eq!((left("tenants"), left("general"), left("partner")), (7, 2, 5));
    assert_eq!((left("tenants"), left("general")), (7, 2));
    let usage = engine.rule("tenants").unwrap().usage(&request).unwrap();
    assert_eq!((usage[0].text.as_str(), usage[0].subject.as_str()), ("9/h", "acorn"));
    assert_eq!((usage[0].limit, usage[0].window.as_secs()), (9, 3_600));
    engine.rule("tenants").unwrap().reset(&request).unwrap();
    assert_eq!((left("tenants"), left("general")), (9, 2));
    let error = engine.rule("named").unwrap().usage(&request).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rule `named` counts per `user`, which the request lacks: send it"
    );
    let error = engine.rule("tenant").unwrap_err();
    assert_eq!(error.to_string(), "there is no rule `tenant`: did you mean `tenants`?");
    assert_eq!(engine.rule("x").unwrap_err().suggestion, None);
}
