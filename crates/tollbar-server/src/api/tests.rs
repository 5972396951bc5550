//! What is answered to what, by a clock that stands still.

use std::time::Duration;

use serde_json::Value;
use tollbar::{ManualClock, MemoryStore, Timestamp};
use tollbar_rules::{Engine, RuleFile};

use super::*;
use crate::counters::Counters;
use crate::token::Tokens;

const RULES: &str = "
rules:
  - { name: per_client, limit: 2/10s, algorithm: fixed_window }
  - { name: needs_tenant, match: { path: /t }, per: [tenant], missing: deny, limit: 9/s }
  - { name: health, match: { path: /health }, unlimited: true }
";

struct Daemon {
    api: Api,
    clock: ManualClock,
}

impl Daemon {
    fn new(token: Option<&str>) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(1_700_000_001_000_000));
        let store = MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build();
        let store = Arc::new(store);
        let rules = RuleFile::parse("rules.yaml", RULES).unwrap().rules;
        let engine = Engine::builder(rules).store(store.clone()).clock(clock.clone()).build();
        let token = token.map(|it| Arc::new(Tokens::parse(it).unwrap()));
        let daemon = crate::daemon::Daemon::new(Arc::new(engine), Counters::Memory(store), token);
        Self { api: Api::new(Arc::new(daemon)), clock }
    }

    fn ask(&self, method: &str, path: &str, bearer: Option<&str>, body: &str) -> Answer {
        let bearer = bearer.map(str::as_bytes);
        let asked = Asked { method, path, bearer, body: body.as_bytes() };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(self.api.answer(&asked))
    }

    fn post(&self, path: &str, body: &str) -> Answer {
        self.ask("POST", path, None, body)
    }
}

fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| &**value)
}

const SEVEN: &str = r#"{"attributes":{"user":"7"}}"#;

#[test]
fn a_check_is_counted_told_and_denied_with_an_honest_wait() {
    let daemon = Daemon::new(None);
    let first = daemon.post("/v1/check", SEVEN);
    assert_eq!((first.status, &first.body["remaining"]), (200, &Value::from(1)));
    assert_eq!(daemon.post("/v1/check", SEVEN).status, 200);
    let denied = daemon.post("/v1/check", SEVEN);
    assert_eq!(denied.status, 429);
    for (field, expected) in [
        ("allowed", Value::from(false)),
        ("degraded", false.into()),
        ("rule", "per_client".into()),
        ("limit", 2.into()),
        ("remaining", 0.into()),
        ("retryAfterMs", 9_000.into()),
        ("resetAt", "2023-11-14T22:13:30.000Z".into()),
    ] {
        assert_eq!(denied.body[field], expected, "{field}");
    }
    for (name, expected) in [
        ("x-ratelimit-limit", "2"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1700000010"),
        ("ratelimit-policy", r#""per_client";q=2;w=10"#),
        ("ratelimit", r#""per_client";r=0;t=9"#),
        ("retry-after", "9"),
    ] {
        assert_eq!(header(&denied, name), Some(expected), "{name}");
    }
    daemon.clock.advance(Duration::from_millis(8_999));
    assert_eq!(daemon.post("/v1/check", SEVEN).status, 429);
    daemon.clock.advance(Duration::from_millis(1));
    assert_eq!(daemon.post("/v1/check", SEVEN).status, 200);
}

#[test]
fn what_never_passes_and_what_nothing_limits_are_told_apart() {
    let daemon = Daemon::new(None);
    let never = daemon.post("/v1/check", r#"{"cost":3}"#);
    assert_eq!((never.status, &never.body["retryAfterMs"]), (422, &Value::Null));
    let most = format!(r#"{{"cost":{}}}"#, u64::MAX);
    assert_eq!(daemon.post("/v1/check", &most).status, 422);
    let free = daemon.post("/v1/check", r#"{"path":"/health"}"#);
    assert_eq!((free.status, &free.body["limit"]), (200, &Value::Null));
    assert!(free.headers.is_empty());
    let missing = daemon.post("/v1/check", r#"{"path":"/t"}"#);
    assert_eq!((missing.status, &missing.body["reason"]), (429, &"missing_attribute".into()));
}

#[test]
fn a_peek_and_an_explanation_charge_nothing() {
    let daemon = Daemon::new(None);
    for _ in 0..5 {
        assert_eq!(daemon.post("/v1/peek", SEVEN).body["remaining"], 2);
        assert_eq!(daemon.post("/v1/explain", SEVEN).body["allowed"], true);
    }
    assert_eq!(daemon.post("/v1/peek", r#"{"cost":1}"#).status, 400);
}

#[test]
fn a_reset_makes_one_subject_fresh() {
    let daemon = Daemon::new(None);
    let other = r#"{"attributes":{"user":"8"}}"#;
    for body in [SEVEN, SEVEN, other, other] {
        daemon.post("/v1/check", body);
    }
    let reset = r#"{"rule":"per_client","attributes":{"user":"7"}}"#;
    assert_eq!(daemon.post("/v1/reset", reset).status, 200);
    assert_eq!(daemon.post("/v1/peek", SEVEN).body["remaining"], 2);
    assert_eq!(daemon.post("/v1/peek", other).body["remaining"], 0);
    let unknown = daemon.post("/v1/reset", r#"{"rule":"per_cleint"}"#);
    assert_eq!(unknown.status, 404);
    assert_eq!(
        unknown.body["message"],
        "there is no rule `per_cleint`: did you mean `per_client`?"
    );
    assert_eq!(daemon.post("/v1/reset", r#"{"rule":"needs_tenant"}"#).status, 400);
}

#[test]
fn a_batch_is_decided_one_by_one_and_a_wrong_one_charges_nothing() {
    let daemon = Daemon::new(None);
    let wrong = format!(r#"{{"requests":[{SEVEN},{{"attributes":{{"path":"x"}}}}]}}"#);
    let refused = daemon.post("/v1/check/batch", &wrong);
    assert_eq!(refused.status, 400);
    assert!(refused.body["message"].as_str().unwrap().starts_with("requests[1]: "));
    let batch = format!(r#"{{"requests":[{SEVEN},{SEVEN},{SEVEN}]}}"#);
    let answer = daemon.post("/v1/check/batch", &batch);
    let statuses: Vec<_> =
        answer.body["results"].as_array().unwrap().iter().map(|it| &it["status"]).collect();
    assert_eq!(statuses, [200, 200, 429]);
    let many = format!(r#"{{"requests":[{}]}}"#, vec!["{}"; BATCH_MAX + 1].join(","));
    assert_eq!(daemon.post("/v1/check/batch", &many).status, 400);
}

#[test]
fn bad_input_is_answered_with_what_to_send_instead() {
    let daemon = Daemon::new(None);
    for (method, path, body, status, message) in [
        ("POST", "/v1/chekc", "{}", 404, "there is no such path: ask one of /healthz, "),
        ("GET", "/v1/check", "", 405, "this path takes another method: send POST"),
        ("POST", "/v1/check", "", 400, "the body cannot be used: EOF "),
        ("POST", "/v1/check", "{\"paht\":1}", 400, "the body cannot be used: unknown field `paht`"),
        ("POST", "/v1/check", "{\"cost\":-1}", 400, "the body cannot be used: invalid value"),
        ("POST", "/v1/check", "{\"cost\":1.5}", 400, "the body cannot be used: invalid type"),
        ("POST", "/v1/check", "{} {}", 400, "the body cannot be used: trailing characters"),
        (
            "POST",
            "/v1/check",
            r#"{"attributes":{"path":"/"}}"#,
            400,
            "`path` is not an attribute to be sent",
        ),
        (
            "POST",
            "/v1/check",
            r#"{"attributes":{"user":"1","user":"2"}}"#,
            400,
            "the attribute `user` has two values",
        ),
        (
            "POST",
            "/v1/check",
            r#"{"rule":"a"}"#,
            400,
            "the body cannot be used: unknown field `rule`",
        ),
    ] {
        let answer = daemon.ask(method, path, None, body);
        assert_eq!(answer.status, status, "{method} {path} {body}");
        let told = answer.body["message"].as_str().unwrap();
        assert!(told.starts_with(message), "{told}");
    }
    assert_eq!(daemon.post("/v1/peek", "{}").body["remaining"], 2, "nothing was charged");
}

#[test]
fn only_the_whole_token_opens() {
    let daemon = Daemon::new(Some("0123456789abcdef"));
    for bearer in [
        None,
        Some("Bearer 0123456789abcde"),
        Some("Bearer 0123456789abcdeg"),
        Some("Bearer 0123456789abcdef0"),
        Some("Basic 0123456789abcdef"),
        Some("0123456789abcdef"),
        Some("Bearer "),
    ] {
        assert_eq!(daemon.ask("POST", "/v1/check", bearer, "{}").status, 401, "{bearer:?}");
    }
    let right = Some("Bearer 0123456789abcdef");
    assert_eq!(daemon.ask("POST", "/v1/check", right, "{}").status, 200);
    assert_eq!(daemon.ask("GET", "/healthz", None, "").status, 200);
    assert_eq!(daemon.ask("GET", "/readyz", None, "").status, 200);
}
