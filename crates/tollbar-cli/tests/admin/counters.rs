//! Counters that owe more than their policy can: seen, and cleared by hand.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::admin_daemon::{AdminDaemon, RULES, first_token};
use crate::common::{Daemon, Scratch};

const CLEAR: &str = "/v1/rate-limit/counters/clear-ahead";

/// One token an hour, and this many at once.
fn hourly(burst: u64) -> Value {
    json!({ "name": "hourly", "algorithm": "token_bucket", "maxRequests": 24,
            "windowSeconds": 86_400, "burstCapacity": burst })
}

/// What is read at a path of the HTTP listener.
fn read(daemon: &Daemon, path: &str) -> String {
    daemon.get_with(path, "").split_once("\r\n\r\n").unwrap().1.to_owned()
}

fn health(daemon: &Daemon) -> Value {
    serde_json::from_str(&read(daemon, "/healthz")).unwrap()
}

/// A daemon without rules whose log is read.
fn admin(name: &str) -> AdminDaemon {
    let scratch = Scratch::new(&format!("admin-{name}"));
    let rules = scratch.file("rules.yaml", "rules: []");
    let database = scratch.path("rules.sqlite");
    let daemon = Daemon::start_logged(&["--rules", &rules, "--database", &database]);
    let token = first_token(&daemon).unwrap();
    AdminDaemon { daemon, token, database, scratch }
}

/// After a burst was lowered, clients that had spent the old one were denied for days, and nothing said why.
#[test]
fn a_counter_that_owes_more_than_it_can_is_seen_and_cleared() {
    let mut admin = admin("ahead");
    let id = admin.rule(&hourly(600));
    let spend = r#"{"attributes":{"user":"7"},"cost":600}"#;
    assert!(admin.daemon.post("/v1/check", spend).starts_with("HTTP/1.1 200"));
    assert_eq!(health(&admin.daemon)["status"], "ok");
    assert_eq!(health(&admin.daemon)["aheadOfClock"], Value::Null);
    admin.ask_of("*", "PUT", &format!("{RULES}/{id}"), &hourly(6)).expect(200);

    assert_eq!([admin.daemon.check("7"), admin.daemon.check("7")], [429, 429]);
    let seen = health(&admin.daemon);
    assert_eq!(seen["status"], "ok", "it is well all the same");
    let ahead = &seen["aheadOfClock"];
    assert_eq!((&ahead["denials"], &ahead["rule"]), (&json!(2), &json!("hourly")));
    // 600 hours are owed, all but five have to be paid, and six can be owed. Some seconds have passed.
    let ahead_seconds = ahead["aheadSeconds"].as_u64().unwrap();
    assert!((588 * 3_600..=589 * 3_600).contains(&ahead_seconds), "{ahead}");
    let line = admin.daemon.logged("more than its policy can");
    assert!(line.contains("rule `hourly`: a counter owes 24 days more"), "{line}");

    let clearing = admin.get(CLEAR);
    assert_eq!((&clearing["clearingUntil"], &clearing["cleared"]), (&Value::Null, &json!(0)));
    let clearing = admin.ask("POST", CLEAR, &json!({ "forSeconds": 600 })).expect(200);
    assert!(clearing["clearingUntil"].is_string(), "{clearing}");
    admin.daemon.logged("counters ahead of the clock are cleared");
    let audit = admin.get("/v1/rate-limit/audit");
    let written = json!({ "ruleId": "*", "subject": "counters ahead of the clock", "reset": true });
    assert_eq!(audit["items"][0]["after"], written, "{audit}");
    assert!(audit["items"][0]["actor"].as_str().unwrap().starts_with("token:"), "{audit}");

    assert_eq!(admin.daemon.check("7"), 429, "the denial stands");
    assert_eq!([(); 7].map(|()| admin.daemon.check("7")), [200, 200, 200, 200, 200, 200, 429]);
    let cleared = admin.ask("POST", CLEAR, &json!({})).expect(200);
    assert_eq!((&cleared["cleared"], &cleared["failed"]), (&json!(1), &json!(0)));
    assert_eq!(cleared["aheadOfClock"]["denials"], 3);
    let counted = "tollbar_ahead_of_clock_denials_total{rule=\"hourly\"} 3\n";
    let metrics = read(&admin.daemon, "/metrics");
    assert!(metrics.contains(counted), "{metrics}");

    admin.daemon.signal("TERM");
    assert_eq!(admin.daemon.wait(), 0);
    assert!(!admin.daemon.rest_of_log().contains("more than its policy can"), "told once");
}

/// What is answered to commands of the Redis protocol.
fn redis(daemon: &Daemon, commands: &[&str]) -> String {
    let mut stream = TcpStream::connect(daemon.address("resp")).unwrap();
    for command in commands.iter().chain([&"QUIT"]) {
        stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn commands_that_bring_their_limit_are_seen_and_cleared_as_well() {
    let mut admin = admin("ahead-throttle");
    let spent = redis(&admin.daemon, &["CL.THROTTLE k 599 1 3600 600"]);
    assert!(spent.starts_with("*5\r\n:0\r\n:600\r\n:0\r\n"), "{spent}");
    let lowered = "CL.THROTTLE k 5 1 3600";
    assert!(redis(&admin.daemon, &[lowered]).starts_with("*5\r\n:1\r\n"));
    assert_eq!(health(&admin.daemon)["aheadOfClock"]["rule"], "CL.THROTTLE");
    admin.daemon.logged("rule `CL.THROTTLE`: a counter owes 24 days more");
    let counted = "tollbar_ahead_of_clock_denials_total{rule=\"(none)\"} 1\n";
    assert!(read(&admin.daemon, "/metrics").contains(counted));

    admin.ask("POST", CLEAR, &json!({})).expect(200);
    assert!(redis(&admin.daemon, &[lowered]).starts_with("*5\r\n:1\r\n"), "the denial stands");
    assert!(redis(&admin.daemon, &[lowered]).starts_with("*5\r\n:0\r\n:6\r\n:5\r\n"));
    assert_eq!(admin.get(CLEAR)["cleared"], 1);
}

#[test]
fn a_time_that_cannot_be_is_refused() {
    let admin = AdminDaemon::open("ahead-refused", "rules: []");
    for body in [json!({ "forSeconds": 0 }), json!({ "forSeconds": 86_401 })] {
        let field = admin.ask("POST", CLEAR, &body).problem(422, "invalid");
        assert_eq!(field, "forSeconds");
    }
    assert_eq!(admin.get(CLEAR)["clearingUntil"], Value::Null);
}
