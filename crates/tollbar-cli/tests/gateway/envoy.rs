//! The real Envoy, a real upstream behind it, and the daemon beside them.

mod config;
pub(crate) mod proxy;

use crate::common::{Daemon, Scratch};
use config::Settings;
use proxy::{Proxy, Upstream};

/// By the year, so that no window ends while a test runs.
const LIMITS: &str = "
domain: edge
descriptors:
  - key: remote_address
    rate_limit: { unit: year, requests_per_unit: 3 }
  - key: user
    rate_limit: { name: per_user, unit: year, requests_per_unit: 10 }
  - key: user
    value: blocked
    rate_limit: { unit: year, requests_per_unit: 0 }
  - key: plan
    value: free
    descriptors:
      - key: path
        value: /both/*
        share_threshold: true
        rate_limit: { unit: year, requests_per_unit: 2 }
  - key: model
    value: small
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: model
    value: large
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 2 }
";

/// The daemon, what is behind Envoy, and Envoy.
struct Edge {
    daemon: Daemon,
    upstream: Upstream,
    proxy: Proxy,
    scratch: Scratch,
}

impl Edge {
    fn start(name: &str, flags: &[&str], failure_mode_deny: bool) -> Self {
        let scratch = Scratch::new(name);
        let (limits, rules) =
            (scratch.file("limits.yaml", LIMITS), scratch.file("rules.yaml", RULES));
        let file = |flag: &&str| match *flag {
            "LIMITS" => limits.clone(),
            "RULES" => rules.clone(),
            other => other.to_owned(),
        };
        let flags: Vec<String> = flags.iter().map(file).collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let daemon = Daemon::start_logged(&flags);
        let upstream = Upstream::start();
        let settings = Settings {
            upstream: &upstream.address,
            tollbar: daemon.address("grpc"),
            domain: "edge",
            failure_mode_deny,
        };
        let proxy = Proxy::start(&scratch, &settings.yaml());
        Self { daemon, upstream, proxy, scratch }
    }

    /// The statuses of so many requests.
    fn statuses(&self, count: usize, path: &str, user: &str) -> Vec<u16> {
        (0..count).map(|_| self.proxy.get(path, &[("x-user", user)]).status).collect()
    }
}

#[test]
fn exactly_so_many_come_through_and_the_others_are_told() {
    let flags = ["--envoy-config", "LIMITS", "--envoy-headers", "ratelimit"];
    let edge = Edge::start("envoy-exact", &flags, true);
    for remaining in ["2", "1", "0"] {
        let answer = edge.proxy.get("/address", &[]);
        assert_eq!((answer.status, &*answer.body), (200, "upstream"));
        // Ours, and those that Envoy makes of the statuses.
        assert_eq!(answer.header("ratelimit-limit"), "3");
        assert_eq!(answer.header("ratelimit-remaining"), remaining);
        assert_eq!(answer.header("x-ratelimit-remaining"), remaining);
        assert!(answer.header("ratelimit-reset").parse::<u64>().unwrap() > 0);
        assert_eq!(answer.header("x-ratelimit-limit"), "3, 3;w=31536000");
    }
    for _ in 0..5 {
        let answer = edge.proxy.get("/address", &[]);
        assert_eq!((answer.status, answer.header("x-envoy-ratelimited")), (429, "true"));
        assert_eq!(answer.header("ratelimit-remaining"), "0");
    }
    assert_eq!(edge.upstream.count(), 3);
    // No descriptor, no question; no such limit, no limit.
    assert_eq!(edge.statuses(20, "/free", "1"), [200; 20]);
    assert_eq!(edge.upstream.count(), 23);
    drop(edge.proxy);
    assert_eq!(edge.daemon.stop(), 0);
}

#[test]
fn descriptors_hits_overrides_and_quotas_are_counted_as_the_reference_counts() {
    let edge = Edge::start("envoy-counting", &["--envoy-config", "LIMITS"], true);
    // Four hits each: the third is too much, and counts, so that one hit more is too much as well.
    assert_eq!(edge.statuses(3, "/costly", "a"), [200, 200, 429]);
    assert_eq!(edge.statuses(1, "/user", "a"), [429]);
    // Thirteen have been counted, and four are given back: one is left.
    assert_eq!(edge.statuses(1, "/refund", "a"), [200]);
    assert_eq!(edge.statuses(3, "/user", "a"), [200, 429, 429]);
    assert_eq!(edge.statuses(1, "/user", "blocked"), [429]);
    // Paths below the wildcard share two; a user pays for what the plan denies.
    assert_eq!(edge.statuses(1, "/both/x", "b"), [200]);
    assert_eq!(edge.statuses(1, "/both/y", "b"), [200]);
    assert_eq!(edge.statuses(7, "/both/z", "b"), [429; 7]);
    assert_eq!(edge.statuses(2, "/user", "b"), [200, 429]);
    // Envoy brings two a day along.
    assert_eq!(edge.statuses(3, "/brought", "c"), [200, 200, 429]);
    assert_eq!(edge.statuses(1, "/user", "c"), [200]);
    // Denied when both quotas are gone.
    assert_eq!(edge.statuses(4, "/quota", "d"), [200, 200, 429, 429]);
    drop(edge.proxy);
    assert_eq!(edge.daemon.stop(), 0);
}

#[test]
fn a_denied_request_pays_nothing_where_all_or_none_are_charged() {
    let flags = ["--envoy-config", "LIMITS", "--envoy-charge", "all-or-none"];
    let edge = Edge::start("envoy-all-or-none", &flags, true);
    assert_eq!(edge.statuses(3, "/costly", "a"), [200, 200, 429]);
    assert_eq!(edge.statuses(3, "/user", "a"), [200, 200, 429]);
    assert_eq!(edge.statuses(9, "/both/x", "b"), [200, 200, 429, 429, 429, 429, 429, 429, 429]);
    assert_eq!(edge.statuses(9, "/user", "b"), [200, 200, 200, 200, 200, 200, 200, 200, 429]);
}

/// Rules of our own, to which entries are attributes.
const RULES: &str = "
rules:
  - name: login
    match: { domain: edge, method: GET, path: /login/** }
    per: [ip]
    algorithm: sliding_window_log
    limit: 2/day
";

#[test]
fn our_own_rules_decide_and_tell_why() {
    let edge = Edge::start("envoy-rules", &["--rules", "RULES"], true);
    assert_eq!(edge.statuses(2, "/login/x", "1"), [200, 200]);
    let answer = edge.proxy.get("/login/../login//x?again", &[]);
    assert_eq!((answer.status, answer.header("x-envoy-ratelimited")), (429, "true"));
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(
        answer.body,
        r#"{"error":"rate_limit_exceeded","message":"Too many requests","rule":"login"}"#
    );
    assert_eq!(edge.statuses(5, "/user", "1"), [200; 5]);
}

#[test]
fn limits_are_read_again_on_sighup_and_when_they_change() {
    let mut edge = Edge::start("envoy-reload", &["--envoy-config", "LIMITS"], true);
    assert_eq!(edge.statuses(4, "/address", ""), [200, 200, 200, 429]);
    let path = edge.scratch.path("limits.yaml");
    std::fs::write(&path, LIMITS.replace("requests_per_unit: 3", "requests_per_unit: 6")).unwrap();
    edge.daemon.signal("HUP");
    edge.daemon.logged("limits of Envoy reloaded");
    // Four have been counted, one of them denied.
    assert_eq!(edge.statuses(3, "/address", ""), [200, 200, 429]);
    // It is looked at from time to time as well.
    std::fs::write(&path, "domain: edge\nnonsense: 1\n").unwrap();
    let line = edge.daemon.logged("the limits of Envoy stay as they were");
    assert!(
        line.contains("limits.yaml:2:1: nonsense: there is no field `nonsense` here"),
        "{line}"
    );
    assert_eq!(edge.statuses(1, "/address", ""), [429]);
}

#[test]
fn without_the_daemon_envoy_does_as_it_was_told() {
    for (name, failure_mode_deny, status) in
        [("envoy-gone-deny", true, 500), ("envoy-gone-allow", false, 200)]
    {
        let edge = Edge::start(name, &["--envoy-config", "LIMITS"], failure_mode_deny);
        assert_eq!(edge.statuses(4, "/address", ""), [200, 200, 200, 429]);
        assert_eq!(edge.daemon.stop(), 0);
        let answer = edge.proxy.get("/address", &[]);
        assert_eq!(answer.status, status, "{name}");
    }
}

#[test]
fn the_examples_can_be_used() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/envoy/");
    let limits = format!("{examples}limits.yaml");
    let output =
        crate::common::serve(&["--envoy-config", &limits, "--check-config"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    proxy::validate(&format!("{examples}envoy.yaml"));
}
