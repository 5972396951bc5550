//! Servers read an encoded slash in two ways. Whichever way one reads it, a request costs no less than the
//! path that the server sees would have cost.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use tollbar::MemoryStore;
use tollbar_rules::{Conditions, Costs, Engine, Exemption, Limit, Request, Rule, RuleSet, Test};

use crate::support::{engine, expect};

/// 50 of 50 requests passed a limit of 5 an hour: the cheap route and the rule that kept the fallback away
/// each held in one reading of the path only.
#[test]
fn a_cheap_route_and_a_covered_fallback_need_both_readings() {
    let cheap =
        engine(r#"rules: [{ name: all, limit: 5/h, cost: { "GET /static/**": 0, default: 1 } }]"#);
    expect(&cheap, &[("GET /static/a%2Fb ip=203.0.113.7", "allow all 5")]);
    let report = "GET /static/..%2Fapi/report ip=203.0.113.7";
    for left in (0..5).rev() {
        expect(&cheap, &[(report, &format!("allow all {left}"))]);
    }
    expect(&cheap, &[(report, "deny all"), ("GET /static/x ip=203.0.113.7", "allow all 0")]);

    let covered = engine(
        "rules:
         - { name: static, match: { path: /static/** }, limit: 1000/h }
         - { name: rest, fallback: true, limit: 5/h }",
    );
    expect(&covered, &[("GET /static/a%2Fb", "allow static 999")]);
    for left in (0..5).rev() {
        expect(&covered, &[("GET /static/..%2Fapi/report", &format!("allow rest {left}"))]);
    }
    expect(&covered, &[("GET /static/..%2Fapi/report", "deny rest")]);
}

/// A rule by name looks at exemptions and costs too.
#[test]
fn a_check_by_name_needs_both_readings_as_well() {
    let engine = engine(
        r#"rules: [{ name: all, limit: 2/h, exempt: { path: "/static/**" }, cost: { "/free/**": 0 } }]"#,
    );
    let rule = engine.rule("all").unwrap();
    for path in ["/static/..%2Fx", "/free/..%2Fx"] {
        assert!(rule.check(&Request::new("GET", path).unwrap()).is_allowed());
    }
    assert!(!rule.check(&Request::new("GET", "/static/..%2Fx").unwrap()).is_allowed());
    assert!(!rule.check(&Request::new("GET", "/free/..%2Fx").unwrap()).is_allowed());
    assert!(rule.check(&Request::new("GET", "/static/a%2Fx").unwrap()).is_allowed());
}

fn pattern() -> impl Strategy<Value = Conditions> {
    let text = "/[ab](/[ab]|/\\*)?(/\\*\\*)?|/\\*\\*";
    text.prop_map(|text| Conditions::new().and("path", Test::Path([text.parse().unwrap()].into())))
}

fn rule(name: usize) -> impl Strategy<Value = Rule> {
    let conditions = prop_oneof![1 => Just(Conditions::new()), 3 => pattern()];
    let relief = prop::sample::select(vec![
        "",
        "",
        "unlimited",
        "stop",
        "replaces",
        "fallback",
        "exempt",
        "cost",
        "default",
    ]);
    let other = 0..RULES;
    (conditions, relief, pattern(), other, -1..=1, 0..4_u64).prop_map(
        move |(conditions, relief, path, other, priority, cost)| {
            let mut rule = Rule::new(&format!("r{name}"));
            (rule.conditions, rule.priority) = (conditions, priority);
            rule.limits = vec![Limit::parse("1000000/h").unwrap()];
            match relief {
                "unlimited" => (rule.unlimited, rule.limits) = (true, Vec::new()),
                "stop" => rule.stop = true,
                "fallback" => rule.fallback = true,
                "replaces" if other != name => rule.replaces = vec![format!("r{other}").into()],
                "exempt" => rule.exemptions = vec![Exemption::new(path)],
                "cost" => rule.costs.by_condition = vec![(path, cost)],
                "default" => {
                    rule.costs = Costs::fixed(cost);
                    rule.costs.by_condition = vec![(path, 2)];
                }
                _ => {}
            }
            rule
        },
    )
}

const RULES: usize = 5;

fn rules() -> impl Strategy<Value = RuleSet> {
    (rule(0), rule(1), rule(2), rule(3), rule(4))
        .prop_map(|(a, b, c, d, e)| RuleSet::new(vec![a, b, c, d, e]).unwrap())
}

/// What a request for `path` pays under each rule.
fn costs(engine: &Engine, path: &str) -> BTreeMap<String, u64> {
    let verdict = engine.check(&Request::new("GET", path).unwrap());
    assert!(verdict.is_allowed());
    verdict.decisions().map(|limit| (limit.rule().name.to_string(), limit.cost())).collect()
}

#[test]
fn decoding_the_path_another_way_makes_no_request_cheaper() {
    // One engine for all cases: to make one takes longer than to ask it.
    let store = Arc::new(MemoryStore::builder().max_keys(100).build());
    let engine = Engine::builder(RuleSet::empty()).store(store).build();
    let path = "/([ab]|\\.\\.)((/|%2F)([ab]|\\.\\.)){0,4}";
    let config = ProptestConfig::with_cases(1_000);
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]));
    let property = |(rules, raw): (RuleSet, String)| {
        engine.replace(rules);
        let paid = costs(&engine, &raw);
        let as_slash = raw.replace("%2F", "/");
        // A character of its segment that no pattern has.
        let as_character = raw.replace("%2F", "~");
        for reading in [as_slash, as_character] {
            for (rule, cost) in costs(&engine, &reading) {
                let paid = paid.get(&rule).copied();
                prop_assert!(
                    paid >= Some(cost),
                    "{raw}: {rule} takes {paid:?}, of {reading} {cost}"
                );
            }
        }
        Ok(())
    };
    runner.run(&(rules(), path), property).unwrap();
}
