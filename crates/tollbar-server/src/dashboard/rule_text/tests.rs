//! What is written is read as the same rule, and what is wrong has its line.

use super::*;

fn form(json: &Value) -> RuleForm {
    RuleForm::from_json(json).unwrap()
}

#[test]
fn a_rule_is_written_in_the_words_of_files() {
    let form = form(&json!({
        "name": "search", "httpMethod": "GET", "pathPattern": "/v1/search/**", "tenantId": "acme",
        "algorithm": "token_bucket", "maxRequests": 100, "windowSeconds": 60, "burstCapacity": 20,
        "per": ["user", "path"], "description": "who: \"searches\"",
    }));
    assert_eq!(
        RuleText::of_json(&form.to_json()).yaml(),
        "name: search\n\
         description: \"who: \\\"searches\\\"\"\n\
         match: { method: GET, path: \"/v1/search/**\", tenant: acme }\n\
         per: [user, path]\n\
         limit: 100/min\n\
         burst: 20\n\
         algorithm: token_bucket\n"
    );
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
        let form = form(&json);
        let yaml = RuleText::of_json(&form.to_json()).yaml();
        let RuleSent(read) = RuleText::read(&yaml).unwrap_or_else(|it| panic!("{yaml}: {it:?}"));
        let read = RuleForm::from_json(&read).unwrap();
        assert_eq!(read.rule().unwrap(), form.rule().unwrap(), "{yaml}");
        assert_eq!(read.tenant_id, form.tenant_id, "{yaml}");
    }
}

#[test]
fn a_file_of_one_rule_is_taken_too_and_of_two_is_not() {
    let one = RuleText::read("rules:\n  - { name: a, limit: 5/s }\n").unwrap();
    assert_eq!(one.0["name"], "a");
    let two = "rules: [{ name: a, limit: 5/s }, { name: b, limit: 5/s }]";
    assert!(RuleText::read(two).is_err());
}

#[test]
fn what_is_wrong_has_its_line() {
    for (yaml, part) in [
        ("name: a\nlimit: 5/fortnight", "line 2, limit"),
        ("name: a\nlimt: 5/s", "line 2, limt"),
        ("name: a\n\npriority: high\nlimit: 5/s", "line 3, priority"),
        ("name: [", "2:"),
        ("", ""),
        ("- a", "no rule"),
        ("just a text", "no rule"),
    ] {
        let problem = RuleText::read(yaml).unwrap_err();
        assert!(problem.detail.contains(part), "{yaml:?}: {}", problem.detail);
    }
}

#[test]
fn what_changed_is_told_by_field() {
    let before = RuleText::of_json(&json!({ "name": "a", "maxRequests": 5, "windowSeconds": 1 }));
    let after = RuleText::of_json(&json!({
        "name": "a", "maxRequests": 9, "windowSeconds": 1, "mode": "shadow", "version": 2,
    }));
    let told: Vec<(String, Option<String>, Option<String>)> = before
        .changes(&after)
        .into_iter()
        .map(|it| {
            (it.name, it.old.map(|it| it.raw().to_owned()), it.new.map(|it| it.raw().to_owned()))
        })
        .collect();
    let text = |it: &str| Some(it.to_owned());
    assert_eq!(
        told,
        [("limit".to_owned(), text("5/s"), text("9/s")), ("mode".to_owned(), None, text("shadow")),]
    );
}

#[test]
fn what_a_rule_is_about_is_told_in_a_line() {
    for (json, line) in [
        (json!({ "name": "a" }), "every request"),
        (json!({ "httpMethod": "POST", "pathPattern": "/v1/login" }), "POST /v1/login"),
        (
            json!({ "tenantId": "acme", "match": { "plan": ["a", "b"] } }),
            "plan [a, b], tenant acme",
        ),
    ] {
        assert_eq!(RuleText::of_json(&json).applies_to(), line);
    }
}
