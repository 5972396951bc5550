//! What is left, why somebody was denied, and the document of the interface.

use super::*;

#[test]
fn somebody_is_told_what_is_left_and_pays_nothing() {
    let daemon = TestDaemon::new(None);
    daemon.post("/v1/check", SEVEN);
    for _ in 0..3 {
        let usage = daemon.get("/v1/rate-limit/usage/me?user=7");
        assert_eq!(usage.status, 200);
        assert_eq!(
            usage.body,
            serde_json::json!({
                "reason": "limits",
                "degraded": false,
                "usage": [{
                    "ruleId": "per_client",
                    "rule": "per_client",
                    "tier": null,
                    "limitText": "2/10s",
                    "limit": 2,
                    "remaining": 1,
                    "resetAt": "2023-11-14T22:13:30.000Z",
                    "windowSeconds": 10,
                }],
                "incomplete": [],
            })
        );
    }
    let path = "/v1/rate-limit/usage/me?tenant=a+b%26c&user=8&path=%2Ft&method=POST";
    let rules: Vec<Value> = daemon.get(path).body["usage"]
        .as_array()
        .unwrap()
        .iter()
        .map(|usage| usage["rule"].clone())
        .collect();
    assert_eq!(rules, ["needs_tenant", "per_client"]);
    assert_eq!(
        daemon.get("/v1/rate-limit/usage/me?user=7&path=/health").body["reason"],
        "unlimited"
    );
    for (query, message) in [
        ("", "nobody is named: say who by attributes, such as /v1/rate-limit/usage/me?user=42"),
        ("?path=/t", "nobody is named: say who by attributes"),
        ("?user=1&user=2", "the attribute `user` has two values: send one, or join them"),
        ("?user=1&path=/a&path=/b", "`path` is there twice: send one"),
        ("?user=1&client=2", "`client` is not an attribute to be sent"),
    ] {
        let answer = daemon.get(&format!("/v1/rate-limit/usage/me{query}"));
        let told = answer.body["message"].as_str().unwrap();
        assert!(answer.status == 400 && told.starts_with(message), "{query}: {told}");
    }
}

#[test]
fn a_denial_can_be_asked_about() {
    let daemon = TestDaemon::new(None);
    let allowed = daemon.post("/v1/check", SEVEN);
    daemon.post("/v1/check", SEVEN);
    let denied = daemon.post("/v1/check", SEVEN);
    let id = denied.body["decisionId"].as_str().unwrap();
    daemon.clock.advance(Duration::from_secs(9));
    let why = daemon.get(&format!("/v1/decisions/{id}"));
    assert_eq!(why.status, 200, "{}", why.body);
    assert_eq!(why.body["verdict"], denied.body);
    assert_eq!(why.body["decidedAt"], "2023-11-14T22:13:21.000Z");
    assert_eq!(
        why.body["why"],
        "`per_client` allows 2/10s: the request cost 1, 0 were left, for another 9 s"
    );
    assert_eq!(
        why.body["request"],
        serde_json::json!({ "method": "GET", "path": "/", "attributes": { "user": "7" }, "cost": 1 })
    );
    assert_eq!(why.body["now"]["allowed"], true);
    // What was asked can be asked again.
    assert_eq!(daemon.post("/v1/check", &why.body["request"].to_string()).status, 200);
    for id in [allowed.body["decisionId"].as_str().unwrap(), "0", &"f".repeat(32)] {
        let unknown = daemon.get(&format!("/v1/decisions/{id}"));
        assert_eq!((unknown.status, &unknown.body["error"]), (404, &"unknown_decision".into()));
    }
}

#[test]
fn every_kind_of_denial_says_why() {
    let daemon = TestDaemon::new(None);
    let ids = "\"attributes\":{\"user\":\"9\"},\"requestId\":\"r\"";
    daemon.post("/v1/check", &format!("{{{ids}}}"));
    daemon.post("/v1/check", r#"{"path":"/j"}"#);
    for (path, body, why) in [
        (
            "/v1/check",
            r#"{"path":"/t"}"#,
            "`needs_tenant` counts by `tenant`, which the request lacked",
        ),
        (
            "/v1/check",
            r#"{"cost":3}"#,
            "`per_client` allows 2/10s: the request cost 3, more than that can ever hold",
        ),
        ("/v1/check", r#"{"path":"/j"}"#, "`jobs` allows 1: the request needed 1, 0 were free"),
        (
            "/v1/check",
            &format!("{{{ids},\"cost\":2}}"),
            "its request id had come with another request",
        ),
        (
            "/v1/check",
            r#"{"rule":"per_client","subject":"x","cost":9}"#,
            "`per_client` allows 2/10s: the request cost 9",
        ),
        (
            "/v1/check",
            r#"{"rule":"per_client","cost":9}"#,
            "`per_client` allows 2/10s: the request cost 9",
        ),
        ("/v1/reserve", r#"{"cost":9}"#, "`per_client` allows 2/10s: the request cost 9"),
    ] {
        let denied = daemon.post(path, body);
        let id = denied.body["decisionId"].as_str().unwrap();
        let remembered = daemon.get(&format!("/v1/decisions/{id}"));
        let told = remembered.body["why"].as_str().unwrap();
        assert!(told.starts_with(why), "{body}: {told}");
        assert!(remembered.body["request"].is_object());
    }
}
