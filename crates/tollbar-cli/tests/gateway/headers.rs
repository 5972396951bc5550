//! What headers tell clients of their limits, over every protocol that has headers, as other people's parsers read
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tollbar_proto::client::Client;
use tollbar_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollbar_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollbar_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollbar_proto::v1::CheckRequest;

use crate::common::http::{Answer, exchange, request_with};
use crate::common::{Daemon, Scratch};
use crate::proxying::upstream;

type Headers = BTreeMap<String, String>;

/// A daemon that has every protocol, with this limit for each client.
fn serve(scratch: &Scratch, limit: &str, flags: &[&str]) -> Daemon {
    let (upstream, _) = upstream();
    let rules = scratch.file("rules.yaml", &format!("rules: [{{ name: a, {limit} }}]"));
    let own = ["--upstream", &upstream, "--proxy", "127.0.0.1:0", "--rules", &rules];
    Daemon::start(&[&own, flags].concat())
}

fn headers_of(answer: &Answer) -> Headers {
    let lines = answer.head.lines().filter_map(|line| line.split_once(": "));
    let of_limits = lines.filter(|(name, _)| name.contains("ratelimit") || *name == "retry-after");
    of_limits.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn check(daemon: &Daemon, user: &str) -> Answer {
    let body = format!(r#"{{"attributes":{{"user":"{user}"}}}}"#);
    Answer::read(&daemon.post("/v1/check", &body)).unwrap()
}

fn ask_by_proxy(daemon: &Daemon) -> Answer {
    let lines = "x-real-ip: 192.0.2.1\r\nx-original-method: GET\r\nx-original-uri: /\r\n";
    Answer::read(&daemon.get_with("/v1/forward-auth/haproxy", lines)).unwrap()
}

fn ask_gateway(daemon: &Daemon) -> Answer {
    let stream = TcpStream::connect(daemon.address("proxy")).unwrap();
    Answer::read(&exchange(stream, request_with("GET", "/", "", ""))).unwrap()
}

/// The headers that Envoy is told to add for this user.
fn ask_as_envoy(daemon: &Daemon, user: &str) -> Headers {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = format!("http://{}", daemon.address("grpc"));
    let response = runtime.block_on(async {
        let endpoint = tonic::transport::Endpoint::from_shared(url).unwrap();
        let mut envoy = RateLimitServiceClient::new(endpoint.connect().await.unwrap());
        let entries = vec![Entry { key: "user".to_owned(), value: user.to_owned() }];
        let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
        let request = RateLimitRequest { domain: "any".to_owned(), descriptors, hits_addend: 0 };
        envoy.should_rate_limit(request).await.unwrap().into_inner()
    });
    let headers = response.response_headers_to_add.into_iter();
    let of_limits =
        headers.filter(|header| header.key.contains("ratelimit") || header.key == "retry-after");
    of_limits.map(|header| (header.key, header.value)).collect()
}

#[test]
fn clients_are_told_of_their_limits_in_the_headers_that_are_chosen() {
    let x = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    let ietf = ["ratelimit", "ratelimit-policy"];
    let split = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
    for (flags, over_http, through_envoy) in [
        (&[][..], [&x[..], &ietf].concat(), vec![]),
        (&["--headers", "x"], x.to_vec(), x.to_vec()),
        (&["--headers", "ietf"], ietf.to_vec(), ietf.to_vec()),
        (&["--headers", "split"], split.to_vec(), split.to_vec()),
        (&["--headers", "split,x"], [x, split].concat(), [x, split].concat()),
        (&["--headers", "none"], vec![], vec![]),
    ] {
        let scratch = Scratch::new("header-families");
        let daemon = serve(&scratch, "limit: 1/hour, algorithm: fixed_window", flags);
        let expect = |headers: &Headers, names: &[&str], has_wait: bool| {
            let found: BTreeSet<&str> = headers.keys().map(String::as_str).collect();
            let wait = has_wait.then_some("retry-after");
            let expected: BTreeSet<&str> = names.iter().copied().chain(wait).collect();
            assert_eq!(found, expected, "{flags:?}");
        };
        for is_denied in [false, true] {
            for answer in [check(&daemon, "a"), ask_by_proxy(&daemon), ask_gateway(&daemon)] {
                assert_eq!(answer.status == 429, is_denied, "{flags:?} {}", answer.head);
                expect(&headers_of(&answer), &over_http, is_denied);
            }
            let headers = ask_as_envoy(&daemon, "envoy");
            expect(&headers, &through_envoy, is_denied && !through_envoy.is_empty());
        }
        assert_eq!(daemon.stop(), 0);
    }
}

#[test]
fn an_unknown_family_of_headers_is_an_error_that_says_what_to_write() {
    for (value, expected) in [
        ("x,y", "unknown family of headers `y`: write x, ietf, split"),
        ("none,x", "`none` stands alone"),
    ] {
        let output = crate::common::serve(&["--check-config", "--headers", value]).output();
        let told = String::from_utf8(output.unwrap().stderr).unwrap();
        assert!(told.contains(expected) && told.contains("--headers"), "{told}");
    }
}

/// All clients of a fixed window were told to come back in the same second.
#[test]
fn denied_clients_are_told_to_come_back_at_different_times() {
    let fixed = "limit: 1/day, algorithm: fixed_window";
    let table: [(&str, &[&str], u64); 5] = [
        (fixed, &["--headers", "split"], 30),
        (fixed, &["--headers", "split", "--retry-jitter", "off"], 0),
        (fixed, &["--headers", "split", "--retry-jitter", "1h"], 3_600),
        ("limit: 1/day, burst: 1", &["--headers", "split"], 0),
        ("limit: 1/day, burst: 1", &["--headers", "split", "--retry-jitter", "1h"], 3_600),
    ];
    for (limit, flags, jitter_s) in table {
        let scratch = Scratch::new("header-jitter");
        let daemon = serve(&scratch, limit, flags);
        check(&daemon, "a");
        ask_by_proxy(&daemon);
        ask_gateway(&daemon);
        ask_as_envoy(&daemon, "a");
        let exact = |answer: &Answer| answer.expect(429)["retryAfterMs"].as_u64().unwrap();
        let before_ms = exact(&check(&daemon, "a"));
        for ask in [
            |daemon: &Daemon| headers_of(&check(daemon, "a")),
            |daemon: &Daemon| headers_of(&ask_by_proxy(daemon)),
            |daemon: &Daemon| headers_of(&ask_gateway(daemon)),
            |daemon: &Daemon| ask_as_envoy(daemon, "a"),
        ] {
            let told = (0..30).map(|_| ask(&daemon)).map(|headers| {
                let number = |name: &str| headers[name].parse::<u64>().unwrap();
                assert!(number("ratelimit-reset") >= number("retry-after"), "{headers:?}");
                number("retry-after")
            });
            let told: BTreeSet<u64> = told.collect();
            // The body is exact. Each protocol has a client of its own, whose bucket was asked up to a second apart.
            let least_ms = exact(&check(&daemon, "a"));
            let (first, last) = (*told.first().unwrap(), *told.last().unwrap());
            assert!(first * 1_000 + 2_000 >= least_ms, "{limit} {flags:?} {told:?}");
            assert!(last * 1_000 <= before_ms + jitter_s * 1_000 + 5_000, "{limit} {told:?}");
            assert_eq!(told.len() > 4, jitter_s > 0, "{limit} {flags:?} {told:?}");
        }
        assert_eq!(daemon.stop(), 0);
    }
}

/// What a program makes of headers.
fn parsed(mut program: Command, headers: &[Headers]) -> Vec<Value> {
    let mut process = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let input = serde_json::to_vec(headers).unwrap();
    process.stdin.take().unwrap().write_all(&input).unwrap();
    let output = process.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Limits, what `RateLimit-Policy` says of them, and how many requests pass at once.
const LIMITS: [(&str, u64, u64, u64); 6] = [
    ("limit: 5/10s", 5, 10, 5),
    ("limit: 0.01/s, burst: 2", 1, 100, 2),
    ("limit: 3/hour, burst: 9", 3, 3_600, 9),
    ("limit: 2/hour, algorithm: fixed_window", 2, 3_600, 2),
    ("limit: 2 per calendar day", 2, 86_400, 2),
    ("limit: 2/hour, algorithm: sliding_window_log", 2, 3_600, 2),
];

/// The answers under one of [`LIMITS`]: all that pass and one that does not.
fn answers(limit: &str, count: u64) -> Vec<Answer> {
    let scratch = Scratch::new("header-parsers");
    let daemon = serve(&scratch, limit, &["--headers", "x,ietf,split"]);
    let answers: Vec<Answer> = (0..=count).map(|_| check(&daemon, "a")).collect();
    assert_eq!(answers.last().unwrap().status, 429, "{limit}");
    assert_eq!(daemon.stop(), 0);
    answers
}

#[test]
fn http_sf_reads_the_headers_of_every_algorithm() {
    let python = std::env::var("TOLLBAR_PYTHON").unwrap_or_else(|_| {
        panic!("run cargo xtask test, which sets TOLLBAR_PYTHON: a Python with http-sf")
    });
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/headers.py");
    for (limit, quota, window_s, count) in LIMITS {
        let answers = answers(limit, count);
        let headers: Vec<Headers> = answers.iter().map(headers_of).collect();
        let mut program = Command::new(&python);
        program.arg(&script);
        for (answer, told) in answers.iter().zip(parsed(program, &headers)) {
            let (policy, state) = (&told["ratelimit-policy"][0], &told["ratelimit"][0]);
            assert_eq!((&policy[0], &state[0]), (&"a".into(), &"a".into()), "{limit}");
            let expected = serde_json::json!({ "q": quota, "w": window_s });
            assert_eq!(policy[1], expected, "{limit}");
            let body: Value = serde_json::from_str(&answer.body).unwrap();
            let remaining = body["remaining"].as_u64().unwrap();
            assert_eq!(state[1]["r"], remaining.min(quota), "{limit}");
            assert_eq!(told["ratelimit-remaining"], remaining.min(quota), "{limit}");
            assert_eq!(told["ratelimit-limit"], quota, "{limit}");
            assert_eq!(state[1]["t"], told["ratelimit-reset"], "{limit}");
            if answer.status == 429 {
                let reset_s = told["ratelimit-reset"].as_u64().unwrap();
                assert!(reset_s >= told["retry-after"].as_u64().unwrap(), "{limit} {told}");
            }
        }
    }
}

/// The parser knows `RateLimit` of an earlier draft only, so each of the families is given to it alone.
#[test]
fn ratelimit_header_parser_reads_the_headers_of_every_algorithm() {
    let node = std::env::var("TOLLBAR_NPM").unwrap_or_else(|_| {
        panic!("run cargo xtask test, which sets TOLLBAR_NPM: where npm has installed packages")
    });
    if node.is_empty() {
        eprintln!("skipped: there is no npm");
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node/headers.cjs");
    for (limit, quota, _, count) in LIMITS {
        let answers = answers(limit, count);
        let family = |prefix: &str| -> Vec<Headers> {
            let of_answer = |answer: &Answer| {
                let headers = headers_of(answer).into_iter();
                headers.filter(|(name, _)| name.starts_with(prefix)).collect()
            };
            answers.iter().map(of_answer).collect()
        };
        for headers in [family("x-ratelimit-"), family("ratelimit-")] {
            let mut program = Command::new("node");
            program.arg(&script).env("TOLLBAR_NPM", &node);
            for (answer, told) in answers.iter().zip(parsed(program, &headers)) {
                let body: Value = serde_json::from_str(&answer.body).unwrap();
                let remaining = body["remaining"].as_u64().unwrap().min(quota);
                assert_eq!(told["limit"], quota, "{limit}");
                assert_eq!(told["remaining"], remaining, "{limit}");
                assert_eq!(told["used"], quota - remaining, "{limit}");
                if answer.status == 429 {
                    let wait_s: f64 = answer.header("retry-after").parse().unwrap();
                    // The parser adds seconds to its own clock, which cuts a second that has begun.
                    let reset_s = told["reset"].as_f64().unwrap();
                    assert!(reset_s > wait_s - 10.0, "{limit} {told} {wait_s}");
                    // Not the seconds since 1970 taken for seconds from now.
                    assert!(reset_s < 2.0 * 86_400.0, "{limit} {told} {wait_s}");
                }
            }
        }
    }
}

/// Nothing listens where the store should be.
#[test]
fn a_degraded_answer_has_no_reset_on_any_protocol() {
    for policy in ["allow", "local", "deny"] {
        let limit = format!("limit: 2/hour, on_store_failure: {policy}");
        let scratch = Scratch::new("header-degraded");
        let flags = ["--store", "redis://127.0.0.1:1", "--store-raw-keys"];
        let daemon = serve(&scratch, &limit, &flags);
        let answer = check(&daemon, "a");
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!((&body["degraded"], &body["resetAt"]), (&true.into(), &Value::Null), "{body}");
        assert_eq!(body["decisions"][0]["resetAt"], Value::Null, "{body}");
        for answer in [answer, ask_by_proxy(&daemon), ask_gateway(&daemon)] {
            assert_ne!(answer.header("x-ratelimit-degraded"), "", "{}", answer.head);
            assert_eq!(answer.header("x-ratelimit-reset"), "", "{}", answer.head);
            assert!(!answer.header("ratelimit").contains("t="), "{}", answer.head);
        }
        let mut resp = TcpStream::connect(daemon.address("resp")).unwrap();
        resp.write_all(b"TB.CHECK GET / WITH user resp\r\nQUIT\r\n").unwrap();
        let mut told = String::new();
        resp.read_to_string(&mut told).unwrap();
        assert!(told.contains("reset_at_ms\r\n$-1\r\n"), "{told}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let response = runtime.block_on(async {
            let client = Client::connect(format!("http://{}", daemon.address("grpc"))).unwrap();
            client.calls().check(CheckRequest::default()).await.unwrap().into_inner()
        });
        assert!(response.degraded && response.reset_at.is_none(), "{response:?}");
        assert_eq!(daemon.stop(), 0);
    }
}
