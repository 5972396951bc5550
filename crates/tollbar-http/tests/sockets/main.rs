//! The layer in front of an axum service, over real sockets, as clients of all kinds see it.

#![allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")]

mod client;
mod ends;
mod grpc;
mod nginx;
mod redis;
mod server;

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::task::JoinSet;
use tollbar_http::{ClientIp, Identity, Settle, TollbarLayer};

use client::Connection;
use ends::watch;
use server::{EndlessBody, engine, left, serve};

/// Each connection is a file, and both ends of all of them are in this process.
fn allow_many_connections() {
    let allowed = rlimit::increase_nofile_limit(4_096).unwrap_or_default();
    assert!(allowed >= 4_096, "only {allowed} files may be open: raise it with `ulimit -n 4096`");
}

fn hello(layer: TollbarLayer) -> Router {
    Router::new().route("/", get(async || "hello")).layer(layer)
}

/// A herd, all at the same moment, each on a connection of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_1500_requests_at_once_five_pass() {
    allow_many_connections();
    let (engine, clock) = engine("rules: [{ name: a, limit: 5/s, burst: 5 }]");
    let address = serve(hello(TollbarLayer::new(engine))).await;
    let herd = async || {
        let mut requests = JoinSet::new();
        for _ in 0..1_500 {
            requests.spawn(async move { Connection::open(address).await.get("/").await.status });
        }
        let statuses = requests.join_all().await;
        assert!(statuses.iter().all(|status| [200, 429].contains(status)));
        statuses.iter().filter(|status| **status == 200).count()
    };
    assert_eq!(herd().await, 5);
    clock.advance(Duration::from_millis(399));
    assert_eq!(herd().await, 1);
    clock.advance(Duration::from_millis(1));
    assert_eq!(herd().await, 1);
    clock.advance(Duration::from_mins(1));
    assert_eq!(herd().await, 5);
}

/// Connections that stay open share the state: none of them has a limit of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_have_one_limit() {
    allow_many_connections();
    let yaml = "rules: [{ name: a, limit: 1234/100s, algorithm: fixed_window }]";
    let address = serve(hello(TollbarLayer::new(engine(yaml).0))).await;
    let mut connections = JoinSet::new();
    for _ in 0..1_000 {
        connections.spawn(async move {
            let mut connection = Connection::open(address).await;
            let mut allowed = 0;
            for _ in 0..3 {
                let response = connection.get("/").await;
                assert_eq!(response.header("x-ratelimit-limit"), Some("1234"));
                allowed += usize::from(response.status == 200);
            }
            (connection, allowed)
        });
    }
    let connections = connections.join_all().await;
    assert_eq!(connections.iter().map(|(_, allowed)| allowed).sum::<usize>(), 1_234);
}

fn endless(layer: TollbarLayer) -> Router {
    let body = async || axum::body::Body::new(EndlessBody);
    Router::new().route("/", get(body)).layer(layer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_of_clients_that_disconnect_mid_body_come_back() {
    let (engine, _) = engine("rules: [{ name: a, limit: 50, algorithm: concurrency }]");
    let (watch, mut ends) = watch();
    let address = serve(endless(TollbarLayer::new(&engine)).layer(watch)).await;
    for _ in 0..3 {
        let mut connections = Vec::new();
        for _ in 0..50 {
            let mut connection = Connection::open(address).await;
            connection.send("/").await;
            assert_eq!(connection.head().await.status, 200);
            connections.push(connection);
        }
        assert_eq!(left(&engine), 0);
        let denied = Connection::open(address).await.get("/").await;
        assert_eq!((denied.status, denied.header("retry-after")), (429, None));
        drop(connections);
        ends.wait_for(50).await;
        assert_eq!(left(&engine), 50);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservations_of_clients_that_disconnect_are_settled() {
    let (engine, _) = engine("rules: [{ name: a, limit: 1000000/100s, algorithm: fixed_window }]");
    let settle = Settle::by(|ending| match ending.status() {
        // It was cut off while it was sent.
        Some(_) if ending.body_bytes() > 0 && !ending.is_complete() => 100,
        Some(_) => 7,
        None => 1,
    });
    let layer = TollbarLayer::builder(&engine).cost(|_| 1_000).settle(settle).build();
    let (came, mut comes) = tokio::sync::mpsc::unbounded_channel();
    let never = async move || {
        came.send(()).expect("the test listens");
        std::future::pending::<&str>().await
    };
    let (watch, mut ends) = watch();
    let app = Router::new()
        .route("/", get(async || axum::body::Body::new(EndlessBody)))
        .route("/never", get(never))
        .route("/small", get(async || "small"))
        .layer(layer)
        .layer(watch);
    let address = serve(app).await;

    let mut cut_off = Connection::open(address).await;
    cut_off.send("/").await;
    cut_off.head().await;
    assert_eq!(left(&engine), 999_000);
    drop(cut_off);
    ends.wait_for(1).await;
    assert_eq!(left(&engine), 999_900);

    let mut unanswered = Connection::open(address).await;
    unanswered.send("/never").await;
    comes.recv().await.expect("it has come");
    assert_eq!(left(&engine), 998_900);
    drop(unanswered);
    ends.wait_for(1).await;
    assert_eq!(left(&engine), 999_899);

    Connection::open(address).await.get("/small").await;
    ends.wait_for(1).await;
    assert_eq!(left(&engine), 999_892);
}

/// The handler is done at once; the client takes its time. More is sent than sockets buffer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_holds_its_permit_until_it_has_read_all() {
    const BYTES: usize = 32 << 20;
    let (engine, _) = engine("rules: [{ name: a, limit: 3, algorithm: concurrency }]");
    let layer = TollbarLayer::new(&engine);
    let large = async || {
        let piece = axum::body::Bytes::from(vec![b'x'; 64 << 10]);
        axum::body::Body::new(server::PiecesBody::new(piece, BYTES))
    };
    let (watch, mut ends) = watch();
    let address = serve(Router::new().route("/", get(large)).layer(layer).layer(watch)).await;
    let mut connections = Vec::new();
    for _ in 0..3 {
        let mut connection = Connection::open(address).await;
        connection.send("/").await;
        connection.head().await;
        connections.push(connection);
    }
    assert_eq!(Connection::open(address).await.get("/").await.status, 429);
    for (read, mut connection) in connections.into_iter().enumerate() {
        assert_eq!(left(&engine), read as u64);
        assert_eq!(connection.read_chunked().await, BYTES);
        ends.wait_for(1).await;
        assert_eq!(left(&engine), read as u64 + 1);
    }
}

/// The client dribbles its request in, byte by byte: nothing is charged until it is there.
#[tokio::test]
async fn a_slow_writer_pays_when_it_has_asked() {
    let (engine, _) = engine("rules: [{ name: a, limit: 5/100s, algorithm: fixed_window }]");
    let address = serve(hello(TollbarLayer::new(&engine))).await;
    let mut connection = Connection::open(address).await;
    let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    for byte in request {
        assert_eq!(left(&engine), 5);
        connection.write(&[*byte]).await;
    }
    assert_eq!(connection.response().await.status, 200);
    assert_eq!(left(&engine), 4);
}

/// Whatever is sent, the service answers the next client.
#[tokio::test]
async fn rubbish_is_answered_with_4xx_or_counted_by_the_peer() {
    let (engine, _) = engine("rules: [{ name: a, limit: 1000/100s, algorithm: fixed_window }]");
    let address = serve(hello(TollbarLayer::new(&engine))).await;
    let bomb = format!("x-forwarded-for: {}\r\n", "1.2.3.4,".repeat(1_000)).repeat(50);
    let many = "x-forwarded-for: 10.0.0.9\r\n".repeat(95);
    let requests: [(&[u8], &[u16]); 6] = [
        (b"x-forwarded-for: \xff\xfe\x80\r\n", &[200]),
        (b"x-forwarded-for: ,,,;\"\\\r\nforwarded: for=\"\r\n", &[200]),
        (b"x-user-id: admin\r\nx-user-id: root\r\nauthorization: Bearer\r\n", &[200]),
        (many.as_bytes(), &[200]),
        (bomb.as_bytes(), &[200, 431]),
        (b"x-forwarded-for: \x00\r\n", &[400]),
    ];
    for (lines, statuses) in requests {
        let before = left(&engine);
        let mut connection = Connection::open(address).await;
        let request = [b"GET / HTTP/1.1\r\nhost: x\r\n", lines, b"\r\n"].concat();
        connection.write(&request).await;
        let response = connection.response().await;
        assert!(statuses.contains(&response.status), "{} to {lines:?}", response.status);
        // Who is let through has paid, under the address it came from.
        assert_eq!(before - left(&engine), u64::from(response.status == 200));
    }
    let long = format!("/{}", "a/".repeat(5_000));
    assert_eq!(Connection::open(address).await.get(&long).await.status, 414);
    assert_eq!(Connection::open(address).await.get("/").await.status, 200);
}

/// Behind a proxy whose headers are believed, what is no address names nobody: all who send such
/// things are the proxy, and share its limit.
#[tokio::test]
async fn rubbish_from_a_trusted_proxy_buys_no_limit_of_its_own() {
    let (engine, _) = engine("rules: [{ name: a, limit: 6/100s, algorithm: fixed_window }]");
    let client_ip = ClientIp::behind_proxies(["127.0.0.0/8".parse().unwrap()]);
    let identity = Identity::new().client_ip(client_ip);
    let layer = TollbarLayer::builder(&engine).identity(identity).build();
    let address = serve(hello(layer)).await;
    let many = "x-forwarded-for: 203.0.113\r\n".repeat(95);
    let long = format!("x-forwarded-for: {}\r\n", "9".repeat(4_096));
    let lines: [&[u8]; 8] = [
        b"x-forwarded-for: \xff\xfe\x80\r\n",
        b"x-forwarded-for: 203.0.113.7, \xc3\x28\r\n",
        b"x-forwarded-for: 203.0.113.7\r\nx-forwarded-for: 256.1.1.1\r\n",
        b"x-forwarded-for: 203.0.113.7;8080\r\n",
        many.as_bytes(),
        long.as_bytes(),
        b"x-forwarded-for: ::ffff:\r\nx-user-id: a\r\nx-user-id: b\r\n",
        b"x-forwarded-for: unknown\r\n",
    ];
    for (at, lines) in lines.into_iter().enumerate() {
        let mut connection = Connection::open(address).await;
        let request = [b"GET / HTTP/1.1\r\nhost: x\r\n", lines, b"\r\n"].concat();
        connection.write(&request).await;
        let status = connection.response().await.status;
        assert_eq!(
            status,
            if at < 6 { 200 } else { 429 },
            "to {:?}",
            lines.escape_ascii().to_string()
        );
    }
    // One whom the proxy names has a limit of his own.
    let mut connection = Connection::open(address).await;
    connection.write(b"GET / HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 203.0.113.7\r\n\r\n").await;
    assert_eq!(connection.response().await.status, 200);
}
