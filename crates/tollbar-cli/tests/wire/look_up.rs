//! What is left to a subject: one answer over HTTP, gRPC and the Redis protocol, whatever its tier and however many
//! values it has.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use serde_json::{Value, json};
use tollbar_proto::client::Client;
use tollbar_proto::v1;
use tonic::Code;

use crate::common::{Daemon, Scratch, status};

const RULES: &str = "rules:
- { name: plans, match: { path: /plans }, tiers: { free: 3/day, premium: 10/day, default: free } }
- { name: pair, match: { path: /pair/** }, per: [user, path], limit: 5/day }
- { name: hours, match: { path: /hours }, tiers: { slow: 5/day, fast: 50/12h, default: slow } }
";

/// A daemon in which user 42 has used 4 of the 10 requests of the premium tier.
fn daemon_with_premium_user(name: &str) -> (Scratch, Daemon) {
    let scratch = Scratch::new(name);
    let daemon = Daemon::start(&["--rules", &scratch.file("rules.yaml", RULES)]);
    for _ in 0..4 {
        let attributes = json!({ "user": "42", "tier": "premium" });
        let (status, _) =
            post(&daemon, "/v1/check", &json!({ "path": "/plans", "attributes": attributes }));
        assert_eq!(status, 200);
    }
    (scratch, daemon)
}

fn post(daemon: &Daemon, path: &str, body: &Value) -> (u16, Value) {
    read(&daemon.post(path, &body.to_string()))
}

fn get(daemon: &Daemon, path: &str) -> (u16, Value) {
    read(&daemon.get_with(path, ""))
}

fn read(answer: &str) -> (u16, Value) {
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status(answer), serde_json::from_str(body).unwrap_or_default())
}

/// What is answered to a line of the Redis protocol.
fn resp(daemon: &Daemon, line: &str) -> String {
    let mut stream = TcpStream::connect(daemon.address("resp")).unwrap();
    stream.write_all(format!("{line}\r\n").as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The limit and what is left, of a peek.
fn left(answer: &Value) -> (Value, Value, Value) {
    (answer["limit"].clone(), answer["remaining"].clone(), answer["decisions"][0]["tier"].clone())
}

/// A premium user with 4 of 10 used was shown limit 3 and remaining 0.
#[tokio::test]
async fn every_protocol_shows_a_premium_user_the_premium_limit() {
    let (_scratch, daemon) = daemon_with_premium_user("look-up-premium");
    let premium = (json!(10), json!(6), json!("premium"));
    let free = (json!(3), json!(0), json!("free"));
    let small = json!({ "rule": "plans", "subject": "user:42" });
    let mut named = small.clone();
    named["attributes"] = json!({ "tier": "free" });
    let full = json!({ "path": "/plans", "attributes": { "user": "42" } });
    for (body, expected) in [(&small, &premium), (&full, &premium), (&named, &free)] {
        let (status, answer) = post(&daemon, "/v1/peek", body);
        assert_eq!((status, &left(&answer)), (200, expected), "{body}");
    }
    let (_, usage) = get(&daemon, "/v1/rate-limit/usage/me?user=42&path=/plans");
    assert_eq!(usage["usage"].as_array().unwrap().len(), 1, "{usage}");
    let usage = &usage["usage"][0];
    assert_eq!((&usage["rule"], &usage["tier"]), (&json!("plans"), &json!("premium")));
    assert_eq!((&usage["limit"], &usage["remaining"]), (&json!(10), &json!(6)));

    let mut calls = Client::connect(format!("http://{}", daemon.address("grpc"))).unwrap().calls();
    let small = v1::CheckRequest {
        rule: "plans".to_owned(),
        subject: "user:42".to_owned(),
        ..v1::CheckRequest::default()
    };
    let answer = calls.peek(small.clone()).await.unwrap().into_inner();
    assert_eq!((answer.limit, answer.remaining), (Some(10), Some(6)));
    let told = resp(&daemon, "TB.SUBJECT plans user:42 COST 0");
    assert!(told.contains("$5\r\nlimit\r\n:10\r\n$9\r\nremaining\r\n:6\r\n"), "{told}");
    let told = resp(&daemon, "TB.PEEK GET /plans WITH user 42");
    assert!(told.contains("$9\r\nremaining\r\n:6\r\n"), "{told}");

    // A charge is under the tier that it names, and under the default one if it names none.
    let mut charge = small;
    charge.attributes = [("tier".to_owned(), "premium".to_owned())].into();
    assert_eq!(calls.check(charge).await.unwrap().get_ref().remaining, Some(5));
    let told = resp(&daemon, "TB.SUBJECT plans user:42 WITH tier premium");
    assert!(told.contains("$9\r\nremaining\r\n:4\r\n"), "{told}");
    let told = resp(&daemon, "TB.SUBJECT plans user:42");
    assert!(told.contains("$5\r\nlimit\r\n:3\r\n$9\r\nremaining\r\n:0\r\n"), "{told}");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_subject_with_counters_under_two_tiers_is_shown_both() {
    let (_scratch, daemon) = daemon_with_premium_user("look-up-tiers");
    for tier in ["slow", "fast"] {
        let attributes = json!({ "user": "7", "tier": tier });
        post(&daemon, "/v1/check", &json!({ "path": "/hours", "attributes": attributes }));
    }
    let (_, usage) = get(&daemon, "/v1/rate-limit/usage/me?user=7&path=/hours");
    let tiers: Vec<_> = usage["usage"]
        .as_array()
        .unwrap()
        .iter()
        .map(|usage| (usage["tier"].as_str().unwrap(), usage["remaining"].as_u64().unwrap()))
        .collect();
    assert_eq!(tiers, [("fast", 49), ("slow", 4)]);
    // A reset is of all of them.
    let (status, _) = post(&daemon, "/v1/reset", &json!({ "rule": "hours", "subject": "user:7" }));
    assert_eq!(status, 200);
    for (tier, limit) in [("slow", 5), ("fast", 50)] {
        let body = json!({ "rule": "hours", "subject": "user:7", "attributes": { "tier": tier } });
        assert_eq!(post(&daemon, "/v1/peek", &body).1["remaining"], limit);
    }
    assert_eq!(daemon.stop(), 0);
}

#[tokio::test]
async fn a_question_about_several_counters_is_told_to_say_which_one() {
    let (_scratch, daemon) = daemon_with_premium_user("look-up-pair");
    let check = json!({ "path": "/pair/a", "attributes": { "user": "42" } });
    assert_eq!(post(&daemon, "/v1/check", &check).0, 200);
    let which = "rule `pair` counts per user and path: say which one";
    let short = json!({ "rule": "pair", "subject": "42" });
    let lacking = json!({ "rule": "pair", "attributes": { "user": "42" } });
    for (path, body) in [
        ("/v1/peek", &short),
        ("/v1/check", &short),
        ("/v1/reset", &short),
        ("/v1/peek", &lacking),
        ("/v1/reset", &lacking),
    ] {
        let (status, told) = post(&daemon, path, body);
        assert_eq!((status, &told["error"]), (422, &json!("incomplete_subject")), "{path} {body}");
        assert!(told["message"].as_str().unwrap().starts_with(which), "{told}");
    }
    let (status, usage) = get(&daemon, "/v1/rate-limit/usage/me?user=42&path=/pair/a");
    assert_eq!((status, &usage["usage"][0]["remaining"]), (200, &json!(4)), "{usage}");
    assert_eq!(usage["incomplete"], json!([]));

    // With both values it is one counter, over every protocol.
    let whole = json!({ "rule": "pair", "subject": "42 | /pair/a" });
    assert_eq!(post(&daemon, "/v1/peek", &whole).1["remaining"], 4);
    assert_eq!(post(&daemon, "/v1/check", &whole).1["remaining"], 3);
    let told = resp(&daemon, "TB.SUBJECT pair \"42 | /pair/a\" COST 0");
    assert!(told.contains("$9\r\nremaining\r\n:3\r\n"), "{told}");
    let told = resp(&daemon, "TB.SUBJECT pair 42 COST 0");
    assert!(told.starts_with(&format!("-ERR {which}")), "{told}");
    let mut calls = Client::connect(format!("http://{}", daemon.address("grpc"))).unwrap().calls();
    let message = |subject: &str| v1::CheckRequest {
        rule: "pair".to_owned(),
        subject: subject.to_owned(),
        ..v1::CheckRequest::default()
    };
    let answer = calls.peek(message("42 | /pair/a")).await.unwrap();
    assert_eq!(answer.get_ref().remaining, Some(3));
    let mut lacking = message("");
    lacking.attributes = [("user".to_owned(), "42".to_owned())].into();
    for wrong in [message("42"), lacking] {
        let told = calls.peek(wrong).await.unwrap_err();
        assert_eq!(told.code(), Code::InvalidArgument);
        assert!(told.message().starts_with(which), "{told}");
    }
    assert_eq!(daemon.stop(), 0);
}

/// A rule that counts by path was shown for `/`, which nobody had asked about.
#[test]
fn usage_names_the_rules_that_count_by_more_than_the_query_has() {
    let scratch = Scratch::new("look-up-incomplete");
    let rules = "rules: [{ name: pair, per: [user, path], limit: 5/day }, { name: one, per: user, limit: 9/day }]";
    let daemon = Daemon::start(&["--rules", &scratch.file("rules.yaml", rules)]);
    let (status, usage) = get(&daemon, "/v1/rate-limit/usage/me?user=42");
    assert_eq!(status, 200);
    assert_eq!(usage["usage"].as_array().unwrap().len(), 1, "{usage}");
    assert_eq!(usage["usage"][0]["rule"], "one");
    let lacking = &usage["incomplete"][0];
    assert_eq!((&lacking["rule"], &lacking["missing"]), (&json!("pair"), &json!(["path"])));
    assert_eq!(daemon.stop(), 0);
}
