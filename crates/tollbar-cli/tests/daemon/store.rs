//! Counters in a real Redis, shared by two daemons, lost and found again.

use std::process::Output;

use crate::common::{Daemon, Scratch, serve, status};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tollbar_testkit::redis::launch::{Launch, TlsFiles};
use tollbar_testkit::redis::process::RedisProcess;

/// Where the failure policy is `allow`, the default, and where it denies.
const RULES: &str = "
rules:
  - { name: open, match: { path: / }, limit: 2/day }
  - { name: shut, match: { path: /shut }, limit: 2/day, on_store_failure: deny }
";

/// The whole answer to a GET.
fn get(daemon: &Daemon, path: &str) -> String {
    daemon.get_with(path, "")
}

/// Asks for the health until it is this, in one word.
fn wait(daemon: &Daemon, word: &str) {
    // Each waits for as long as it takes to ask: a minute and more, all in all.
    let mut healths = (0..100_000).map(|_| get(daemon, "/healthz"));
    assert!(
        healths.any(|health| health.contains(&format!(r#""status":"{word}""#))),
        "never {word}"
    );
}

fn check(daemon: &Daemon, path: &str, user: &str) -> String {
    daemon.post("/v1/check", &format!(r#"{{"path":"{path}","attributes":{{"user":"{user}"}}}}"#))
}

/// Authority, server and client, in files.
fn certificates(scratch: &Scratch) -> TlsFiles {
    let issuer = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // OpenSSL takes a certificate for its own issuer where both have the same name.
    params.distinguished_name.push(DnType::CommonName, "authority of a test");
    let issuer = CertifiedIssuer::self_signed(params, issuer).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let signed = params.signed_by(&key, &issuer).unwrap();
    TlsFiles {
        ca: scratch.file("ca.pem", &issuer.pem()).into(),
        certificate: scratch.file("cert.pem", &signed.pem()).into(),
        key: scratch.file("key.pem", &key.serialize_pem()).into(),
        asks_clients: true,
    }
}

#[test]
fn a_store_over_tls_is_trusted_by_its_authority_and_shown_a_certificate() {
    let scratch = Scratch::new("redis-tls");
    let files = certificates(&scratch);
    let redis = RedisProcess::launch(Launch::secured(files));
    let (url, path) = (redis.url(), |name| scratch.path(name));
    let (ca, cert, key) = (path("ca.pem"), path("cert.pem"), path("key.pem"));
    let store = ["--store", &url, "--store-raw-keys", "--store-deadline", "5s", "--store-ca", &ca];
    let daemon =
        Daemon::start(&[&store[..], &["--store-cert", &cert, "--store-key", &key]].concat());
    wait(&daemon, "ok");
    assert_eq!(status(&check(&daemon, "/", "7")), 200);
    assert_eq!(daemon.stop(), 0);
    // Without a certificate of its own it is not let in, and rules answer for the store.
    let daemon = Daemon::start(&store);
    wait(&daemon, "degraded");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn two_daemons_share_a_limit_and_outlive_their_store() {
    let scratch = Scratch::new("redis");
    let rules = scratch.file("rules.yaml", RULES);
    let secret = scratch.file("secret", &"0f".repeat(32));
    let mut redis = RedisProcess::start();
    let url = redis.url();
    // A machine under load must not look like a lost store.
    let args = ["--rules", &rules, "--store", &url, "--store-secret-file", &secret];
    let args = [&args[..], &["--store-namespace", "test", "--store-deadline", "5s"]].concat();
    let mut first = Daemon::start_logged(&args);
    let second = Daemon::start(&args);
    wait(&first, "ok");
    wait(&second, "ok");
    assert_eq!(status(&check(&first, "/", "7")), 200);
    assert_eq!(status(&check(&second, "/", "7")), 200);
    assert_eq!(status(&check(&first, "/", "7")), 429, "one each, and two in all");

    redis.kill();
    // Nobody has to ask for that: the daemon looks after its store.
    wait(&first, "degraded");
    assert_eq!(status(&get(&first, "/healthz")), 200, "it is alive");
    assert_eq!(status(&get(&first, "/readyz")), 200, "and answers: as its rules say");
    // Of another user: a denial is remembered for up to a second.
    let answer = check(&first, "/", "8");
    assert_eq!(status(&answer), 200);
    assert!(answer.contains(r#""degraded":true"#), "{answer}");
    let denied = check(&first, "/shut", "8");
    assert_ne!(status(&denied), 200);
    let told = first.logged("the store does not answer");
    assert!(told.contains(" WARN "), "{told}");

    redis.restart();
    wait(&first, "ok");
    first.logged("the store answers again");
    // It lost its counters: a burst more for each such loss.
    assert_eq!(status(&check(&first, "/", "8")), 200);
    assert!(!check(&first, "/", "8").contains(r#""degraded":true"#));
}

#[test]
fn it_starts_while_the_store_is_down() {
    let scratch = Scratch::new("redis-down");
    let secret = scratch.file("secret", &"0f".repeat(32));
    let mut redis = RedisProcess::start();
    let url = redis.url();
    redis.kill();
    let daemon = Daemon::start(&["--store", &url, "--store-secret-file", &secret]);
    assert!(get(&daemon, "/healthz").contains("degraded"));
    assert_eq!(daemon.check("7"), 200, "the failure policy lets it pass");
    redis.restart();
    wait(&daemon, "ok");
    assert_eq!(daemon.check("7"), 200);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn keys_in_redis_name_clients_only_where_that_is_asked_for() {
    let scratch = Scratch::new("redis-raw");
    let secret = scratch.file("secret", &"0f".repeat(32));
    for (names, is_named) in
        [(&["--store-raw-keys"][..], true), (&["--store-secret-file", &secret], false)]
    {
        let redis = RedisProcess::start();
        let store = ["--store", &redis.url(), "--store-deadline", "5s"].map(str::to_owned);
        let store: Vec<&str> =
            store.iter().map(String::as_str).chain(names.iter().copied()).collect();
        let daemon = Daemon::start(&store);
        wait(&daemon, "ok");
        assert_eq!(status(&check(&daemon, "/", "client-7")), 200);
        let keys = redis.ask(&["KEYS", "*"]);
        assert!(keys.contains("tollbar1"), "{keys}");
        assert_eq!(keys.contains("client-7"), is_named, "{keys}");
        assert_eq!(daemon.stop(), 0);
    }
}

#[test]
fn a_store_that_cannot_be_used_is_told_with_its_flag() {
    let scratch = Scratch::new("redis-flags");
    let secret = scratch.secret("secret", &"0f".repeat(32));
    let short = scratch.secret("short", "0f0f\n");
    let url = "redis://:hunter2@127.0.0.1:1";
    let given = ["--store", url, "--store-secret-file", &secret];
    for (args, code, told) in [
        (&given[..], 0, ""),
        (&["--store", url, "--store-raw-keys"], 0, ""),
        (&["--store", "redis+cluster://a:1,b:2", "--store-raw-keys"], 0, ""),
        (&["--store", "redis+sentinel://a:1,b:2/main", "--store-raw-keys"], 0, ""),
        (&["--store", "unix:///run/redis.sock", "--store-raw-keys"], 0, ""),
        (
            &["--store", url],
            2,
            "--store: Redis is read by many, and keys name your clients: add --store",
        ),
        (
            &["--store", "disk"],
            2,
            "error: invalid value 'disk' for '--store <STORE>': this is no store",
        ),
        (&["--store", "redis://x:notaport", "--store-raw-keys"], 2, "--store: "),
        (
            &["--store", url, "--store-secret-file", &short],
            2,
            &format!("--store-secret-file: {short} is no secret: write 64 hexadecimal digits"),
        ),
        (
            &["--store", url, "--store-secret-file", "/dev/zero"],
            2,
            "--store-secret-file: cannot read /dev/zero: it has more than 64 KiB",
        ),
        (
            &[&given[..], &["--store-namespace", "a:b"]].concat(),
            2,
            "--store-namespace: `a:b` is no",
        ),
        (
            &[&given[..], &["--snapshot", "x"]].concat(),
            2,
            "--snapshot has no effect without --store memory",
        ),
        (
            &["--store-secret-file", "/no/such/file"],
            2,
            "--store-secret-file has no effect without --store redis://HOST",
        ),
        (
            &[&given[..], &["--store-raw-keys"]].concat(),
            2,
            "--store-raw-keys and --store-secret-file exclude each other",
        ),
        (
            &[&given[..], &["--store-cert", "x"]].concat(),
            2,
            "--store-cert and --store-key go together",
        ),
        (&[&given[..], &["--store-ca", "nowhere.pem"]].concat(), 2, "--store: "),
        (
            &["--receipt-secret-file", &short],
            2,
            &format!("--receipt-secret-file: {short} is no secret: write 64 hexadecimal digits"),
        ),
    ] {
        let output: Output = serve(&[&["--check-config"], args].concat()).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?} gave {err}");
        assert!(err.starts_with(told), "{args:?} gave {err}");
        assert!(!err.contains("hunter2"), "a password is told: {err}");
    }
}

/// From the setting of a rule to tokens that the daemon has borrowed.
#[test]
fn a_hot_key_is_paid_from_loans_where_its_rule_and_the_flag_say_so() {
    let (scratch, redis) = (Scratch::new("loans"), RedisProcess::start());
    let rules = scratch.file(
        "rules.yaml",
        "accuracy: exact\nrules:
- { name: lent, per: [user], limit: { limit: 2000/s, burst: 20000 }, accuracy: conservative }",
    );
    let (store, secret) = (redis.url(), scratch.secret("secret", &"5e".repeat(32)));
    let start = |loans| {
        let own = ["--rules", &rules, "--store", &store, "--store-secret-file", &secret];
        Daemon::start(&[&own[..], &["--loans", loans]].concat())
    };
    let is_lent = |daemon: &Daemon, user: &str| {
        let body = format!(r#"{{"attributes":{{"user":"{user}"}}}}"#);
        let response = daemon.post("/v1/check", &body);
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        response.contains(r#""source":"loan""#)
    };
    let lending = start("on");
    assert!((0..5_000).any(|_| is_lent(&lending, "hot")), "it never borrowed");
    assert!(!is_lent(&lending, "cold"), "its first request is exact");
    let metrics = lending.get_with("/metrics", "");
    assert!(metrics.contains("tollbar_lending 1\n"), "{metrics}");
    assert!(!metrics.contains("tollbar_loans_total{outcome=\"full\"} 0\n"), "{metrics}");
    let exact = start("off");
    assert!(!(0..500).any(|_| is_lent(&exact, "hot")), "it must not borrow");
}
