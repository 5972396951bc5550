//! Rules that say how critical requests are, and whose word counts beside them.

use crate::support::{ask, check, engine, engine_without_store, expect};
use tollbar::store::block_on;
use tollbar_rules::{AsyncEngine, Criticality, RuleFile, Verdict};

/// How critical a request is, and the rule that says so.
fn class(verdict: &Verdict) -> (&'static str, Option<&str>) {
    (verdict.criticality().name(), verdict.classifier().map(|rule| &*rule.name))
}

#[track_caller]
fn expect_classes(engine: &AsyncEngine, steps: &[(&str, &str, Option<&str>)]) {
    for (request, criticality, rule) in steps {
        assert_eq!(class(&check(engine, request)), (*criticality, *rule), "{request}");
    }
}

#[test]
fn the_first_rule_that_matches_and_says_it_makes_a_request_critical() {
    let engine = engine(
        "rules:
         - { name: all, limit: 1000/h, criticality: low }
         - { name: checkout, match: { path: /checkout/**, method: POST }, criticality: critical, priority: 9 }
         - { name: gold, match: { tier: gold }, criticality: high, priority: 5 }
         - { name: batch, match: { priority: batch }, criticality: low, priority: 20 }
         - { name: tried, match: { path: /tried }, criticality: critical, mode: shadow, priority: 99 }
         - { name: off, match: { path: /off }, criticality: critical, enabled: false, priority: 99 }
         - { name: mute, match: { path: /mute }, limit: 5/h, priority: 99, stop: true }",
    );
    expect_classes(
        &engine,
        &[
            ("GET /", "low", Some("all")),
            ("POST /checkout/1", "critical", Some("checkout")),
            ("GET /checkout/1", "low", Some("all")),
            ("GET / tier=gold", "high", Some("gold")),
            ("POST /checkout/1 tier=gold", "critical", Some("checkout")),
            ("POST /checkout/1 priority=batch", "low", Some("batch")),
            ("GET /tried", "low", Some("all")),
            ("GET /off", "low", Some("all")),
            // What stops others from limiting does not make a request less critical.
            ("GET /mute tier=gold", "high", Some("gold")),
        ],
    );
}

#[test]
fn a_fallback_says_it_where_no_other_rule_matches() {
    let engine = engine(
        "rules:
         - { name: rest, criticality: low, fallback: true }
         - { name: api, match: { path: /api/** }, limit: 9/h }",
    );
    expect_classes(&engine, &[("GET /x", "low", Some("rest")), ("GET /api/x", "normal", None)]);
}

#[test]
fn a_path_with_two_readings_is_as_critical_as_the_lower_one() {
    let engine = engine(
        "rules:
         - { name: deep, match: { path: /v1/pay/now }, criticality: critical, priority: 1 }
         - { name: flat, match: { path: '/v1/{id}' }, criticality: low }",
    );
    expect_classes(
        &engine,
        &[("GET /v1/pay/now", "critical", Some("deep")), ("GET /v1/pay", "low", Some("flat"))],
    );
    // As the server reads it that keeps the slash, no rule makes it critical.
    expect_classes(&engine, &[("GET /v1/pay%2Fnow", "low", Some("flat"))]);
}

#[test]
fn a_sender_can_lower_it_and_who_is_trusted_can_say_anything() {
    let engine =
        engine("rules: [{ name: high, match: { path: /high }, criticality: high, limit: 99/h }]");
    let lowered = |path: &str, criticality| {
        ask(path, |request| {
            let mut request = request.clone();
            request.lower_criticality(criticality);
            let explained = engine.explain(&request);
            let verdict = block_on(AsyncEngine::check(&engine, &request));
            assert_eq!(verdict.criticality(), explained.criticality);
            (verdict.criticality().name(), explained.criticality_why)
        })
    };
    for (path, asked, expected, why) in [
        ("GET /high", Criticality::Low, "low", "lowered by the caller; high by rule `high`"),
        (
            "GET /high",
            Criticality::Critical,
            "high",
            "by rule `high`; the caller asked for critical and can only lower it",
        ),
        ("GET /high", Criticality::High, "high", "by rule `high`"),
        ("GET /", Criticality::Low, "low", "lowered by the caller; normal by default"),
        (
            "GET /",
            Criticality::Critical,
            "normal",
            "by default; the caller asked for critical and can only lower it",
        ),
    ] {
        assert_eq!(lowered(path, asked), (expected, why.to_owned()), "{path} {asked:?}");
    }
    expect_classes(
        &engine,
        &[
            ("GET /high criticality=low", "low", Some("high")),
            ("GET / criticality=critical", "critical", None),
        ],
    );
    let why = |line: &str| ask(line, |request| engine.explain(request).criticality_why);
    assert_eq!(why("GET /high"), "by rule `high`");
    assert_eq!(why("GET /"), "by default");
    assert_eq!(why("GET / criticality=low"), "as the request says");
    let text = ask("GET /high", |request| engine.explain(request).to_string());
    assert!(text.contains("\nhigh: by rule `high`\n"), "{text}");
    let text = ask("GET /", |request| engine.explain(request).to_string());
    assert!(!text.contains("by default"), "{text}");
}

#[test]
fn reserves_and_shedding_go_by_what_the_rules_say() {
    let rules = "rules:
         - { name: pay, match: { path: /pay }, criticality: critical }
         - { name: sync, match: { path: /sync }, criticality: low }
         - { name: all, per: [], limit: 10/h, reserve: { critical: 20%, normal: 30% }, on_store_failure: { shed: normal } }";
    let engine = engine(rules);
    expect(
        &engine,
        &[
            ("GET /sync cost=5", "allow all 0"),
            ("GET /sync", "deny all"),
            ("GET /", "allow all 2"),
            ("GET / cost=2", "allow all 0"),
            ("GET /", "deny all"),
            ("GET /pay cost=2", "allow all 0"),
            ("GET /pay", "deny all"),
        ],
    );
    expect(
        &engine_without_store(rules),
        &[("GET /sync", "deny all"), ("GET /", "allow all ?"), ("GET /pay", "allow all ?")],
    );
    // Under one rule alone, that rule says it.
    let shed = engine_without_store(
        "rules: [{ name: a, criticality: high, limit: 5/h, on_store_failure: shed }]",
    );
    let verdict = ask("GET /", |request| block_on(shed.rule("a").unwrap().check(request)));
    assert!(verdict.is_allowed());
    assert_eq!(class(&verdict), ("high", Some("a")));
}

#[test]
fn a_rule_that_only_says_it_limits_nothing_and_is_no_mistake() {
    let file = RuleFile::parse("r", "rules: [{ name: a, criticality: high }]").unwrap();
    let told: Vec<String> = file.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(told, ["1:8: rules: nothing is limited: of 1 rule, 1 is without a limit"]);
    let before = RuleFile::parse("r", "rules: [{ name: a, criticality: low }]").unwrap().rules;
    let diff = tollbar_rules::Diff::between(&before, &file.rules);
    assert_eq!(diff.changed[0].fields, ["criticality"]);
    let engine = AsyncEngine::new(file.rules, std::sync::Arc::new(tollbar::MemoryStore::new()));
    expect(&engine.unwrap(), &[("GET /", "allow (no rule)")]);
}
