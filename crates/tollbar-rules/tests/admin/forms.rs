//! What is sent, what it means, and what is wrong with it.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tollbar_rules::admin::{FormError, RuleView, Scope, from_json, to_json};
use tollbar_rules::{Rule, RuleFile};

fn rule(json: &Value) -> Result<Rule, FormError> {
    from_json(json.clone())
}

#[track_caller]
fn refused(json: &Value, message: &str) {
    assert_eq!(rule(json).expect_err(message).to_string(), message);
}

#[test]
fn flat_fields_are_columns_beside_the_fields_of_a_file() {
    let json = json!({
        "name": "search", "scope": "endpoint", "tenantId": "acme", "httpMethod": "GET",
        "pathPattern": "/v1/search/**", "algorithm": "token_bucket", "maxRequests": 100,
        "windowSeconds": 60, "burstCapacity": 20, "priority": -3, "enabled": false,
        "per": ["user"], "match": { "plan": "bulk" }, "mode": "shadow",
    });
    let rule = rule(&json).unwrap();
    assert_eq!((rule.limits[0].text(), rule.priority, rule.enabled), ("100/min", -3, false));
    let conditions: Vec<&str> =
        rule.conditions.all().iter().map(|condition| &*condition.attribute).collect();
    assert_eq!(conditions, ["method", "path", "plan", "tenant"]);
    assert_eq!(Value::Object(to_json(&rule)), json);
    let view = RuleView::from_rule(&rule);
    assert_eq!((view.max_requests, view.window_seconds), (Some(100), Some(60)));
    assert_eq!((view.burst_capacity, view.scope), (Some(20), Scope::Endpoint));
}

#[test]
fn names_are_read_in_either_case_and_written_in_camel_case() {
    let camel = json!({
        "name": "a", "pathPattern": "/a", "maxRequests": 20, "windowSeconds": 1,
        "algorithm": "leaky_queue", "queue": 5, "maxWait": "2s", "onStoreFailure": "deny", "accuracy": "exact",
        "match": { "user_plan": { "oneOf": ["a", "b"], "prefix": "x" } },
        "tiers": { "very_gold": { "limit": "9/s", "algorithm": "fixed_window",
                   "warmUp": { "start": 1, "over": "1h" } } },
    });
    let snake = json!({
        "name": "a", "path_pattern": "/a", "max_requests": 20, "window_seconds": 1,
        "algorithm": "leaky_queue", "queue": 5, "max_wait": "2s", "on_store_failure": "deny", "accuracy": "exact",
        "match": { "user_plan": { "one_of": ["a", "b"], "prefix": "x" } },
        "tiers": { "very_gold": { "limit": "9/s", "algorithm": "fixed_window",
                   "warm_up": { "start": 1, "over": "1h" } } },
    });
    let rule = rule(&camel).unwrap();
    assert_eq!(rule, from_json(snake).unwrap());
    let written = to_json(&rule);
    let snake: Vec<&String> = written.keys().filter(|name| name.contains('_')).collect();
    assert_eq!(snake, [] as [&str; 0]);
    assert_eq!((&written["onStoreFailure"], &written["match"]), (&json!("deny"), &camel["match"]));
    assert_eq!(written["limit"]["maxWait"], "2s");
    // The names of attributes and tiers are the user's.
    assert!(written["tiers"]["very_gold"]["warmUp"].is_object());
    // A file has one way of writing them.
    let error = RuleFile::parse("r", "rules: [{ name: a, limit: 1/s, onStoreFailure: deny }]");
    assert!(error.unwrap_err().to_string().contains("did you mean `on_store_failure`?"));
}

/// JSON knows no difference between 5 and 5.0, and some languages write one for the other.
#[test]
fn a_cost_with_a_fraction_of_zero_is_a_whole_number() {
    let file = |cost: &str| {
        RuleFile::parse("r", &format!("rules: [{{ name: a, limit: 9/s, cost: {cost} }}]"))
    };
    assert_eq!(file("5.0").unwrap().rules.rules()[0].costs.default, 5);
    file("5.5").unwrap_err();
    let form = |cost: Value| from_json(json!({ "name": "a", "limit": "9/s", "cost": cost }));
    assert_eq!(form(json!(5.0)).unwrap().costs.default, 5);
    assert_eq!(form(json!({ "GET /x": 5.0 })).unwrap().costs.by_condition[0].1, 5);
    form(json!(5.5)).unwrap_err();
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
    assert_eq!(to_json(&rule(&json).unwrap())["match"], matching);
}

#[test]
fn what_is_left_out_has_its_default() {
    let json = json!({ "name": "a", "maxRequests": 10, "windowSeconds": 1, "tenantId": null });
    let rule = rule(&json).unwrap();
    let full = json!({
        "name": "a", "scope": "global", "tenantId": null, "httpMethod": null, "pathPattern": null,
        "algorithm": null, "maxRequests": 10, "windowSeconds": 1, "burstCapacity": null,
        "priority": 0, "enabled": true,
    });
    assert_eq!(Value::Object(to_json(&rule)), full);
    let file = RuleFile::parse("r", "rules: [{ name: a, limit: 10/s }]").unwrap();
    assert_eq!(rule, *file.rules.rules()[0]);
    // A scope that is not said follows from the rest.
    let scope = |json| scope_of(&json);
    assert_eq!(scope(json!({ "tenantId": "acme" })), "tenant");
    assert_eq!(scope(json!({ "tenantId": "acme", "pathPattern": "/a" })), "endpoint");
    assert_eq!(scope(json!({ "httpMethod": "GET", "pathPattern": "/a" })), "endpoint");
}

fn scope_of(fields: &Value) -> &'static str {
    let mut json = json!({ "name": "a", "maxRequests": 10, "windowSeconds": 1 });
    json.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    RuleView::from_rule(&rule(&json).unwrap()).scope.name()
}

#[test]
fn permits_are_a_number_without_a_window() {
    let json = json!({ "name": "a", "algorithm": "concurrency", "maxRequests": 5, "lease": "30s" });
    let sent = rule(&json).unwrap();
    let text = "rules: [{ name: a, algorithm: concurrency, limit: 5, lease: 30s }]";
    assert_eq!(sent, *RuleFile::parse("r", text).unwrap().rules.rules()[0]);
    let view = RuleView::from_rule(&sent);
    assert_eq!((view.max_requests, view.window_seconds), (Some(5), None));
    assert_eq!(to_json(&sent)["lease"], "30s");
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
        (with(json!({ "name": "" })), "name: this is empty: send a text such as \"per_client\""),
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
            "algorithm: `bucket` is not known here: write one of `sliding_window_counter`, `sliding_window_strict`, `sliding_window_log`, `token_bucket`, `leaky_bucket`, `leaky_queue`, `fixed_window`, `calendar_window`, `concurrency`",
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
            with(json!({ "max_requests": 5 })),
            "maxRequests: `max_requests` says it too: leave one of them out",
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
    let error = rule(&with(json!({ "maxRequest": 1, "algoritm": 2 }))).unwrap_err();
    let told: Vec<(&str, &str)> =
        error.problems.iter().map(|problem| (&*problem.field, &problem.message[..62])).collect();
    let expected = [
        ("algoritm", "there is no field `algoritm` here: did you mean `algorithm`? t"),
        ("maxRequest", "there is no field `maxRequest` here: did you mean `maxRequests"),
    ];
    assert_eq!(told, expected);
}

#[test]
fn the_fields_are_those_of_a_file_and_the_flat_ones() {
    let names = |text: &str| -> BTreeSet<String> {
        let (_, listed) = text.split_once("the fields are ").unwrap();
        let listed = listed.lines().next().unwrap();
        // Without the case of letters and what stands between words, as both cases have them.
        let plain = |name: &str| name.replace('_', "").to_lowercase();
        listed.split('`').skip(1).step_by(2).map(plain).collect()
    };
    let of_file = RuleFile::parse("r", "rules: [{ name: a, limit: 1/s, x0: 1 }]").unwrap_err();
    let of_json = rule(&json!({ "name": "a", "x0": 1 })).unwrap_err();
    assert!(of_json.to_string().contains("`onStoreFailure`"), "{of_json}");
    let mut expected = names(&of_file.to_string());
    expected.extend(
        ["scope", "tenantid", "httpmethod", "pathpattern", "maxrequests", "windowseconds"]
            .map(str::to_owned),
    );
    expected.insert("burstcapacity".to_owned());
    assert_eq!(names(&of_json.to_string()), expected);
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
            let _ = rule(&json);
        }
    }
}

/// The schema of JSON is made of that of files: it takes what is read, and refuses what nobody reads.
#[test]
fn the_schema_describes_what_is_read_and_written() {
    let schema = schemars::schema_for!(Rule);
    let validator = jsonschema::validator_for(schema.as_value()).unwrap();
    let table = [
        (
            json!({ "maxRequests": 10, "windowSeconds": 1, "onStoreFailure": { "shed": "low" } }),
            true,
        ),
        (json!({ "limit": [{ "limit": "10/s", "warmUp": { "start": 1, "over": "1h" } }] }), true),
        (json!({ "limit": "1/s", "match": { "user_plan": { "oneOf": ["a", "b"] } } }), true),
        (json!({ "limit": "1/s", "tenantId": null, "utcOffset": "+05:30" }), true),
        (json!({ "limit": "1/fortnight" }), false),
        (json!({ "limit": "1/s", "maxRequest": 1 }), false),
        (json!({ "limit": "1/s", "mode": "off" }), false),
        (json!({ "limit": "1/s", "match": { "plan": { "one_off": "a" } } }), false),
        (json!({ "maxRequests": 0, "windowSeconds": 1 }), false),
    ];
    for (fields, is_valid) in table {
        let mut json = json!({ "name": "a" });
        json.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        assert_eq!(validator.is_valid(&json), is_valid, "{json}");
        if is_valid && let Ok(rule) = rule(&json) {
            let written = Value::Object(to_json(&rule));
            let errors: Vec<String> =
                validator.iter_errors(&written).map(|error| error.to_string()).collect();
            assert_eq!(errors, [] as [&str; 0], "{written}");
        }
    }
}
