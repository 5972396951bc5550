//! The three scopes decide as the rules of a file do that say the same.

use serde_json::{Value, json};
use tollbar::{ManualClock, Timestamp};
use tollbar_rules::admin::{RuleView, from_json, to_json};
use tollbar_rules::{Engine, Request, RuleFile, RuleSet};

fn engine(rules: RuleSet) -> Engine {
    let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    Engine::builder(rules).clock(clock).build()
}

/// Every scope alone, and all of them together.
fn table() -> Vec<(Value, &'static str)> {
    let global =
        json!({ "name": "global", "scope": "global", "maxRequests": 5, "windowSeconds": 60 });
    let tenant = json!({
        "name": "tenant", "scope": "tenant", "tenantId": "acme", "maxRequests": 3,
        "windowSeconds": 3600, "algorithm": "fixed_window", "per": ["tenant"],
    });
    let endpoint = json!({
        "name": "endpoint", "scope": "endpoint", "httpMethod": "post", "pathPattern": "/v1/jobs/{id}",
        "maxRequests": 2, "windowSeconds": 1, "burstCapacity": 4, "algorithm": "token_bucket",
        "cost": 2, "priority": 7,
    });
    let of_tenant = json!({
        "name": "of_tenant", "scope": "endpoint", "tenantId": "acme", "pathPattern": "/v1/**",
        "limit": ["4/s", "6/h"], "exempt": [{ "user": "2" }],
    });
    vec![
        (global, "{ name: global, limit: 5/min }"),
        (
            tenant,
            "{ name: tenant, match: { tenant: acme }, per: tenant, limit: 3/h, algorithm: fixed_window }",
        ),
        (
            endpoint,
            "{ name: endpoint, match: { method: POST, path: '/v1/jobs/{id}' }, limit: 2/s, burst: 4, algorithm: token_bucket, cost: 2, priority: 7 }",
        ),
        (
            of_tenant,
            "{ name: of_tenant, match: { tenant: acme, path: /v1/** }, limit: [4/s, 6/h], exempt: { user: 2 } }",
        ),
    ]
}

#[test]
fn scopes_decide_as_the_rules_of_a_file_do() {
    let table = table();
    let all: Vec<usize> = (0..table.len()).collect();
    let choices: Vec<Vec<usize>> = all.iter().map(|at| vec![*at]).chain([all.clone()]).collect();
    for choice in choices {
        let rules = choice.iter().map(|at| from_json(table[*at].0.clone()).unwrap());
        let by_form = engine(RuleSet::new(rules.collect()).unwrap());
        let texts: Vec<&str> = choice.iter().map(|at| table[*at].1).collect();
        let text = format!("rules: [{}]", texts.join(", "));
        let by_file = engine(RuleFile::parse("r", &text).unwrap().rules);
        let mut seen = (0, 0);
        for round in 0..4 {
            for method in ["GET", "POST"] {
                for path in ["/", "/v1/jobs/7", "/v1/jobs/7/x", "/v1/jobs"] {
                    for attributes in [
                        vec![("user", "1")],
                        vec![("user", "2"), ("tenant", "acme")],
                        vec![("user", "3"), ("tenant", "acme")],
                        vec![("tenant", "other")],
                    ] {
                        let request = Request::new(method, path).unwrap();
                        let request = request.with_attributes(&attributes).unwrap();
                        let (one, other) = (by_form.check(&request), by_file.check(&request));
                        let told = |verdict: &tollbar_rules::Verdict| {
                            let binding = verdict.binding().map(|limit| limit.decision());
                            (
                                verdict.outcome(),
                                verdict.rule().map(|rule| rule.name.clone()),
                                binding,
                            )
                        };
                        assert_eq!(
                            told(&one),
                            told(&other),
                            "{round} {method} {path} {attributes:?}"
                        );
                        let applies = one.binding().is_some();
                        seen = (seen.0 + u32::from(!one.is_allowed()), seen.1 + u32::from(applies));
                    }
                }
            }
        }
        assert!(seen.0 > 0 && seen.1 > seen.0, "some pass, some do not: {choice:?} {seen:?}");
    }
}

#[test]
fn the_rules_of_the_file_have_the_same_flat_fields() {
    for (json, text) in table() {
        let file = RuleFile::parse("r", &format!("rules: [{text}]")).unwrap();
        let rule = &file.rules.rules()[0];
        assert_eq!(RuleView::from_rule(rule).scope.name(), json["scope"]);
        for field in ["tenantId", "pathPattern", "maxRequests", "windowSeconds", "burstCapacity"] {
            assert_eq!(to_json(rule).get(field).unwrap(), &json[field], "{text}: {field}");
        }
    }
}
