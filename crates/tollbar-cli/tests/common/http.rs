//! HTTP as the tests speak it: a request that closes its connection, and the whole answer.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

/// An answer, taken apart.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// A request with these lines of headers, each with its end.
pub(crate) fn request_with(
    method: &str,
    target: &str,
    lines: &str,
    body: impl AsRef<[u8]>,
) -> Vec<u8> {
    let body = body.as_ref();
    let length = match (method, body.len()) {
        ("GET", 0) => String::new(),
        (_, length) => format!("content-length: {length}\r\n"),
    };
    let head = format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    [format!("{head}{lines}{length}\r\n").as_bytes(), body].concat()
}

/// All that comes back for a request. What is refused may be answered and closed before all of it was sent, so only
/// the answer counts.
pub(crate) fn exchange(mut stream: impl Read + Write, request: impl AsRef<[u8]>) -> String {
    let _ = stream.write_all(request.as_ref());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// The answer to a request at `address`; `None` where nobody is there, or goes away before the end of a head.
pub(crate) fn ask(
    address: &str,
    method: &str,
    target: &str,
    lines: &str,
    body: impl AsRef<[u8]>,
) -> Option<Answer> {
    let stream = TcpStream::connect(address).ok()?;
    Answer::read(&exchange(stream, request_with(method, target, lines, body)))
}

/// The status of a response.
pub(crate) fn status(response: &str) -> u16 {
    let status = response.split(' ').nth(1).and_then(|code| code.parse().ok());
    status.unwrap_or_else(|| panic!("no status in {response:?}"))
}

impl Answer {
    pub(crate) fn read(response: &str) -> Option<Self> {
        let (head, body) = response.split_once("\r\n\r\n")?;
        let mut answer =
            Self { status: status(response), head: head.to_owned(), body: body.to_owned() };
        if answer.header("transfer-encoding") == "chunked" {
            answer.body = unchunked(body);
        }
        Some(answer)
    }

    /// A header's value; the empty text where it is absent.
    pub(crate) fn header(&self, name: &str) -> &str {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let mut values = lines.filter(|(header, _)| header.eq_ignore_ascii_case(name));
        values.next().map_or("", |(_, value)| value)
    }

    pub(crate) fn etag(&self) -> String {
        let etag = self.header("etag");
        assert_ne!(etag, "", "no etag in {}", self.head);
        etag.to_owned()
    }

    /// The JSON of an answer that has this status.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}\n{}", self.head, self.body);
        if self.body.is_empty() { Value::Null } else { serde_json::from_str(&self.body).unwrap() }
    }

    /// A problem of this status and code; its first field, or nothing.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, code: &str) -> String {
        let problem = self.expect(status);
        assert!(self.head.contains("content-type: application/problem+json"), "{}", self.head);
        assert_eq!(
            (&problem["code"], &problem["status"]),
            (&json!(code), &json!(status)),
            "{problem}"
        );
        assert_eq!(problem["type"], "about:blank");
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
        problem["errors"][0]["field"].as_str().unwrap_or_default().to_owned()
    }
}

/// A body that was sent in pieces, the last of which is empty.
fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, after)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            return whole;
        }
        whole.push_str(&after[..length]);
        body = &after[length + 2..];
    }
    panic!("the body was cut off");
}
