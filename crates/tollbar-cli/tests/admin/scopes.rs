//! Every endpoint and every kind of token: who gets in. The endpoints come from the document, so that
//! one without a line here fails.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::admin_daemon::{AdminDaemon, RULES};
use crate::common::http::Answer;

const FILE: &str = "rules: [{ name: in_file, match: { path: /file }, limit: 30/day }]";

/// Which of admin, read, tenant and usage:me get in.
const TABLE: &[(&str, &str, [bool; 4])] = &[
    ("GET", "/v1/rate-limit/rules", [true, true, true, false]),
    ("POST", "/v1/rate-limit/rules", [true, false, true, false]),
    ("GET", "/v1/rate-limit/rules/{ruleId}", [true, true, true, false]),
    ("PUT", "/v1/rate-limit/rules/{ruleId}", [true, false, true, false]),
    ("DELETE", "/v1/rate-limit/rules/{ruleId}", [true, false, true, false]),
    ("GET", "/v1/rate-limit/rules/{ruleId}/bounds", [true, true, true, false]),
    ("GET", "/v1/rate-limit/rules/{ruleId}/history", [true, true, true, false]),
    ("POST", "/v1/rate-limit/rules/{ruleId}/rollback", [true, false, true, false]),
    ("GET", "/v1/rate-limit/rules/{ruleId}/exemptions", [true, true, true, false]),
    ("POST", "/v1/rate-limit/rules/{ruleId}/exemptions", [true, false, true, false]),
    ("GET", "/v1/rate-limit/exemptions", [true, true, false, false]),
    ("DELETE", "/v1/rate-limit/exemptions/{exemptionId}", [true, false, true, false]),
    ("GET", "/v1/rate-limit/audit", [true, true, false, false]),
    ("GET", "/v1/rate-limit/usage", [true, true, true, false]),
    ("GET", "/v1/rate-limit/usage/me", [false, false, false, true]),
    ("GET", "/v1/rate-limit/usage/daily", [true, true, true, false]),
    ("GET", "/v1/rate-limit/usage/export", [true, true, true, false]),
    ("GET", "/v1/rate-limit/keys/top", [true, true, true, false]),
    ("POST", "/v1/rate-limit/keys/peek", [true, true, true, false]),
    ("POST", "/v1/rate-limit/keys/reset", [true, false, true, false]),
    ("GET", "/v1/rate-limit/keys", [true, true, false, false]),
    ("POST", "/v1/rate-limit/keys/ban", [true, false, true, false]),
    ("POST", "/v1/rate-limit/keys/boost", [true, false, false, false]),
    ("DELETE", "/v1/rate-limit/keys/{keyId}", [true, false, true, false]),
    ("GET", "/v1/rate-limit/counters/clear-ahead", [true, true, false, false]),
    ("POST", "/v1/rate-limit/counters/clear-ahead", [true, false, false, false]),
    ("GET", "/v1/rate-limit/nodes", [true, true, false, false]),
    ("GET", "/v1/rate-limit/tokens", [true, false, false, false]),
    ("POST", "/v1/rate-limit/tokens", [true, false, false, false]),
    ("DELETE", "/v1/rate-limit/tokens/{tokenId}", [true, false, false, false]),
    ("GET", "/v1/rate-limit/self", [true, true, true, true]),
    ("POST", "/v1/rate-limit/explain", [true, true, false, false]),
];

/// What anybody may ask for.
const OPEN: &[(&str, &str)] = &[("GET", "/healthz"), ("GET", "/openapi.json"), ("GET", "/docs")];

const KINDS: [&str; 4] = ["admin", "read", "tenant", "usage:me"];

#[test]
fn every_endpoint_lets_in_whom_the_table_says() {
    let admin = AdminDaemon::open("scopes", FILE);
    let document: Value = admin.get("/openapi.json");
    let tokens = [
        admin.token.clone(),
        admin.token_of(&["read"], None),
        admin.token_of(&["tenant:acme"], None),
        admin.token_of(&["usage:me"], Some("user:42")),
    ];
    let mut seen = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let method = method.to_uppercase();
            seen.insert((method.clone(), path.clone()));
            if OPEN.contains(&(&method, path)) {
                assert_eq!(admin.send(&method, path, "", b"").status, 200, "{method} {path}");
                assert_eq!(operation["security"], json!([]), "{method} {path}");
                continue;
            }
            let row = TABLE.iter().find(|row| row.0 == method && row.1 == path);
            let (.., allowed) = row.unwrap_or_else(|| panic!("{method} {path} has no line here"));
            let told: Vec<&str> =
                KINDS.iter().zip(allowed).filter(|(_, may)| **may).map(|(kind, _)| *kind).collect();
            assert_eq!(operation["x-tollbar-scopes"], json!(told), "{method} {path}");
            admin.send(&method, &target(path), "", b"").problem(401, "unauthorized");
            for ((kind, token), may) in KINDS.iter().zip(&tokens).zip(allowed) {
                let told = ask(&admin, token, &method, path, operation);
                let is_refused = told.status == 403 && told.body.contains("this token may not");
                assert_eq!(
                    is_refused, !may,
                    "{kind} {method} {path}: {} {}",
                    told.status, told.body
                );
                assert!(told.status < 500, "{kind} {method} {path}: {}", told.body);
            }
        }
    }
    let listed = TABLE.iter().map(|row| (row.0, row.1)).chain(OPEN.iter().copied());
    let listed: BTreeSet<_> = listed.map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
    assert_eq!(seen, listed);
}

/// What is asked for must not be there, so that an administrator breaks nothing on the way.
fn target(path: &str) -> String {
    let none = "00000000-0000-4000-8000-000000000000";
    let path = path.replace("{ruleId}", none);
    let path = ["{exemptionId}", "{keyId}", "{tokenId}"]
        .iter()
        .fold(path, |path, id| path.replace(id, "987"));
    if path.ends_with("/usage") { format!("{path}?subjectType=user&subjectId=42") } else { path }
}

fn ask(admin: &AdminDaemon, token: &str, method: &str, path: &str, operation: &Value) -> Answer {
    let body = &operation["requestBody"]["content"]["application/json"]["example"];
    let name = format!("n{}", token.len() + path.len() + usize::from(token.as_bytes()[5]));
    let mut body = body.clone();
    if body["name"].is_string() {
        body["name"] = json!(name);
    }
    admin.ask_as(token, method, &target(path), "if-match: *\r\n", &body)
}

#[test]
fn a_refused_change_changes_nothing() {
    let admin = AdminDaemon::open("refused", FILE);
    let form =
        json!({ "name": "mine", "pathPattern": "/m", "maxRequests": 1, "windowSeconds": 86400 });
    let id = admin.rule(&form);
    let read = admin.token_of(&["read"], None);
    let before = (admin.get(RULES), admin.get("/v1/rate-limit/audit"));
    let target = format!("{RULES}/{id}");
    let ban = json!({ "subject": "user:1" });
    for (method, target, body) in [
        ("POST", RULES, &form),
        ("PUT", &target, &form),
        ("DELETE", &target, &Value::Null),
        ("POST", "/v1/rate-limit/keys/ban", &ban),
        // Whoever may not is told so before what they send is looked at.
        ("POST", RULES, &json!("nonsense")),
    ] {
        let told = admin.ask_as(&read, method, target, "if-match: \"1\"\r\n", body);
        told.problem(403, "forbidden");
    }
    assert_eq!((admin.get(RULES), admin.get("/v1/rate-limit/audit")), before);
}
