//! What Envoy is answered over gRPC, and what of its calls is believed.

use std::collections::HashMap;

use tollbar_proto::envoy::config::core::v3::address::Address as AddressKind;
use tollbar_proto::envoy::config::core::v3::socket_address::PortSpecifier;
use tollbar_proto::envoy::config::core::v3::{
    Address, HeaderMap as EnvoyHeaders, HeaderValue as EnvoyHeader, HeaderValueOption, Pipe,
    SocketAddress,
};
use tollbar_proto::envoy::service::auth::v3::attribute_context::{
    HttpRequest, Peer as EnvoyPeer, Request as HeldRequest,
};
use tollbar_proto::envoy::service::auth::v3::check_response::HttpResponse;
use tollbar_proto::envoy::service::auth::v3::{AttributeContext, CheckRequest};

use super::*;
use crate::protocol::grpc::Caller;

/// What Envoy makes of an answer.
#[derive(Debug)]
struct EnvoyAnswer {
    status: u32,
    headers: HashMap<String, String>,
    removed: Vec<String>,
    body: String,
}

/// A request that Envoy holds: of a client, with its headers.
#[derive(Debug, Clone)]
struct Held<'a> {
    client: &'a str,
    method: &'a str,
    path: &'a str,
    headers: &'a [(&'a str, &'a str)],
    is_raw: bool,
}

const HELD: Held<'_> =
    Held { client: "203.0.113.7", method: "GET", path: "/api/x?q=1", headers: &[], is_raw: false };

impl Held<'_> {
    fn call(&self) -> CheckRequest {
        let pseudo =
            [(":path", self.path), (":method", self.method), (":authority", "api.example")];
        let all = pseudo.iter().chain(self.headers);
        let mut http = HttpRequest {
            method: self.method.to_owned(),
            path: self.path.to_owned(),
            host: "api.example".to_owned(),
            ..HttpRequest::default()
        };
        if self.is_raw {
            let header = |(key, value): &(&str, &str)| EnvoyHeader {
                key: (*key).to_owned(),
                raw_value: value.as_bytes().to_vec(),
                ..EnvoyHeader::default()
            };
            http.header_map = Some(EnvoyHeaders { headers: all.map(header).collect() });
        } else {
            for (key, value) in all {
                // As Envoy does it.
                let line = http.headers.entry((*key).to_owned());
                line.and_modify(|line| *line = format!("{line},{value}"))
                    .or_insert_with(|| (*value).to_owned());
            }
        }
        let address = match self.client {
            "unix" => AddressKind::Pipe(Pipe { path: "/tmp/x".to_owned(), mode: 0 }),
            address => AddressKind::SocketAddress(SocketAddress {
                address: address.to_owned(),
                port_specifier: Some(PortSpecifier::PortValue(4_711)),
                ..SocketAddress::default()
            }),
        };
        let address = Some(Address { address: Some(address) });
        CheckRequest {
            attributes: Some(AttributeContext {
                source: Some(EnvoyPeer { address, ..EnvoyPeer::default() }),
                request: Some(HeldRequest { http: Some(http), ..HeldRequest::default() }),
                ..AttributeContext::default()
            }),
        }
    }
}

impl TestProxy {
    fn check(&self, held: &Held<'_>) -> EnvoyAnswer {
        self.check_as(held.call(), tcp(LOOPBACK), Duration::from_secs(30))
    }

    fn check_as(&self, call: CheckRequest, peer: Peer, time: Duration) -> EnvoyAnswer {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let answer = self.ext_authz.answer(call, Caller { peer, time });
        let answer = runtime.unwrap().block_on(answer);
        let lines = |options: Vec<HeaderValueOption>| {
            let line = |option: HeaderValueOption| option.header.map(|line| (line.key, line.value));
            options.into_iter().filter_map(line).collect()
        };
        let code = answer.status.unwrap().code;
        match answer.http_response.unwrap() {
            HttpResponse::OkResponse(ok) => {
                assert_eq!(code, 0);
                let (headers, removed) = (lines(ok.response_headers_to_add), ok.headers_to_remove);
                assert!(ok.headers.is_empty(), "nothing is told to the upstream");
                EnvoyAnswer { status: 200, headers, removed, body: String::new() }
            }
            HttpResponse::DeniedResponse(denied) => {
                assert_ne!(code, 0, "Envoy would let it pass");
                let status = u32::try_from(denied.status.unwrap().code).unwrap();
                let (headers, body) = (lines(denied.headers), denied.body);
                EnvoyAnswer { status, headers, removed: Vec::new(), body }
            }
            HttpResponse::ErrorResponse(error) => panic!("{error:?} may let the request pass"),
        }
    }
}

impl EnvoyAnswer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value)
    }
}

#[test]
fn envoy_is_told_over_grpc_what_its_client_may_do() {
    let proxy = TestProxy::new();
    for remaining in ["1", "0"] {
        let allowed = proxy.check(&HELD);
        assert_eq!((allowed.status, allowed.header("x-ratelimit-limit")), (200, "2"));
        assert_eq!(allowed.header("x-ratelimit-remaining"), remaining);
        assert_eq!(allowed.removed, [] as [&str; 0]);
    }
    let denied = proxy.check(&HELD);
    assert_eq!(denied.status, 429);
    assert_eq!(
        denied.body,
        r#"{"error":"rate_limit_exceeded","message":"Too many requests","rule":"per_client"}"#
    );
    assert_eq!(denied.header("retry-after"), "9");
    assert_eq!(denied.header("ratelimit"), r#""per_client";r=0;t=9"#);
    assert_eq!(denied.header("content-type"), "application/json");
    assert_eq!(denied.header("x-tollbar-decision-id").len(), 32);
    let accept = [("accept", "application/problem+json")];
    let problem = proxy.check(&Held { headers: &accept, ..HELD });
    assert_eq!(problem.header("content-type"), "application/problem+json");
    // Another client, another method, and what no rule is about.
    assert_eq!(proxy.check(&Held { client: "203.0.113.8", ..HELD }).status, 200);
    let post = Held { method: "POST", path: "/post", ..HELD };
    assert_eq!([0; 2].map(|_| proxy.check(&post).status), [200, 429]);
    let free = proxy.check(&Held { path: "/free", ..HELD });
    assert_eq!((free.status, free.header("x-ratelimit-limit")), (200, ""));
    proxy.clock.advance(Duration::from_secs(9));
    assert_eq!(proxy.check(&HELD).status, 200);
}

#[test]
fn clients_of_envoy_over_grpc_are_whom_envoy_sees_and_not_whom_they_claim_to_be() {
    for is_raw in [false, true] {
        let proxy = TestProxy::new();
        assert_eq!([0; 2].map(|_| proxy.check(&Held { is_raw, ..HELD }).status), [200; 2]);
        for spoofed in SPOOFED {
            let held = Held { headers: &[spoofed], is_raw, ..HELD };
            assert_eq!(proxy.check(&held).status, 429, "{spoofed:?}");
        }
        for spelling in ["//api//x", "/free/../api/x", "/%61pi/x"] {
            assert_eq!(proxy.check(&Held { path: spelling, is_raw, ..HELD }).status, 429);
        }
    }
}

#[test]
fn the_client_behind_a_trusted_proxy_in_front_of_envoy_is_read_from_the_right() {
    let flags = ProxyFlags {
        trusted_proxies: vec!["10.0.0.0/8".parse().unwrap(), "127.0.0.0/8".parse().unwrap()],
        ..ProxyFlags::default()
    };
    let proxy = TestProxy::with(&flags, None);
    let forwarded =
        [("x-forwarded-for", "198.51.100.1"), ("x-forwarded-for", "203.0.113.7, 10.0.0.9")];
    let through = Held { client: "10.0.0.9", headers: &forwarded, ..HELD };
    assert_eq!([0; 2].map(|_| proxy.check(&through).status), [200; 2]);
    assert_eq!(proxy.check(&HELD).status, 429, "the same client");
    // On a Unix socket the proxy in front has no address, and is one.
    let nameless = Held { client: "unix", ..through };
    assert_eq!(proxy.check(&nameless).status, 429);
    assert_eq!(proxy.check(&Held { client: "unix", ..HELD }).status, 400);
}

/// A header that Envoy has appended to has the client's word in it.
#[test]
fn a_named_header_that_is_there_twice_is_ignored_and_removed() {
    let flags = ProxyFlags {
        trusted_headers: vec!["user=X-User-Id".parse().unwrap()],
        cost_header: Some("X-Cost".to_owned()),
        request_id_header: Some("X-Request-Id".to_owned()),
        ..ProxyFlags::default()
    };
    for is_raw in [false, true] {
        let proxy = TestProxy::with(&flags, None);
        let user = Held { headers: &[("x-user-id", "7")], is_raw, ..HELD };
        let told = proxy.check(&user);
        assert_eq!((told.status, told.header("x-ratelimit-remaining")), (200, "1"));
        assert_eq!(told.removed, [] as [&str; 0], "it is Envoy's");
        let elsewhere = Held { client: "203.0.113.8", ..user };
        assert_eq!(proxy.check(&elsewhere).header("x-ratelimit-remaining"), "0", "by user");
        let twice = Held { headers: &[("x-user-id", "7"), ("x-user-id", "8")], is_raw, ..HELD };
        for remaining in ["1", "0"] {
            let told = proxy.check(&twice);
            assert_eq!((told.status, told.header("x-ratelimit-remaining")), (200, remaining));
            assert_eq!(told.removed, ["x-user-id"]);
        }
        assert_eq!(proxy.check(&Held { is_raw, ..HELD }).status, 429, "by address");
        for terms in ["x-cost", "x-request-id"] {
            let twice = Held { headers: &[(terms, "1"), (terms, "1")], is_raw, ..HELD };
            assert_eq!(proxy.check(&twice).status, 400, "{terms} is no guess");
        }
        let paid = [("x-request-id", "a"), ("x-cost", "2")];
        let paid = Held { client: "203.0.113.9", headers: &paid, is_raw, ..HELD };
        assert_eq!([0; 2].map(|_| proxy.check(&paid).status), [200; 2], "one request");
        assert_eq!(proxy.check(&Held { headers: &[], ..paid }).status, 429, "it has paid both");
    }
}

#[test]
fn what_cannot_be_decided_over_grpc_is_denied() {
    let proxy = TestProxy::new();
    let time = Duration::from_secs(30);
    let mut no_request = HELD.call();
    no_request.attributes.as_mut().unwrap().request = None;
    let forwarded = [("x-forwarded-for", "198.51.100.1")];
    let forwarded = Held { headers: &forwarded, ..HELD };
    let mut no_source = forwarded.call();
    no_source.attributes.as_mut().unwrap().source = None;
    let (long, wrong) = ("/x".repeat(5_000), [("x\u{e9}", "y")]);
    let many: Vec<String> = (0..40_000).map(|at| format!("h{at}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|name| (&**name, "")).collect();
    let calls = [
        CheckRequest::default(),
        no_request,
        no_source,
        Held { client: "localhost", ..forwarded }.call(),
        Held { path: "", ..HELD }.call(),
        Held { method: "", ..HELD }.call(),
        Held { path: &long, ..HELD }.call(),
        Held { path: "/jobs", ..HELD }.call(),
        Held { headers: &wrong, ..HELD }.call(),
        Held { headers: &[("x", "a\nb")], ..HELD }.call(),
        Held { headers: &many, ..HELD }.call(),
        Held { headers: &many, is_raw: true, ..HELD }.call(),
    ];
    let count = calls.len();
    for call in calls {
        let why = format!("{call:?}");
        let denied = proxy.check_as(call, tcp(LOOPBACK), time);
        assert_eq!(denied.status, 400, "{}", &why[..why.floor_char_boundary(300)]);
    }
    let untrusted = proxy.check_as(HELD.call(), tcp("10.0.0.1:9"), time);
    assert_eq!(untrusted.status, 400);
    assert!(untrusted.body.contains("10.0.0.1 is not a trusted proxy"), "{untrusted:?}");
    assert_eq!(proxy.check_as(HELD.call(), Peer::Unix, time).status, 200);
    let metrics = proxy.forward_auth.daemon.write_metrics(TextFormat::Prometheus);
    let rejected =
        format!("tollbar_checks_total{{listener=\"http\",outcome=\"rejected\"}} {}\n", count + 1);
    assert!(metrics.contains(&rejected), "{metrics}");
}

/// A wait that took all of the call's time would end as an error of Envoy's, which lets the request pass under
/// `failure_mode_allow`.
#[test]
fn a_request_waits_in_a_queue_as_the_flags_and_envoy_allow() {
    let queued = Held { path: "/queue", ..HELD }.call();
    let (second, long) = (Duration::from_secs(1), Duration::from_secs(5));
    for (max_wait, max_waiters, time, status) in [
        (long, 9, long, 200),
        (long, 9, second, 429),
        (second / 2, 9, long, 429),
        (long, 0, long, 429),
    ] {
        let waiters = QueueWaiters::new(max_wait, max_waiters);
        let proxy = TestProxy::with_waiters(&ProxyFlags::default(), None, waiters);
        let check = || proxy.check_as(queued.clone(), tcp(LOOPBACK), time).status;
        assert_eq!([check(), check()], [200, status], "{max_wait:?} {max_waiters} {time:?}");
    }
}

#[test]
fn calls_of_ext_authz_with_any_bytes_changed_are_decided() {
    use prost::Message;

    let flags = ProxyFlags {
        trusted_headers: vec!["user=X-User-Id".parse().unwrap()],
        ..ProxyFlags::default()
    };
    let proxy = TestProxy::with(&flags, None);
    let headers = [("x-user-id", "7"), ("x-forwarded-for", "198.51.100.1"), ("accept", "*/*")];
    let mut random = fastrand::Rng::with_seed(7);
    for is_raw in [false, true] {
        let whole = Held { headers: &headers, is_raw, ..HELD }.call().encode_to_vec();
        for _ in 0..5_000 {
            let mut bytes = whole.clone();
            for _ in 0..random.usize(0..4) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            bytes.truncate(random.usize(bytes.len() / 2..=bytes.len()));
            let Ok(call) = CheckRequest::decode(&*bytes) else {
                continue;
            };
            let caller = Caller { peer: tcp(LOOPBACK), time: Duration::from_secs(1) };
            let answer = proxy.ext_authz.answer(call, caller);
            let answer = futures_util::FutureExt::now_or_never(answer).expect("memory is at once");
            assert!(answer.status.is_some() && answer.http_response.is_some(), "{bytes:?}");
        }
    }
}
