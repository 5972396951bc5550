//! The real Envoy, a real upstream behind it, and the daemon beside them.

mod config;
pub(crate) mod proxy;

use crate::common::http::ask;
use crate::common::{Daemon, Scratch};
use config::EnvoyConfig;
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
struct EnvoySetup {
    daemon: Daemon,
    upstream: Upstream,
    proxy: Proxy,
    scratch: Scratch,
}

impl EnvoySetup {
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
        let config = EnvoyConfig {
            upstream: &upstream.address,
            tollbar: daemon.address("grpc"),
            domain: "edge",
            failure_mode_deny,
        };
        let proxy = Proxy::start(&scratch, &config.yaml());
        Self { daemon, upstream, proxy, scratch }
    }

    /// The statuses of so many requests.
    fn statuses(&self, count: usize, path: &str, user: &str) -> Vec<u16> {
        (0..count).map(|_| self.proxy.get(path, &[("x-user", user)]).status).collect()
    }
}

#[test]
fn exactly_so_many_come_through_and_the_others_are_told() {
    let flags = ["--envoy-config", "LIMITS", "--headers", "split"];
    let setup = EnvoySetup::start("envoy-exact", &flags, true);
    for remaining in ["2", "1", "0"] {
        let answer = setup.proxy.get("/address", &[]);
        assert_eq!((answer.status, &*answer.body), (200, "upstream"));
        // Ours, and those that Envoy makes of the statuses.
        assert_eq!(answer.header("ratelimit-limit"), "3");
        assert_eq!(answer.header("ratelimit-remaining"), remaining);
        assert_eq!(answer.header("x-ratelimit-remaining"), remaining);
        assert!(answer.header("ratelimit-reset").parse::<u64>().unwrap() > 0);
        assert_eq!(answer.header("x-ratelimit-limit"), "3, 3;w=31536000");
    }
    for _ in 0..5 {
        let answer = setup.proxy.get("/address", &[]);
        assert_eq!((answer.status, answer.header("x-envoy-ratelimited")), (429, "true"));
        assert_eq!(answer.header("ratelimit-remaining"), "0");
    }
    assert_eq!(setup.upstream.count(), 3);
    // No descriptor, no question; no such limit, no limit.
    assert_eq!(setup.statuses(20, "/free", "1"), [200; 20]);
    assert_eq!(setup.upstream.count(), 23);
    drop(setup.proxy);
    assert_eq!(setup.daemon.stop(), 0);
}

#[test]
fn descriptors_hits_overrides_and_quotas_are_counted_as_the_reference_counts() {
    let setup = EnvoySetup::start("envoy-counting", &["--envoy-config", "LIMITS"], true);
    // Four hits each: the third is too much, and counts, so that one hit more is too much as well.
    assert_eq!(setup.statuses(3, "/costly", "a"), [200, 200, 429]);
    assert_eq!(setup.statuses(1, "/user", "a"), [429]);
    // Thirteen have been counted, and four are given back: one is left.
    assert_eq!(setup.statuses(1, "/refund", "a"), [200]);
    assert_eq!(setup.statuses(3, "/user", "a"), [200, 429, 429]);
    assert_eq!(setup.statuses(1, "/user", "blocked"), [429]);
    // Paths below the wildcard share two; a user pays for what the plan denies.
    assert_eq!(setup.statuses(1, "/both/x", "b"), [200]);
    assert_eq!(setup.statuses(1, "/both/y", "b"), [200]);
    assert_eq!(setup.statuses(7, "/both/z", "b"), [429; 7]);
    assert_eq!(setup.statuses(2, "/user", "b"), [200, 429]);
    // Envoy brings two a day along.
    assert_eq!(setup.statuses(3, "/brought", "c"), [200, 200, 429]);
    assert_eq!(setup.statuses(1, "/user", "c"), [200]);
    // Denied when both quotas are gone.
    assert_eq!(setup.statuses(4, "/quota", "d"), [200, 200, 429, 429]);
    drop(setup.proxy);
    assert_eq!(setup.daemon.stop(), 0);
}

#[test]
fn a_denied_request_pays_nothing_where_all_or_none_are_charged() {
    let flags = ["--envoy-config", "LIMITS", "--envoy-charge", "all-or-none"];
    let setup = EnvoySetup::start("envoy-all-or-none", &flags, true);
    assert_eq!(setup.statuses(3, "/costly", "a"), [200, 200, 429]);
    assert_eq!(setup.statuses(3, "/user", "a"), [200, 200, 429]);
    assert_eq!(setup.statuses(9, "/both/x", "b"), [200, 200, 429, 429, 429, 429, 429, 429, 429]);
    assert_eq!(setup.statuses(9, "/user", "b"), [200, 200, 200, 200, 200, 200, 200, 200, 429]);
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
    let setup = EnvoySetup::start("envoy-rules", &["--rules", "RULES"], true);
    assert_eq!(setup.statuses(2, "/login/x", "1"), [200, 200]);
    let answer = setup.proxy.get("/login/../login//x?again", &[]);
    assert_eq!((answer.status, answer.header("x-envoy-ratelimited")), (429, "true"));
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(
        answer.body,
        r#"{"error":"rate_limit_exceeded","message":"Too many requests","rule":"login"}"#
    );
    assert_eq!(setup.statuses(5, "/user", "1"), [200; 5]);
}

/// Rules that a client could get around by sending what cannot be decided.
const STRICT_RULES: &str = "
rules:
  - { name: login, match: { method: POST, path: /login }, per: [ip], limit: 5/15min, algorithm: sliding_window_log }
  - { name: all, per: [], limit: 1000/day }
";

/// Under `failure_mode_deny: false` Envoy lets pass what is answered with an error. 100 of 100 passed.
#[test]
fn what_cannot_be_decided_does_not_pass_an_envoy_that_fails_open() {
    let scratch = Scratch::new("envoy-strict-rules");
    let rules = scratch.file("strict.yaml", STRICT_RULES);
    let setup = EnvoySetup::start("envoy-strict", &["--rules", &rules], false);
    let path = format!("/login?pad={}", "x".repeat(8_200));
    let statuses: Vec<u16> = (0..100).map(|_| setup.proxy.post(&path).status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 5, "{statuses:?}");
    assert_eq!(setup.upstream.count(), 5);

    // A value above 8,192 bytes, two values of one attribute, and a message above 256 KiB.
    let (long, huge) = ("v".repeat(9_000), "v".repeat(50_000));
    for (path, user) in [("/user", &*long), ("/generic", ""), ("/huge", &*huge)] {
        assert_eq!(setup.statuses(3, path, user), [429; 3], "{path}");
    }
    let answer = setup.proxy.get("/generic", &[]);
    assert!(answer.body.starts_with(r#"{"error":"invalid_request""#), "{}", answer.body);
    assert_eq!(setup.upstream.count(), 5);
    assert_eq!(setup.statuses(1, "/user", "short"), [200]);
    let metrics = setup.daemon.get_with("/metrics", "");
    let rejected = "tollbar_checks_total{listener=\"envoy\",outcome=\"rejected\"} 10\n";
    assert!(metrics.contains(rejected), "{metrics}");
}

/// 50 of 50 passed.
#[test]
fn a_rule_about_what_is_in_flight_voids_no_limit_of_envoy() {
    let scratch = Scratch::new("envoy-in-flight-rules");
    let rules = scratch.file(
        "in-flight.yaml",
        "rules:
           - { name: tried, per: [], algorithm: concurrency, limit: 1, lease: 30s, mode: shadow }
           - { name: jobs, per: [], algorithm: concurrency, limit: 1, lease: 30s }
           - { name: all, per: [], limit: 3/day }",
    );
    let setup = EnvoySetup::start("envoy-in-flight", &["--rules", &rules], false);
    let statuses = setup.statuses(50, "/user", "1");
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 3, "{statuses:?}");
    let skipped = "tollbar_permit_limits_skipped_total 100\n";
    assert!(setup.daemon.get_with("/metrics", "").contains(skipped));
}

/// With `--envoy-config`, `--limit` and rules of the database were not asked: 50 of 50 passed 3 an hour.
#[test]
fn limits_of_files_rules_of_the_database_and_the_one_limit_all_apply() {
    let passed = |setup: &EnvoySetup, path: &str, user: &str| {
        setup.statuses(50, path, user).iter().filter(|status| **status == 200).count()
    };
    let flags = ["--envoy-config", "LIMITS", "--limit", "2/day"];
    let setup = EnvoySetup::start("envoy-and-limit", &flags, false);
    // Two descriptors, one request: it is charged once.
    assert_eq!(passed(&setup, "/all", "a"), 2);
    assert_eq!(passed(&setup, "/user", "a"), 0);
    assert_eq!(passed(&setup, "/user", "b"), 2);
    drop(setup);

    let scratch = Scratch::new("envoy-database");
    let database = scratch.path("rules.sqlite");
    let flags = ["--envoy-config", "LIMITS", "--database", &database];
    let setup = EnvoySetup::start("envoy-and-database", &flags, false);
    let token = setup
        .daemon
        .greeting
        .iter()
        .find_map(|line| line.strip_prefix("admin token (shown once): ").map(str::to_owned));
    let lines = format!("authorization: Bearer {}\r\n", token.unwrap());
    let admin = |path: &str, body: &str| {
        let address = setup.daemon.address("admin");
        ask(address, "POST", path, &lines, body.as_bytes()).unwrap().expect(201)
    };
    // The limit of the files, which is 10, while there is no rule.
    assert_eq!(passed(&setup, "/user", "a"), 10);
    admin("/v1/rate-limit/rules", r#"{ "name": "a", "maxRequests": 3, "windowSeconds": 86400 }"#);
    assert_eq!(passed(&setup, "/user", "b"), 3);
    admin("/v1/rate-limit/keys/ban", r#"{ "subject": "user:c", "reason": "abuse" }"#);
    let answer = setup.proxy.get("/user", &[("x-user", "c")]);
    assert_eq!(answer.status, 429);
    assert!(answer.body.starts_with(r#"{"error":"banned""#), "{}", answer.body);
    // What brings its own limit is under no rule, but banned all the same.
    assert_eq!(setup.statuses(2, "/brought", "c"), [429; 2]);
    assert_eq!(setup.statuses(1, "/brought", "d"), [200]);
    let id = answer.header("x-tollbar-decision-id");
    let decision = setup.daemon.get_with(&format!("/v1/decisions/{id}"), "");
    assert!(decision.contains("`user:c` is banned under every rule: abuse"), "{decision}");
}

#[test]
fn a_denial_by_a_file_is_logged_and_can_be_looked_up() {
    let flags = ["--envoy-config", "LIMITS", "--log-denials", "9"];
    let mut setup = EnvoySetup::start("envoy-denials", &flags, true);
    assert_eq!(setup.statuses(3, "/address", ""), [200; 3]);
    let answer = setup.proxy.get("/address", &[]);
    let id = answer.header("x-tollbar-decision-id").to_owned();
    let line = setup.daemon.logged("denied");
    for part in [&*id, "listener=\"envoy\"", "envoy:edge:remote_address", "outcome=\"deny\""] {
        assert!(line.contains(part), "{part} in {line}");
    }
    let decision = setup.daemon.get_with(&format!("/v1/decisions/{id}"), "");
    assert!(decision.contains("`envoy:edge:remote_address` allows 3/year"), "{decision}");
}

#[test]
fn a_file_that_changes_within_its_date_is_read_again_and_failures_are_counted() {
    let mut setup = EnvoySetup::start("envoy-dates", &["--envoy-config", "LIMITS"], true);
    let path = setup.scratch.path("limits.yaml");
    let date = std::fs::metadata(&path).unwrap().modified().unwrap();
    let write = |text: &str| {
        std::fs::write(&path, text).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(date).unwrap();
    };
    // As long as it was, and as old.
    write(&LIMITS.replace("requests_per_unit: 3", "requests_per_unit: 1"));
    setup.daemon.logged("limits of Envoy reloaded");
    assert_eq!(setup.statuses(2, "/address", ""), [200, 429]);
    write("domain: edge\nnonsense: 1\n");
    setup.daemon.logged("the limits of Envoy stay as they were");
    let metrics = setup.daemon.get_with("/metrics", "");
    for series in ["tollbar_reloads_total", "tollbar_reload_failures_total"] {
        assert!(metrics.contains(&format!("{series}{{what=\"envoy_limits\"}} 1\n")), "{metrics}");
    }
}

#[test]
fn limits_are_read_again_on_sighup_and_when_they_change() {
    let mut setup = EnvoySetup::start("envoy-reload", &["--envoy-config", "LIMITS"], true);
    assert_eq!(setup.statuses(4, "/address", ""), [200, 200, 200, 429]);
    let path = setup.scratch.path("limits.yaml");
    std::fs::write(&path, LIMITS.replace("requests_per_unit: 3", "requests_per_unit: 6")).unwrap();
    setup.daemon.signal("HUP");
    setup.daemon.logged("limits of Envoy reloaded");
    // Four have been counted, one of them denied.
    assert_eq!(setup.statuses(3, "/address", ""), [200, 200, 429]);
    // It is looked at from time to time as well.
    std::fs::write(&path, "domain: edge\nnonsense: 1\n").unwrap();
    let line = setup.daemon.logged("the limits of Envoy stay as they were");
    assert!(
        line.contains("limits.yaml:2:1: nonsense: there is no field `nonsense` here"),
        "{line}"
    );
    assert_eq!(setup.statuses(1, "/address", ""), [429]);
}

#[test]
fn without_the_daemon_envoy_does_as_it_was_told() {
    for (name, failure_mode_deny, status) in
        [("envoy-gone-deny", true, 500), ("envoy-gone-allow", false, 200)]
    {
        let setup = EnvoySetup::start(name, &["--envoy-config", "LIMITS"], failure_mode_deny);
        assert_eq!(setup.statuses(4, "/address", ""), [200, 200, 200, 429]);
        assert_eq!(setup.daemon.stop(), 0);
        let answer = setup.proxy.get("/address", &[]);
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
