//! What attackers send. The upstream writes down every byte, so that what it must not see is known.

use std::time::Duration;

use crate::common::{Client, Recorder, body, builder, listen, open, open_gateway, raw, text};
use http::{Request, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// What becomes of a request.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// Refused with this; the upstream sees nothing.
    Refused(u16),
    /// Passed on, so that the upstream sees one message that ends in this, and can be read in one way.
    Passes(&'static str),
}
use Fate::{Passes, Refused};

fn status(response: &str) -> u16 {
    response.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n";

/// What an attack is called, what follows the first headers and has [`SMUGGLED`] behind it, and what becomes
/// of it.
type Attack = (&'static str, &'static str, Fate);

const LENGTHS: &[Attack] = &[
    (
        "a length and chunks",
        "content-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        Refused(400),
    ),
    (
        "the same the other way round",
        "transfer-encoding: chunked\r\ncontent-length: 60\r\n\r\n0\r\n\r\n",
        Refused(400),
    ),
    (
        "the same with other letters and no spaces",
        "Content-LENGTH:6\r\nTransfer-ENCODING:Chunked\r\n\r\n0\r\n\r\n",
        Refused(400),
    ),
    ("the same length twice", "content-length: 37\r\ncontent-length: 37\r\n\r\n", Refused(400)),
    ("two lengths", "content-length: 0\r\ncontent-length: 37\r\n\r\n", Refused(400)),
    ("a list of lengths", "content-length: 0, 37\r\n\r\n", Refused(400)),
    ("a signed length", "content-length: +37\r\n\r\n", Refused(400)),
    ("a negative length", "content-length: -1\r\n\r\n", Refused(400)),
    ("a length in hex", "content-length: 0x25\r\n\r\n", Refused(400)),
    ("a length beyond all numbers", "content-length: 18446744073709551653\r\n\r\n", Refused(400)),
];

const CODINGS: &[Attack] = &[
    ("another coding", "transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", Refused(501)),
    ("another coding behind", "transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n", Refused(400)),
    (
        "two codings",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
        Refused(400),
    ),
    (
        "chunked twice",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        Refused(501),
    ),
    ("almost chunked", "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n", Refused(400)),
    ("a tab in the coding's name", "transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n", Refused(400)),
    (
        "an extension of a chunk is not passed on",
        "transfer-encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\n\r\n",
        Passes("\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
    ),
    ("a chunk's length that is none", "transfer-encoding: chunked\r\n\r\nzz\r\n", Passes("")),
    (
        "a chunk that is longer than it says",
        "transfer-encoding: chunked\r\n\r\n1\r\nhello\r\n0\r\n\r\n",
        Passes(""),
    ),
];

const LINES: &[Attack] = &[
    ("a folded header", "x-a: b\r\n transfer-encoding: chunked\r\n\r\n", Refused(400)),
    ("a folded first header", " content-length: 37\r\n\r\n", Refused(400)),
    ("a space before the colon", "transfer-encoding : chunked\r\n\r\n0\r\n\r\n", Refused(400)),
    ("a null in a value", "x-a: b\0c\r\n\r\n", Refused(400)),
    ("a null in a name", "x\0a: b\r\n\r\n", Refused(400)),
    ("a name of bytes that no name has", "x(a): b\r\n\r\n", Refused(400)),
    ("a name that is empty", ": b\r\n\r\n", Refused(400)),
    ("a header without a colon", "x-a\r\n\r\n", Refused(400)),
    (
        "a bare return in a value",
        "x-a: b\rtransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        Refused(400),
    ),
    ("a bare line feed behind a header", "x-a: b\ncontent-length: 37\r\n\r\n", Refused(400)),
    ("a bare line feed behind the head", "content-length: 0\r\n\n", Refused(400)),
    ("two hosts", "host: b.example\r\n\r\n", Refused(400)),
];

/// All attacks have a request for `/smuggled` behind them, which must never arrive as one.
#[tokio::test]
async fn nothing_is_smuggled() {
    let recorder = Recorder::start(OK).await;
    let gateway = open_gateway(recorder.address).await;
    for (name, rest, fate) in [LENGTHS, CODINGS, LINES].concat() {
        let start = "POST /a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n";
        let attack = format!("{start}{rest}{SMUGGLED}");
        let response = raw(gateway, attack.as_bytes()).await;
        let seen = recorder.seen();
        assert!(!seen.contains("GET /smuggled"), "{name}: smuggled: {seen:?}");
        match fate {
            Refused(expected) => {
                assert_eq!(status(&response), expected, "{name}: {response:?}");
                assert_eq!(response.matches("HTTP/1.1 ").count(), 1, "{name}: {response:?}");
                assert_eq!(seen, "", "{name}");
            }
            Passes(end) => {
                let heads = seen.matches(" HTTP/1.1\r\n").count();
                assert!(heads <= 1, "{name}: {seen:?}");
                assert!(seen.ends_with(end), "{name}: {seen:?}");
                let seen = seen.to_lowercase();
                let framings = ["content-length", "transfer-encoding"];
                let framings = framings.map(|name| seen.matches(name).count());
                assert!(framings.iter().sum::<usize>() <= 1, "{name}: {seen:?}");
            }
        }
    }
}

/// Whole heads of which others may read another.
#[tokio::test]
async fn heads_that_can_be_read_in_two_ways_are_refused() {
    let recorder = Recorder::start(OK).await;
    let gateway = open_gateway(recorder.address).await;
    for (head, expected) in [
        ("GET /a HTTP/1.1\nhost: a\nx-b: c\nconnection: close\n\n", 400),
        ("GET /a HTTP/1.1\nhost: a\r\n\r\n", 400),
        ("\nGET /a HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET /a HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("GET  /a HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET /a\tHTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET /a b HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET /\0 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("G(T / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        // A host in the target that is not the host that is asked for.
        ("GET http://b.example/x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", 400),
        ("GET http://a:81/x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", 400),
    ] {
        let response = raw(gateway, head.as_bytes()).await;
        assert_eq!(status(&response), expected, "{head:?}: {response:?}");
        assert_eq!(recorder.seen(), "", "{head:?}");
    }
}

/// The one that is refused ends the connection, and those before it are answered.
#[tokio::test]
async fn a_flawed_request_in_a_pipeline_is_refused_in_its_turn() {
    let recorder = Recorder::start(OK).await;
    let gateway = open_gateway(recorder.address).await;
    let good = "POST /good HTTP/1.1\r\nhost: a\r\ncontent-length: 19\r\n\r\ncontent-length: 1\r\n\
                POST /good HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n\
                5\r\nhello\r\n0\r\nx-trailer: y\r\n\r\n";
    let bad = "POST /bad HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\ntransfer-encoding: chunked\r\n\r\n\
               0\r\n\r\n";
    let response = raw(gateway, [good, bad, SMUGGLED, SMUGGLED].concat().as_bytes()).await;
    let statuses: Vec<&str> =
        response.match_indices("HTTP/1.1 ").map(|(at, _)| &response[at + 9..at + 12]).collect();
    assert_eq!(statuses, ["200", "200", "400"], "{response}");
    let (_, last) = response.rsplit_once("HTTP/1.1 ").unwrap();
    assert!(last.contains("\r\nconnection: close\r\n"), "{last}");
    assert!(last.contains("\r\ncontent-type: application/problem+json\r\n"), "{last}");
    assert!(last.contains("both a length and chunks"), "{last}");
    let seen = recorder.seen();
    assert_eq!(seen.matches("POST /good ").count(), 2, "{seen}");
    assert!(!seen.contains("/bad") && !seen.contains("/smuggled"), "{seen}");
}

#[tokio::test]
async fn methods_and_targets_for_other_proxies_are_refused() {
    let recorder = Recorder::start(OK).await;
    let gateway = open_gateway(recorder.address).await;
    for (start, expected) in [
        ("CONNECT b.example:443 HTTP/1.1\r\nhost: b.example:443\r\n", 405),
        ("TRACE / HTTP/1.1\r\nhost: a\r\n", 405),
        ("GET / HTTP/1.1\r\n", 400),
        ("GET http://u@b.example/ HTTP/1.1\r\nhost: a\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a, b\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: u@a\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a b\r\n", 400),
        ("GET / HTTP/1.1\r\nhost:\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n", 501),
        ("GET / HTTP/3.0\r\nhost: a\r\n", 400),
        ("GARBAGE\r\n", 400),
    ] {
        // Without `connection: close`: the gateway ends the connection, and reads nothing of what follows.
        let response = raw(gateway, format!("{start}\r\n{SMUGGLED}").as_bytes()).await;
        assert_eq!(status(&response), expected, "{start}: {response}");
        assert_eq!(response.matches("HTTP/1.1 ").count(), 1, "{start}: {response}");
        assert_eq!(recorder.seen(), "", "{start}");
    }
    // A target may name the host, if it is the same.
    let absolute =
        "GET http://b.example/x HTTP/1.1\r\nhost: B.example\r\nconnection: close\r\n\r\n";
    assert_eq!(status(&raw(gateway, absolute.as_bytes()).await), 200);
    let seen = recorder.seen();
    assert!(seen.starts_with("GET /x HTTP/1.1\r\nhost: b.example\r\n"), "{seen:?}");
}

#[tokio::test]
async fn heads_have_bounds() {
    let recorder = Recorder::start(OK).await;
    let gateway = open_gateway(recorder.address).await;
    let long = |bytes: usize| "a".repeat(bytes);
    let many = |count: usize| "x: y\r\n".repeat(count);
    for (name, head, expected) in [
        ("a long URL", format!("GET /{} HTTP/1.1\r\nhost: a\r\n", long(9_000)), 414),
        ("a URL of a megabyte", format!("GET /{} HTTP/1.1\r\nhost: a\r\n", long(1 << 20)), 414),
        ("a long query", format!("GET /?{} HTTP/1.1\r\nhost: a\r\n", long(9_000)), 414),
        ("a large header", format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n", long(40_000)), 431),
        (
            "a header of a megabyte",
            format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n", long(1 << 20)),
            431,
        ),
        // With `host` and `connection`, one more than there may be.
        ("a header too many", format!("GET / HTTP/1.1\r\nhost: a\r\n{}", many(98)), 431),
        ("many headers", format!("GET / HTTP/1.1\r\nhost: a\r\n{}", many(200)), 431),
        ("very many headers", format!("GET / HTTP/1.1\r\nhost: a\r\n{}", many(100_000)), 431),
    ] {
        let response = raw(gateway, format!("{head}connection: close\r\n\r\n").as_bytes()).await;
        assert_eq!(status(&response), expected, "{name}: {response:.200}");
        assert!(response.contains("application/problem+json"), "{name}: {response:.200}");
        assert_eq!(recorder.seen(), "", "{name}");
    }
    let mut client = Client::connect(gateway, Version::HTTP_2).await;
    let bomb = Request::get("/").header("x", long(60_000)).body(body("")).unwrap();
    assert_eq!(client.try_send(bomb).await.unwrap().status(), 431);
    let bomb = Request::get(format!("/{}", long(9_000))).body(body("")).unwrap();
    assert_eq!(client.try_send(bomb).await.unwrap().status(), 414);
    assert_eq!(recorder.seen(), "");
    // And what is within them passes.
    let most = format!("GET / HTTP/1.1\r\nhost: a\r\n{}connection: close\r\n\r\n", many(97));
    assert_eq!(status(&raw(gateway, most.as_bytes()).await), 200);
    let large = Request::get("/").header("x", long(7_000)).body(body("")).unwrap();
    assert_eq!(text(client.send(large).await).await, "ok");
}

/// A client that sends nothing at all, and one that stops behind its first request.
#[tokio::test]
async fn each_head_has_its_time_and_silence_has_too() {
    let upstream = Recorder::start(OK).await;
    let builder = builder(upstream.address).head_time_max(Duration::from_millis(300));
    let gateway = listen(open(builder)).await;
    let asks = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    let begins = "GET / HTTP/1.1\r\nhost: ";
    for (sent, count) in [("", 0), (begins, 0), (asks, 1), (&[asks, begins].concat(), 1)] {
        // It ends, though the client does not end it.
        let answers = raw(gateway, sent.as_bytes()).await;
        assert_eq!(answers.matches("HTTP/1.1 200").count(), count, "{sent:?}: {answers}");
    }
}

/// A connection that is closed over unread bytes is reset, and the answer may be lost with it.
#[tokio::test]
async fn whoever_is_refused_in_the_middle_can_finish_and_read_why() {
    let recorder = Recorder::start(OK).await;
    let gateway = open_gateway(recorder.address).await;
    let mut stream = tokio::net::TcpStream::connect(gateway).await.unwrap();
    stream.write_all(b"GET /").await.unwrap();
    for _ in 0..64 {
        stream.write_all(&vec![b'a'; 64 * 1_024]).await.expect("it is taken");
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("there is an end");
    assert_eq!(status(&answer), 414, "{answer}");
}

#[tokio::test]
async fn other_versions_of_http_are_no_protocol_to_change_to() {
    let recorder = Recorder::start(OK).await;
    let gateway = open_gateway(recorder.address).await;
    let attack = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade, http2-settings, close\r\n\
                  upgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n";
    assert_eq!(status(&raw(gateway, attack.as_bytes()).await), 200);
    let seen = recorder.seen().to_lowercase();
    assert!(!seen.contains("h2c") && !seen.contains("http2-settings"), "{seen:?}");
    assert!(!seen.contains("upgrade"), "{seen:?}");
}

/// Clients that offer another version of HTTP with their first request, and go on without it, lose nothing.
#[tokio::test]
async fn a_connection_goes_on_after_an_upgrade_that_was_not_made() {
    let recorder = Recorder::start(OK).await;
    let gateway = open_gateway(recorder.address).await;
    let mut stream = tokio::net::TcpStream::connect(gateway).await.unwrap();
    let offer = "GET /offer HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n";
    let mut answer = async |request: &str| {
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nok") && stream.read_buf(&mut answer).await.unwrap() > 0 {}
        String::from_utf8(answer).unwrap()
    };
    for _ in 0..3 {
        assert_eq!(status(&answer(offer).await), 200);
        assert_eq!(status(&answer(SMUGGLED).await), 200);
    }
    // What comes behind such a request before its answer may not be HTTP: it is not taken for it.
    let both = [offer, SMUGGLED].concat();
    let answers = raw(gateway, both.as_bytes()).await;
    assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 1, "{answers}");
    assert_eq!(answers.matches("HTTP/1.1 400 ").count(), 1, "{answers}");
    assert!(answers.contains("where the request begins is not clear"), "{answers}");
}

/// An upstream that changes the protocol when nobody has asked it to.
#[tokio::test]
async fn an_upgrade_that_nobody_asked_for_is_no_answer() {
    let answer =
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let recorder = Recorder::start(answer).await;
    let gateway = open_gateway(recorder.address).await;
    let response = raw(gateway, b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert_eq!(status(&response), 502, "{response}");
}
