//! Questions of proxies to the real daemon: who may ask, by what socket, and what follows when its
//! store is down. The proxies themselves are in `proxies.rs`.

use std::os::unix::net::UnixStream;

use crate::common::http::{exchange, request_with};
use crate::common::{Daemon, Scratch, status};
use tollbar_testkit::redis::process::RedisProcess;

const RULES: &str = "
rules:
  - { name: open, match: { path: /open }, limit: 2/day }
  - { name: shut, match: { path: /shut }, limit: 2/day, on_store_failure: deny }
";

const CLIENT: &str = "x-real-ip: 203.0.113.7\r\n";

fn ask(daemon: &Daemon, path: &str, lines: &str) -> String {
    daemon.get_with(&format!("/v1/forward-auth/envoy{path}"), lines)
}

/// Asks for the health until it is this, in one word.
fn wait(daemon: &Daemon, word: &str) {
    // Each waits for as long as it takes to ask: a minute and more, all in all.
    let mut healths = (0..100_000).map(|_| daemon.get_with("/healthz", ""));
    assert!(
        healths.any(|health| health.contains(&format!(r#""status":"{word}""#))),
        "never {word}"
    );
}

#[test]
fn whoever_is_no_trusted_proxy_is_told_how_to_become_one() {
    let scratch = Scratch::new("forward-auth-trust");
    let rules = scratch.file("rules.yaml", RULES);
    let daemon = Daemon::start(&["--rules", &rules, "--trusted-proxies", "10.0.0.0/8,2001:db8::1"]);
    let refused = ask(&daemon, "/open", CLIENT);
    assert_eq!(status(&refused), 400);
    assert!(refused.contains("127.0.0.1 is not a trusted proxy"), "{refused}");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_proxy_on_a_unix_socket_is_trusted_and_shows_its_token() {
    let scratch = Scratch::new("forward-auth-unix");
    let (rules, socket) = (scratch.file("rules.yaml", RULES), scratch.path("socket"));
    let token = scratch.file("token", "0123456789abcdef\n");
    let endpoint = format!("unix:{socket}");
    let args = ["--listen", &endpoint, "--rules", &rules, "--token-file", &token];
    let daemon = Daemon::start(&[&args[..], &["--trusted-proxies", "10.0.0.0/8"]].concat());
    let ask = |lines: &str| {
        let (target, lines) = ("/v1/forward-auth/envoy/open", format!("{CLIENT}{lines}"));
        let stream = UnixStream::connect(&socket).unwrap();
        status(&exchange(stream, request_with("GET", target, &lines, "")))
    };
    assert_eq!(ask(""), 400);
    assert_eq!(ask("authorization: Bearer 0123456789abcdef\r\n"), 400);
    assert_eq!([0; 3].map(|_| ask("x-tollbar-token: 0123456789abcdef\r\n")), [200, 200, 429]);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn without_a_store_rules_say_what_proxies_are_told() {
    let scratch = Scratch::new("forward-auth-store");
    let rules = scratch.file("rules.yaml", RULES);
    let mut redis = RedisProcess::start();
    let secret = scratch.file("secret", &"0f".repeat(32));
    let url = redis.url();
    let args = ["--rules", &rules, "--store", &url, "--store-secret-file", &secret];
    let daemon = Daemon::start(&[&args[..], &["--store-deadline", "5s"]].concat());
    wait(&daemon, "ok");
    assert_eq!([0; 3].map(|_| status(&ask(&daemon, "/shut", CLIENT))), [200, 200, 429]);
    redis.kill();
    wait(&daemon, "degraded");
    let open = ask(&daemon, "/open", CLIENT);
    assert_eq!(status(&open), 200, "{open}");
    assert!(open.contains("x-ratelimit-degraded: allowed\r\n"), "{open}");
    let shut = ask(&daemon, "/shut", "x-real-ip: 203.0.113.8\r\n");
    assert_eq!(status(&shut), 429, "{shut}");
    assert!(shut.contains("x-ratelimit-degraded: denied\r\n"), "{shut}");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_denial_of_a_proxys_client_can_be_asked_about() {
    let scratch = Scratch::new("forward-auth-decisions");
    let rules = scratch.file("rules.yaml", RULES);
    let daemon = Daemon::start(&["--rules", &rules]);
    let [_, _, denied] = [0; 3].map(|_| ask(&daemon, "/open", CLIENT));
    assert_eq!(status(&denied), 429);
    let name = "x-tollbar-decision-id: ";
    let id = denied.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let told = daemon.get_with(&format!("/v1/decisions/{id}"), "");
    assert_eq!(status(&told), 200, "{told}");
    for part in [r#""path":"/open""#, r#""ip":"203.0.113.7""#, r#""rule":"open""#] {
        assert!(told.contains(part), "{part} in {told}");
    }
}

#[test]
fn api_keys_are_read_again_on_a_hang_up_and_a_bad_file_leaves_them() {
    let scratch = Scratch::new("forward-auth-keys");
    let rules = "rules: [{ name: keyed, per: [api_key], missing: skip, limit: 1/day }]";
    let rules = scratch.file("rules.yaml", rules);
    let [old, new] = ["0123456789abcdef-old", "0123456789abcdef-new"];
    let file = scratch.file("keys", &format!("one {old}\n"));
    let mut daemon = Daemon::start_logged(&["--rules", &rules, "--api-keys", &file]);
    // Who has no key that counts is not limited here.
    let shows = |daemon: &Daemon, key: &str| {
        let answer = ask(daemon, "/", &format!("{CLIENT}x-api-key: {key}\r\n"));
        answer.contains("x-ratelimit-limit: ")
    };
    assert_eq!([shows(&daemon, old), shows(&daemon, new)], [true, false]);
    scratch.file("keys", &format!("two {new}\n"));
    daemon.signal("HUP");
    daemon.logged("API keys reloaded");
    assert_eq!([shows(&daemon, old), shows(&daemon, new)], [false, true]);
    scratch.file("keys", "short\n");
    daemon.signal("HUP");
    let told = daemon.logged("the API keys stay as they were");
    assert!(told.contains("--api-keys: line 1 of "), "{told}");
    assert_eq!([shows(&daemon, old), shows(&daemon, new)], [false, true]);
    daemon.signal("TERM");
    let log = daemon.rest_of_log();
    assert!(!log.contains(new) && !told.contains(new), "a key is in the log");
}
