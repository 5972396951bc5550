//! What is answered to what, by a clock that stands still.

mod holds;
mod inspect;
mod malformed;

use std::time::Duration;

use hyper::Request;
use hyper::header::HeaderMap;
use serde_json::Value;
use tollbar::{ManualClock, MemoryStore, Timestamp};
use tollbar_rules::{AsyncEngine, RuleFile};

use super::api::BATCH_MAX;
use super::*;
use crate::header_flags::ClientHeaders;
use crate::store::counters::Counters;
use crate::token::Tokens;

const RULES: &str = "
rules:
  - { name: per_client, match: { path: { not: /j } }, limit: 2/10s, algorithm: fixed_window }
  - { name: needs_tenant, match: { path: /t }, per: [tenant], missing: deny, limit: 9/s }
  - { name: health, match: { path: /health }, unlimited: true }
  - { name: jobs, match: { path: /j }, algorithm: concurrency, limit: 1, lease: 30s }
";

struct TestDaemon {
    api: Api,
    clock: ManualClock,
}

/// An answer, read.
struct TestResponse {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl TestDaemon {
    fn new(token: Option<&str>) -> Self {
        Self::over(RULES, token)
    }

    fn over(rules: &str, token: Option<&str>) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(1_700_000_001_000_000));
        let store = MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build();
        let store = Arc::new(store);
        let rules = RuleFile::parse("rules.yaml", rules).unwrap().rules;
        let engine =
            AsyncEngine::builder(rules, store.clone()).clock(clock.clone()).build().unwrap();
        let token = token.map(|text| Arc::new(Tokens::parse(text).unwrap()));
        let daemon = crate::daemon::Daemon::new(Arc::new(engine), Counters::Memory(store), token)
            .with_client_headers(ClientHeaders::exact());
        Self { api: Api::new(Arc::new(daemon)), clock }
    }

    fn ask(&self, request: Request<&[u8]>) -> TestResponse {
        let (head, body) = request.into_parts();
        let (method, uri, headers) = (&head.method, &head.uri, &head.headers);
        let head = RequestHead { method, uri, headers, peer: Peer::Unix };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let answer = match self.api.route_for(&head) {
            Ok(route) => runtime.block_on(self.api.answer(route, &head, body)),
            Err(answer) => *answer,
        };
        let (parts, bytes) = answer.into_parts();
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        TestResponse { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    fn send(&self, method: &str, path: &str, body: &[u8]) -> TestResponse {
        let request = Request::builder().method(method).uri(path);
        self.ask(request.header("content-type", "application/json").body(body).unwrap())
    }

    fn post(&self, path: &str, body: &str) -> TestResponse {
        self.send("POST", path, body.as_bytes())
    }

    fn get(&self, path: &str) -> TestResponse {
        self.send("GET", path, b"")
    }
}

impl TestResponse {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

const SEVEN: &str = r#"{"attributes":{"user":"7"}}"#;

#[test]
fn a_check_is_counted_told_and_denied_with_an_honest_wait() {
    let daemon = TestDaemon::new(None);
    let first = daemon.post("/v1/check", SEVEN);
    assert_eq!((first.status, &first.body["remaining"]), (200, &Value::from(1)));
    assert_eq!(daemon.post("/v1/check", SEVEN).status, 200);
    let denied = daemon.post("/v1/check", SEVEN);
    assert_eq!(denied.status, 429);
    for (field, expected) in [
        ("allowed", Value::from(false)),
        ("degraded", false.into()),
        ("reason", "limits".into()),
        ("error", "rate_limit_exceeded".into()),
        ("message", "Too many requests".into()),
        ("rule", "per_client".into()),
        ("limit", 2.into()),
        ("remaining", 0.into()),
        ("retryAfterMs", 9_000.into()),
        ("delayMs", 0.into()),
        ("resetAt", "2023-11-14T22:13:30.000Z".into()),
    ] {
        assert_eq!(denied.body[field], expected, "{field}");
    }
    for (name, expected) in [
        ("content-type", "application/json"),
        ("x-ratelimit-limit", "2"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1700000010"),
        ("ratelimit-policy", r#""per_client";q=2;w=10"#),
        ("ratelimit", r#""per_client";r=0;t=9"#),
        ("retry-after", "9"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(denied.header(name), Some(expected), "{name}");
    }
    daemon.clock.advance(Duration::from_millis(8_999));
    assert_eq!(daemon.post("/v1/check", SEVEN).status, 429);
    daemon.clock.advance(Duration::from_millis(1));
    assert_eq!(daemon.post("/v1/check", SEVEN).status, 200);
}

#[test]
fn a_denial_is_a_problem_to_whoever_accepts_one() {
    let daemon = TestDaemon::new(None);
    let ask = |path: &str, body: &str| {
        let request = Request::post(path).header("accept", "text/html, application/problem+json");
        daemon.ask(request.body(body.as_bytes()).unwrap())
    };
    assert_eq!(ask("/v1/check", SEVEN).body["allowed"], true);
    ask("/v1/check", SEVEN);
    let denied = ask("/v1/check", SEVEN);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.header("retry-after"), Some("9"));
    let id = denied.body["decisionId"].as_str().unwrap();
    assert_eq!(
        denied.body,
        serde_json::json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Too many requests",
            "status": 429,
            "violated-policies": ["per_client"],
            "decisionId": id,
        })
    );
    let wrong = ask("/v1/check", "{");
    assert_eq!((wrong.status, &wrong.body["type"]), (400, &"about:blank".into()));
    assert_eq!(wrong.header("content-type"), Some("application/problem+json"));
    let missing = ask("/v1/check", r#"{"path":"/t"}"#);
    assert_eq!((missing.status, &missing.body["type"]), (400, &"about:blank".into()));
}

#[test]
fn all_policies_are_listed_and_the_binding_one_is_first() {
    let rules = "
rules:
  - { name: a, limit: 9/day, burst: 9 }
  - { name: b, limit: [{ limit: 8/day, burst: 8 }, { limit: 3/h, burst: 3 }] }
";
    let daemon = TestDaemon::over(rules, None);
    let answer = daemon.post("/v1/check", SEVEN);
    assert_eq!(
        answer.header("ratelimit-policy"),
        Some(r#""b#2";q=3;w=3600, "a";q=9;w=86400, "b";q=8;w=86400"#)
    );
    assert_eq!(answer.body["decisions"].as_array().unwrap().len(), 3);
}

#[test]
fn what_never_passes_and_what_nothing_limits_are_told_apart() {
    let daemon = TestDaemon::new(None);
    let never = daemon.post("/v1/check", r#"{"cost":3}"#);
    assert_eq!((never.status, &never.body["retryAfterMs"]), (422, &Value::Null));
    assert_eq!(never.body["error"], "cost_exceeds_limit");
    let most = format!(r#"{{"cost":{}}}"#, u64::MAX);
    assert_eq!(daemon.post("/v1/check", &most).status, 422);
    let free = daemon.post("/v1/check", r#"{"path":"/health"}"#);
    assert_eq!((free.status, &free.body["limit"]), (200, &Value::Null));
    assert!(free.body.get("error").is_none());
    assert_eq!(
        free.headers.keys().map(hyper::header::HeaderName::as_str).collect::<Vec<_>>(),
        ["content-type"]
    );
    let missing = daemon.post("/v1/check", r#"{"path":"/t"}"#);
    assert_eq!((missing.status, &missing.body["reason"]), (400, &"missing_attribute".into()));
}

#[test]
fn one_rule_is_asked_alone_by_a_request_or_by_a_value() {
    let daemon = TestDaemon::new(None);
    let by_request = r#"{"rule":"per_client","path":"/j","attributes":{"user":"7"}}"#;
    assert_eq!(daemon.post("/v1/check", by_request).body["remaining"], 1);
    let by_value = r#"{"rule":"per_client","subject":"user:7"}"#;
    assert_eq!(daemon.post("/v1/peek", by_value).body["remaining"], 1);
    assert_eq!(daemon.post("/v1/check", by_value).body["remaining"], 0);
    assert_eq!(daemon.post("/v1/check", by_value).status, 429);
    assert_eq!(
        daemon.post("/v1/check", r#"{"rule":"per_client","subject":"user:7","cost":3}"#).status,
        422
    );
    for (body, status, message) in [
        (
            r#"{"rule":"per_cleint"}"#,
            404,
            "there is no rule `per_cleint`: did you mean `per_client`?",
        ),
        (r#"{"rule":"x","subject":"1"}"#, 404, "there is no rule `x`"),
        (r#"{"subject":"1"}"#, 400, "a `subject` needs its `rule`: send both"),
        (
            r#"{"rule":"per_client","subject":"1","path":"/"}"#,
            400,
            "a `subject` stands in place of method and path: leave `path` out, or `subject`",
        ),
    ] {
        let answer = daemon.post("/v1/check", body);
        assert_eq!((answer.status, &answer.body["message"]), (status, &message.into()), "{body}");
    }
}

#[test]
fn a_request_with_an_id_pays_once() {
    let daemon = TestDaemon::new(None);
    let body = r#"{"attributes":{"user":"7"},"requestId":"a1"}"#;
    for _ in 0..3 {
        let answer = daemon.post("/v1/check", body);
        assert_eq!((answer.status, &answer.body["remaining"]), (200, &1.into()));
    }
    let other =
        daemon.post("/v1/check", r#"{"attributes":{"user":"7"},"requestId":"a1","cost":2}"#);
    assert_eq!((other.status, &other.body["error"]), (409, &"request_id_reused".into()));
    assert_eq!(daemon.post("/v1/peek", SEVEN).body["remaining"], 1);
}

#[test]
fn a_peek_and_an_explanation_charge_nothing() {
    let daemon = TestDaemon::new(None);
    for _ in 0..5 {
        assert_eq!(daemon.post("/v1/peek", SEVEN).body["remaining"], 2);
        assert_eq!(daemon.post("/v1/explain", SEVEN).body["allowed"], true);
    }
    let refused = daemon.post("/v1/peek", r#"{"cost":1}"#);
    assert_eq!(refused.body["message"], "a peek takes no `cost`: leave it out");
}

#[test]
fn a_reset_makes_one_subject_fresh() {
    let daemon = TestDaemon::new(None);
    let other = r#"{"attributes":{"user":"8"}}"#;
    for body in [SEVEN, SEVEN, other, other] {
        daemon.post("/v1/check", body);
    }
    let reset = r#"{"rule":"per_client","attributes":{"user":"7"}}"#;
    assert_eq!(daemon.post("/v1/reset", reset).status, 200);
    assert_eq!(daemon.post("/v1/peek", SEVEN).body["remaining"], 2);
    assert_eq!(daemon.post("/v1/peek", other).body["remaining"], 0);
    let by_value = r#"{"rule":"per_client","subject":"user:8"}"#;
    assert_eq!(daemon.post("/v1/reset", by_value).body["rule"], "per_client");
    assert_eq!(daemon.post("/v1/peek", other).body["remaining"], 2);
    let unknown = daemon.post("/v1/reset", r#"{"rule":"per_cleint"}"#);
    assert_eq!((unknown.status, &unknown.body["error"]), (404, &"unknown_rule".into()));
    assert_eq!(daemon.post("/v1/reset", r#"{"rule":"needs_tenant"}"#).status, 400);
    assert_eq!(daemon.post("/v1/reset", "{}").body["message"], "a reset needs `rule`");
}

#[test]
fn a_batch_is_decided_one_by_one_and_a_wrong_one_charges_nothing() {
    let daemon = TestDaemon::new(None);
    for wrong in [r#"{"attributes":{"path":"x"}}"#, r#"{"subject":"x"}"#, r#"{"ttlMs":1}"#] {
        let refused =
            daemon.post("/v1/check/batch", &format!(r#"{{"requests":[{SEVEN},{wrong}]}}"#));
        assert_eq!(refused.status, 400);
        assert!(refused.body["message"].as_str().unwrap().starts_with("requests[1]: "));
    }
    let batch = format!(r#"{{"requests":[{SEVEN},{SEVEN},{SEVEN},{{"rule":"x"}}]}}"#);
    let answer = daemon.post("/v1/check/batch", &batch);
    let results = answer.body["results"].as_array().unwrap();
    let statuses: Vec<_> = results.iter().map(|result| &result["status"]).collect();
    assert_eq!(statuses, [200, 200, 429, 404]);
    assert_eq!(results[3]["error"], "unknown_rule");
    let many = format!(r#"{{"requests":[{}]}}"#, vec!["{}"; BATCH_MAX + 1].join(","));
    assert_eq!(daemon.post("/v1/check/batch", &many).status, 400);
    let most = format!(r#"{{"requests":[{}]}}"#, vec!["{\"cost\":0}"; BATCH_MAX].join(","));
    assert_eq!(
        daemon.post("/v1/check/batch", &most).body["results"].as_array().unwrap().len(),
        1_000
    );
}

/// A page can post a form of this type to any address without being asked.
#[test]
fn a_reset_and_an_explanation_must_be_json_and_checks_need_not() {
    let daemon = TestDaemon::new(None);
    for (path, content_type, expected) in [
        ("/v1/reset", "text/plain", 415),
        ("/v1/reset", "application/x-www-form-urlencoded", 415),
        ("/v1/reset", "text/plain; application/json", 415),
        ("/v1/explain", "", 415),
        ("/v1/explain", "Application/JSON; charset=utf-8", 200),
        ("/v1/check", "application/x-www-form-urlencoded", 200),
    ] {
        let request = Request::post(path).header("content-type", content_type);
        let answer = daemon.ask(request.body(SEVEN.as_bytes()).unwrap());
        assert_eq!(answer.status, expected, "{path} {content_type}");
    }
}

#[test]
fn only_the_whole_token_opens() {
    let daemon = TestDaemon::new(Some("0123456789abcdef"));
    let ask = |bearer: Option<&str>| {
        let mut request = Request::post("/v1/check");
        if let Some(bearer) = bearer {
            request = request.header("authorization", bearer);
        }
        daemon.ask(request.body(&b"{}"[..]).unwrap())
    };
    for bearer in [
        None,
        Some("Bearer 0123456789abcde"),
        Some("Bearer 0123456789abcdeg"),
        Some("Bearer 0123456789abcdef0"),
        Some("Basic 0123456789abcdef"),
        Some("0123456789abcdef"),
        Some("Bearer "),
    ] {
        let answer = ask(bearer);
        assert_eq!(answer.status, 401, "{bearer:?}");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
    // However many wrong ones came, the right one opens.
    let statuses: Vec<_> = (0..50).map(|_| ask(Some("Bearer 0123456789abcdeg")).status).collect();
    assert_eq!((statuses[0], statuses[49]), (401, 429), "{statuses:?}");
    assert_eq!(ask(Some("Bearer 0123456789abcdef")).status, 200);
    for path in ["/healthz", "/readyz", "/openapi.json"] {
        assert_eq!(daemon.get(path).status, 200);
    }
    assert_eq!(daemon.get("/v1/decisions/0").status, 401);
    assert_eq!(daemon.get("/v1/rate-limit/usage/me?user=7").status, 401);
}

#[test]
fn other_methods_are_told_which_to_send() {
    let daemon = TestDaemon::new(None);
    for (method, path, status, allow) in [
        ("GET", "/v1/check", 405, Some("POST, OPTIONS")),
        ("HEAD", "/v1/check", 405, Some("POST, OPTIONS")),
        ("POST", "/healthz", 405, Some("GET, HEAD, OPTIONS")),
        ("BREW", "/healthz", 405, Some("GET, HEAD, OPTIONS")),
        ("HEAD", "/healthz", 200, None),
        ("OPTIONS", "/v1/check", 204, Some("POST, OPTIONS")),
        ("OPTIONS", "/openapi.json", 204, Some("GET, HEAD, OPTIONS")),
        ("OPTIONS", "/nowhere", 404, None),
        ("GET", "/v1/decisions/0/1", 404, None),
    ] {
        let answer = daemon.send(method, path, b"");
        assert_eq!((answer.status, answer.header("allow")), (status, allow), "{method} {path}");
    }
}
