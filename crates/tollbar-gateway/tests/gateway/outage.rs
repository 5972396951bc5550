//! Upstreams that are down, slow, or die in the middle.

#![expect(clippy::disallowed_methods, reason = "a test that panics is seen")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{
    AnyBody, Client, PATIENCE, body, builder, engine, get, listen, open, raw, text, upstream,
};
use bytes::Bytes;
use http::{Request, Response, StatusCode, Version};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, advance, timeout};
use tollbar_gateway::{BreakerOptions, UpstreamOptions, UpstreamProtocol};

fn quick() -> UpstreamOptions {
    let mut options = UpstreamOptions::default();
    options.first_byte_time_max = Duration::from_millis(100);
    options.idle_time_max = Duration::from_millis(100);
    options
}

/// A body whose frames come from elsewhere.
fn streamed() -> (mpsc::Sender<Bytes>, AnyBody) {
    let (sender, mut receiver) = mpsc::channel(1);
    let frames = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
    let frames = futures_util::StreamExt::map(frames, |bytes| Ok(Frame::data(bytes)));
    (sender, BodyExt::boxed(StreamBody::new(frames)))
}

async fn nobody() -> std::net::SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_a_problem_that_says_nothing_about_it() {
    let upstream = nobody().await;
    let mut client = Client::connect(listen(open(builder(upstream))).await, Version::HTTP_11).await;
    let response = client.send(get("/")).await;
    assert_eq!(response.status(), 502);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    assert_eq!(response.headers()["x-ratelimit-limit"], "1000000", "it was counted");
    let text = text(response).await;
    assert!(text.contains("\"status\":502"), "{text}");
    assert!(!text.contains("refused") && !text.contains(&upstream.port().to_string()), "{text}");
}

#[tokio::test]
async fn a_slow_upstream_is_504_over_each_version() {
    let upstream = upstream(|_| std::future::pending::<Response<AnyBody>>()).await;
    for protocol in [UpstreamProtocol::Http1, UpstreamProtocol::Http2] {
        let mut options = quick();
        options.protocol = protocol;
        let gateway = listen(open(builder(upstream).upstream(options))).await;
        let mut client = Client::connect(gateway, Version::HTTP_11).await;
        assert_eq!(client.send(get("/")).await.status(), 504);
    }
}

/// A client that keeps its body to itself is not the upstream's fault, and does not open the breaker.
#[tokio::test]
async fn a_slow_client_is_408_and_no_outage() {
    let upstream = upstream(crate::common::tell).await;
    let mut options = quick();
    options.breaker = BreakerOptions { failure_count: 1, ..BreakerOptions::default() };
    let gateway = listen(open(builder(upstream).upstream(options))).await;
    for _ in 0..3 {
        let (_sender, slow) = streamed();
        let mut client = Client::connect(gateway, Version::HTTP_2).await;
        let request = Request::post("/").body(slow).unwrap();
        assert_eq!(client.send(request).await.status(), 408);
    }
    let mut client = Client::connect(gateway, Version::HTTP_11).await;
    assert_eq!(client.send(get("/")).await.status(), 200);
}

/// The client must never take half an answer for a whole one.
#[tokio::test]
async fn an_upstream_that_dies_in_the_middle_breaks_the_body() {
    let answers: [&[u8]; 2] = [
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ];
    for answer in answers {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 1_024];
                let _ = stream.read(&mut request).await;
                stream.write_all(answer).await.unwrap();
            }
        });
        let gateway = listen(open(builder(upstream))).await;
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let mut client = Client::connect(gateway, version).await;
            // It may break before the head has left.
            let Ok(response) = client.try_send(get("/")).await else {
                continue;
            };
            assert_eq!(response.status(), 200);
            let collected = response.into_body().collect().await;
            assert!(collected.is_err(), "{version:?} took half for all");
        }
    }
}

#[tokio::test]
async fn an_upstream_that_falls_silent_breaks_the_body() {
    let (keep, mut kept) = mpsc::unbounded_channel();
    let upstream = upstream(move |_| {
        let keep = keep.clone();
        async move {
            let (sender, body) = streamed();
            sender.send(Bytes::from_static(b"half")).await.unwrap();
            keep.send(sender).unwrap();
            Response::new(body)
        }
    })
    .await;
    for protocol in [UpstreamProtocol::Http1, UpstreamProtocol::Http2] {
        let mut options = quick();
        options.protocol = protocol;
        let gateway = listen(open(builder(upstream).upstream(options))).await;
        let mut client = Client::connect(gateway, Version::HTTP_11).await;
        let response = client.send(get("/")).await;
        assert_eq!(response.status(), 200);
        assert!(timeout(PATIENCE, response.into_body().collect()).await.unwrap().is_err());
        drop(kept.recv().await);
    }
}

/// Who goes in the middle of an answer lets go of everything: the upstream's connection, and the
/// permit of a rule that counts what is in flight.
#[tokio::test]
async fn a_client_that_goes_cancels_the_request_and_its_permit_returns() {
    let (keep, mut kept) = mpsc::unbounded_channel();
    let upstream = upstream(move |_| {
        let keep = keep.clone();
        async move {
            let (sender, body) = streamed();
            keep.send(sender).unwrap();
            Response::new(body)
        }
    })
    .await;
    let rules = "rules: [{ name: one, algorithm: concurrency, limit: 1 }]";
    let gateway = listen(builder(upstream).build(engine(rules)).unwrap()).await;
    for _ in 0..3 {
        let mut client = Client::connect(gateway, Version::HTTP_11).await;
        let response = client.send(get("/")).await;
        assert_eq!(response.status(), 200);
        let sender = kept.recv().await.unwrap();
        let mut other = Client::connect(gateway, Version::HTTP_11).await;
        assert_eq!(other.send(get("/")).await.status(), 429, "the permit is taken");
        drop((response, client));
        // The upstream learns that nobody listens any more.
        timeout(PATIENCE, sender.closed()).await.expect("the upstream's request is cancelled");
        // By then the gateway has let go, or is about to.
        let back = async {
            loop {
                let mut client = Client::connect(gateway, Version::HTTP_11).await;
                if client.send(get("/")).await.status() == 200 {
                    return;
                }
            }
        };
        timeout(PATIENCE, back).await.expect("the permit returns");
        let sender = kept.recv().await.unwrap();
        timeout(PATIENCE, sender.closed()).await.unwrap();
    }
}

/// Paused time: the pauses of a breaker are long.
#[tokio::test(start_paused = true)]
async fn the_breaker_opens_answers_and_heals() {
    let upstream = nobody().await;
    let mut options = UpstreamOptions::default();
    options.breaker = BreakerOptions {
        failure_count: 3,
        pause: Duration::from_secs(10),
        pause_max: Duration::from_secs(10),
    };
    let gateway = listen(open(builder(upstream).upstream(options))).await;
    let mut client = Client::connect(gateway, Version::HTTP_11).await;
    for _ in 0..3 {
        let response = client.send(get("/")).await;
        assert_eq!(response.status(), 502);
        text(response).await;
    }
    let response = client.send(get("/")).await;
    assert_eq!(response.status(), 503);
    let retry_after: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((10..=13).contains(&retry_after), "{retry_after}");
    assert!(text(response).await.contains("the upstream is down"));

    // It comes back, and is not asked before the pause is over.
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let listener = TcpListener::bind(upstream).await.unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let counted = Arc::clone(&counted);
            tokio::spawn(crate::common::serve_upstream(stream, move |_| {
                counted.fetch_add(1, Ordering::SeqCst);
                async { Response::new(body("well")) }
            }));
        }
    });
    let response = client.send(get("/")).await;
    assert_eq!(
        (response.status(), asked.load(Ordering::SeqCst)),
        (StatusCode::SERVICE_UNAVAILABLE, 0)
    );
    text(response).await;
    let begun = Instant::now();
    advance(Duration::from_secs(retry_after)).await;
    let mut client = Client::connect(gateway, Version::HTTP_11).await;
    let response = client.send(get("/")).await;
    assert_eq!(response.status(), 200, "after {:?}", begun.elapsed());
    assert_eq!(text(response).await, "well");
}

#[tokio::test]
async fn more_requests_than_places_wait_and_are_told_to_come_back() {
    let upstream = upstream(|_| std::future::pending::<Response<AnyBody>>()).await;
    let mut options = UpstreamOptions::default();
    options.exchanges_max = 1;
    options.connect_time_max = Duration::from_millis(50);
    let gateway = listen(open(builder(upstream).upstream(options))).await;
    let mut first = TcpStream::connect(gateway).await.unwrap();
    first.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let busy = async {
        loop {
            let mut client = Client::connect(gateway, Version::HTTP_11).await;
            let asked = timeout(Duration::from_secs(1), client.send(get("/"))).await;
            // It may have come before the first one.
            if let Ok(response) = asked {
                return response;
            }
        }
    };
    let response = timeout(PATIENCE, busy).await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["retry-after"], "1");
}

/// A connection that was kept, and closed by the upstream meanwhile, costs nobody an error.
#[tokio::test]
async fn a_connection_that_has_ended_is_not_used_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    let (closed, mut is_closed) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1_024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
            drop(stream);
            closed.send(()).unwrap();
        }
    });
    let gateway = listen(open(builder(upstream))).await;
    let mut client = Client::connect(gateway, Version::HTTP_11).await;
    for _ in 0..20 {
        let response = client.send(get("/")).await;
        assert_eq!(response.status(), 200);
        text(response).await;
        is_closed.recv().await.unwrap();
    }
}

/// The same of one that ends only when it has been kept for a while: the request that is to go over it goes
/// over another, at once and once.
#[tokio::test]
async fn a_connection_that_ends_while_it_is_kept_hands_its_request_on() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    let (close, mut is_to_close) = mpsc::unbounded_channel();
    let (closed, mut is_closed) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut count = 0;
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1_024];
            let bytes = stream.read(&mut request).await.unwrap();
            count += String::from_utf8_lossy(&request[..bytes]).matches("GET /").count();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{count}");
            stream.write_all(answer.as_bytes()).await.unwrap();
            is_to_close.recv().await;
            drop(stream);
            closed.send(()).unwrap();
        }
    });
    let gateway = listen(open(builder(upstream))).await;
    let mut client = Client::connect(gateway, Version::HTTP_11).await;
    for count in 1..=5 {
        let response = timeout(PATIENCE, client.send(get("/"))).await.expect("at once");
        assert_eq!(response.status(), 200);
        assert_eq!(text(response).await, count.to_string());
        close.send(()).unwrap();
        is_closed.recv().await.unwrap();
    }
}

/// What an upstream does to a connection once it has read a request.
#[derive(Debug, Clone, Copy)]
enum HangUp {
    Closes,
    Resets,
    Says(&'static [u8]),
}

async fn hangs_up(how: HangUp) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1_024];
            let _ = stream.read(&mut request).await;
            match how {
                HangUp::Closes => {}
                HangUp::Resets => stream.set_zero_linger().unwrap(),
                HangUp::Says(answer) => stream.write_all(answer).await.unwrap(),
            }
        }
    });
    address
}

/// A dead service behind a balancer takes connections, and closes them.
#[tokio::test]
async fn an_upstream_that_hangs_up_without_an_answer_is_down() {
    for (how, expected) in [
        (HangUp::Closes, [502, 502, 502, 503]),
        (HangUp::Resets, [502, 502, 502, 503]),
        // Somebody is there, whatever it says.
        (HangUp::Says(b"SSH-2.0-OpenSSH_9.2\r\n"), [502, 502, 502, 502]),
        (HangUp::Says(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n"), [500, 500, 500, 500]),
    ] {
        let upstream = hangs_up(how).await;
        let mut options = quick();
        options.first_byte_time_max = PATIENCE;
        options.breaker =
            BreakerOptions { failure_count: 3, pause: PATIENCE, ..BreakerOptions::default() };
        let gateway = listen(open(builder(upstream).upstream(options))).await;
        for status in expected {
            let mut client = Client::connect(gateway, Version::HTTP_11).await;
            let response = client.send(get("/")).await;
            assert_eq!(response.status(), status, "{how:?}");
            assert_eq!(response.headers().contains_key("retry-after"), status == 503, "{how:?}");
        }
    }
}

/// Who breaks off its own body must not be able to shut the service for all.
#[tokio::test]
async fn a_client_that_breaks_off_its_body_is_no_outage() {
    let upstream = upstream(crate::common::tell).await;
    for protocol in [UpstreamProtocol::Http1, UpstreamProtocol::Http2] {
        let mut options = quick();
        options.first_byte_time_max = PATIENCE;
        options.protocol = protocol;
        options.breaker = BreakerOptions { failure_count: 1, ..BreakerOptions::default() };
        let gateway = listen(open(builder(upstream).upstream(options))).await;
        for version in [Version::HTTP_11, Version::HTTP_2] {
            for _ in 0..3 {
                let frames = futures_util::stream::iter([
                    Ok(Frame::data(Bytes::from_static(b"half"))),
                    Err("and no more".into()),
                ]);
                let broken: AnyBody = BodyExt::boxed(StreamBody::new(frames));
                let mut client = Client::connect(gateway, version).await;
                let request = Request::post("/").body(broken).unwrap();
                assert!(client.try_send(request).await.is_err());
            }
            let mut client = Client::connect(gateway, Version::HTTP_11).await;
            assert_eq!(client.send(get("/")).await.status(), 200, "{protocol:?} {version:?}");
        }
        // It stays, and sends what is no body.
        let bad =
            b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n";
        let answer = raw(gateway, bad).await;
        assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
        let mut client = Client::connect(gateway, Version::HTTP_11).await;
        assert_eq!(client.send(get("/")).await.status(), 200, "{protocol:?}: {answer}");
    }
}
