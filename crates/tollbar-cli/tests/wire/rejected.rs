//! Requests that cannot be decided, over every protocol: each is refused, and counted once as rejected.

use std::io::{Read, Write};
use std::net::TcpStream;

use tollbar_proto::client::Client;
use tollbar_proto::v1::{CheckRequest, ReserveRequest};

use crate::common::http::ask;
use crate::common::{Daemon, Scratch, status};

const RULES: &str = "rules:
- { name: all, limit: 9/day }
- { name: jobs, match: { path: /jobs }, per: [], algorithm: concurrency, limit: 1, lease: 30s }
";

/// The checks of one protocol that have this outcome.
fn checks(daemon: &Daemon, listener: &str, outcome: &str) -> u64 {
    let metrics = daemon.get_with("/metrics", "");
    let series = format!("tollbar_checks_total{{listener=\"{listener}\",outcome=\"{outcome}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&series)).unwrap().parse().unwrap()
}

/// Sends commands of the Redis protocol; all that comes back.
fn converse(daemon: &Daemon, commands: &str) -> String {
    let mut stream = TcpStream::connect(daemon.address("resp")).unwrap();
    stream.write_all(format!("{commands}QUIT\r\n").as_bytes()).unwrap();
    let mut replies = String::new();
    stream.read_to_string(&mut replies).unwrap();
    replies
}

#[test]
fn a_request_that_cannot_be_decided_is_counted_once_over_every_protocol() {
    let scratch = Scratch::new("rejected");
    let rules = scratch.file("rules.yaml", RULES);
    let upstream = ["--upstream", "http://127.0.0.1:1", "--proxy", "127.0.0.1:0"];
    let mut daemon = Daemon::start_logged(&[&["--rules", &rules][..], &upstream].concat());
    // More segments than rules look at.
    let path = "/x".repeat(2_000);
    let check = format!(r#"{{"path":"{path}"}}"#);

    // Of these, each but the last is counted.
    for (target, body) in [
        ("/v1/check", check.clone()),
        ("/v1/check", "no JSON".to_owned()),
        ("/v1/check", r#"{"rule":"jobs","attributes":{"ip":"nowhere"}}"#.to_owned()),
        ("/v1/check/batch", format!(r#"{{"requests":[{{}},{check}]}}"#)),
        ("/v1/reserve", check.clone()),
        ("/v1/peek", check.clone()),
    ] {
        assert_eq!(status(&daemon.post(target, &body)), 400, "{target} {body}");
    }
    // An unknown rule is the mistake of one request in a batch: the others are decided.
    let batch = r#"{"requests":[{},{"rule":"unknown"}]}"#;
    assert_eq!(status(&daemon.post("/v1/check/batch", batch)), 200);

    let of_jobs = "x-original-method: GET\r\nx-original-uri: /jobs\r\nx-real-ip: 192.0.2.1\r\n";
    for lines in [&of_jobs.replace("/jobs", &path), of_jobs] {
        assert_eq!(status(&daemon.get_with("/v1/forward-auth/haproxy", lines)), 400);
    }

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = format!("http://{}", daemon.address("grpc"));
    runtime.block_on(async {
        let mut calls = Client::connect(url).unwrap().calls();
        let request = CheckRequest { path: path.clone(), ..CheckRequest::default() };
        calls.check(request.clone()).await.unwrap_err();
        calls.peek(request.clone()).await.unwrap_err();
        let reservation = ReserveRequest { request: Some(request), ttl: None };
        calls.reserve(reservation).await.unwrap_err();
    });

    let commands = format!(
        "TB.CHECK GET {path}\r\nTB.PEEK GET {path}\r\nTB.SUBJECT none x\r\nCL.THROTTLE k 1 x 1\r\n"
    );
    let replies = converse(&daemon, &commands);
    assert_eq!(replies.matches('-').count(), 4, "{replies}");

    assert_eq!(ask(daemon.address("proxy"), "GET", &path, "", "").unwrap().status, 400);

    let listeners = ["http", "forward_auth", "grpc", "resp", "proxy"];
    let rejected = listeners.map(|listener| (listener, checks(&daemon, listener, "rejected")));
    let expected = [("http", 6), ("forward_auth", 2), ("grpc", 2), ("resp", 3), ("proxy", 1)];
    assert_eq!(rejected, expected);
    assert_eq!(checks(&daemon, "forward_auth", "allow"), 0, "what is refused is not allowed");
    let line = daemon.logged("denied: it cannot be decided");
    assert!(line.contains("2000 segments is too deep"), "{line}");
    assert_eq!(daemon.stop(), 0);
}
