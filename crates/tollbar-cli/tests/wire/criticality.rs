//! Which senders may raise the criticality of a request, over each protocol, while the store is down and rules shed.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use tollbar_proto::v1;
use tollbar_proto::v1::limiter_client::LimiterClient;

use crate::common::http::status;
use crate::common::{Daemon, Scratch};

const RULES: &str = "rules:
  - { name: pay, match: { path: /pay }, criticality: critical }
  - { name: all, limit: 9/day, on_store_failure: { shed: high } }";

/// The path, what the caller says, and whether the request passes if the caller is trusted, and if not.
const CASES: [(&str, &str, bool, bool); 6] = [
    ("/x", "", false, false),
    ("/x", "critical", true, false),
    ("/x", "high", true, false),
    ("/pay", "", true, true),
    ("/pay", "high", true, true),
    ("/pay", "normal", false, false),
];

fn daemon(scratch: &Scratch, endpoint: &str, more: &[&str]) -> Daemon {
    let rules = scratch.file("rules.yaml", RULES);
    let store = ["--store", "redis://127.0.0.1:1", "--store-raw-keys", "--rules", &rules];
    let listeners = ["--listen", endpoint, "--grpc", endpoint, "--resp", endpoint];
    Daemon::start(&[&store[..], &listeners, more].concat())
}

fn over_http(daemon: &Daemon, path: &str, criticality: &str) -> bool {
    let mut body = json!({ "method": "GET", "path": path });
    if !criticality.is_empty() {
        body["criticality"] = json!(criticality);
    }
    let answer = daemon.post("/v1/check", &body.to_string());
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str::<Value>(body).unwrap()["allowed"].as_bool().unwrap()
}

fn over_resp(daemon: &Daemon, path: &str, criticality: &str) -> bool {
    let option = if criticality.is_empty() { "" } else { " CRITICALITY " };
    let mut stream = TcpStream::connect(daemon.address("resp")).unwrap();
    let line = format!("TB.CHECK GET {path}{option}{criticality}\r\nQUIT\r\n");
    stream.write_all(line.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let is_allowed = answer.contains("$5\r\nallow\r\n");
    assert!(is_allowed != answer.contains("$4\r\ndeny\r\n"), "{answer}");
    is_allowed
}

fn over_grpc(daemon: &Daemon, path: &str, criticality: &str) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let criticality = match criticality {
        "" => v1::Criticality::Unspecified,
        "normal" => v1::Criticality::Normal,
        "high" => v1::Criticality::High,
        _ => v1::Criticality::Critical,
    };
    let message = v1::CheckRequest {
        method: "GET".to_owned(),
        path: path.to_owned(),
        criticality: criticality.into(),
        ..v1::CheckRequest::default()
    };
    let uri = format!("http://{}", daemon.address("grpc"));
    runtime.block_on(async {
        let endpoint = tonic::transport::Endpoint::from_shared(uri).unwrap();
        let mut client = LimiterClient::new(endpoint.connect().await.unwrap());
        client.check(message).await.unwrap().into_inner().allowed
    })
}

#[test]
fn a_caller_that_is_not_trusted_can_only_lower_its_criticality() {
    let scratch = Scratch::new("criticality");
    let trusted = daemon(&scratch, "127.0.0.1:0", &[]);
    let strangers = daemon(&scratch, "0.0.0.0:0", &["--insecure"]);
    for (path, criticality, if_trusted, if_not) in CASES {
        for (daemon, expected) in [(&trusted, if_trusted), (&strangers, if_not)] {
            let answers =
                [over_http, over_resp, over_grpc].map(|ask| ask(daemon, path, criticality));
            assert_eq!(answers, [expected; 3], "{path} {criticality}: HTTP, RESP, gRPC");
        }
    }
    // With a token nobody is a stranger.
    let tokens = scratch.file("tokens", "0123456789abcdef");
    let known = daemon(&scratch, "0.0.0.0:0", &["--insecure", "--token-file", &tokens]);
    let lines = "content-type: application/json\r\nauthorization: Bearer 0123456789abcdef\r\n";
    let body = "{\"path\":\"/x\",\"criticality\":\"critical\"}";
    assert_eq!(status(&known.send("POST", "/v1/check", lines, body)), 200);
}

#[test]
fn a_denial_and_an_explanation_say_how_critical_the_request_was_and_why() {
    let scratch = Scratch::new("criticality-explained");
    let rules = scratch.file(
        "rules.yaml",
        "rules:
  - { name: sync, match: { path: /sync }, criticality: low }
  - { name: all, limit: 10/day, burst: 10, reserve: { normal: 50% } }",
    );
    let daemon = Daemon::start(&["--rules", &rules]);
    let json = |answer: &str| -> Value {
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    let check = |body: &str| json(&daemon.post("/v1/check", body));
    assert_eq!(check("{\"path\":\"/sync\",\"cost\":5}")["remaining"], 0);
    let by_rule = check("{\"path\":\"/sync\"}");
    assert_eq!(by_rule["allowed"], false);
    let by_caller = check("{\"path\":\"/x\",\"criticality\":\"low\"}");
    assert_eq!(by_caller["allowed"], false);
    assert_eq!(check("{\"path\":\"/x\"}")["remaining"], 4);
    for (denied, rule, why) in [
        (by_rule, json!("sync"), "by rule `sync`"),
        (by_caller, Value::Null, "as the request says"),
    ] {
        let id = denied["decisionId"].as_str().unwrap();
        let told = json(&daemon.get_with(&format!("/v1/decisions/{id}"), ""));
        assert_eq!((&told["criticality"], &told["criticalityRule"]), (&json!("low"), &rule));
        let now = &told["now"];
        assert_eq!((&now["criticality"], &now["criticalityWhy"]), (&json!("low"), &json!(why)));
        let rules = now["rules"].as_array().unwrap();
        let all = rules.iter().find(|rule| rule["name"] == "all").unwrap();
        assert_eq!(
            (&all["limits"][0]["reserved"], &all["limits"][0]["remaining"]),
            (&json!(5), &json!(0))
        );
    }
    assert_eq!(daemon.stop(), 0);
}
