//! What is sent, what it means, and what is wrong with it.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tollbar_rules::RuleFile;
use tollbar_rules::admin::{FormError, RuleForm};

fn form(json: &Value) -> Result<RuleForm, FormError> {
    let form = RuleForm::from_json(json)?;
    form.rule()?;
    Ok(form)
}

#[track_caller]
fn refused(json: &Value, message: &str) {
    assert_eq!(form(json).expect_err(message).to_string(), message);
}

#[test]
fn named_fields_are_columns_and_the_rest_is_spec() {
    let json = json!({
        "name": "search", "scope": "endpoint", "tenantId": "acme", "httpMethod": "GET",
        "pathPattern": "/v1/search/**", "algorithm": "token_bucket", "maxRequests": 100,
        "windowSeconds": 60, "burstCapacity": 20, "priority": -3, "enabled": false,
        "per": ["user"], "match": { "plan": "bulk" }, "mode": "shadow",
    });
    let form = form(&json).unwrap();
    assert_eq!((form.max_requests, form.window_seconds), (Some(100), Some(60)));
    assert_eq!((form.burst_capacity, form.priority, form.enabled), (Some(20), -3, false));
    let spec: Vec<&str> = form.spec.keys().map(String::as_str).collect();
    assert_eq!(spec, ["match", "mode", "per"]);
    assert_eq!(form.to_json(), json);
    let rule = form.rule().unwrap();
    assert_eq!((rule.limits[0].text(), rule.priority, rule.enabled), ("100/min", -3, false));
    let conditions: Vec<&str> = rule.conditions.all().iter().map(|it| &*it.attribute).collect();
    assert_eq!(conditions, ["method", "path", "plan", "tenant"]);
    assert_eq!(RuleForm::of(&rule), Some(form));
}

/// `absent` is `not` of `present` within, and comes back as it is written in files.
#[test]
fn a_test_comes_back_in_its_shortest_form() {
    let matching = json!({
        "plan": { "absent": true },
        "region": { "not": "eu" },
        "tier": { "present": true },
    });
    let json = json!({
        "name": "a", "maxRequests": 10, "windowSeconds": 1, "match": matching.clone(),
    });
    let rule = form(&json).unwrap().rule().unwrap();
    assert_eq!(RuleForm::of(&rule).unwrap().spec["match"], matching);
}

#[test]
fn what_is_left_out_has_its_default() {
    let json = json!({ "name": "a", "maxRequests": 10, "windowSeconds": 1, "tenantId": null });
    let form = form(&json).unwrap();
    let full = json!({
        "name": "a", "scope": "global", "tenantId": null, "httpMethod": null, "pathPattern": null,
        "algorithm": null, "maxRequests": 10, "windowSeconds": 1, "burstCapacity": null,
        "priority": 0, "enabled": true,
    });
    assert_eq!(form.to_json(), full);
    let file = RuleFile::parse("r", "rules: [{ name: a, limit: 10/s }]").unwrap();
    assert_eq!(form.rule().unwrap(), *file.rules.rules()[0]);
    // A scope that is not said follows from the rest.
    let scope = |json| form_scope(&json);
    assert_eq!(scope(json!({ "tenantId": "acme" })), "tenant");
    assert_eq!(scope(json!({ "tenantId": "acme", "pathPattern": "/a" })), "endpoint");
    assert_eq!(scope(json!({ "httpMethod": "GET", "pathPattern": "/a" })), "endpoint");
}

fn form_scope(fields: &Value) -> &'static str {
    let mut json = json!({ "name": "a", "maxRequests": 10, "windowSeconds": 1 });
    json.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    form(&json).unwrap().scope.name()
}

#[test]
fn permits_are_a_number_without_a_window() {
    let json = json!({ "name": "a", "algorithm": "concurrency", "maxRequests": 5, "lease": "30s" });
    let form = form(&json).unwrap();
    let text = "rules: [{ name: a, algorithm: concurrency, limit: 5, lease: 30s }]";
    let rule = RuleFile::parse("r", text).unwrap().rules.rules()[0].clone();
    assert_eq!(form.rule().unwrap(), *rule);
    assert_eq!(RuleForm::of(&rule), Some(form));
}

#[test]
fn mistakes_are_told_by_field_with_what_to_send() {
    let with = |fields: Value| {
        let mut json = json!({ "name": "a", "maxRequests": 10, "windowSeconds": 1 });
        json.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json
    };
    let table = [
        (
            json!([]),
            "a rule is an object: send one such as {\"name\": \"per_client\", \"maxRequests\": 10, \"windowSeconds\": 1}",
        ),
        (
            json!({ "maxRequests": 10, "windowSeconds": 1 }),
            "name: the rule has no name: send one such as \"per_client\"",
        ),
        (with(json!({ "name": 7 })), "name: this is no text: send a text such as \"per_client\""),
        (
            with(json!({ "name": "" })),
            "name: this is empty: send a text such as \"per_client\", or leave it out",
        ),
        (
            with(json!({ "scope": "world" })),
            "scope: `world` is not known here: send one of \"global\", \"tenant\", \"endpoint\"",
        ),
        (
            with(json!({ "scope": "global", "tenantId": "acme" })),
            "tenantId: a rule of scope \"global\" has none: send scope \"tenant\", or leave it out",
        ),
        (
            with(json!({ "scope": "global", "pathPattern": "/a" })),
            "pathPattern: a rule of scope \"global\" has none: send scope \"endpoint\", or leave it out",
        ),
        (
            with(json!({ "scope": "tenant" })),
            "tenantId: a rule of scope \"tenant\" has one: send the tenant, such as \"acme\"",
        ),
        (
            with(json!({ "scope": "tenant", "tenantId": "acme", "httpMethod": "GET" })),
            "httpMethod: a rule of scope \"tenant\" has none: send scope \"endpoint\", or leave it out",
        ),
        (
            with(json!({ "scope": "endpoint" })),
            "pathPattern: a rule of scope \"endpoint\" has one: send the path, such as \"/v1/**\"",
        ),
        (
            with(json!({ "httpMethod": "GET" })),
            "pathPattern: a rule of scope \"endpoint\" has one: send the path, such as \"/v1/**\"",
        ),
        (
            with(json!({ "pathPattern": "a" })),
            "pathPattern: a path pattern begins with `/`: write `/a`",
        ),
        (
            with(json!({ "algorithm": "bucket" })),
            "algorithm: `bucket` is not known here: send one of \"sliding_window_counter\", \"sliding_window_strict\", \"sliding_window_log\", \"token_bucket\", \"leaky_bucket\", \"leaky_queue\", \"fixed_window\", \"calendar_window\", \"concurrency\"",
        ),
        (
            with(json!({ "maxRequests": 0 })),
            "maxRequests: this is no whole number above 0: send one such as 100",
        ),
        (
            with(json!({ "maxRequests": "10" })),
            "maxRequests: this is no whole number above 0: send one such as 100",
        ),
        (
            with(json!({ "maxRequests": 1.5 })),
            "maxRequests: this is no whole number above 0: send one such as 100",
        ),
        (
            with(json!({ "maxRequests": null })),
            "maxRequests: a window has a limit: send one such as 100",
        ),
        (
            with(json!({ "windowSeconds": null })),
            "windowSeconds: a limit has a window: send its seconds, such as 60",
        ),
        (
            with(json!({ "algorithm": "concurrency" })),
            "windowSeconds: what is in flight has no window: leave it out",
        ),
        (
            with(json!({ "limit": "5/s" })),
            "maxRequests: `limit` says it too: leave one of them out",
        ),
        (
            with(json!({ "burst": 5, "burstCapacity": 5 })),
            "burstCapacity: `burst` says it too: leave one of them out",
        ),
        (
            with(json!({ "pathPattern": "/a", "match": { "path": "/b" } })),
            "pathPattern: `match` says what `path` is too: leave one of them out",
        ),
        (
            with(json!({ "match": "x" })),
            "match: this is no object: send one such as {\"plan\": \"bulk\"}",
        ),
        (
            with(json!({ "priority": 1.5 })),
            "priority: this is no whole number of 32 bits: send one such as 10 or -1",
        ),
        (
            with(json!({ "enabled": "yes" })),
            "enabled: this is neither true nor false: send one of them",
        ),
        (
            with(json!({ "mode": "off" })),
            "mode: `off` is not known here: write one of `enforce`, `shadow`",
        ),
        (
            with(json!({ "exempt": [{ "user": "a", "until": "x" }] })),
            "exempt[0].until: `x` is not a date: write one such as `2027-01-01` or `2027-01-01T12:00:00Z`",
        ),
        (
            with(json!({ "burstCapacity": 5, "algorithm": "fixed_window" })),
            "burstCapacity: `fixed_window` has no burst: leave it out, or use a token bucket",
        ),
    ];
    for (json, message) in table {
        refused(&json, message);
    }
    let error = form(&with(json!({ "maxRequest": 1, "algoritm": 2 }))).unwrap_err();
    let told: Vec<(&str, &str)> =
        error.problems.iter().map(|it| (&*it.field, &it.message[..60])).collect();
    let expected = [
        ("algoritm", "there is no such field: did you mean `algorithm`? the fields"),
        ("maxRequest", "there is no such field: did you mean `maxRequests`? the fiel"),
    ];
    assert_eq!(told, expected);
}

#[test]
fn the_fields_are_those_of_a_file_and_the_named_ones() {
    let names = |text: &str| -> BTreeSet<String> {
        let (_, listed) = text.split_once("the fields are ").unwrap();
        let listed = listed.lines().next().unwrap();
        listed.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let of_file = RuleFile::parse("r", "rules: [{ name: a, limit: 1/s, x0: 1 }]").unwrap_err();
    let of_form = RuleForm::from_json(&json!({ "name": "a", "x0": 1 })).unwrap_err();
    let mut expected = names(&of_file.to_string());
    expected.extend(
        ["scope", "tenantId", "httpMethod", "pathPattern", "maxRequests", "windowSeconds"]
            .map(str::to_owned),
    );
    expected.insert("burstCapacity".to_owned());
    assert_eq!(names(&of_form.to_string()), expected);
}

#[test]
fn nothing_that_is_sent_causes_a_panic() {
    let mut deep = json!({});
    for _ in 0..100 {
        deep = json!({ "not": deep });
    }
    let json = json!({ "name": "a", "limit": "1/s", "match": { "x": deep } });
    refused(&json, "match: nested deeper than 32 levels: rules need fewer");
    let odd =
        [json!(null), json!(true), json!(-1), json!(1e300), json!("\0"), json!([[]]), json!({})];
    for name in ["name", "scope", "maxRequests", "match", "per", "limit", "tiers", "cost", "exempt"]
    {
        for value in &odd {
            let mut json = json!({ "name": "a", "maxRequests": 1, "windowSeconds": u64::MAX });
            json[name] = value.clone();
            let _ = form(&json);
        }
    }
}
