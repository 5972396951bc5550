//! What web pages, forged requests and strangers can do to a daemon without tokens: nothing.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use tollbar_proto::client::Client;
use tollbar_proto::v1::CheckRequest;

use crate::common::{Daemon, Scratch, serve, status};

const RULES: &str = "rules: [{ name: a, per: [user], limit: 2/day }]";
const RESET: &str = r#"{"rule":"a","attributes":{"user":"7"}}"#;
const CHECK: &str = r#"{"attributes":{"user":"7"}}"#;
const JSON: &str = "content-type: application/json\r\n";

fn send(daemon: &Daemon, head: &str, body: &str) -> u16 {
    let mut stream = TcpStream::connect(daemon.address("http")).unwrap();
    let length = body.len();
    write!(stream, "{head}connection: close\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    status(&answer)
}

/// A page reset limits with a form, or under a name of its own that it had pointed to loopback.
#[test]
fn no_web_page_resets_or_checks_anything_on_loopback() {
    let scratch = Scratch::new("web-page");
    let rules = scratch.file("rules.yaml", RULES);
    let daemon = Daemon::start(&["--rules", &rules, "--allowed-hosts", "tollbar.internal"]);
    let check = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\n";
    assert_eq!([send(&daemon, check, CHECK), send(&daemon, check, CHECK)], [200, 200]);
    assert_eq!(send(&daemon, check, CHECK), 429);
    let own = format!("host: {}\r\n", daemon.address("http"));
    for (lines, expected) in [
        // A name that was pointed to loopback.
        (format!("host: evil.example\r\n{JSON}"), 403),
        (format!("host: evil.example\r\n{JSON}origin: http://evil.example\r\n"), 403),
        // A page of another site.
        (format!("{own}{JSON}origin: https://evil.example\r\n"), 403),
        (format!("{own}{JSON}sec-fetch-site: cross-site\r\n"), 403),
        (format!("{own}{JSON}origin: null\r\n"), 403),
        // A form, and what a server can be made to send.
        (format!("{own}content-type: text/plain\r\n"), 415),
        (format!("{own}content-type: application/x-www-form-urlencoded\r\n"), 415),
        (own.clone(), 415),
    ] {
        for path in ["/v1/reset", "/v1/explain"] {
            let head = format!("POST {path} HTTP/1.1\r\n{lines}");
            assert_eq!(send(&daemon, &head, RESET), expected, "{head}");
        }
    }
    assert_eq!(send(&daemon, check, CHECK), 429, "nothing was reset");
    assert_eq!(send(&daemon, &format!("{check}origin: https://evil.example\r\n"), CHECK), 403);
    // As `curl -d` sends it.
    let curl = format!("{check}content-type: application/x-www-form-urlencoded\r\n");
    assert_eq!(send(&daemon, &curl, r#"{"attributes":{"user":"8"}}"#), 200);
    let reset = format!("POST /v1/reset HTTP/1.1\r\nhost: tollbar.internal\r\n{JSON}");
    assert_eq!(send(&daemon, &reset, RESET), 200);
    assert_eq!(send(&daemon, check, CHECK), 200);
}

/// With `--insecure` anybody could reset limits.
#[test]
fn strangers_beyond_loopback_check_and_neither_reset_nor_explain() {
    let scratch = Scratch::new("strangers");
    let rules = scratch.file("rules.yaml", RULES);
    let any = "0.0.0.0:0";
    let args = ["--rules", &rules, "--listen", any, "--insecure"];
    let daemon = Daemon::start(&args);
    assert_eq!(status(&daemon.post("/v1/check", CHECK)), 200);
    let reset = daemon.post("/v1/reset", RESET);
    assert_eq!(status(&reset), 401);
    assert!(reset.contains("--token-file"), "{reset}");
    assert_eq!(status(&daemon.post("/v1/explain", CHECK)), 401);

    let token = "0123456789abcdef";
    let tokens = scratch.file("tokens", token);
    let daemon = Daemon::start(&[&args[..], &["--token-file", &tokens]].concat());
    let lines = format!("{JSON}authorization: Bearer {token}\r\n");
    assert_eq!(status(&daemon.send("POST", "/v1/reset", &lines, RESET)), 200);
}

/// Fifty wrong tokens a minute from one machine locked out the right one.
#[test]
fn a_right_token_passes_however_many_wrong_ones_came_before() {
    let scratch = Scratch::new("wrong-tokens");
    let tokens = scratch.file("tokens", "0123456789abcdef");
    let mut daemon = Daemon::start_logged(&["--token-file", &tokens]);
    let check = |daemon: &Daemon, token: &str| {
        let lines = format!("authorization: Bearer {token}\r\n");
        status(&daemon.send("POST", "/v1/check", &lines, "{}"))
    };
    let statuses: Vec<_> = (0..50).map(|_| check(&daemon, "wrong")).collect();
    assert_eq!((statuses[..10].to_vec(), statuses[49]), (vec![401; 10], 429), "{statuses:?}");
    assert_eq!(check(&daemon, "0123456789abcdef"), 200);
    let resp = |daemon: &Daemon, text: String| {
        let mut resp = TcpStream::connect(daemon.address("resp")).unwrap();
        resp.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        resp.read_to_string(&mut answer).unwrap();
        answer
    };
    let auth = |token: &str| format!("AUTH {token}\r\n");
    let answer = resp(&daemon, auth("wrong2").repeat(50) + &auth("0123456789abcdef") + "QUIT\r\n");
    assert_eq!(answer.matches("-WRONGPASS").count(), 50, "{answer}");
    assert!(answer.contains("-WRONGPASS too many wrong tokens"), "{answer}");
    assert!(answer.ends_with("+OK\r\n+OK\r\n"), "{answer}");
    let lines = "authorization: Bearer 0123456789abcdef\r\n";
    let metrics = daemon.get_with("/metrics", lines);
    for (listener, count) in [("http", 50), ("resp", 50), ("grpc", 0), ("admin", 0)] {
        let line = format!("tollbar_auth_failures_total{{listener=\"{listener}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    daemon.signal("TERM");
    assert_eq!(daemon.wait(), 0);
    let log = daemon.rest_of_log();
    assert_eq!(log.matches("a token was refused").count(), 20, "{log}");
    assert!(!log.contains("wrong2"), "{log}");
}

/// Kubernetes mounts secrets so that every user can read them, so that is no error. A file that every user can write is.
#[test]
fn a_token_file_that_every_user_can_read_is_warned_of_and_one_to_write_is_refused() {
    let scratch = Scratch::new("token-modes");
    let tokens = scratch.secret("tokens", "0123456789abcdef");
    for (mode, warned) in [(0o600, 0), (0o640, 0), (0o644, 1), (0o604, 1)] {
        fs::set_permissions(&tokens, fs::Permissions::from_mode(mode)).unwrap();
        let mut daemon = Daemon::start_logged(&["--token-file", &tokens]);
        daemon.signal("TERM");
        assert_eq!(daemon.wait(), 0);
        let log = daemon.rest_of_log();
        assert_eq!(log.matches("can read this file").count(), warned, "{mode:o}: {log}");
    }
    for mode in [0o602, 0o666, 0o622] {
        fs::set_permissions(&tokens, fs::Permissions::from_mode(mode)).unwrap();
        let output = serve(&["--check-config", "--token-file", &tokens]).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{mode:o}: {told}");
        assert!(told.contains("chmod o-w"), "{mode:o}: {told}");
    }
}

/// Wrong tokens of proxies and of clients of gRPC were neither counted nor logged, and had no limit.
#[tokio::test]
async fn wrong_tokens_over_forward_auth_and_grpc_are_limited_counted_and_logged() {
    const TOKEN: &str = "0123456789abcdef";
    let scratch = Scratch::new("wrong-tokens-elsewhere");
    let tokens = scratch.file("tokens", TOKEN);
    let mut daemon = Daemon::start_logged(&["--token-file", &tokens]);
    let mut calls = Client::connect(format!("http://{}", daemon.address("grpc"))).unwrap().calls();
    let mut call = async |token: &str| {
        let mut request = tonic::Request::new(CheckRequest::default());
        let value = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", value);
        calls.check(request).await.map(drop).map_err(|status| status.message().to_owned())
    };
    let original = "x-original-uri: /\r\nx-original-method: GET\r\nx-real-ip: 192.0.2.1\r\n";
    let ask = |daemon: &Daemon, token: &str| {
        let lines = format!("{original}x-tollbar-token: {token}\r\n");
        daemon.get_with("/v1/forward-auth/haproxy", &lines)
    };
    for turn in 0..20 {
        let told = call("guess-over-grpc").await.unwrap_err();
        assert_eq!(told.contains("too many wrong tokens"), turn >= 10, "{turn}: {told}");
        let told = ask(&daemon, "asked-by-proxy");
        assert_eq!(status(&told), 400);
        assert_eq!(told.contains("too many wrong tokens"), turn >= 10, "{turn}: {told}");
    }
    assert_eq!(call(TOKEN).await, Ok(()));
    assert_eq!(status(&ask(&daemon, TOKEN)), 200);
    let metrics = daemon.get_with("/metrics", &format!("authorization: Bearer {TOKEN}\r\n"));
    for (listener, count) in [("forward_auth", 20), ("grpc", 20), ("http", 0)] {
        let line = format!("tollbar_auth_failures_total{{listener=\"{listener}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    // An open connection would hold up the stop.
    drop(calls);
    daemon.signal("TERM");
    assert_eq!(daemon.wait(), 0);
    assert_eq!(daemon.rest_of_log().matches("a token was refused").count(), 20);
}
