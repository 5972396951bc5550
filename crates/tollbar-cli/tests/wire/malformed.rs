//! Bytes that are no request, or not one that can be answered, sent to the real daemon: each gets its
//! answer, nothing is charged, and the daemon goes on. Bodies of good requests that cannot be used
//! are in the tests of `api`.

use std::io::{Read, Write};
use std::net::Shutdown;

use crate::common::{Daemon, Scratch};

/// One request, then one for each client, for a day.
const RULES: &str = "rules: [{ name: one, limit: 1/day, burst: 1 }]";

/// What comes back when `bytes` are sent and nothing follows.
fn exchange(daemon: &Daemon, bytes: &[u8]) -> String {
    let mut stream = daemon.connect();
    // The daemon may have answered and gone before all is sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    String::from_utf8(response).unwrap()
}

fn post(extra: &str, body: &str) -> Vec<u8> {
    format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\n{extra}\r\n{body}").into_bytes()
}

fn chunked(chunks: &str) -> Vec<u8> {
    post("transfer-encoding: chunked\r\n", chunks)
}

/// The bytes, the beginning of the answer, and what is in it.
fn table() -> Vec<(&'static str, Vec<u8>, &'static str, &'static str)> {
    let long_path = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(1024 * 1024));
    let long_head = format!("a: {}\r\n", "x".repeat(20_000));
    let many_heads: String = "a: x\r\n".repeat(200);
    let bomb = "1000\r\n".to_owned() + &" ".repeat(0x1000) + "\r\n";
    let dust = "1\r\n \r\n".repeat(100_000);
    vec![
        ("nothing", b"".to_vec(), "", ""),
        ("another protocol", b"*1\r\n$4\r\nPING\r\n".to_vec(), "HTTP/1.1 400 ", ""),
        ("TLS", b"\x16\x03\x01\x02\x00".to_vec(), "HTTP/1.1 400 ", ""),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), "", ""),
        ("noise", vec![0xff; 64], "HTTP/1.1 400 ", ""),
        ("no version", b"POST /v1/check\r\n\r\n".to_vec(), "HTTP/1.1 400 ", ""),
        ("a version to come", b"POST /v1/check HTTP/3.0\r\n\r\n".to_vec(), "HTTP/1.1 400 ", ""),
        ("half a head", b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\n".to_vec(), "", ""),
        ("a header without a colon", post("nonsense\r\n", ""), "HTTP/1.1 400 ", ""),
        ("a path of a megabyte", long_path.into_bytes(), "HTTP/1.1 431 ", ""),
        ("a header of 20 kB", post(&long_head, ""), "HTTP/1.1 431 ", ""),
        ("too many headers", post(&many_heads, ""), "HTTP/1.1 431 ", ""),
        (
            "an unknown path",
            b"GET /x HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec(),
            "HTTP/1.1 404 ",
            "there is no such path: ask one of /v1/check, ",
        ),
        (
            "another method",
            b"PUT /v1/check HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec(),
            "HTTP/1.1 405 ",
            "allow: POST, OPTIONS\r\n",
        ),
        (
            "a method in small letters",
            b"post /v1/check HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec(),
            "HTTP/1.1 405 ",
            "",
        ),
        ("no length", post("", "{}"), "HTTP/1.1 400 ", "EOF while parsing a value"),
        ("a length that is no number", post("content-length: x\r\n", "{}"), "HTTP/1.1 400 ", ""),
        ("a negative length", post("content-length: -1\r\n", "{}"), "HTTP/1.1 400 ", ""),
        (
            "two lengths",
            post("content-length: 2\r\ncontent-length: 3\r\n", "{}"),
            "HTTP/1.1 400 ",
            "",
        ),
        (
            "a length above what is sent",
            post("content-length: 9\r\n", "{}"),
            "HTTP/1.1 400 ",
            "the body ended early",
        ),
        (
            "a length below what is sent",
            post("content-length: 1\r\n", "{}"),
            "HTTP/1.1 400 ",
            "EOF while parsing an object",
        ),
        (
            "a length above the bound",
            post("content-length: 262145\r\n", ""),
            "HTTP/1.1 413 ",
            "the body is too large: send at most 262144 bytes",
        ),
        (
            "a length above all",
            post("content-length: 18446744073709551615\r\n", ""),
            "HTTP/1.1 4",
            "",
        ),
        (
            "a chunk without a size",
            chunked("x\r\n"),
            "HTTP/1.1 400 ",
            "the body ended early, or its chunks are none",
        ),
        ("a chunk whose size overflows", chunked("fffffffffffffffff\r\n"), "HTTP/1.1 400 ", ""),
        ("a chunk that is cut", chunked("5\r\n{}"), "HTTP/1.1 400 ", "the body ended early"),
        ("chunks above the bound", chunked(&bomb.repeat(65)), "HTTP/1.1 413 ", "too large"),
        ("dust", chunked(&dust), "HTTP/1.1 413 ", "too many pieces"),
        ("an unknown encoding", post("transfer-encoding: br\r\n", "{}"), "HTTP/1.1 400 ", ""),
        (
            "a body that is no text",
            post("content-length: 2\r\n", "\u{80}"),
            "HTTP/1.1 400 ",
            "expected value at line 1 column 1",
        ),
    ]
}

#[test]
fn what_is_no_request_is_answered_and_charges_nothing() {
    let scratch = Scratch::new("malformed");
    let daemon = Daemon::start(&["--rules", &scratch.file("rules.yaml", RULES)]);
    let mut differences = Vec::new();
    for (name, bytes, begins, has) in table() {
        let response = exchange(&daemon, &bytes);
        let is_same = if begins.is_empty() {
            response.is_empty()
        } else {
            response.starts_with(begins) && response.contains(has)
        };
        if !is_same {
            differences.push(format!("{name}: {response}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    // Nothing of it was charged.
    let response = exchange(&daemon, &post("content-length: 2\r\n", "{}"));
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn requests_in_one_piece_are_answered_in_their_order() {
    let scratch = Scratch::new("pipelined");
    let daemon = Daemon::start(&["--rules", &scratch.file("rules.yaml", RULES)]);
    let mut all = Vec::new();
    for user in ["a", "b", "a"] {
        let body = format!(r#"{{"attributes":{{"user":"{user}"}}}}"#);
        all.extend(post(&format!("content-length: {}\r\n", body.len()), &body));
    }
    all.extend(chunked("2\r\n{}\r\n0\r\n\r\n"));
    all.extend(b"POST http://localhost/v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}");
    all.extend(b"HEAD /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
    all.extend(b"GET /healthz HTTP/1.0\r\n\r\n");
    let response = exchange(&daemon, &all);
    let statuses: Vec<&str> =
        response.split("HTTP/1.").skip(1).map(|part| part.split(' ').nth(1).unwrap()).collect();
    assert_eq!(statuses, ["200", "200", "429", "200", "429", "200", "200"], "{response}");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn who_has_no_token_is_turned_away_before_the_body() {
    let scratch = Scratch::new("before");
    let token = scratch.file("token", "0123456789abcdef");
    let daemon = Daemon::start(&["--token-file", &token]);
    let mut stream = daemon.connect();
    stream
        .write_all(b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n")
        .unwrap();
    let mut first = [0; 12];
    // Not `100 Continue`: the body is not wanted.
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 401");
    drop(stream);
    assert_eq!(daemon.stop(), 0);
}
