//! Parts of messages that proxies lose: characters that stand in no URI, interim responses, and trailers of requests.

#![expect(clippy::disallowed_methods, reason = "a test that panics is seen")]

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Version};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tollbar_gateway::{UpstreamOptions, UpstreamProtocol};

use crate::common::{
    AnyBody, Client, PATIENCE, Recorder, body, builder, listen, open, open_gateway, raw, text,
    upstream,
};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Other proxies let these pass; we answered 400.
#[tokio::test]
async fn characters_that_stand_in_no_uri_pass_encoded() {
    let recorder = Recorder::start(OK).await;
    let gateway = open_gateway(recorder.address).await;
    let requests = [
        ("/a?q=\"x\"&r=<b>", "/a?q=%22x%22&r=%3Cb%3E"),
        ("/<a>/`?\"", "/%3Ca%3E/%60?%22"),
        ("/a?q=%22", "/a?q=%22"),
    ];
    let message = |target: &str, last: &str| {
        format!(
            "POST {target} HTTP/1.1\r\nhost: a\r\nx-kept: \"<`>\"\r\n{last}content-length: 9\r\n\r\n\
             \"/<x> y>\""
        )
    };
    let all = [
        message(requests[0].0, ""),
        message(requests[1].0, ""),
        message(requests[2].0, "connection: close\r\n"),
    ];
    // In one piece, and in pieces that cut everything there is.
    for piece in [usize::MAX, 1, 7] {
        let mut stream = TcpStream::connect(gateway).await.unwrap();
        stream.set_nodelay(true).unwrap();
        for bytes in all.concat().as_bytes().chunks(piece.min(4_096)) {
            stream.write_all(bytes).await.unwrap();
            tokio::task::yield_now().await;
        }
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 3, "{answer}");
        let seen = recorder.seen();
        for (_, expected) in requests {
            assert!(seen.contains(&format!("POST {expected} HTTP/1.1\r\n")), "{seen}");
        }
        assert_eq!(seen.matches("x-kept: \"<`>\"\r\n").count(), 3, "only targets change: {seen}");
        assert_eq!(seen.matches("\"/<x> y>\"").count(), 3, "only targets change: {seen}");
    }
    // What is no request stays none.
    for target in ["G\"T / HTTP/1.1", "GET / HTTP/1.1\"", "GET http://\"a\"/ HTTP/1.1"] {
        let answer = raw(gateway, format!("{target}\r\nhost: a\r\n\r\n").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{target}: {answer}");
        assert_eq!(recorder.seen(), "");
    }
    let long = format!("GET /?{} HTTP/1.1\r\nhost: a\r\n\r\n", "<".repeat(8_000));
    assert!(raw(gateway, long.as_bytes()).await.starts_with("HTTP/1.1 414 "));
}

/// An upstream that writes these texts for each request, one after another, each when it was read.
async fn scripted_upstream(texts: &'static [&'static str]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while let Ok(byte) = stream.read_u8().await {
                    head.push(byte);
                    if head.ends_with(b"\r\n\r\n") {
                        head.clear();
                        for text in texts {
                            stream.write_all(text.as_bytes()).await.unwrap();
                            stream.flush().await.unwrap();
                        }
                    }
                }
            });
        }
    });
    address
}

async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut seen = Vec::new();
    let read = async {
        while !seen.ends_with(end.as_bytes()) {
            seen.push(stream.read_u8().await.unwrap());
        }
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap();
    String::from_utf8(seen).unwrap()
}

/// Early hints were dropped, so that browsers waited for the page to learn what to load.
#[tokio::test]
async fn early_hints_come_before_the_response() {
    // The final response is held back until the client has read the hint.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = open_gateway(listener.local_addr().unwrap()).await;
    let mut client = TcpStream::connect(gateway).await.unwrap();
    let mut upstream: Option<TcpStream> = None;
    for turn in 0..3 {
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        if upstream.is_none() {
            upstream = Some(listener.accept().await.unwrap().0);
        }
        let upstream = upstream.as_mut().unwrap();
        read_until(upstream, "\r\n\r\n").await;
        let hint = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nConnection: x-own\r\nx-own: 1\r\n\r\n";
        upstream.write_all(hint.as_bytes()).await.unwrap();
        let seen = read_until(&mut client, "\r\n\r\n").await;
        assert_eq!(
            seen, "HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload\r\n\r\n",
            "{turn}"
        );
        upstream.write_all(OK).await.unwrap();
        let seen = read_until(&mut client, "\r\n\r\nok").await;
        assert!(seen.starts_with("HTTP/1.1 200 OK\r\n"), "{seen}");
        assert!(!seen.contains("link"), "{seen}");
    }
}

#[tokio::test]
async fn interim_responses_keep_their_order_and_have_a_bound() {
    const MANY: &[&str] = &[
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ];
    let gateway = open_gateway(scripted_upstream(MANY).await).await;
    let get = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    let last = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    // Pipelined, so that each response is written while the next request is there.
    let answers = raw(gateway, format!("{}{last}", get.repeat(50)).as_bytes()).await;
    let statuses: Vec<&str> = answers.matches("HTTP/1.1 ").collect();
    assert_eq!(statuses.len(), 51 * 3, "{answers}");
    let order: Vec<&str> = answers
        .lines()
        .filter_map(|line| line.split_once("HTTP/1.1 ").map(|(_, status)| &status[..3]))
        .collect();
    assert!(order.chunks(3).all(|one| one == ["102", "103", "200"]), "{order:?}");
    // HTTP/1.0 and HTTP/2 get the final response alone.
    let old = raw(gateway, b"GET / HTTP/1.0\r\nhost: a\r\n\r\n").await;
    assert!(old.starts_with("HTTP/1.0 200 OK\r\n"), "{old}");
    let mut client = Client::connect(gateway, Version::HTTP_2).await;
    assert_eq!(text(client.send(crate::common::get("/")).await).await, "ok");

    let gateway = open_gateway(scripted_upstream(&FLOODED).await).await;
    let answer = raw(gateway, last.as_bytes()).await;
    assert_eq!(answer.matches("103 Early Hints").count(), 8, "{answer}");
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
}

/// Sixty early hints, and the response.
static FLOODED: [&str; 61] = {
    let mut texts = ["HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n"; 61];
    texts[60] = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    texts
};

/// Answers with the trailers of the request, sorted, and the length of its body.
async fn tell_trailers(request: Request<hyper::body::Incoming>) -> Response<AnyBody> {
    let collected = request.into_body().collect().await.unwrap();
    let mut lines: Vec<String> = collected
        .trailers()
        .into_iter()
        .flatten()
        .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
        .collect();
    lines.sort();
    Response::new(body(format!("{} {}", collected.to_bytes().len(), lines.join(" "))))
}

fn with_trailers(
    request: http::request::Builder,
    pieces: usize,
    trailers: &[(&'static str, &'static str)],
) -> Request<AnyBody> {
    let line = |(name, value): &(&'static str, &'static str)| {
        (HeaderName::from_static(name), HeaderValue::from_static(value))
    };
    let trailers: HeaderMap = trailers.iter().map(line).collect();
    let piece = Bytes::from(vec![b'x'; 16 * 1024]);
    let frames = (0..pieces).map(move |_| Frame::data(piece.clone()));
    let frames = frames.chain([Frame::trailers(trailers)]).map(Ok::<_, Infallible>);
    let stream = StreamBody::new(futures_util::stream::iter(frames));
    request.body(BodyExt::boxed(stream.map_err(|never| match never {}))).unwrap()
}

/// A checksum behind an upload was lost on its way to an upstream over HTTP/1.1.
#[tokio::test]
async fn trailers_of_requests_reach_the_upstream_and_forbidden_ones_do_not() {
    let upstream = upstream(tell_trailers).await;
    let trailers = [
        ("x-checksum", "7"),
        ("x-other", "8"),
        ("content-length", "5"),
        ("transfer-encoding", "chunked"),
        ("host", "b.example"),
        ("authorization", "Bearer x"),
        ("cookie", "a=b"),
        ("if-match", "x"),
        ("x-forwarded-for", "192.0.2.1"),
        ("x_real_ip", "192.0.2.1"),
        ("x-user-id", "1"),
        ("connection", "x-checksum"),
        ("trailer", "x"),
    ];
    for asked in [Version::HTTP_11, Version::HTTP_2] {
        for protocol in [UpstreamProtocol::Http1, UpstreamProtocol::Http2] {
            let mut options = UpstreamOptions::default();
            options.protocol = protocol;
            let gateway = listen(open(builder(upstream).upstream(options))).await;
            let mut client = Client::connect(gateway, asked).await;
            // Few pieces go out with the head, many fill every buffer on the way.
            for pieces in [0, 1, 400] {
                // Our client sends only what it announces over HTTP/1.1, and HTTP/2 lets no header of connections pass.
                let names = trailers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(",");
                let (request, sent) = match asked {
                    Version::HTTP_2 => (Request::post("/"), &trailers[..3]),
                    _ => (Request::post("/").header("trailer", names), &trailers[..]),
                };
                let response = client.send(with_trailers(request, pieces, sent)).await;
                let told = text(response).await;
                let expected = format!("{} x-checksum=7 x-other=8", pieces * 16 * 1024);
                assert_eq!(told, expected, "{asked:?} to {protocol:?}");
                // The connection goes on behind them.
                let plain = Request::post("/").body(body("hello")).unwrap();
                assert_eq!(text(client.send(plain).await).await, "5 ");
            }
        }
    }
}

/// The bytes themselves: what no parser in between has repaired.
#[tokio::test]
async fn chunks_end_with_the_trailers_that_pass() {
    let recorder = Recorder::start(OK).await;
    let gateway = open_gateway(recorder.address).await;
    let start =
        "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    for (rest, expected) in [
        ("5\r\nhello\r\n0\r\nX-Sum: 7\r\n\r\n", "5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n"),
        ("5\r\nhello\r\n0\r\nhost: b\r\nContent-Length: 3\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n"),
        ("0\r\nx-sum: 7\r\nx-sum: 8\r\n\r\n", "\r\n\r\n0\r\nx-sum: 7\r\nx-sum: 8\r\n\r\n"),
        ("5\r\nhello\r\n0\r\nX_User_Id: 7\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n"),
    ] {
        let answer = raw(gateway, format!("{start}{rest}").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let seen = recorder.seen();
        assert!(seen.ends_with(expected), "{rest:?}: {seen:?}");
    }
}
