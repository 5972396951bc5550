//! What is written is read as the same rule, and what is wrong has its line.

use serde_json::{Value, json};
use tollbar_rules::admin::{from_json, to_yaml};

use super::*;

fn rule(json: &Value) -> Rule {
    from_json(json.clone()).unwrap()
}

#[test]
fn a_rule_is_written_in_the_words_of_files() {
    let rule = rule(&json!({
        "name": "search", "httpMethod": "GET", "pathPattern": "/v1/search/**", "tenantId": "acme",
        "algorithm": "token_bucket", "maxRequests": 100, "windowSeconds": 60, "burstCapacity": 20,
        "per": ["user", "path"], "description": "who: \"searches\"",
    }));
    assert_eq!(
        to_yaml(&rule),
        "name: search\n\
         description: \"who: \\\"searches\\\"\"\n\
         match: { method: GET, path: \"/v1/search/**\", tenant: acme }\n\
         per: [user, path]\n\
         limit: 100/min\n\
         burst: 20\n\
         algorithm: token_bucket\n"
    );
    assert_eq!(limit_line(&rule), "100/min, burst 20 per user, path");
}

#[test]
fn what_is_written_is_read_as_the_same() {
    for json in [
        json!({ "name": "a", "maxRequests": 7, "windowSeconds": 61 }),
        json!({ "name": "a", "maxRequests": 7, "windowSeconds": 7_200, "enabled": false, "priority": -3 }),
        json!({ "name": "a", "limit": ["10/s", "450/15min"], "per": [], "mode": "shadow" }),
        json!({ "name": "a", "tiers": { "free": "1/s", "premium": "100/s", "default": "free" } }),
        json!({ "name": "a", "limit": "5/s", "match": { "country": "no", "plan": ["a b", "\u{85}:"] } }),
        json!({ "name": "a", "limit": "5/s", "description": "\u{202e}<b>\u{2028}\u{e0041}' \"\n#" }),
        json!({ "name": "a", "maxRequests": 5, "algorithm": "concurrency", "lease": "30s" }),
        json!({ "name": "acme/a", "tenantId": "acme", "maxRequests": 5, "windowSeconds": 1 }),
        json!({ "name": "a", "limit": "5/s", "cost": { "GET /v1/search": 5, "POST /v1/reports": 50 },
                "exempt": [{ "api_key": "internal" }, { "ip": "10.0.0.0/8", "until": "2027-01-01" }] }),
    ] {
        let rule = rule(&json);
        let yaml = to_yaml(&rule);
        let again = read(&yaml).unwrap_or_else(|error| panic!("{yaml}: {error:?}"));
        assert_eq!(again, rule, "{yaml}");
        assert!(yaml.chars().all(|c| c == '\n' || !c.is_control()), "{yaml:?}");
        assert!(!yaml.contains(['\u{202e}', '\u{2028}', '\u{e0041}']), "{yaml:?}");
    }
}

#[test]
fn a_file_of_one_rule_is_taken_too_and_of_two_is_not() {
    let one = read("rules:\n  - { name: a, limit: 5/s }\n").unwrap();
    assert_eq!(&*one.name, "a");
    let two = read("rules: [{ name: a, limit: 5/s }, { name: b, limit: 5/s }]").unwrap_err();
    assert!(two.detail.contains("write one rule here"), "{}", two.detail);
}

#[test]
fn what_is_wrong_has_its_line() {
    for (yaml, part) in [
        ("name: a\nlimit: 5/fortnight", "line 2, limit"),
        ("name: a\nlimt: 5/s", "line 2, limt"),
        ("name: a\n\npriority: high\nlimit: 5/s", "line 3, priority"),
        ("name: a\nlimit: 5/s\nmatch:\n  plan:\n    oneof: x", "line 5, match.plan.oneof"),
        ("name: [", "line 2"),
        ("", "the file is empty"),
        ("- a", "this is a list: write a mapping"),
        ("just a text", "this is a single value: write a mapping"),
    ] {
        let problem = read(yaml).unwrap_err();
        assert!(problem.detail.contains(part), "{yaml:?}: {}", problem.detail);
    }
}

#[test]
fn what_changed_is_told_by_field() {
    let before = rule(&json!({ "name": "a", "maxRequests": 5, "windowSeconds": 1 }));
    let after =
        rule(&json!({ "name": "a", "maxRequests": 9, "windowSeconds": 1, "mode": "shadow" }));
    let raw = |value: Option<UntrustedText>| value.map(|text| text.raw().to_owned());
    let told: Vec<(String, Option<String>, Option<String>)> = changes(Some(&before), Some(&after))
        .into_iter()
        .map(|diff| (diff.name, raw(diff.old), raw(diff.new)))
        .collect();
    let text = |value: &str| Some(value.to_owned());
    assert_eq!(
        told,
        [("limit".to_owned(), text("5/s"), text("9/s")), ("mode".to_owned(), None, text("shadow")),]
    );
    let gone: Vec<String> =
        changes(Some(&before), None).into_iter().map(|diff| diff.name).collect();
    assert_eq!(gone, ["name", "limit"]);
}

#[test]
fn what_a_rule_is_about_is_told_in_a_line() {
    for (json, line) in [
        (json!({}), "every request"),
        (json!({ "httpMethod": "POST", "pathPattern": "/v1/login" }), "POST /v1/login"),
        (json!({ "pathPattern": "/v1/**" }), "/v1/**"),
        (
            json!({ "tenantId": "acme", "match": { "plan": ["a", "b"] } }),
            "plan [a, b], tenant acme",
        ),
    ] {
        let mut fields = json!({ "name": "a", "limit": "1/s" });
        fields.as_object_mut().unwrap().extend(json.as_object().unwrap().clone());
        assert_eq!(applies_to(&rule(&fields)), line);
    }
}
