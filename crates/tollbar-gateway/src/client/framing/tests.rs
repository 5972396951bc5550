//! What is found in bytes, however they are cut into reads.

use std::ops::ControlFlow;

use proptest::prelude::*;

use super::differential::compare_framing;
use super::*;

/// What comes of bytes that are read in pieces of this size: how many heads, and how it ends.
fn read(bytes: &[u8], piece: usize) -> (u64, Option<FramingEnd>) {
    let mut framing = Framing::new(HeadBounds::default());
    for piece in bytes.chunks(piece) {
        if let ControlFlow::Break(end) = framing.read(piece) {
            return (framing.head_count, Some(end));
        }
    }
    (framing.head_count, None)
}

/// The flaw of the last head, however it is read.
fn flaw(bytes: &[u8]) -> Option<HeadError> {
    let flaws: Vec<_> = [1, 2, 3, 7, 24, 61, 1 << 20]
        .map(|piece| match read(bytes, piece).1 {
            Some(FramingEnd::Refused { flaw, .. }) => Some(flaw),
            Some(FramingEnd::Broken) => panic!("broken: {}", bytes.escape_ascii()),
            None => None,
        })
        .to_vec();
    assert!(flaws.iter().all(|flaw| *flaw == flaws[0]), "{flaws:?} of {}", bytes.escape_ascii());
    flaws[0]
}

#[test]
fn what_a_parser_lets_pass_is_found() {
    for (head, expected) in [
        ("host: a\r\n", None),
        ("content-length: 0\r\n", None),
        ("Content-Length:3\r\n", None),
        ("transfer-encoding: chunked\r\n", None),
        ("x-content-length: 3\r\ntransfer-encoding: chunked\r\n", None),
        ("content-length: 3\r\ntransfer-encoding: chunked\r\n", Some(HeadError::LengthAndChunks)),
        (
            "TRANSFER-ENCODING:chunked\r\na: b\r\ncontent-LENGTH:3\r\n",
            Some(HeadError::LengthAndChunks),
        ),
        ("content-length: 0\r\ntransfer-encoding: chunked\r\n", Some(HeadError::LengthAndChunks)),
        ("content-length: 3\r\ncontent-length: 3\r\n", Some(HeadError::BadLength)),
        ("content-length: 3\r\ncontent-length: 4\r\n", Some(HeadError::BadLength)),
        ("content-length: 3, 3\r\n", Some(HeadError::BadLength)),
        ("content-length: +3\r\n", Some(HeadError::BadLength)),
        ("content-length: 0x3\r\n", Some(HeadError::BadLength)),
        ("content-length:\r\n", Some(HeadError::BadLength)),
        ("content-length: 18446744073709551616\r\n", Some(HeadError::BadLength)),
        ("content-length: 000000000000000000003\r\n", Some(HeadError::BadLength)),
        ("host: a\nx: y\r\n", Some(HeadError::BareLineFeed)),
    ] {
        for start in ["GET / HTTP/1.1\r\n", "\r\n\r\nPOST /a?b HTTP/1.1\r\n"] {
            assert_eq!(flaw(format!("{start}{head}\r\n").as_bytes()), expected, "{head:?}");
        }
    }
    assert_eq!(flaw(b"GET / HTTP/1.1\nhost: a\r\n\r\n"), Some(HeadError::BareLineFeed));
    assert_eq!(flaw(b"GET / HTTP/1.1\r\nhost: a\r\n\n"), Some(HeadError::BareLineFeed));
}

#[test]
fn heads_are_found_behind_bodies_of_all_kinds() {
    let bodies = [
        "GET / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: 35\r\n\r\ncontent-length: 1\r\nGET / HTTP/1.1\r\n",
        "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1D ;a=b\r\n0\r\n\r\nGET / HTTP/1.1\r\na: b\r\n\r\n\r\n\
         00000a\r\n0123456789\r\n0;x\r\nx-trailer: y\r\ncontent-length: 7\r\n\r\n",
        "\r\nHEAD / HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
    ];
    let all = bodies.concat().repeat(3);
    for piece in [1, 2, 3, 5, 8, 64, 1 << 20] {
        assert_eq!(read(all.as_bytes(), piece), (15, None), "in pieces of {piece}");
    }
    // And the flaw of one behind them is that of its own number.
    let flawed = format!("{all}GET / HTTP/1.1\nhost: a\r\n\r\n");
    assert!(matches!(read(flawed.as_bytes(), 5), (16, Some(FramingEnd::Refused { .. }))));
}

#[test]
fn bodies_that_are_not_what_they_say_are_broken() {
    for body in [
        "zz\r\n",
        "\r\n",
        ";a\r\n",
        "-1\r\n",
        "1\r\nab\r\n",
        "1\na\r\n",
        "0\r\nx: y\n\r\n",
        "00000000000000000000000000001\r\na\r\n",
        "fffffffffffffffff\r\n",
    ] {
        let bytes = format!("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{body}");
        for piece in [1, 4, 1 << 20] {
            assert_eq!(read(bytes.as_bytes(), piece).1, Some(FramingEnd::Broken), "{body:?}");
        }
    }
}

/// What is handed on of a head that is too long, with what is put behind it.
fn cut(bytes: &[u8], piece: usize) -> (HeadError, Vec<u8>) {
    let mut framing = Framing::new(HeadBounds::default());
    let mut handed_on = Vec::new();
    for piece in bytes.chunks(piece) {
        match framing.read(piece) {
            ControlFlow::Continue(()) => handed_on.extend_from_slice(piece),
            ControlFlow::Break(FramingEnd::Refused { flaw, taken, rest }) => {
                handed_on.extend_from_slice(&piece[..taken]);
                handed_on.extend_from_slice(rest);
                return (flaw, handed_on);
            }
            ControlFlow::Break(FramingEnd::Broken) => panic!("broken"),
        }
    }
    panic!("all of it is handed on")
}

#[test]
fn a_head_that_is_too_long_becomes_a_whole_one_that_is_shorter() {
    let long = "a".repeat(1 << 20);
    let start = "GET / HTTP/1.1\r\n";
    for (head, expected) in [
        (format!("GET /{long} HTTP/1.1\r\n\r\n"), HeadError::LongUri),
        (long.clone(), HeadError::LongUri),
        (format!("{start}x: {long}\r\n\r\n"), HeadError::LargeHeaders),
        (format!("{start}{long}"), HeadError::LargeHeaders),
        (format!("{start}{}", "x: y\r\n".repeat(100_000)), HeadError::LargeHeaders),
        (
            format!("{start}{}", format!("x: {}\r\n", &long[..2_000]).repeat(60)),
            HeadError::LargeHeaders,
        ),
    ] {
        for piece in [1, 7, 4_096, 65_536, 1 << 21] {
            let (flaw, handed_on) = cut(head.as_bytes(), piece);
            assert_eq!(flaw, expected);
            assert!(handed_on.len() < 96 * 1_024, "{} bytes", handed_on.len());
            assert!(handed_on.ends_with(b"\r\n\r\n"));
            assert_eq!(handed_on.windows(4).filter(|window| window == b"\r\n\r\n").count(), 1);
        }
    }
}

#[test]
fn what_may_not_be_http_is_not_read() {
    // HTTP/2, and only at the beginning.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\na\n\n";
    assert_eq!(read(preface, 5), (0, None));
    let behind = [b"GET / HTTP/1.1\r\n\r\n", &preface[..]].concat();
    assert!(matches!(
        read(&behind, 5),
        (4, Some(FramingEnd::Refused { flaw: HeadError::BareLineFeed, .. }))
    ));
    // A protocol that may change.
    let mut framing = Framing::new(HeadBounds::default());
    let asks = b"GET / HTTP/1.1\r\nupgrade: x\r\n\r\n";
    assert!(framing.read(asks).is_continue() && framing.is_undecided());
    framing.stay();
    assert!(framing.read(asks).is_continue());
    assert_eq!(framing.head_count, 2);
    assert!(framing.read(b"\n\n\n\n").is_continue());
    framing.stay();
    assert!(framing.read(asks).is_continue());
    assert_eq!(framing.head_count, 2, "it cannot be known what that was");
}

/// The seeds of the fuzz target, which has the same check.
#[tokio::test]
async fn hyper_sees_the_requests_that_the_framing_sees() {
    for (bytes, seen) in [
        ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", 1),
        (
            "\r\n\r\nGET / HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\nconnection: close\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            2,
        ),
        (
            "POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nabcPUT / HTTP/1.1\r\ncontent-length: 1\r\n\r\n",
            2,
        ),
        (
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nt: u\r\n\r\n\
             GET / HTTP/1.1\r\n\r\n",
            2,
        ),
        ("POST / HTTP/1.1\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd", 0),
        ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\nabcd", 1),
        ("GET / HTTP/1.1\r\nupgrade: x\r\n\r\nGET / HTTP/1.1\r\n\r\n", 1),
        ("GET / HTTP/1.0\r\n\r\nGET / HTTP/1.1\r\n\r\n", 1),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0),
    ] {
        assert_eq!(compare_framing(bytes.as_bytes()).await, Ok(seen), "{bytes:?}");
    }
}

proptest! {
    /// Whatever comes: no panic, and how it is cut into reads changes nothing.
    #[test]
    fn pieces_make_no_difference(
        parts in prop::collection::vec(
            prop_oneof![
                Just("GET / HTTP/1.1\r\n"), Just("host: a\r\n"), Just("\r\n"), Just("\n"), Just("\r"),
                Just("content-length: 5\r\n"), Just("transfer-encoding: chunked\r\n"), Just("hello"),
                Just("5\r\n"), Just("0\r\n"), Just("upgrade: x\r\n"), Just("Content-Length: 0\r\n"),
            ],
            0..24,
        ),
        piece in 1_usize..40,
    ) {
        let bytes = parts.concat();
        let whole = read(bytes.as_bytes(), 1 << 20);
        let cut = read(bytes.as_bytes(), piece);
        let kind = |end: Option<FramingEnd>| end.map(|end| match end {
            FramingEnd::Refused { flaw, .. } => Some(flaw),
            FramingEnd::Broken => None,
        });
        prop_assert_eq!((whole.0, kind(whole.1)), (cut.0, kind(cut.1)));
    }
}
