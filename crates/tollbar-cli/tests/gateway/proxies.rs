//! The real nginx, Caddy, Envoy and `HAProxy`, with the configuration that we ship, before a real
//! upstream: what their clients see, and what they cannot get past.
//!
//! Traefik cannot be had here: what its documentation says it sends is in the tests of its profile.

mod setup;

use setup::{ProxyKind, ProxySetup};
use tollbar::{Clock, SystemClock};

/// What clients may claim: to be somebody else, or somewhere else.
const SPOOFED: &[&[(&str, &str)]] = &[
    &[("x-original-uri", "/free")],
    &[("x-original-method", "POST")],
    &[("x-original-url", "/free"), ("x-rewrite-url", "/free")],
    &[("x-forwarded-uri", "/free")],
    &[("x-forwarded-method", "POST"), ("x-http-method-override", "POST")],
    &[("x-forwarded-for", "198.51.100.1")],
    &[("x-forwarded-for", "198.51.100.1"), ("x-forwarded-for", "198.51.100.2, 127.0.0.9")],
    &[("forwarded", "for=198.51.100.1")],
    &[("x-real-ip", "198.51.100.1")],
    &[("x-envoy-external-address", "198.51.100.1"), ("x-envoy-internal", "true")],
    &[("x-envoy-original-path", "/free"), ("x-envoy-decorator-operation", "x")],
    &[("x-user-id", "somebody-else")],
    &[("x-api-key", "not-one-of-the-keys")],
    &[("authorization", "Bearer not-one-of-the-keys")],
    &[("x-tollbar-token", "not-the-token")],
    &[("accept", "application/problem+json")],
    &[
        ("x-original-uri", "/free"),
        ("x-forwarded-uri", "/free"),
        ("x-real-ip", "198.51.100.1"),
        ("x-forwarded-for", "198.51.100.1"),
        ("connection", "x-real-ip, x-forwarded-for, x-original-uri, x-forwarded-uri"),
    ],
];

/// Other spellings of a path that is limited.
const SPELLINGS: &[&str] =
    &["/api/x?from=/free", "/free/../api/x", "//api//x", "/%61pi/x", "/api/./x/", "/api%2Fx"];

fn clients_see_their_limits_and_cannot_get_past_them(kind: ProxyKind) {
    let setup = ProxySetup::start("limits", kind, &[]);
    for remaining in ["2", "1", "0"] {
        let answer = setup.get(2, "/api/x", &[]);
        assert_eq!((answer.status, &*answer.body), (200, "upstream"), "{answer:?}");
        assert_eq!(answer.header("x-ratelimit-limit"), "3", "{answer:?}");
        assert_eq!(answer.header("x-ratelimit-remaining"), remaining);
        assert_eq!(answer.header("ratelimit-policy"), r#""per_client";q=3;w=86400"#);
        assert_eq!(answer.header("retry-after"), "");
    }
    let denied = setup.get(2, "/api/x", &[]);
    assert_eq!(denied.status, 429, "{denied:?}");
    assert!(
        denied.body.starts_with(r#"{"error":"rate_limit_exceeded","message":"Too many requests""#)
    );
    assert_eq!(denied.header("content-type"), "application/json");
    assert_eq!(denied.header("x-ratelimit-remaining"), "0");
    let explained = setup.explain(denied.header("x-tollbar-decision-id"));
    assert!(explained.contains("`per_client` allows 3/day"), "{denied:?}: {explained}");
    assert!(
        (86_000..=86_400).contains(&denied.header("retry-after").parse().unwrap()),
        "{denied:?}"
    );
    assert_eq!(setup.upstream.count(), 3);

    nobody_is_believed(&setup);
    // To gRPC a denial is a 200 with trailers. That is Envoy's to say, and not ours: it would be leave
    // to pass.
    let grpc = setup.get(2, "/api/x", &[("content-type", "application/grpc"), ("te", "trailers")]);
    let is_told = grpc.status == 429 || !["", "0"].contains(&grpc.header("grpc-status"));
    assert!(is_told, "{grpc:?}");
    for spelling in SPELLINGS {
        assert_ne!(setup.get(2, spelling, &[]).status, 200, "{spelling}");
    }
    assert_eq!(setup.upstream.count(), 3, "somebody got past");

    // Others have limits of their own, by address and by key, and what has none is left alone.
    assert_eq!(setup.get(3, "/api/x", &[]).header("x-ratelimit-remaining"), "2");
    let key = [("x-api-key", "0123456789abcdef")];
    assert_eq!([0; 4].map(|_| setup.get(2, "/api/x", &key).status), [200, 200, 200, 429]);
    let bearer = [("authorization", "Bearer 0123456789abcdef")];
    assert_eq!(setup.get(4, "/api/x", &bearer).status, 429, "the same key");
    for _ in 0..5 {
        let free = setup.get(2, "/free", &[]);
        assert_eq!((free.status, free.header("x-ratelimit-limit")), (200, ""));
        assert_eq!((free.header("x-ratelimit-remaining"), free.header("ratelimit")), ("", ""));
        // Caddy 2.6 told clients the names of what was not there.
        assert!(!free.head.to_lowercase().contains("ratelimit"), "{free:?}");
    }
    assert_eq!([0; 2].map(|_| setup.send(2, "GET", "/post", &[]).status), [200; 2]);
    assert_eq!([0; 2].map(|_| setup.send(2, "POST", "/post", &[]).status), [200, 429]);
    assert_eq!(setup.upstream.count(), 3 + 1 + 3 + 5 + 2 + 1);
}

/// By a client that has nothing left.
fn nobody_is_believed(setup: &ProxySetup) {
    for spoofed in SPOOFED {
        // Envoy refuses connections that are to drop such headers.
        let expected: &[u16] = if spoofed.len() > 4 { &[400, 429] } else { &[429] };
        assert!(expected.contains(&setup.get(2, "/api/x", spoofed).status), "{spoofed:?}");
    }
}

fn exactly_so_many_pass_when_all_come_at_once(kind: ProxyKind) {
    let setup = ProxySetup::start("at-once", kind, &[]);
    let admitted: usize = std::thread::scope(|scope| {
        let client = || (0..10).filter(|_| setup.get(2, "/api/x", &[]).status == 200).count();
        let clients: Vec<_> = (0..8).map(|_| scope.spawn(client)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!((admitted, setup.upstream.count()), (3, 3));
}

/// Nobody passes while the daemon is down, and everybody does where that was asked for.
fn without_the_daemon(kind: ProxyKind, status: u16, opened: &[(&str, &str)]) {
    let mut setup = ProxySetup::start("down", kind, &[]);
    assert_eq!(setup.get(2, "/api/x", &[]).status, 200);
    setup.stop_daemon();
    assert_eq!(setup.get(2, "/api/x", &[]).status, status);
    assert_eq!(setup.upstream.count(), 1);
    if !opened.is_empty() {
        let mut setup = ProxySetup::start("down-open", kind, opened);
        setup.stop_daemon();
        assert_eq!(setup.get(2, "/api/x", &[]).status, 200);
        assert_eq!(setup.upstream.count(), 1);
    }
}

#[test]
fn clients_of_nginx_see_their_limits_and_cannot_get_past_them() {
    clients_see_their_limits_and_cannot_get_past_them(ProxyKind::Nginx);
}

#[test]
fn clients_of_caddy_see_their_limits_and_cannot_get_past_them() {
    clients_see_their_limits_and_cannot_get_past_them(ProxyKind::Caddy);
}

#[test]
fn clients_of_debian_s_caddy_see_their_limits_and_cannot_get_past_them() {
    clients_see_their_limits_and_cannot_get_past_them(ProxyKind::DebianCaddy);
}

#[test]
fn clients_of_envoy_see_their_limits_and_cannot_get_past_them() {
    clients_see_their_limits_and_cannot_get_past_them(ProxyKind::Envoy);
}

#[test]
fn clients_of_envoy_over_grpc_see_their_limits_and_cannot_get_past_them() {
    clients_see_their_limits_and_cannot_get_past_them(ProxyKind::EnvoyGrpc);
}

#[test]
fn clients_of_haproxy_see_their_limits_and_cannot_get_past_them() {
    clients_see_their_limits_and_cannot_get_past_them(ProxyKind::Haproxy);
}

#[test]
fn exactly_so_many_pass_every_proxy_when_all_come_at_once() {
    for kind in [
        ProxyKind::Nginx,
        ProxyKind::Caddy,
        ProxyKind::Envoy,
        ProxyKind::EnvoyGrpc,
        ProxyKind::Haproxy,
    ] {
        exactly_so_many_pass_when_all_come_at_once(kind);
    }
}

#[test]
fn without_the_daemon_nginx_does_as_it_is_told() {
    without_the_daemon(ProxyKind::Nginx, 500, &[("# error_page 502", "error_page 502")]);
}

#[test]
fn without_the_daemon_caddy_lets_nobody_pass() {
    without_the_daemon(ProxyKind::Caddy, 502, &[]);
    without_the_daemon(ProxyKind::DebianCaddy, 502, &[]);
}

#[test]
fn without_the_daemon_envoy_does_as_it_is_told() {
    let opened = ("failure_mode_allow: false", "failure_mode_allow: true");
    without_the_daemon(ProxyKind::Envoy, 503, &[opened]);
    without_the_daemon(ProxyKind::EnvoyGrpc, 503, &[opened]);
}

/// An answer that is an error would lift the limits of every client that can cause it.
#[test]
fn what_ext_authz_cannot_decide_does_not_pass_an_envoy_that_fails_open() {
    let opened = ("failure_mode_allow: false", "failure_mode_allow: true");
    let setup = ProxySetup::start("undecided", ProxyKind::EnvoyGrpc, &[opened]);
    let long = format!("/api/{}", "x".repeat(9_000));
    for path in [&*long, "/api/a%5Cb", "/api/%00"] {
        let answer = setup.get(2, path, &[]);
        assert!((400..500).contains(&answer.status), "{answer:?}");
    }
    assert_eq!(setup.upstream.count(), 0);
    assert_eq!(setup.get(2, "/api/x", &[]).status, 200);
}

/// Envoy passes on what its client sends, so that a header which is there twice has the client's word in it.
#[test]
fn a_named_header_counts_if_envoy_sends_it_once_and_is_removed_if_it_is_there_twice() {
    let sent = ("- { exact: accept }", "- { exact: accept }\n - { exact: x-user-id }");
    let indented = sent.1.replace("\n ", &format!("\n{}", " ".repeat(26)));
    for raw in ["", "encode_raw_headers: true\n                      "] {
        let raw = ("failure_mode_allow:", &*format!("{raw}failure_mode_allow:"));
        let replaced = [(sent.0, &*indented), raw];
        let setup = ProxySetup::start("named-header", ProxyKind::EnvoyGrpc, &replaced);
        let once = [("x-user-id", "7")];
        for own in [2, 3, 4] {
            let answer = setup.get(own, "/api/x", &once);
            assert_eq!((answer.status, answer.header("x-upstream-user")), (200, "7"));
        }
        assert_eq!(setup.get(5, "/api/x", &once).status, 429, "counted by user");
        let twice = [("x-user-id", "8"), ("x-user-id", "9")];
        for status in [200, 200, 200, 429] {
            let answer = setup.get(6, "/api/x", &twice);
            assert_eq!((answer.status, answer.header("x-upstream-user")), (status, ""));
        }
    }
}

#[test]
fn without_the_daemon_haproxy_does_as_it_is_told() {
    let opened = ("TOLLBAR_ON_FAILURE deny", "TOLLBAR_ON_FAILURE allow");
    without_the_daemon(ProxyKind::Haproxy, 503, &[opened]);
}

/// The Lua client of `haproxy` asked a daemon that hangs four times, for a second each.
#[test]
fn haproxy_waits_three_seconds_for_a_daemon_that_hangs() {
    let shipped = ("TIMEOUT_S = 30", "TIMEOUT_S = 3");
    let setup = ProxySetup::start("hung", ProxyKind::Haproxy, &[shipped]);
    assert_eq!(setup.get(2, "/api/x", &[]).status, 200);
    setup.suspend_daemon();
    // Of several, because the machine may be busy with other tests.
    let clock = SystemClock::new();
    let took = (0..3).map(|_| {
        let began = clock.now();
        assert_eq!(setup.get(2, "/api/x", &[]).status, 503);
        clock.now().since(began)
    });
    let took = took.min().unwrap();
    assert!((2_900..3_800).contains(&took.as_millis()), "{took:?}");
    assert_eq!(setup.upstream.count(), 1);
}

#[test]
fn a_403_of_nginx_s_own_stays_one() {
    let own = ("location = /health {", "location = /own { deny all; }\nlocation = /health {");
    let setup = ProxySetup::start("own-403", ProxyKind::Nginx, &[own]);
    let answer = setup.get(2, "/own", &[]);
    assert_eq!((answer.status, answer.header("retry-after")), (403, ""));
}

#[test]
fn caddy_s_own_directive_does_as_well() {
    let own = "forward_auth {daemon} {\n uri /v1/forward-auth/caddy\n }";
    let setup = ProxySetup::start("directive", ProxyKind::Caddy, &[("import tollbar", own)]);
    assert_eq!([0; 4].map(|_| setup.get(2, "/api/x", &[]).status), [200, 200, 200, 429]);
    nobody_is_believed(&setup);
    assert_eq!(setup.upstream.count(), 3);
}

#[test]
fn envoy_that_believes_its_clients_makes_nobody_else_believe_them() {
    let believes = ("use_remote_address: true", "use_remote_address: false");
    for kind in [ProxyKind::Envoy, ProxyKind::EnvoyGrpc] {
        let setup = ProxySetup::start("believes", kind, &[believes]);
        assert_eq!([0; 4].map(|_| setup.get(2, "/api/x", &[]).status), [200, 200, 200, 429]);
        nobody_is_believed(&setup);
        assert_eq!(setup.upstream.count(), 3);
    }
}

#[test]
fn cookies_are_not_the_daemon_s_business() {
    // More than the daemon takes of a head; Caddy and HAProxy take no more themselves.
    let cookie = format!("a={}", "x".repeat(7_000));
    for kind in [ProxyKind::Nginx, ProxyKind::Envoy, ProxyKind::EnvoyGrpc] {
        let setup = ProxySetup::start("cookies", kind, &[]);
        let answer = setup.get(2, "/api/x", &[("cookie", &*cookie); 3]);
        assert_eq!(answer.status, 200, "{kind:?} {answer:?}");
    }
}
