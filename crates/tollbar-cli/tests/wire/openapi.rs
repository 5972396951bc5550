//! The document of the HTTP interface, held against what the real daemon takes and answers.

use std::collections::BTreeSet;
use std::process::Command;

use crate::common::{Daemon, Scratch, status};
use serde_json::{Value, json};

const RULES: &str = "
rules:
  - { name: per_client, match: { path: /limited }, limit: 2/day, burst: 2 }
  - { name: needs_tenant, match: { path: /t }, per: [tenant], missing: deny, limit: 9/day }
  - { name: health, match: { path: /health }, unlimited: true }
  - { name: jobs, match: { path: /j }, algorithm: concurrency, limit: 1, lease: 30s }
  - { name: tokens, match: { path: /tokens }, limit: 1000/day, burst: 1000 }
  - { name: shadow, match: { path: /shadow }, mode: shadow, limit: 1/day, candidate: { limit: 2/day } }
";

/// A daemon, its document, and which of the document's answers have been seen.
struct DocumentedDaemon {
    daemon: Daemon,
    document: Value,
    seen: BTreeSet<(String, u16)>,
}

impl DocumentedDaemon {
    fn new(scratch: &Scratch) -> Self {
        let daemon = Daemon::start(&["--rules", &scratch.file("rules.yaml", RULES)]);
        let mut documented = Self { daemon, document: Value::Null, seen: BTreeSet::new() };
        let served = documented.send("GET", "/openapi.json", "", "*/*");
        documented.document =
            serde_json::from_str(served.split_once("\r\n\r\n").unwrap().1).unwrap();
        documented
    }

    fn send(&self, method: &str, target: &str, body: &str, accept: &str) -> String {
        self.daemon.send(
            method,
            target,
            &format!("accept: {accept}\r\ncontent-type: application/json\r\n"),
            body,
        )
    }

    fn validate(&self, schema: &Value, instance: &Value) -> Result<(), String> {
        let mut schema = schema.clone();
        schema["components"] = self.document["components"].clone();
        let validator = jsonschema::options().should_validate_formats(true).build(&schema).unwrap();
        validator.validate(instance).map_err(|error| format!("{error} in {instance:#}"))
    }

    /// Sends a request to `path` of the document, and holds both sides against it.
    fn ask(&mut self, path: &str, target: &str, body: Option<&Value>, expected: u16) -> Value {
        let method = if body.is_some() { "POST" } else { "GET" };
        let operation = self.document["paths"][path][method.to_lowercase()].clone();
        assert!(operation.is_object(), "{method} {path} is not in the document");
        let text = body.map(Value::to_string).unwrap_or_default();
        let mut answer = Value::Null;
        for accept in ["application/json", "application/problem+json"] {
            let response = self.send(method, target, &text, accept);
            let status = status(&response);
            assert_eq!(status, expected, "{path} {text} gave {response}");
            let (head, sent) = response.split_once("\r\n\r\n").unwrap();
            let sent: Value = serde_json::from_str(sent).unwrap();
            let kind = if status == 200 { "application/json" } else { accept };
            assert!(head.contains(&format!("content-type: {kind}\r\n")), "{head}");
            let schema = &operation["responses"][status.to_string()]["content"][kind]["schema"];
            assert!(schema.is_object(), "{path} {status} {kind} is not in the document");
            self.validate(schema, &sent).unwrap_or_else(|error| panic!("{path} {text}: {error}"));
            if accept == "application/json" {
                answer = sent;
            }
            self.seen.insert((path.to_owned(), status));
            if status == 200 {
                // What was allowed once may not be again.
                break;
            }
        }
        if let Some(body) = body {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            let is_valid = self.validate(schema, body);
            assert!(is_valid.is_ok() || expected == 400, "{path}: {is_valid:?}");
        }
        answer
    }
}

fn user(path: &str) -> Value {
    json!({ "path": path, "attributes": { "user": "7" } })
}

#[test]
fn what_is_taken_and_answered_is_what_the_document_says() {
    let scratch = Scratch::new("openapi");
    let mut documented = DocumentedDaemon::new(&scratch);
    let full = json!({
        "method": "GET", "path": "/limited", "attributes": { "user": "7" }, "cost": 1,
        "requestId": "r1", "criticality": "high",
    });
    documented.ask("/v1/check", "/v1/check", Some(&full), 200);
    documented.ask("/v1/check", "/v1/check", Some(&json!({ "path": "/health" })), 200);
    documented.ask("/v1/check", "/v1/check", Some(&user("/shadow")), 200);
    documented.ask("/v1/check", "/v1/check", Some(&user("/nowhere")), 200);
    let small = json!({ "rule": "tokens", "subject": "user:9", "cost": 5, "requestId": "s" });
    documented.ask("/v1/check", "/v1/check", Some(&small), 200);
    documented.ask("/v1/check", "/v1/check", Some(&user("/limited")), 200);
    let denied = documented.ask("/v1/check", "/v1/check", Some(&user("/limited")), 429);
    documented.ask("/v1/check", "/v1/check", Some(&json!({ "path": "/t" })), 400);
    let never = json!({ "path": "/limited", "cost": u64::MAX });
    documented.ask("/v1/check", "/v1/check", Some(&never), 422);
    let reused =
        json!({ "path": "/limited", "attributes": { "user": "7" }, "requestId": "r1", "cost": 2 });
    documented.ask("/v1/check", "/v1/check", Some(&reused), 409);
    documented.ask("/v1/check", "/v1/check", Some(&json!({ "rule": "nosuch" })), 404);
    documented.ask("/v1/check", "/v1/check", Some(&json!({ "paht": "/" })), 400);
    documented.ask("/v1/peek", "/v1/peek", Some(&user("/limited")), 200);
    documented.ask("/v1/peek", "/v1/peek", Some(&json!({ "path": "/t" })), 400);
    let batch = json!({ "requests": [user("/limited"), user("/tokens"), { "rule": "nosuch" }] });
    documented.ask("/v1/check/batch", "/v1/check/batch", Some(&batch), 200);
    documented.ask("/v1/explain", "/v1/explain", Some(&user("/limited")), 200);
    documented.ask("/v1/explain", "/v1/explain", Some(&user("/shadow")), 200);
    let reset = json!({ "rule": "per_client", "attributes": { "user": "7" } });
    documented.ask("/v1/reset", "/v1/reset", Some(&reset), 200);
    documented.ask("/v1/reset", "/v1/reset", Some(&json!({ "rule": "nosuch" })), 404);

    let reserve = json!({ "path": "/tokens", "cost": 300, "ttlMs": 60_000 });
    let receipt = |documented: &mut DocumentedDaemon| {
        let reserved = documented.ask("/v1/reserve", "/v1/reserve", Some(&reserve.clone()), 200);
        json!({ "receipt": reserved["receipt"].as_str().unwrap() })
    };
    let mut commit = receipt(&mut documented);
    commit["cost"] = json!(120);
    documented.ask("/v1/commit", "/v1/commit", Some(&commit.clone()), 200);
    documented.ask("/v1/commit", "/v1/commit", Some(&commit), 409);
    let cancel = receipt(&mut documented);
    documented.ask("/v1/cancel", "/v1/cancel", Some(&cancel.clone()), 200);
    documented.ask("/v1/cancel", "/v1/cancel", Some(&cancel), 409);
    documented.ask("/v1/cancel", "/v1/cancel", Some(&json!({ "receipt": "nonsense" })), 400);
    let lease = documented.ask("/v1/check", "/v1/check", Some(&user("/j")), 200);
    let lease = json!({ "lease": lease["lease"].as_str().unwrap() });
    documented.ask("/v1/renew", "/v1/renew", Some(&lease.clone()), 200);
    documented.ask("/v1/release", "/v1/release", Some(&lease.clone()), 200);
    documented.ask("/v1/renew", "/v1/renew", Some(&lease), 200);

    let usage = "/v1/rate-limit/usage/me";
    documented.ask(usage, &format!("{usage}?user=7&path=/limited"), None, 200);
    documented.ask(usage, usage, None, 400);
    let decision = "/v1/decisions/{id}";
    let id = denied["decisionId"].as_str().unwrap();
    documented.ask(decision, &format!("/v1/decisions/{id}"), None, 200);
    documented.ask(decision, "/v1/decisions/0", None, 404);
    for path in ["/openapi.json", "/healthz", "/readyz"] {
        documented.ask(path, path, None, 200);
    }

    // Its 200 has no body: the proxy goes by the status.
    let forward_auth = "/v1/forward-auth/{proxy}";
    documented.ask(forward_auth, "/v1/forward-auth/nginx", None, 400);
    documented.ask(forward_auth, "/v1/forward-auth/nosuch", None, 404);
    let allowed =
        documented.daemon.get_with("/v1/forward-auth/envoy/health", "x-real-ip: 203.0.113.7\r\n");
    assert_eq!(status(&allowed), 200, "{allowed}");
    documented.seen.insert((forward_auth.to_owned(), 200));

    // Text, in two formats.
    for kind in documented.document["paths"]["/metrics"]["get"]["responses"]["200"]["content"]
        .as_object()
        .unwrap()
        .keys()
    {
        let metrics = documented.send("GET", "/metrics", "", kind);
        assert!(metrics.contains(&format!("content-type: {kind};")), "{metrics}");
    }
    documented.seen.insert(("/metrics".to_owned(), 200));

    let paths = documented.document["paths"].as_object().unwrap().keys();
    for path in paths {
        assert!(documented.seen.contains(&(path.clone(), 200)), "{path} was never asked");
    }
    assert_eq!(documented.daemon.stop(), 0);
}

#[test]
fn a_field_that_the_document_does_not_have_is_refused() {
    let scratch = Scratch::new("openapi-fields");
    let documented = DocumentedDaemon::new(&scratch);
    // Every field that any path has, with a value that fits.
    let fields = json!({
        "method": "GET", "path": "/", "attributes": {}, "cost": 1, "requestId": "r",
        "criticality": "low", "rule": "tokens", "subject": "user:1", "ttlMs": 1000, "receipt": "x",
        "lease": "x", "requests": [], "unknown": 1,
    });
    for (path, operations) in documented.document["paths"].as_object().unwrap() {
        let content = &operations["post"]["requestBody"]["content"]["application/json"];
        let Some(schema) = content.get("schema") else {
            continue;
        };
        for (field, value) in fields.as_object().unwrap() {
            let mut body = content["example"].clone();
            body[field] = value.clone();
            let response = documented.send("POST", path, &body.to_string(), "*/*");
            let (_, answer) = response.split_once("\r\n\r\n").unwrap();
            let is_unknown = answer.contains(&format!("unknown field `{field}`"))
                || answer.contains(&format!("takes no `{field}`"));
            let is_valid = documented.validate(schema, &body).is_ok();
            assert_eq!(is_unknown, !is_valid, "{path} with {body} gave {answer}");
        }
    }
}

#[test]
fn the_copy_in_the_documents_is_current() {
    let printed = Command::new(env!("CARGO_BIN_EXE_tollbar")).arg("openapi").output().unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/openapi.json");
    let copy = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        String::from_utf8(printed.stdout).unwrap() == copy,
        "docs/reference/openapi.json is not current: run `cargo xtask openapi`"
    );
}
