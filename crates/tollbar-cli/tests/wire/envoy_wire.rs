//! Sends the real daemon messages that are not valid calls of Envoy's protocol. Each must be denied, because Envoy
//! lets a request pass when its call is answered with an error.

use crate::common::{Daemon, Scratch};
use crate::ext_authz;
use bytes::{Buf, BufMut, Bytes};
use prost::Message;
use tollbar_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollbar_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollbar_proto::envoy::service::auth::v3::{CheckRequest, CheckResponse};
use tollbar_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};

/// Messages as they are on the wire.
#[derive(Clone, Copy)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = from.remaining();
        Ok(Some(from.copy_to_bytes(length)))
    }
}

/// A connection to a daemon.
struct Caller {
    runtime: tokio::runtime::Runtime,
    client: tonic::client::Grpc<tonic::transport::Channel>,
}

impl Caller {
    fn connect(daemon: &Daemon) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let uri = format!("http://{}", daemon.address("grpc"));
        let endpoint = Endpoint::from_shared(uri).unwrap();
        let channel = runtime.block_on(endpoint.connect()).unwrap();
        Self { runtime, client: tonic::client::Grpc::new(channel) }
    }

    /// What a message comes to: the overall code, or the status and its text.
    fn call(&mut self, message: Vec<u8>, token: Option<&str>) -> (Code, String) {
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        match self.send(path, message, token) {
            Ok(response) => {
                let response = RateLimitResponse::decode(response).unwrap();
                (Code::Ok, format!("{:?}", response.overall_code()))
            }
            Err(status) => (status.code(), status.message().to_owned()),
        }
    }

    /// What a message of `ext_authz` comes to: the status that Envoy's client gets, or the status of the call.
    fn check(&mut self, message: Vec<u8>, token: Option<&str>) -> Result<i32, Code> {
        let path = "/envoy.service.auth.v3.Authorization/Check";
        let response = self.send(path, message, token).map_err(|status| status.code())?;
        Ok(ext_authz::status_of(&CheckResponse::decode(response).unwrap()))
    }

    fn send(
        &mut self,
        path: &'static str,
        message: Vec<u8>,
        token: Option<&str>,
    ) -> Result<Bytes, Status> {
        let mut request = Request::new(Bytes::from(message));
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", token.parse().unwrap());
        }
        let answer = self.runtime.block_on(async {
            self.client.ready().await.unwrap();
            self.client.unary(request, PathAndQuery::from_static(path), RawCodec).await
        });
        answer.map(tonic::Response::into_inner)
    }
}

/// A call of `ext_authz` about a request with this header.
fn held(value: &str) -> CheckRequest {
    ext_authz::held("203.0.113.7", "GET", "/", [("x".to_owned(), value.to_owned())])
}

#[test]
fn every_call_of_ext_authz_that_cannot_be_read_is_denied_and_counted() {
    let scratch = Scratch::new("ext-authz-wire");
    let token = scratch.file("token", "0123456789abcdef");
    let mut daemon = Daemon::start_logged(&["--token-file", &token]);
    let mut caller = Caller::connect(&daemon);
    let right = Some("Bearer 0123456789abcdef");
    assert_eq!(caller.check(held("1").encode_to_vec(), right), Ok(200));
    for (name, message) in [
        ("nothing", vec![]),
        ("cut short", b"\x0a\x09d".to_vec()),
        ("no protobuf", b"\xff\xff\xff\xff".to_vec()),
        ("a huge message", held(&"v".repeat(300_000)).encode_to_vec()),
    ] {
        assert_eq!(caller.check(message, right), Ok(400), "{name}");
    }
    for token in [None, Some("Bearer 0123456789abcdeX")] {
        let refused = caller.check(held("1").encode_to_vec(), token);
        assert_eq!(refused, Err(Code::Unauthenticated));
    }
    daemon.logged("a call of Envoy's has no token");
    let metrics = daemon.get_with("/metrics", "authorization: Bearer 0123456789abcdef\r\n");
    let rejected = "tollbar_checks_total{listener=\"ext_authz\",outcome=\"rejected\"} 6\n";
    assert!(metrics.contains(rejected), "{metrics}");
    drop(caller);
    assert_eq!(daemon.stop(), 0);
}

fn request(value: &str) -> RateLimitRequest {
    let entry = Entry { key: "user".to_owned(), value: value.to_owned() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    RateLimitRequest { domain: "d".to_owned(), descriptors: vec![descriptor], hits_addend: 1 }
}

#[test]
fn every_message_that_is_no_call_is_denied_and_counted() {
    let daemon = Daemon::start(&[]);
    let mut caller = Caller::connect(&daemon);
    assert_eq!(caller.call(request("1").encode_to_vec(), None), (Code::Ok, "Ok".to_owned()));
    let no_domain = RateLimitRequest { domain: String::new(), ..request("1") };
    let mut no_key = request("1");
    no_key.descriptors[0].entries[0].key.clear();
    let messages = [
        ("nothing", vec![]),
        ("no domain", no_domain.encode_to_vec()),
        ("no descriptor", b"\x0a\x01d".to_vec()),
        ("no entries", b"\x0a\x01d\x12\x00".to_vec()),
        ("no key", no_key.encode_to_vec()),
        ("cut short", b"\x0a\x09d".to_vec()),
        ("no protobuf", b"\xff\xff\xff\xff".to_vec()),
        ("no UTF-8", b"\x0a\x01\xff".to_vec()),
        ("a wrong type", b"\x08\x01".to_vec()),
        ("a long value", request(&"v".repeat(100_000)).encode_to_vec()),
        ("a huge message", request(&"v".repeat(300_000)).encode_to_vec()),
    ];
    let count = messages.len();
    for (name, message) in messages {
        assert_eq!(caller.call(message, None), (Code::Ok, "OverLimit".to_owned()), "{name}");
    }
    // Whatever came, the connection goes on.
    assert_eq!(caller.call(request("1").encode_to_vec(), None), (Code::Ok, "Ok".to_owned()));
    let rejected =
        format!("tollbar_checks_total{{listener=\"envoy\",outcome=\"rejected\"}} {count}\n");
    assert!(daemon.get_with("/metrics", "").contains(&rejected));
    drop(caller);
    assert_eq!(daemon.stop(), 0);
}

/// Envoy lets pass what is not answered, so somebody has to know.
#[test]
fn who_has_no_token_is_not_answered_and_counted_as_rejected() {
    let scratch = Scratch::new("envoy-token");
    let token = scratch.file("token", "0123456789abcdef");
    let mut daemon = Daemon::start_logged(&["--token-file", &token]);
    let mut caller = Caller::connect(&daemon);
    for (token, code) in [
        (None, Code::Unauthenticated),
        (Some("Bearer 0123456789abcdeX"), Code::Unauthenticated),
        (Some("Bearer 0123456789abcdef"), Code::Ok),
    ] {
        assert_eq!(caller.call(request("1").encode_to_vec(), token).0, code, "{token:?}");
    }
    let line = daemon.logged("a call of Envoy's has no token");
    assert!(line.contains(" WARN ") && line.contains("calls=1"), "{line}");
    let metrics = daemon.get_with("/metrics", "authorization: Bearer 0123456789abcdef\r\n");
    let rejected = "tollbar_checks_total{listener=\"envoy\",outcome=\"rejected\"} 2\n";
    assert!(metrics.contains(rejected), "{metrics}");
    drop(caller);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn limits_that_cannot_be_read_are_told_before_anything_is_served() {
    let scratch = Scratch::new("envoy-config");
    let good = scratch.file("good.yaml", "domain: a\ndescriptors: [{ key: k }]");
    let bad = scratch.file("bad.yaml", "domain: a\ndescriptors: [{ keys: k }]");
    let run = |path: &str| {
        let output =
            crate::common::serve(&["--envoy-config", path, "--check-config"]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(run(&good), (Some(0), String::new()));
    let (code, told) = run(&bad);
    assert_eq!(code, Some(2));
    assert!(told.starts_with(&format!("--envoy-config: {bad}:2:15: ")), "{told}");
    assert!(told.contains("did you mean `key`?"), "{told}");
    let (code, told) = run(&scratch.path("absent.yaml"));
    assert_eq!(code, Some(2));
    assert!(told.starts_with("--envoy-config: cannot read "), "{told}");
}

/// Such rules apply over other protocols, so they are not rejected. Operators of Envoy are warned of them.
#[test]
fn rules_about_what_is_in_flight_are_named_in_a_warning_and_void_no_other() {
    let scratch = Scratch::new("envoy-permits");
    let rules = scratch.file(
        "rules.yaml",
        "rules:
           - { name: jobs, per: [], algorithm: concurrency, limit: 1, lease: 30s }
           - { name: tried, limit: 9/h, candidate: { algorithm: concurrency, limit: 1, lease: 9s } }
           - { name: off, enabled: false, per: [], algorithm: concurrency, limit: 1, lease: 30s }
           - { name: rate, limit: 3/day }",
    );
    let file = scratch.file("limits.yaml", "domain: a\ndescriptors: [{ key: k }]");
    let told = |args: &[&str]| {
        let output = crate::common::serve(args).arg("--check-config").output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stderr).unwrap()
    };
    for args in [&["--rules", &rules][..], &["--rules", &rules, "--envoy-config", &file]] {
        let told = told(args);
        assert!(told.contains(" WARN ") && told.contains("do not apply to its calls"), "{told}");
        assert!(told.contains(r#"rules="jobs tried""#), "{told}");
    }
    assert!(!told(&["--rules", &rules, "--grpc", "off"]).contains("Envoy"));
    let mut daemon = Daemon::start_logged(&["--rules", &rules]);
    let mut caller = Caller::connect(&daemon);
    let mut call = || caller.call(request("1").encode_to_vec(), None).1;
    let answers: Vec<String> = (0..50).map(|_| call()).collect();
    let passed = answers.iter().filter(|answer| *answer == "Ok").count();
    assert_eq!(passed, 3, "50 of 50 passed: {answers:?}");
    daemon.logged("serving");
    daemon.signal("HUP");
    let line = daemon.logged("do not apply to its calls");
    assert!(line.contains("jobs"), "also when they are read again: {line}");
}
