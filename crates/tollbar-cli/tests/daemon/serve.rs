//! The real binary, from its first line to its exit code.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use crate::common::{Daemon, Scratch, request, serve, status};

#[test]
fn with_nothing_given_it_limits_each_client() {
    let daemon = Daemon::start(&[]);
    let statuses: Vec<u16> = (0..7).map(|_| daemon.check("42")).collect();
    assert_eq!(statuses[..5], [200; 5]);
    // The built-in limit slides: unless the machine stalls for seconds, the rest are denied.
    assert_eq!(statuses[5], 429);
    assert_eq!(daemon.check("43"), 200);
    let response = daemon.post("/v1/check", r#"{"attributes":{"user":"44"}}"#);
    assert!(response.contains("\r\nx-ratelimit-remaining: 4\r\n"), "{response}");
    assert!(response.contains("\r\ncontent-type: application/json\r\n"), "{response}");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_hang_up_reads_the_rules_again_and_keeps_the_counters() {
    let scratch = Scratch::new("reload");
    let rules = scratch.file("rules.yaml", "rules: [{ name: a, limit: 1/day }]");
    let mut daemon = Daemon::start_logged(&["--no-watch", "--rules", &rules]);
    assert_eq!((daemon.check("7"), daemon.check("7")), (200, 429));
    scratch.file("rules.yaml", "rules: [{ name: a, limt: 2/day }]");
    daemon.signal("HUP");
    let told = daemon.logged("the rules stay as they were");
    assert!(told.contains(" ERROR "), "{told}");
    assert!(told.contains("rules.yaml:1:20: "), "{told}");
    assert_eq!(daemon.check("7"), 429);
    scratch.file("rules.yaml", "rules: [{ name: a, limit: 2/day }]");
    daemon.signal("HUP");
    daemon.logged("rules reloaded rules=1 added=0 changed=1 removed=0");
    assert_eq!((daemon.check("7"), daemon.check("7")), (200, 429));
}

#[test]
fn a_snapshot_keeps_the_counters_over_a_restart() {
    let scratch = Scratch::new("snapshot");
    let rules = scratch.file("rules.yaml", "rules: [{ name: a, limit: 1/day }]");
    let counters = scratch.path("counters");
    let args = ["--rules", &rules, "--snapshot", &counters];
    let daemon = Daemon::start(&args);
    assert_eq!(daemon.check("7"), 200);
    assert_eq!(daemon.stop(), 0);
    let daemon = Daemon::start(&args);
    assert_eq!((daemon.check("7"), daemon.check("8")), (429, 200));
}

#[test]
fn with_a_secret_a_receipt_is_taken_after_a_restart() {
    let scratch = Scratch::new("receipt");
    let rules = scratch.file("rules.yaml", "rules: [{ name: a, limit: 10/day }]");
    let (counters, secret) = (scratch.path("counters"), scratch.file("secret", &"0f".repeat(32)));
    let kept = ["--rules", &rules, "--snapshot", &counters];
    let with_secret = [&kept[..], &["--receipt-secret-file", &secret]].concat();
    let daemon = Daemon::start(&with_secret);
    let reserved = daemon.post("/v1/reserve", r#"{"cost":10}"#);
    let receipt = reserved.split(r#""receipt":""#).nth(1).unwrap().split('"').next().unwrap();
    let commit = format!(r#"{{"receipt":"{receipt}","cost":3}}"#);
    assert_eq!(daemon.stop(), 0);
    let daemon = Daemon::start(&kept);
    assert_eq!(status(&daemon.post("/v1/commit", &commit)), 400, "it has another secret");
    assert_eq!(daemon.stop(), 0);
    let daemon = Daemon::start(&with_secret);
    assert_eq!(status(&daemon.post("/v1/commit", &commit)), 200);
    assert!(daemon.post("/v1/peek", "{}").contains(r#""remaining":7"#));
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn what_was_asked_before_the_end_is_answered() {
    let mut daemon = Daemon::start_logged(&[]);
    let mut stream = daemon.connect();
    let request = request("/v1/check", "{}");
    let (begun, rest) = request.split_at(request.len() - 1);
    stream.write_all(begun.as_bytes()).unwrap();
    // Served after the first connection, so that one is known to have been accepted.
    assert_eq!(daemon.check("1"), 200);
    daemon.signal("TERM");
    daemon.logged("stopping: answering the requests that were read");
    stream.write_all(rest.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert_eq!(status(&response), 200);
    assert_eq!(daemon.wait(), 0);
}

#[test]
fn what_is_too_large_or_no_http_is_refused_and_the_daemon_goes_on() {
    let daemon = Daemon::start(&[]);
    let mut stream = daemon.connect();
    stream
        .write_all(
            b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4294967296\r\n\r\n",
        )
        .unwrap();
    stream.write_all(&vec![b' '; 300 * 1024]).unwrap_or_default();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 413");
    for bytes in [&b"*1\r\n$4\r\nPING\r\n"[..], b"\x16\x03\x01\x02\x00", &[0xff; 64]] {
        let mut stream = daemon.connect();
        stream.write_all(bytes).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response);
        assert!(!response.starts_with(b"HTTP/1.1 2"));
    }
    assert_eq!(daemon.check("1"), 200);
}

#[test]
fn what_cannot_be_used_is_told_with_its_flag() {
    let scratch = Scratch::new("config");
    let bad = scratch.file("bad.yaml", "rules:\n- { name: a, limt: 1/s }\n");
    let busy = scratch.file("busy.yaml", "rules: [{ name: b, algorithm: concurrency, limit: 3 }]");
    let good = scratch.file("good.yaml", "rules: [{ name: b, limit: 3/s }]");
    let short = scratch.secret("short", "secret\n");
    let good_token = scratch.secret("good-token", "0123456789abcdef");
    let writable = |path: String| {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        path
    };
    let open_token = writable(scratch.file("open-token", "0123456789abcdef"));
    let open_config = writable(scratch.file("config.yaml", "listen: 127.0.0.1:0"));
    let keys = scratch.secret("keys", "# ours\npartner 0123456789abcdef\n");
    let twice = scratch.secret("twice", "a 0123456789abcdef\nb 0123456789abcdef\n");
    for (args, code, told) in [
        (&["--rules", &good][..], 0, ""),
        (&["--listen", "0.0.0.0:0"], 2, "--listen 0.0.0.0:0 is beyond loopback"),
        (&["--listen", "0.0.0.0:0", "--insecure"], 0, ""),
        (&["--listen", "[::]:0"], 2, "--listen [::]:0 is beyond loopback"),
        (&["--listen", "192.0.2.1:0"], 2, "--listen 192.0.2.1:0 is beyond loopback"),
        (&["--grpc", "0.0.0.0:0"], 2, "--grpc 0.0.0.0:0 is beyond loopback"),
        (&["--resp", "0.0.0.0:0"], 2, "--resp 0.0.0.0:0 is beyond loopback"),
        (&["--grpc", "0.0.0.0:0", "--insecure=false"], 2, "--grpc 0.0.0.0:0 is beyond loopback"),
        (&["--resp", "0.0.0.0:0", "--token-file", &good_token], 0, ""),
        (&["--listen", "127.9.9.9:0", "--grpc", "[::1]:0", "--resp", "unix:/no/socket"], 0, ""),
        (
            &["--token-file", &open_token],
            2,
            &format!("--token-file: cannot read {open_token}: every user"),
        ),
        (
            &["--config", &open_config],
            2,
            &format!("--config: cannot read {open_config}: every user"),
        ),
        (
            &["--tls-cert", &good, "--tls-key", &open_token],
            2,
            "--tls-key: every user of this machine can write",
        ),
        (&["--listen", "localhost"], 2, "error: invalid value 'localhost' for '--listen"),
        (&["--rules", &bad], 2, &format!("--rules: {bad}:2:14: ")),
        (&["--rules", &busy], 2, &format!("--rules: {busy}: rule `b` limits what is in flight")),
        (&["--rules", "/no/such/file"], 2, "--rules: cannot read /no/such/file: "),
        (&["--token-file", &short], 2, &format!("--token-file: {short} holds no tokens")),
        (&["--api-keys", &keys, "--trusted-headers", "user=X-User-Id,tenant=X-Tenant"], 0, ""),
        (&["--api-keys", "/no/such/file"], 2, "--api-keys: cannot read /no/such/file: "),
        (&["--api-keys", &short], 2, &format!("--api-keys: line 1 of {short} is not a name and")),
        (&["--api-keys", &twice], 2, &format!("--api-keys: line 2 of {twice} has a key that")),
        (&["--api-keys", "/dev/null"], 2, "--api-keys: /dev/null has no key"),
        (&["--trusted-headers", "user"], 2, "error: invalid value 'user' for '--trusted-headers"),
        (&["--trusted-headers", "ip=x"], 2, "error: invalid value 'ip=x' for '--trusted-headers"),
        (
            &["--trusted-proxies", "10.0.0.1/8"],
            2,
            "error: invalid value '10.0.0.1/8' for '--trusted",
        ),
        (&["--max-connections", "0"], 2, "error: invalid value '0' for '--max-connections"),
    ] {
        let output = serve(&["--check-config"]).args(args).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?} gave {err}");
        assert!(err.starts_with(told), "{args:?} gave {err}");
    }
}
