//! gRPC as the real daemon speaks it: every call once, and a table of mistakes with the exact status that
//! each gets.

use std::time::Duration;

use crate::common::{Daemon, Scratch};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use prost::Message;
use tokio::time::timeout;
use tollbar_proto::client::{Calls, Client};
use tollbar_proto::v1::check_many_response::Result as Answer;
use tollbar_proto::v1::{self, CheckRequest, Outcome};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, StatusCode};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// Long enough for a machine that has other things to do.
const PATIENCE: Duration = Duration::from_mins(1);

const RULES: &str = "rules:
- { name: plain, match: { path: /plain/** }, limit: 3/day, burst: 3 }
- { name: pair, match: { path: /pair/** }, per: [tenant, user], limit: 3/day, burst: 3 }
- { name: jobs, match: { path: /jobs }, per: [], algorithm: concurrency, limit: 1, lease: 30s }
- { name: tokens, match: { path: /tokens }, limit: 100/day, burst: 100 }
";

fn start(name: &str) -> (Scratch, Daemon) {
    let scratch = Scratch::new(name);
    let daemon = Daemon::start(&["--rules", &scratch.file("rules.yaml", RULES)]);
    (scratch, daemon)
}

fn calls(daemon: &Daemon) -> Calls {
    Client::connect(format!("http://{}", daemon.address("grpc"))).unwrap().calls()
}

async fn channel(daemon: &Daemon) -> Channel {
    let uri = format!("http://{}", daemon.address("grpc"));
    Endpoint::from_shared(uri).unwrap().connect().await.unwrap()
}

fn request(path: &str, user: &str) -> CheckRequest {
    let attributes = [("user".to_owned(), user.to_owned())].into();
    CheckRequest { path: path.to_owned(), attributes, ..CheckRequest::default() }
}

#[tokio::test]
async fn a_denial_is_an_answer_with_an_exact_wait() {
    let (_scratch, daemon) = start("grpc-denial");
    let mut calls = calls(&daemon);
    for left in [2, 1, 0] {
        let answer = calls.check(request("/plain/a", "1")).await.unwrap().into_inner();
        assert!(answer.allowed);
        assert_eq!((answer.rule.as_str(), answer.limit), ("plain", Some(3)));
        assert_eq!(answer.remaining, Some(left));
    }
    let denied = calls.check(request("/plain/a", "1")).await.unwrap().into_inner();
    assert!(!denied.allowed && !denied.degraded);
    assert_eq!(denied.outcome(), Outcome::Deny);
    // A token comes back every 8 hours.
    let wait = denied.retry_after.unwrap();
    assert!((28_700..=28_800).contains(&wait.seconds), "{wait:?}");
    assert_eq!(denied.decisions.len(), 1);
    assert_eq!(denied.decision_id.len(), 32);
    let peeked = calls.peek(request("/plain/a", "2")).await.unwrap().into_inner();
    assert_eq!((peeked.allowed, peeked.remaining), (true, Some(3)));
    let mut dear = request("/plain/a", "2");
    dear.cost = Some(4);
    let never = calls.check(dear).await.unwrap().into_inner();
    assert_eq!((never.allowed, never.outcome()), (false, Outcome::Never));
    let free = calls.check(request("/elsewhere", "2")).await.unwrap().into_inner();
    assert_eq!((free.allowed, free.limit, free.reset_at), (true, None, None));
}

/// With `--insecure` anybody could reset limits.
#[tokio::test]
async fn strangers_beyond_loopback_check_over_grpc_and_neither_reset_nor_explain() {
    let scratch = Scratch::new("grpc-strangers");
    let rules = scratch.file("rules.yaml", RULES);
    let daemon = Daemon::start(&["--rules", &rules, "--grpc", "0.0.0.0:0", "--insecure"]);
    let mut calls = calls(&daemon);
    assert!(calls.check(request("/plain/a", "1")).await.unwrap().into_inner().allowed);
    let reset = v1::ResetRequest {
        rule: "plain".to_owned(),
        subject: "user:1".to_owned(),
        ..v1::ResetRequest::default()
    };
    assert_eq!(calls.reset(reset).await.unwrap_err().code(), Code::Unauthenticated);
    let explain = calls.explain(v1::ExplainRequest::default()).await;
    assert_eq!(explain.unwrap_err().code(), Code::Unauthenticated);
}

#[tokio::test]
async fn one_rule_and_one_subject_can_be_asked_for() {
    let (_scratch, daemon) = start("grpc-small");
    let mut calls = calls(&daemon);
    let small = |subject: &str| CheckRequest {
        rule: "plain".to_owned(),
        subject: subject.to_owned(),
        ..CheckRequest::default()
    };
    assert_eq!(calls.check(small("user:1")).await.unwrap().get_ref().remaining, Some(2));
    // The same counter as that of a whole request.
    let whole = calls.check(request("/plain/x", "1")).await.unwrap().into_inner();
    assert_eq!(whole.remaining, Some(1));
    // A rule by its name, whatever it matches.
    let mut named = request("/elsewhere", "1");
    named.rule = "plain".to_owned();
    assert_eq!(calls.check(named).await.unwrap().get_ref().remaining, Some(0));
    let reset = v1::ResetRequest {
        rule: "plain".to_owned(),
        subject: "user:1".to_owned(),
        ..Default::default()
    };
    calls.reset(reset).await.unwrap();
    assert_eq!(calls.peek(request("/plain/x", "1")).await.unwrap().get_ref().remaining, Some(3));
}

#[tokio::test]
async fn a_request_under_an_id_is_charged_once() {
    let (_scratch, daemon) = start("grpc-once");
    let mut calls = calls(&daemon);
    let asked = CheckRequest { request_id: "7f".to_owned(), ..request("/plain/a", "1") };
    for _ in 0..3 {
        assert_eq!(calls.check(asked.clone()).await.unwrap().get_ref().remaining, Some(2));
    }
    let status = calls.check(CheckRequest { cost: Some(2), ..asked }).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status:?}");
    assert_eq!(calls.peek(request("/plain/a", "1")).await.unwrap().get_ref().remaining, Some(2));
}

#[tokio::test]
async fn what_was_reserved_is_settled_once() {
    let (_scratch, daemon) = start("grpc-reserve");
    let mut calls = calls(&daemon);
    let reserve = || v1::ReserveRequest {
        request: Some(CheckRequest { cost: Some(40), ..request("/tokens", "1") }),
        ttl: Some(prost_types::Duration { seconds: 30, nanos: 0 }),
    };
    let first = calls.reserve(reserve()).await.unwrap().into_inner();
    assert_eq!(first.answer.unwrap().remaining, Some(60));
    let commit = v1::CommitRequest { receipt: first.receipt.clone(), cost: Some(15) };
    let settled = calls.commit(commit.clone()).await.unwrap().into_inner();
    let charge = &settled.charges[0];
    let said = (charge.rule.as_str(), charge.reserved, charge.spent, charge.refunded);
    assert_eq!(said, ("tokens", 40, 15, 25));
    let again = calls.commit(commit).await.unwrap_err();
    assert_eq!(again.code(), Code::FailedPrecondition, "{again:?}");
    let second = calls.reserve(reserve()).await.unwrap().into_inner();
    let cancelled = calls.cancel(v1::CancelRequest { receipt: second.receipt }).await.unwrap();
    assert_eq!(cancelled.get_ref().charges[0].refunded, 40);
    assert_eq!(calls.peek(request("/tokens", "1")).await.unwrap().get_ref().remaining, Some(85));
}

/// Receipts and leases are texts that a daemon reads under the secret that it was started with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_secret_receipts_and_leases_are_taken_after_a_restart() {
    let scratch = Scratch::new("grpc-secret");
    let (rules, counters) = (scratch.file("rules.yaml", RULES), scratch.path("counters"));
    let secret = scratch.file("secret", &"0f".repeat(32));
    let args = ["--rules", &rules, "--snapshot", &counters, "--receipt-secret-file", &secret];
    let resp = |daemon: &Daemon, command: &str| {
        let stream = std::net::TcpStream::connect(daemon.address("resp")).unwrap();
        crate::common::http::exchange(stream, format!("{command}\r\nQUIT\r\n"))
    };
    let daemon = Daemon::start(&args);
    let reserve = v1::ReserveRequest { request: Some(request("/tokens", "1")), ttl: None };
    let receipt = calls(&daemon).reserve(reserve).await.unwrap().into_inner().receipt;
    let commit = v1::CommitRequest { receipt, cost: Some(1) };
    let held = resp(&daemon, "TB.CHECK GET /jobs WITH user 1");
    let lease = held.split("lease\r\n").nth(1).unwrap().lines().nth(1).unwrap();
    let release = format!("TB.RELEASE {lease}");
    assert_eq!(daemon.stop(), 0);
    let daemon = Daemon::start(&args[..4]);
    let refused = calls(&daemon).commit(commit.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    assert!(resp(&daemon, &release).starts_with("-ERR "), "it has another secret");
    assert_eq!(daemon.stop(), 0);
    let daemon = Daemon::start(&args);
    calls(&daemon).commit(commit).await.unwrap();
    assert!(resp(&daemon, &release).starts_with(":1\r\n"));
    assert_eq!(daemon.stop(), 0);
}

#[tokio::test]
async fn permits_are_held_renewed_and_given_back() {
    let (_scratch, daemon) = start("grpc-lease");
    let mut calls = calls(&daemon);
    let held = calls.check(request("/jobs", "1")).await.unwrap().into_inner();
    assert!(held.allowed && held.lease_ends_at.is_some());
    let busy = calls.check(request("/jobs", "2")).await.unwrap().into_inner();
    assert_eq!((busy.outcome(), busy.lease.as_str()), (Outcome::Busy, ""));
    let renew = v1::RenewRequest { lease: held.lease.clone() };
    assert!(calls.renew(renew.clone()).await.unwrap().get_ref().ends_at.is_some());
    let release = v1::ReleaseRequest { lease: held.lease };
    assert!(calls.release(release.clone()).await.unwrap().get_ref().released);
    assert!(!calls.release(release).await.unwrap().get_ref().released);
    let alone = v1::CheckRequest { rule: "jobs".into(), ..Default::default() };
    let held = calls.check(alone).await.unwrap().into_inner();
    let release = v1::ReleaseRequest { lease: held.lease };
    assert!(calls.release(release).await.unwrap().get_ref().released);
    assert!(calls.renew(renew).await.unwrap().get_ref().ends_at.is_none());
    assert!(calls.check(request("/jobs", "2")).await.unwrap().get_ref().allowed);
}

#[tokio::test]
async fn an_explanation_names_every_rule() {
    let (_scratch, daemon) = start("grpc-explain");
    let asked = v1::ExplainRequest { path: "/plain//x/".to_owned(), ..Default::default() };
    let told = calls(&daemon).explain(asked).await.unwrap().into_inner();
    assert_eq!((told.allowed, told.method.as_str(), told.path.as_str()), (true, "GET", "/plain/x"));
    assert_eq!(told.rules.len(), 4);
    let applied: Vec<&str> =
        told.rules.iter().filter(|rule| rule.applied).map(|rule| rule.name.as_str()).collect();
    assert_eq!(applied, ["plain"]);
}

#[tokio::test]
async fn a_stream_is_answered_in_order_with_any_ids_and_goes_on_after_a_mistake() {
    let (_scratch, daemon) = start("grpc-stream");
    let asked: Vec<v1::CheckManyRequest> = (0..500_u64)
        .map(|at| v1::CheckManyRequest {
            id: at.wrapping_mul(0x9E37_79B9_7F4A_7C15),
            request: match at % 5 {
                0 => None,
                1 => Some(CheckRequest { subject: "x".to_owned(), ..Default::default() }),
                _ => Some(request("/plain/x", &at.to_string())),
            },
        })
        .collect();
    let stream = futures_util::stream::iter(asked.clone());
    let mut answers = calls(&daemon).check_many(stream).await.unwrap().into_inner();
    for asked in asked {
        let told = answers.message().await.unwrap().unwrap();
        assert_eq!(told.id, asked.id);
        match told.result.unwrap() {
            Answer::Answer(answer) => assert_eq!(answer.remaining, Some(2)),
            Answer::Error(error) => {
                assert_eq!(error.code, i32::from(Code::InvalidArgument));
                let expected = match asked.request {
                    None => "there is nothing to check: send `request`",
                    Some(_) => "`subject` is whom a rule counts: send `rule` with it",
                };
                assert!(error.message.starts_with(expected), "{}", error.message);
            }
            Answer::Closing(_) => panic!("nobody stops"),
        }
    }
    assert!(answers.message().await.unwrap().is_none());
}

/// One call as bytes: the status of HTTP, and that of gRPC where there is one.
async fn raw(
    channel: &mut Channel,
    path: &str,
    metadata: &[(&str, &str)],
    body: Vec<u8>,
) -> (StatusCode, Option<Status>) {
    let mut request = Request::post(format!("http://x{path}"));
    if !metadata.iter().any(|(name, _)| *name == "content-type") {
        request = request.header("content-type", "application/grpc");
    }
    for (name, value) in metadata {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::new(Full::new(Bytes::from(body)))).unwrap();
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
    let response = channel.call(request).await.unwrap();
    let (head, body) = response.into_parts();
    let trailers = body.collect().await.unwrap().trailers().cloned().unwrap_or_default();
    let status =
        Status::from_header_map(&head.headers).or_else(|| Status::from_header_map(&trailers));
    (head.status, status)
}

/// A message in its frame.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat()
}

fn encode(message: &impl Message) -> Vec<u8> {
    framed(&message.encode_to_vec())
}

fn ttl(seconds: i64, nanos: i32) -> Vec<u8> {
    let request = Some(request("/tokens", "9"));
    encode(&v1::ReserveRequest { request, ttl: Some(prost_types::Duration { seconds, nanos }) })
}

#[tokio::test]
async fn every_mistake_gets_its_status_and_charges_nothing() {
    let (_scratch, daemon) = start("grpc-mistakes");
    let mut channel = channel(&daemon).await;
    let plain = || request("/plain/x", "9");
    let with = |change: fn(&mut CheckRequest)| {
        let mut request = plain();
        change(&mut request);
        encode(&request)
    };
    let receipt = |receipt: &str| v1::CommitRequest { receipt: receipt.to_owned(), cost: None };
    let lease = |lease: &str| v1::ReleaseRequest { lease: lease.to_owned() };
    let long = "x".repeat(9_000);
    #[rustfmt::skip]
    let table: Vec<(&str, Vec<u8>, Code, &str)> = vec![
        // The wire.
        ("Check", framed(&[0xff; 16]), Code::InvalidArgument, "the message cannot be read: failed to decode Protobuf message: "),
        ("Check", framed(&[0x0a, 0x7f]), Code::InvalidArgument, "the message cannot be read: "),
        ("Check", framed(&[0x12, 0x02, 0xc3, 0x28]), Code::InvalidArgument, "the message cannot be read: "),
        ("Check", [&[0, 0xff, 0xff, 0xff, 0xff], &[0; 64][..]].concat(), Code::OutOfRange, "Error, decoded message length too large: found 4294967295 bytes"),
        ("Check", framed(&vec![0; 256 * 1024 + 1]), Code::OutOfRange, "Error, decoded message length too large: found 262145 bytes, the limit is: 262144 bytes"),
        ("Check", vec![], Code::Internal, "Missing request message"),
        ("Check", vec![0, 0, 0], Code::Internal, "Unexpected EOF decoding stream"),
        ("Check", vec![0, 0, 0, 0, 9, 1], Code::Internal, "Unexpected EOF decoding stream"),
        ("Check", vec![1, 0, 0, 0, 0], Code::Internal, "protocol error: received message with compressed-flag but no grpc-encoding was specified"),
        ("Check", vec![7, 0, 0, 0, 0], Code::Internal, "protocol error: received message with invalid compression flag: 7"),
        ("Nothing", encode(&plain()), Code::Unimplemented, ""),
        // The request.
        ("Check", with(|request| request.path = "/x".repeat(5_000)), Code::InvalidArgument, "a path of 10000 bytes"),
        ("Check", with(|request| request.method = "x".repeat(65)), Code::InvalidArgument, "a method of 65 bytes is too long"),
        ("Check", with(|request| { request.attributes.insert("path".to_owned(), "/".to_owned()); }), Code::InvalidArgument, "`path` is not an attribute to be sent"),
        ("Check", with(|request| { request.attributes.insert("a".to_owned(), "x".repeat(9_000)); }), Code::InvalidArgument, "the attribute `a` is too long"),
        ("Check", with(|request| request.attributes = (0..65).map(|at| (at.to_string(), String::new())).collect()), Code::InvalidArgument, "65 attributes are too many"),
        ("Check", with(|request| request.criticality = 9), Code::InvalidArgument, "there is no criticality 9: send 1 (low), 2 (normal), 3 (high) or 4 (critical)"),
        ("Check", with(|request| request.rule = "plan".to_owned()), Code::NotFound, "there is no rule `plan`: did you mean `plain`?"),
        ("Check", with(|request| request.subject = "9".to_owned()), Code::InvalidArgument, "`subject` is whom a rule counts: send `rule` with it"),
        ("Check", with(|request| { request.subject = "9".to_owned(); request.rule = "plain".to_owned(); }), Code::InvalidArgument, "`subject` stands in place of `method`, `path` and `criticality`"),
        ("Check", encode(&CheckRequest { rule: "pair".to_owned(), subject: "9".to_owned(), ..Default::default() }), Code::InvalidArgument, "rule `pair` counts per"),
        ("Check", encode(&CheckRequest { rule: "plain".to_owned(), subject: long.clone(), ..Default::default() }), Code::InvalidArgument, "the attribute `"),
        ("Peek", with(|request| request.cost = Some(1)), Code::InvalidArgument, "a peek charges nothing: leave `cost` out"),
        ("Explain", encode(&v1::ExplainRequest { path: "/x".repeat(5_000), ..Default::default() }), Code::InvalidArgument, "a path of 10000 bytes"),
        // What was charged before.
        ("Reserve", framed(&[]), Code::InvalidArgument, "there is nothing to reserve for: send `request`"),
        ("Reserve", encode(&v1::ReserveRequest { request: Some(CheckRequest { rule: "plain".to_owned(), ..plain() }), ttl: None }), Code::InvalidArgument, "a reservation is charged under all rules"),
        ("Reserve", ttl(0, 0), Code::InvalidArgument, "`ttl` cannot be kept: send more than 0 s"),
        ("Reserve", ttl(-1, 0), Code::InvalidArgument, "`ttl` cannot be kept"),
        ("Reserve", ttl(86_401, 0), Code::InvalidArgument, "`ttl` cannot be kept"),
        ("Reserve", ttl(i64::MAX, i32::MAX), Code::InvalidArgument, "`ttl` cannot be kept"),
        ("Reserve", ttl(i64::MIN, i32::MIN), Code::InvalidArgument, "`ttl` cannot be kept"),
        ("Commit", framed(&[]), Code::InvalidArgument, "`receipt` is missing: send it"),
        ("Commit", encode(&receipt("no receipt")), Code::InvalidArgument, ""),
        ("Commit", encode(&receipt(&long)), Code::InvalidArgument, ""),
        ("Cancel", framed(&[]), Code::InvalidArgument, "`receipt` is missing: send it"),
        ("Release", framed(&[]), Code::InvalidArgument, "`lease` is missing: send it"),
        ("Release", encode(&lease("AAAA")), Code::InvalidArgument, ""),
        ("Renew", framed(&[]), Code::InvalidArgument, "`lease` is missing: send it"),
        ("Renew", encode(&lease("é")), Code::InvalidArgument, ""),
        ("Reset", framed(&[]), Code::InvalidArgument, "`rule` is missing: send it"),
        ("Reset", encode(&v1::ResetRequest { rule: "x".to_owned(), ..Default::default() }), Code::NotFound, "there is no rule `x`"),
        ("Reset", encode(&v1::ResetRequest { rule: "plain".to_owned(), path: "/".to_owned(), subject: "9".to_owned(), ..Default::default() }), Code::InvalidArgument, "`subject` stands in place of"),
    ];
    let mut differences = Vec::new();
    for (at, (method, body, code, message)) in table.into_iter().enumerate() {
        let path = format!("/tollbar.v1.Limiter/{method}");
        let (http, status) = timeout(PATIENCE, raw(&mut channel, &path, &[], body)).await.unwrap();
        let told = status.as_ref().map(|status| (status.code(), status.message()));
        let is_same = http == StatusCode::OK
            && told.is_some_and(|(is, said)| is == code && said.starts_with(message));
        if !is_same {
            differences.push(format!("row {at}, {method}: {code:?} {message} was {http} {told:?}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    let left = calls(&daemon).peek(plain()).await.unwrap().into_inner();
    assert_eq!(left.remaining, Some(3), "a mistake was charged");
}

#[tokio::test]
async fn metadata_that_cannot_be_used_is_told() {
    let (_scratch, daemon) = start("grpc-metadata");
    let mut channel = channel(&daemon).await;
    let check = "/tollbar.v1.Limiter/Check";
    let body = || encode(&request("/elsewhere", "1"));
    let long = "x".repeat(20 * 1024);
    for (path, metadata, http, code) in [
        (check, &[][..], 200, Some(Code::Ok)),
        (check, &[("grpc-timeout", "1S")], 200, Some(Code::Ok)),
        (check, &[("grpc-timeout", "soon")], 200, Some(Code::InvalidArgument)),
        (check, &[("grpc-encoding", "gzip")], 200, Some(Code::Unimplemented)),
        (check, &[("content-type", "application/grpc+proto")], 200, Some(Code::Ok)),
        (check, &[("content-type", "application/json")], 415, None),
        (check, &[("x-long", &long)], 431, None),
        ("/tollbar.v2.Limiter/Check", &[], 200, Some(Code::Unimplemented)),
        ("/", &[], 200, Some(Code::Unimplemented)),
    ] {
        let (is, status) =
            timeout(PATIENCE, raw(&mut channel, path, metadata, body())).await.unwrap();
        let said = (is.as_u16(), status.as_ref().map(Status::code));
        assert_eq!(said, (http, code), "{path} {:?}", metadata.first().map(|header| header.0));
    }
}

#[tokio::test]
async fn a_message_that_does_not_come_is_not_waited_for() {
    let daemon = Daemon::start(&["--body-timeout", "50ms"]);
    let mut channel = channel(&daemon).await;
    let envoy = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    for method in ["tollbar.v1.Limiter/Check", envoy] {
        let request = Request::post(format!("http://x/{method}"))
            .header("content-type", "application/grpc")
            .body(Body::new(http_body_util::StreamBody::new(futures_util::stream::pending::<
                Result<hyper::body::Frame<Bytes>, std::convert::Infallible>,
            >())))
            .unwrap();
        std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
        let response = timeout(PATIENCE, channel.call(request)).await.unwrap().unwrap();
        let status = Status::from_header_map(response.headers()).unwrap();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{method}");
    }
}

#[tokio::test]
async fn streams_that_nobody_ends_do_not_hold_the_daemon_up() {
    let (_scratch, mut daemon) = start("grpc-open-streams");
    let mut calls = calls(&daemon);
    // One that is silent, and one that goes on although it was told to stop.
    let silent = futures_util::stream::pending();
    let mut silent = calls.check_many(silent).await.unwrap().into_inner();
    daemon.signal("TERM");
    let closing = timeout(PATIENCE, silent.message()).await.unwrap().unwrap().unwrap();
    assert!(matches!(closing.result, Some(Answer::Closing(_))));
    let end = timeout(PATIENCE, silent.message()).await.unwrap().unwrap_err();
    assert_eq!(end.code(), Code::Unavailable);
    assert_eq!(daemon.wait(), 0);
}
