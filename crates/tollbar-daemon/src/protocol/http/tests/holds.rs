//! Charges that are settled later, and permits that come back.

use super::*;

const RULES: &str = "
rules:
  - { name: tokens, limit: 1000/day, burst: 1000 }
  - { name: jobs, match: { path: /j }, algorithm: concurrency, limit: 1, lease: 30s }
";

fn text(read: &TestResponse, field: &str) -> String {
    read.body[field].as_str().unwrap_or_else(|| panic!("no {field} in {}", read.body)).to_owned()
}

fn left(daemon: &TestDaemon) -> Value {
    daemon.post("/v1/peek", SEVEN).body["remaining"].clone()
}

#[test]
fn a_reservation_is_settled_by_what_it_came_to_once() {
    let daemon = TestDaemon::over(RULES, None);
    let body = r#"{"attributes":{"user":"7"},"cost":300,"ttlMs":60000}"#;
    let reserved = daemon.post("/v1/reserve", body);
    assert_eq!((reserved.status, left(&daemon)), (200, 700.into()));
    let receipt = text(&reserved, "receipt");
    let commit = format!(r#"{{"receipt":"{receipt}","cost":120}}"#);
    let settled = daemon.post("/v1/commit", &commit);
    assert_eq!(settled.status, 200, "{}", settled.body);
    assert_eq!(
        settled.body["charges"],
        serde_json::json!([{ "rule": "tokens", "reserved": 300, "spent": 120, "refunded": 180, "overdrawn": 0 }])
    );
    assert_eq!(left(&daemon), 880);
    let again = daemon.post("/v1/commit", &commit);
    assert_eq!((again.status, &again.body["error"]), (409, &"not_open".into()));
    assert_eq!(daemon.post("/v1/cancel", &format!(r#"{{"receipt":"{receipt}"}}"#)).status, 409);
    assert_eq!(left(&daemon), 880);
}

/// JSON knows no difference between 5 and 5.0, and some languages write one for the other.
#[test]
fn a_cost_with_a_fraction_of_zero_is_a_whole_number() {
    let daemon = TestDaemon::over(RULES, None);
    for (path, body) in [
        ("/v1/check", r#"{"attributes":{"user":"7"},"cost":5.0}"#),
        ("/v1/check", r#"{"rule":"tokens","subject":"user:7","cost":5.000}"#),
        ("/v1/check", r#"{"attributes":{"user":"7"},"cost":0.5e1}"#),
        ("/v1/check/batch", r#"{"requests":[{"attributes":{"user":"7"},"cost":5.0}]}"#),
    ] {
        let before = left(&daemon).as_u64().unwrap();
        assert_eq!(daemon.post(path, body).status, 200, "{path} {body}");
        assert_eq!(left(&daemon), before - 5, "{path} {body}");
    }
    let body = r#"{"attributes":{"user":"7"},"cost":300.0}"#;
    let receipt = text(&daemon.post("/v1/reserve", body), "receipt");
    assert_eq!(left(&daemon), 680);
    let commit = format!(r#"{{"receipt":"{receipt}","cost":120.0}}"#);
    assert_eq!(daemon.post("/v1/commit", &commit).status, 200);
    assert_eq!(left(&daemon), 860);
}

#[test]
fn a_reservation_is_given_back_or_stands_as_it_is() {
    let daemon = TestDaemon::over(RULES, None);
    let body = r#"{"attributes":{"user":"7"},"cost":300}"#;
    let receipt = text(&daemon.post("/v1/reserve", body), "receipt");
    assert_eq!(daemon.post("/v1/cancel", &format!(r#"{{"receipt":"{receipt}"}}"#)).status, 200);
    assert_eq!(left(&daemon), 1_000);
    let receipt = text(&daemon.post("/v1/reserve", body), "receipt");
    assert_eq!(daemon.post("/v1/commit", &format!(r#"{{"receipt":"{receipt}"}}"#)).status, 200);
    assert_eq!(left(&daemon), 700);
    let receipt = text(&daemon.post("/v1/reserve", body), "receipt");
    daemon.clock.advance(Duration::from_mins(1));
    let late = daemon.post("/v1/commit", &format!(r#"{{"receipt":"{receipt}","cost":0}}"#));
    assert_eq!(late.status, 409, "{}", late.body);
    let denied = daemon.post("/v1/reserve", r#"{"attributes":{"user":"7"},"cost":900}"#);
    assert_eq!(denied.status, 429);
    assert!(denied.body.get("receipt").is_none());
}

#[test]
fn permits_come_back_when_they_are_released_or_their_time_is_up() {
    let daemon = TestDaemon::over(RULES, None);
    let job = r#"{"path":"/j","attributes":{"user":"7"}}"#;
    let first = daemon.post("/v1/check", job);
    assert_eq!(first.body["leaseEndsAt"], "2023-11-14T22:13:51.000Z", "{}", first.body);
    let lease = format!(r#"{{"lease":"{}"}}"#, text(&first, "lease"));
    let busy = daemon.post("/v1/check", job);
    assert_eq!((busy.status, &busy.body["retryAfterMs"]), (429, &Value::Null));
    assert!(busy.body.get("lease").is_none());
    daemon.clock.advance(Duration::from_secs(20));
    let renewed = daemon.post("/v1/renew", &lease);
    assert_eq!(renewed.body["endsAt"], "2023-11-14T22:14:11.000Z", "{}", renewed.body);
    daemon.clock.advance(Duration::from_secs(20));
    assert_eq!(daemon.post("/v1/check", job).status, 429);
    assert_eq!(daemon.post("/v1/release", &lease).body["released"], true);
    assert_eq!(daemon.post("/v1/release", &lease).body["released"], false);
    assert_eq!(daemon.post("/v1/renew", &lease).body["renewed"], false);
    assert_eq!(daemon.post("/v1/check", job).status, 200);
    daemon.clock.advance(Duration::from_secs(30));
    assert_eq!(daemon.post("/v1/check", job).status, 200);
}

#[test]
fn one_rule_with_permits_gives_a_lease_too() {
    let daemon = TestDaemon::over(RULES, None);
    let by_value = r#"{"rule":"jobs","subject":"user:7"}"#;
    let first = daemon.post("/v1/check", by_value);
    assert_eq!(daemon.post("/v1/check", by_value).status, 429);
    let lease = format!(r#"{{"lease":"{}"}}"#, text(&first, "lease"));
    assert_eq!(daemon.post("/v1/release", &lease).body["released"], true);
    assert_eq!(daemon.post("/v1/check", by_value).status, 200);
}

#[test]
fn a_text_of_the_other_kind_is_refused() {
    let daemon = TestDaemon::over(RULES, None);
    let lease = text(&daemon.post("/v1/check", r#"{"path":"/j"}"#), "lease");
    let receipt = text(&daemon.post("/v1/reserve", "{}"), "receipt");
    for (path, field, text) in [
        ("/v1/commit", "receipt", &lease),
        ("/v1/cancel", "receipt", &lease),
        ("/v1/release", "lease", &receipt),
    ] {
        let answer = daemon.post(path, &format!(r#"{{"{field}":"{text}"}}"#));
        assert_eq!((answer.status, &answer.body["error"]), (400, &"not_accepted".into()), "{path}");
    }
}
