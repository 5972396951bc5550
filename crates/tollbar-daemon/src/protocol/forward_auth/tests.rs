//! What each profile believes, what it does not, and what proxies are answered.

mod ext_authz;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use proptest::prelude::*;
use tollbar::{Batch, Feature, ManualClock, MemoryStore, Reply, Store, StoreError, Timestamp};
use tollbar_http::QueueWaiters;
use tollbar_rules::{AsyncEngine, RuleFile};

use super::*;
use crate::header_flags::ClientHeaders;
use crate::metrics::{ProtocolName, TextFormat};
use crate::store::counters::Counters;
use crate::token::Tokens;

const RULES: &str = "
rules:
  - name: per_client
    match: { path: /api/** }
    algorithm: fixed_window
    limit: 2/10s
  - name: posts
    match: { path: /post, method: POST }
    per: []
    limit: 1/day
  - { name: needs_tenant, match: { path: /tenant }, per: [tenant], missing: deny, limit: 9/s }
  - { name: jobs, match: { path: /jobs }, per: [], limit: 1, algorithm: concurrency, lease: 30s }
  - { name: queue, match: { path: /queue }, per: [], limit: 1/s, queue: 2 }
";

const LOOPBACK: &str = "127.0.0.1:9";

/// Names, and the headers by which a question of each profile tells of `GET /api/x` by 203.0.113.7.
const GOOD: [(&str, &[(&str, &str)]); 5] = [
    (
        "nginx",
        &[("x-original-method", "GET"), ("x-original-uri", "/api/x"), ("x-real-ip", "203.0.113.7")],
    ),
    (
        "traefik",
        &[
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/api/x"),
            ("x-forwarded-for", "203.0.113.7"),
            ("x-forwarded-host", "api.example"),
            ("x-forwarded-proto", "https"),
        ],
    ),
    (
        "caddy",
        &[
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/api/x"),
            ("x-forwarded-for", "203.0.113.7"),
        ],
    ),
    ("envoy/api/x", &[("x-real-ip", "203.0.113.7")]),
    (
        "haproxy",
        &[("x-original-method", "GET"), ("x-original-uri", "/api/x"), ("x-real-ip", "203.0.113.7")],
    ),
];

struct TestProxy {
    forward_auth: ForwardAuth,
    ext_authz: ExtAuthz,
    clock: ManualClock,
}

struct AuthResponse {
    status: u16,
    headers: HeaderMap,
    body: String,
    /// How long the answer has taken.
    waited: Duration,
}

impl TestProxy {
    fn new() -> Self {
        Self::with(&ProxyFlags::default(), None)
    }

    fn with(flags: &ProxyFlags, token: Option<&str>) -> Self {
        Self::with_waiters(flags, token, QueueWaiters::default())
    }

    fn with_waiters(flags: &ProxyFlags, token: Option<&str>, waiters: QueueWaiters) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(1_700_000_001_000_000));
        let store = MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build();
        let store = Arc::new(store);
        let rules = RuleFile::parse("rules.yaml", &format!("{RULES}{}", too_many())).unwrap().rules;
        let engine =
            AsyncEngine::builder(rules, store.clone()).clock(clock.clone()).build().unwrap();
        let token = token.map(|text| Arc::new(Tokens::parse(text).unwrap()));
        let daemon = Daemon::new(Arc::new(engine), Counters::Memory(store), token)
            .with_client_headers(ClientHeaders::exact())
            .with_queue_waiters(waiters);
        let trust = Arc::new(flags.trust().unwrap());
        let daemon = Arc::new(daemon);
        let ext_authz = ExtAuthz::new(Arc::clone(&daemon), Arc::clone(&trust));
        Self { forward_auth: ForwardAuth::new(daemon, trust), ext_authz, clock }
    }

    fn ask_as(
        &self,
        peer: Peer,
        method: &str,
        path: &str,
        headers: &[(&str, &[u8])],
    ) -> AuthResponse {
        let mut request = Request::builder().method(method).uri(format!("{PREFIX}{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let (answer, waited) = runtime.unwrap().block_on(async {
            let start = tokio::time::Instant::now();
            (self.forward_auth.answer(head, peer).await, start.elapsed())
        });
        let (parts, bytes) = answer.into_parts();
        let body = String::from_utf8(bytes.to_vec()).unwrap();
        AuthResponse { status: parts.status.as_u16(), headers: parts.headers, body, waited }
    }

    fn ask(&self, path: &str, headers: &[(&str, &str)]) -> AuthResponse {
        let headers: Vec<_> =
            headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        self.ask_as(tcp(LOOPBACK), "GET", path, &headers)
    }

    /// A question of each profile with some headers replaced, as `nginx` and `haproxy` have them.
    fn ask_nginx(&self, other: &[(&str, &str)]) -> AuthResponse {
        let kept =
            GOOD[0].1.iter().filter(|(name, _)| other.iter().all(|header| header.0 != *name));
        let headers: Vec<_> = kept.chain(other).copied().collect();
        self.ask("nginx", &headers)
    }
}

impl AuthResponse {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// More limits for one path than can be checked.
fn too_many() -> String {
    let rule = |at| format!("  - {{ name: many_{at}, match: {{ path: /many }}, limit: 9/s }}\n");
    (0..33).map(rule).collect::<Vec<_>>().concat()
}

fn tcp(address: &str) -> Peer {
    Peer::Tcp(address.parse::<SocketAddr>().unwrap())
}

#[test]
fn every_proxy_is_told_what_its_client_may_do_by_status_and_headers() {
    for (path, headers) in GOOD {
        let proxy = TestProxy::new();
        for remaining in ["1", "0"] {
            let allowed = proxy.ask(path, headers);
            assert_eq!((allowed.status, &*allowed.body), (200, ""), "{path}");
            assert_eq!(allowed.header("x-ratelimit-limit"), "2");
            assert_eq!(allowed.header("x-ratelimit-remaining"), remaining);
            assert_eq!(allowed.header("x-tollbar-decision-id"), "");
        }
        let denied = proxy.ask(path, headers);
        assert_eq!(denied.status, if path == "nginx" { 403 } else { 429 }, "{path}");
        let expected =
            r#"{"error":"rate_limit_exceeded","message":"Too many requests","rule":"per_client"}"#;
        assert_eq!(denied.body, expected);
        for (name, value) in [
            ("retry-after", "9"),
            ("x-ratelimit-limit", "2"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "1700000010"),
            ("ratelimit-policy", r#""per_client";q=2;w=10"#),
            ("ratelimit", r#""per_client";r=0;t=9"#),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(denied.header(name), value, "{path} {name}");
        }
        assert_eq!(denied.header("x-tollbar-decision-id").len(), 32);
        proxy.clock.advance(Duration::from_secs(9));
        assert_eq!(proxy.ask(path, headers).status, 200);
    }
}

/// What a client might send to be somebody else, or to be somewhere else.
const SPOOFED: [(&str, &str); 14] = [
    ("x-original-uri", "/free"),
    ("x-original-url", "/free"),
    ("x-original-method", "POST"),
    ("x-rewrite-url", "/free"),
    ("x-forwarded-uri", "/free"),
    ("x-forwarded-method", "POST"),
    ("x-http-method-override", "POST"),
    ("x-forwarded-for", "198.51.100.1"),
    ("forwarded", "for=198.51.100.1"),
    ("x-real-ip", "198.51.100.1"),
    ("x-envoy-external-address", "198.51.100.1"),
    ("x-user-id", "somebody-else"),
    ("x-api-key", "0123456789abcdef"),
    ("authorization", "Bearer 0123456789abcdef"),
];

#[test]
fn what_a_proxy_does_not_write_itself_is_not_believed() {
    for (path, headers) in GOOD {
        let written: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let proxy = TestProxy::new();
        assert_eq!([0; 2].map(|_| proxy.ask(path, headers).status), [200; 2]);
        for spoofed in SPOOFED.iter().filter(|(name, _)| !written.contains(name)) {
            let both: Vec<_> = headers.iter().chain([spoofed]).copied().collect();
            assert!([403, 429].contains(&proxy.ask(path, &both).status), "{path} {spoofed:?}");
        }
        // What the proxy should have replaced and has not is there twice.
        for spoofed in SPOOFED.iter().filter(|(name, _)| written.contains(name)) {
            let both: Vec<_> = [spoofed].into_iter().chain(headers).copied().collect();
            let expected: &[u16] = if spoofed.0 == "x-forwarded-for" { &[429] } else { &[400] };
            assert!(expected.contains(&proxy.ask(path, &both).status), "{path} {spoofed:?}");
        }
        // A denial that is 200 to gRPC would be leave to pass.
        let grpc: Vec<_> =
            headers.iter().copied().chain([("content-type", "application/grpc")]).collect();
        let denied = proxy.ask(path, &grpc);
        assert!([403, 429].contains(&denied.status), "{path}");
        assert_eq!(denied.header("content-type"), "application/json");
    }
}

#[test]
fn what_is_missing_or_unusable_is_refused_with_what_to_configure() {
    for (path, headers) in GOOD {
        let proxy = TestProxy::new();
        let needed = headers.iter().filter(|(name, _)| !name.ends_with("host"));
        for (missing, _) in needed.filter(|(name, _)| !name.ends_with("proto")) {
            for value in [None, Some(&b""[..]), Some(b"\xff")] {
                let kept = headers.iter().filter(|(name, _)| name != missing);
                let kept = kept.map(|(name, value)| (*name, value.as_bytes()));
                let sent: Vec<_> = kept.chain(value.map(|value| (*missing, value))).collect();
                let read = proxy.ask_as(tcp(LOOPBACK), "GET", path, &sent);
                assert_eq!(read.status, 400, "{path} {missing} {value:?}");
                let profile = path.split('/').next().unwrap();
                let place = format!("as examples/proxies/{profile}/");
                assert!(read.body.contains(&place), "{}", read.body);
                assert!(read.body.contains(missing), "{}", read.body);
            }
        }
        assert_eq!(proxy.ask(path, headers).header("x-ratelimit-remaining"), "1");
    }
    let proxy = TestProxy::new();
    let pathless = proxy.ask("envoy", GOOD[3].1);
    assert_eq!(pathless.status, 400);
    assert!(pathless.body.contains("behind `/v1/forward-auth/envoy`"), "{}", pathless.body);
    for address in ["unix:", "203.0.113.7:80", "203.0.113.7, 198.51.100.1", "localhost"] {
        assert_eq!(proxy.ask_nginx(&[("x-real-ip", address)]).status, 400, "{address}");
    }
    let long = "/x".repeat(5_000);
    assert_eq!(proxy.ask_nginx(&[("x-original-uri", &long)]).status, 400);
    for path in ["", "apache", "nginxx", "NGINX"] {
        let unknown = proxy.ask(path, GOOD[0].1);
        assert_eq!(unknown.status, 404, "{path}");
        assert!(unknown.body.contains("/v1/forward-auth/nginx, /v1/forward-auth/traefik"));
    }
}

#[test]
fn only_trusted_proxies_are_answered() {
    let named = ProxyFlags {
        trusted_proxies: vec!["10.0.0.0/8".parse().unwrap(), "2001:db8::/32".parse().unwrap()],
        ..ProxyFlags::default()
    };
    for (flags, peer, status) in [
        (ProxyFlags::default(), tcp("127.0.0.2:1"), 200),
        (ProxyFlags::default(), tcp("[::1]:1"), 200),
        (ProxyFlags::default(), tcp("[::ffff:127.0.0.1]:1"), 200),
        (ProxyFlags::default(), Peer::Unix, 200),
        (ProxyFlags::default(), tcp("10.0.0.1:1"), 400),
        (ProxyFlags::default(), tcp("[2001:db8::1]:1"), 400),
        (named.clone(), tcp("10.0.0.1:1"), 200),
        (named.clone(), tcp("[::ffff:10.0.0.1]:1"), 200),
        (named.clone(), tcp("[2001:db8::1]:1"), 200),
        (named.clone(), Peer::Unix, 200),
        (named.clone(), tcp("127.0.0.1:1"), 400),
        (named.clone(), tcp("11.0.0.1:1"), 400),
    ] {
        let sent = GOOD[0].1.iter().map(|(name, value)| (*name, value.as_bytes()));
        let read =
            TestProxy::with(&flags, None).ask_as(peer, "GET", "nginx", &sent.collect::<Vec<_>>());
        assert_eq!(read.status, status, "{peer} {:?}", flags.trusted_proxies);
        assert_eq!(read.body.contains("--trusted-proxies"), status == 400, "{}", read.body);
    }
}

#[test]
fn a_token_is_asked_for_in_a_header_of_its_own() {
    let proxy = TestProxy::with(&ProxyFlags::default(), Some("0123456789abcdef"));
    assert_eq!(proxy.ask_nginx(&[]).status, 400);
    assert_eq!(proxy.ask_nginx(&[("authorization", "Bearer 0123456789abcdef")]).status, 400);
    assert_eq!(proxy.ask_nginx(&[("x-tollbar-token", "0123456789abcdeg")]).status, 400);
    assert_eq!(proxy.ask_nginx(&[("x-tollbar-token", "0123456789abcdef")]).status, 200);
}

#[test]
fn clients_are_counted_by_key_then_user_then_address() {
    let file = std::env::temp_dir().join(format!("tollbar-keys-{}", std::process::id()));
    std::fs::write(&file, "# ours\npartner  0123456789abcdef\n\nother fedcba9876543210\n").unwrap();
    let flags = ProxyFlags {
        trusted_headers: vec!["user=X-User-Id".parse().unwrap()],
        api_keys: Some(file.clone()),
        ..ProxyFlags::default()
    };
    let proxy = TestProxy::with(&flags, None);
    std::fs::remove_file(file).unwrap();
    let spend = |headers: &[(&str, &str)]| [0; 3].map(|_| proxy.ask_nginx(headers).status);
    let fresh = [200, 200, 403];
    assert_eq!(spend(&[]), fresh, "by address");
    assert_eq!(spend(&[("x-api-key", "not-one-of-the-keys")]), [403; 3], "by address still");
    assert_eq!(spend(&[("x-user-id", "7")]), fresh, "by user");
    assert_eq!(spend(&[("x-user-id", "7"), ("x-real-ip", "198.51.100.1")]), [403; 3]);
    assert_eq!(spend(&[("x-api-key", "0123456789abcdef"), ("x-user-id", "7")]), fresh, "by key");
    assert_eq!(spend(&[("authorization", "Bearer 0123456789abcdef")]), [403; 3], "the same key");
    assert_eq!(spend(&[("authorization", "bearer fedcba9876543210")]), fresh, "another key");
}

/// Before, only attributes could be told: every request of a proxy cost 1, and was charged again when the proxy
/// tried again.
#[test]
fn cost_and_request_id_are_read_from_the_headers_that_are_named() {
    let flags = ProxyFlags {
        cost_header: Some("X-Cost".to_owned()),
        request_id_header: Some("X-Request-Id".to_owned()),
        ..ProxyFlags::default()
    };
    let told = [("x-cost", "2"), ("x-request-id", "r-1")];
    let proxy = TestProxy::with(&flags, None);
    let [first, again] = [(); 2].map(|()| proxy.ask_nginx(&told));
    assert_eq!([first.status, again.status], [200; 2], "an id is charged once");
    assert_eq!(first.header("x-ratelimit-remaining"), "0");
    assert_eq!(proxy.ask_nginx(&[]).status, 403, "two of two are spent");
    // What is not named is not read.
    let proxy = TestProxy::new();
    let [first, again] = [(); 2].map(|()| proxy.ask_nginx(&told));
    assert_eq!(first.header("x-ratelimit-remaining"), "1");
    assert_eq!(again.header("x-ratelimit-remaining"), "0");
    // What cannot be used is not guessed.
    for told in [&[("x-cost", "many")][..], &[("x-cost", "1"), ("x-cost", "1")]] {
        let refused = TestProxy::with(&flags, None).ask_nginx(told);
        assert_eq!(refused.status, 400, "{told:?}");
        assert!(refused.body.contains("`x-cost`"), "{}", refused.body);
    }
}

#[test]
fn addresses_have_one_spelling_and_proxies_in_front_are_looked_through() {
    let proxy = TestProxy::new();
    let status = |ip: &str| proxy.ask_nginx(&[("x-real-ip", ip)]).status;
    assert_eq!([status("203.0.113.7"), status("::ffff:203.0.113.7")], [200; 2]);
    assert_eq!(status("203.0.113.7"), 403);
    assert_eq!([status("2001:db8::1"), status("2001:db8::ffff")], [200; 2]);
    assert_eq!([status("2001:db8::2"), status("2001:db8:0:1::2")], [403, 200]);

    let flags = ProxyFlags {
        trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()],
        ..ProxyFlags::default()
    };
    let proxy = TestProxy::with(&flags, None);
    let status = |chain: &str| {
        let sent = [
            ("x-forwarded-method", &b"GET"[..]),
            ("x-forwarded-uri", b"/api/x"),
            ("x-forwarded-for", chain.as_bytes()),
        ];
        proxy.ask_as(tcp("10.0.0.1:1"), "GET", "traefik", &sent).status
    };
    assert_eq!([status("203.0.113.7"), status("198.51.100.9, 203.0.113.7, 10.9.9.9")], [200; 2]);
    assert_eq!(status("6.6.6.6, 203.0.113.7, 10.1.1.1, 10.9.9.9"), 429);
    assert_eq!(status("rubbish"), 400);
}

#[test]
fn paths_and_methods_are_those_of_the_original_request_in_normal_form() {
    let proxy = TestProxy::new();
    for target in ["/api/x?y=/free", "/free/../api/x", "//api//x/", "/%61pi/x#z", "http://h/api/x"]
    {
        let proxy = TestProxy::new();
        let read = proxy.ask_nginx(&[("x-original-uri", target)]);
        assert_eq!(read.header("x-ratelimit-remaining"), "1", "{target}");
        let sent = [("x-real-ip", &b"203.0.113.7"[..])];
        if let Some(path) = Some(target).filter(|path| path.starts_with('/') && !path.contains('#'))
        {
            let read = proxy.ask_as(tcp(LOOPBACK), "GET", &format!("envoy{path}"), &sent);
            assert_eq!(read.header("x-ratelimit-remaining"), "0", "{path}");
        }
    }
    assert_eq!(proxy.ask_nginx(&[("x-original-uri", "/post")]).header("x-ratelimit-limit"), "");
    let post = [("x-original-uri", "/post"), ("x-original-method", "POST")];
    assert_eq!([proxy.ask_nginx(&post).status, proxy.ask_nginx(&post).status], [200, 403]);
    let sent = [("x-real-ip", &b"203.0.113.7"[..])];
    let read = proxy.ask_as(tcp(LOOPBACK), "POST", "envoy/post", &sent);
    assert_eq!((read.status, read.header("x-ratelimit-remaining")), (429, "0"));
    // Where the proxy's question goes is no path of the client's to choose.
    let read = proxy.ask_as(tcp(LOOPBACK), "GET", "envoy/../../../healthz", &sent);
    assert_eq!((read.status, &*read.body), (200, ""));
}

#[test]
fn what_lacks_something_or_would_hold_a_permit_is_not_let_through() {
    let proxy = TestProxy::new();
    let ask = |profile: &str, path: &str| {
        let headers =
            [("x-original-method", "GET"), ("x-original-uri", path), ("x-real-ip", "203.0.113.7")];
        proxy.ask(profile, &headers)
    };
    assert_eq!(ask("haproxy", "/tenant").status, 429);
    assert_eq!(ask("nginx", "/tenant").status, 403);
    // An error of ours in the layer, and here a denial: an error may be taken for leave to pass.
    let many = ask("haproxy", "/many");
    assert_eq!(many.status, 429);
    assert!(many.body.contains("too_many_limits"), "{}", many.body);
    for _ in 0..3 {
        let held = ask("haproxy", "/jobs");
        assert_eq!(held.status, 400);
        assert!(held.body.contains("rule `jobs` limits what is in flight"), "{}", held.body);
    }
    // Nobody was kept out by it.
    let engine = &proxy.forward_auth.daemon.engine;
    let request = tollbar_rules::Request::new("GET", "/jobs").unwrap();
    assert!(engine.try_admit(&request, None).unwrap().verdict.is_allowed());
}

/// Decides, and gives nothing back.
#[derive(Debug)]
struct GreedyStore(Arc<MemoryStore>);

impl Store for GreedyStore {
    fn supports(&self, _: Feature<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        self.0.decide(batch)
    }
}

#[test]
fn a_permit_that_cannot_be_given_back_is_counted() {
    let mut proxy = TestProxy::new();
    let store = Arc::new(MemoryStore::builder().max_keys(1_000).build());
    let rules = RuleFile::parse("rules.yaml", RULES).unwrap().rules;
    let engine = AsyncEngine::new(rules, Arc::new(GreedyStore(Arc::clone(&store)))).unwrap();
    let daemon = Daemon::new(Arc::new(engine), Counters::Memory(store), None);
    let daemon = daemon.for_protocol(ProtocolName::ForwardAuth);
    proxy.forward_auth.daemon = Arc::clone(&daemon);
    assert_eq!(proxy.ask_nginx(&[("x-original-uri", "/jobs")]).status, 400);
    let metrics = daemon.write_metrics(TextFormat::Prometheus);
    assert!(metrics.contains("tollbar_hold_failures_total 1\n"), "{metrics}");
    let rejected = "tollbar_checks_total{listener=\"forward_auth\",outcome=\"rejected\"} 1\n";
    assert!(metrics.contains(rejected), "{metrics}");
}

#[test]
fn a_place_in_a_queue_is_waited_for() {
    let proxy = TestProxy::new();
    let ask = || proxy.ask_nginx(&[("x-original-uri", "/queue")]);
    let [first, second] = [ask(), ask()];
    assert_eq!((first.status, first.waited.as_secs()), (200, 0));
    assert_eq!((second.status, second.waited.as_secs()), (200, 1));
}

proptest! {
    #[test]
    fn whatever_is_sent_nothing_passes_unless_every_fact_is_told_once(
        place in prop::sample::select((0..GOOD.len()).collect::<Vec<_>>()),
        sent in prop::collection::vec(
            (prop::sample::select(SPOOFED.to_vec()), prop::collection::vec(0x20_u8..=0xff, 0..9)),
            0..4,
        ),
        is_there in prop::collection::vec(any::<bool>(), 3),
    ) {
        let (path, good) = GOOD[place];
        let needed = &good[..good.len().min(3)];
        let told = needed.iter().zip(&is_there).filter(|(_, is_there)| **is_there);
        let told = told.map(|((name, value), _)| (*name, value.as_bytes()));
        let other = sent.iter().map(|((name, _), value)| (*name, &**value));
        let other = other.filter(|(_, value)| !value.contains(&0x7f));
        let headers: Vec<_> = told.chain(other).collect();
        let read = TestProxy::new().ask_as(tcp(LOOPBACK), "GET", path, &headers);
        prop_assert!([200, 400].contains(&read.status), "{}", read.status);
        for (name, _) in needed {
            let count = headers.iter().filter(|(known, _)| known == name).count();
            let is_told = count == 1 || (count > 1 && *name == "x-forwarded-for");
            prop_assert!(read.status == 400 || is_told, "{path} {headers:?}");
        }
    }
}
