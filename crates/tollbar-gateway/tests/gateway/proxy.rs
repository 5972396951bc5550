//! What passes through a gateway, over each version of HTTP on each side.

#![expect(clippy::disallowed_methods, reason = "a test that panics is seen")]

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{
    Client, Recorder, body, builder, engine, get, listen, open, open_gateway, raw, tell, text,
    upstream,
};
use http::{Request, Response, Version};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tollbar_gateway::{Gateway, Pem, UpstreamOptions, UpstreamProtocol};
use tollbar_http::ClientIp;

const VERSIONS: [(Version, UpstreamProtocol); 2] =
    [(Version::HTTP_11, UpstreamProtocol::Http1), (Version::HTTP_2, UpstreamProtocol::Http2)];

fn speaking(protocol: UpstreamProtocol) -> UpstreamOptions {
    let mut options = UpstreamOptions::default();
    options.protocol = protocol;
    options
}

#[tokio::test]
async fn requests_and_answers_pass_whatever_each_side_speaks() {
    let upstream = upstream(tell).await;
    for (asked, _) in VERSIONS {
        for (told, protocol) in VERSIONS {
            let gateway = open(builder(upstream).upstream(speaking(protocol)));
            let mut client = Client::connect(listen(gateway).await, asked).await;
            for turn in 0..3 {
                let request = Request::post("/a/b?c=d").header("x-kept", "1");
                let response = client.send(request.body(body("hello")).unwrap()).await;
                assert_eq!(response.status(), 200);
                assert_eq!(response.headers()["x-ratelimit-limit"], "1000000");
                let text = text(response).await;
                let case = format!("{asked:?} to {told:?}, {turn}: {text}");
                let uri =
                    if told == Version::HTTP_2 { "http://a.example/a/b?c=d" } else { "/a/b?c=d" };
                assert!(text.starts_with(&format!("{told:?} POST {uri}\n")), "{case}");
                for line in [
                    "x-kept: 1\n",
                    "x-forwarded-for: 127.0.0.1\n",
                    "x-forwarded-proto: http\n",
                    "x-forwarded-host: a.example\n",
                ] {
                    assert!(text.contains(line), "{case}");
                }
                assert!(text.ends_with("\n\nhello"), "{case}");
            }
        }
    }
}

/// A task that has used up its turn has to come again by itself.
#[tokio::test]
async fn what_is_asked_in_one_breath_is_answered_in_order() {
    const COUNT: usize = 500;
    let upstream = upstream(tell).await;
    let gateway = listen(open(builder(upstream))).await;
    let ask = |at: usize| {
        let last = if at + 1 == COUNT { "connection: close\r\n" } else { "" };
        format!("GET /{at}. HTTP/1.1\r\nhost: a\r\n{last}\r\n")
    };
    let answers = raw(gateway, (0..COUNT).map(ask).collect::<String>().as_bytes()).await;
    let told: Vec<&str> = answers.matches("HTTP/1.1 200 OK").collect();
    assert_eq!(told.len(), COUNT);
    let places: Vec<_> = (0..COUNT).map(|at| answers.find(&format!("GET /{at}.\n"))).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}");
}

#[tokio::test]
async fn trailers_pass_as_grpc_needs_them() {
    let upstream = upstream(|request| async move {
        assert_eq!(request.headers()["te"], "trailers");
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        let frames: [Result<_, std::convert::Infallible>; 2] =
            [Ok(Frame::data("answer".into())), Ok(Frame::trailers(trailers))];
        let stream = StreamBody::new(futures_util::stream::iter(frames));
        Response::new(BodyExt::boxed(stream.map_err(|never| match never {})))
    })
    .await;
    let options = speaking(UpstreamProtocol::Http2);
    let gateway = listen(open(builder(upstream).upstream(options))).await;
    let mut client = Client::connect(gateway, Version::HTTP_2).await;
    let request = Request::post("/s/M").header("te", "trailers").body(body("question")).unwrap();
    let collected = client.send(request).await.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(collected.to_bytes(), "answer");
}

#[tokio::test]
async fn streams_of_both_sides_run_by_the_function_that_was_given() {
    let upstream = upstream(tell).await;
    let spawned = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&spawned);
    let gateway = builder(upstream).upstream(speaking(UpstreamProtocol::Http2));
    let gateway = open(gateway.spawn_with(move |task| {
        counted.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(task);
    }));
    let mut client = Client::connect(listen(gateway).await, Version::HTTP_2).await;
    assert_eq!(client.send(get("/")).await.status(), 200);
    // The client's stream, and at least the connection to the upstream.
    let first = spawned.load(Ordering::SeqCst);
    assert!(first >= 2, "{first}");
    assert_eq!(client.send(get("/")).await.status(), 200);
    assert!(spawned.load(Ordering::SeqCst) > first, "each stream of a client");
}

#[tokio::test]
async fn connections_to_the_upstream_are_used_again() {
    let recorder = Recorder::start(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let counting = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let mut behind = tokio::net::TcpStream::connect(recorder.address).await.unwrap();
            tokio::spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut behind).await;
            });
        }
    });
    let gateway = open_gateway(counting).await;
    let mut client = Client::connect(gateway, Version::HTTP_11).await;
    for _ in 0..50 {
        assert_eq!(text(client.send(get("/")).await).await, "ok");
    }
    let mut other = Client::connect(gateway, Version::HTTP_11).await;
    assert_eq!(text(other.send(get("/")).await).await, "ok");
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn who_asks_too_often_is_told_and_the_upstream_is_not() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let upstream = upstream(move |request| {
        counted.fetch_add(1, Ordering::SeqCst);
        tell(request)
    })
    .await;
    let gateway = builder(upstream).exempt(["/health"]);
    let address =
        listen(gateway.build(engine("rules: [{ name: few, limit: 3/hour }]")).unwrap()).await;
    let mut client = Client::connect(address, Version::HTTP_11).await;
    let mut statuses = Vec::new();
    for _ in 0..5 {
        let response = client.send(get("/")).await;
        statuses.push(response.status().as_u16());
        text(response).await;
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    let response = client.send(get("/health")).await;
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("x-ratelimit-limit"));
    text(response).await;
    assert_eq!(client.send(get("/health/")).await.status(), 429, "only the path as it is written");
}

#[tokio::test]
async fn hosts_are_kept_or_rewritten() {
    let upstream = upstream(tell).await;
    for (rewrites_host, host) in [(false, "a.example".to_owned()), (true, upstream.to_string())] {
        let mut options = UpstreamOptions::default();
        options.rewrites_host = rewrites_host;
        let gateway = listen(open(builder(upstream).upstream(options))).await;
        let mut client = Client::connect(gateway, Version::HTTP_11).await;
        let text = text(client.send(get("/")).await).await;
        assert!(text.contains(&format!("\nhost: {host}\n")), "{text}");
        assert!(text.contains("\nx-forwarded-host: a.example\n"), "{text}");
    }
}

#[tokio::test]
async fn headers_of_a_connection_end_with_it() {
    let upstream = upstream(|request| async {
        let mut response = tell(request).await;
        for (name, value) in [("connection", "x-private"), ("x-private", "1"), ("x-public", "2")] {
            response.headers_mut().insert(name, value.parse().unwrap());
        }
        response
    })
    .await;
    let mut client = Client::connect(open_gateway(upstream).await, Version::HTTP_11).await;
    let request = Request::get("/")
        .header("connection", "X-Secret, x-forwarded-for, host")
        .header("x-secret", "1")
        .header("keep-alive", "timeout=5")
        .header("proxy-authorization", "Basic eA==")
        .header("te", "gzip")
        .header("x-kept", "2");
    let response = client.send(request.body(body("")).unwrap()).await;
    assert!(!response.headers().contains_key("x-private"));
    assert_eq!(response.headers()["x-public"], "2");
    let text = text(response).await;
    for gone in ["x-secret", "keep-alive", "proxy-authorization", "\nte:", "\nconnection"] {
        assert!(!text.contains(gone), "{gone}: {text}");
    }
    for kept in ["\nx-kept: 2\n", "\nx-forwarded-for: 127.0.0.1\n", "\nhost: a.example\n"] {
        assert!(text.contains(kept), "{text}");
    }
}

/// Every way in which a client could claim to be another one, from a peer that is no proxy of ours
/// and from one that is.
#[tokio::test]
async fn nobody_gets_a_new_limit_by_what_he_says_of_himself() {
    let upstream = upstream(tell).await;
    let rules = "rules: [{ name: one, limit: 1/hour }]";
    let loopback: IpAddr = "127.0.0.1".parse().unwrap();
    let claims = [
        ("x-forwarded-for", "192.0.2.N"),
        ("x-forwarded-for", "192.0.2.N, 203.0.113.9"),
        ("forwarded", "for=192.0.2.N"),
        ("x-real-ip", "192.0.2.N"),
        ("true-client-ip", "192.0.2.N"),
        ("x-client-ip", "192.0.2.N"),
        ("x-user-id", "user-N"),
        ("x-forwarded-host", "N.example"),
        ("x-forwarded-proto", "httpsN"),
    ];
    for (name, value) in claims {
        let gateway = listen(builder(upstream).build(engine(rules)).unwrap()).await;
        let mut client = Client::connect(gateway, Version::HTTP_11).await;
        let mut passed = 0;
        for turn in 0..10 {
            let value = value.replace('N', &turn.to_string());
            let request = Request::get("/").header(name, &value).body(body("")).unwrap();
            let response = client.send(request).await;
            if response.status() == 200 {
                passed += 1;
                let text = text(response).await;
                assert!(!text.contains(&value), "the upstream believes {name}: {text}");
            } else {
                text(response).await;
            }
        }
        assert_eq!(passed, 1, "{name}: {value}");
    }
    // Behind a proxy of ours, what it appends counts, and what is left of that does not.
    let trusted = ClientIp::behind_proxies([format!("{loopback}/32").parse().unwrap()]);
    let gateway = listen(builder(upstream).client_ip(trusted).build(engine(rules)).unwrap()).await;
    let mut client = Client::connect(gateway, Version::HTTP_11).await;
    let mut statuses = Vec::new();
    for (claimed, real) in
        [("192.0.2.1", "203.0.113.1"), ("192.0.2.2", "203.0.113.1"), ("x", "203.0.113.2")]
    {
        let chain = format!("{claimed}, {real}");
        let request = Request::get("/").header("x-forwarded-for", &chain).body(body("")).unwrap();
        let response = client.send(request).await;
        statuses.push(response.status().as_u16());
        let text = text(response).await;
        if *statuses.last().unwrap() == 200 {
            assert!(text.contains(&format!("x-forwarded-for: {chain}, 127.0.0.1\n")), "{text}");
        }
    }
    assert_eq!(statuses, [200, 429, 200]);
}

#[tokio::test]
async fn the_upstream_may_speak_tls_and_is_verified() {
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let pem = key.cert.pem();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let private =
        rustls::pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap();
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![key.cert.der().clone()], private)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    crate::common::serve_upstream(stream, tell).await;
                }
            });
        }
    });
    let url = || format!("https://localhost:{port}").parse().unwrap();
    for (protocol, spoken) in [
        (UpstreamProtocol::Auto, "HTTP/2.0"),
        (UpstreamProtocol::Http1, "HTTP/1.1"),
        (UpstreamProtocol::Http2, "HTTP/2.0"),
    ] {
        let gateway = Gateway::builder(url()).upstream(speaking(protocol));
        let gateway =
            open(gateway.authorities(&Pem::new("the authority", pem.as_bytes())).unwrap());
        let mut client = Client::connect(listen(gateway).await, Version::HTTP_11).await;
        let text = text(client.send(get("/")).await).await;
        assert!(text.starts_with(spoken), "{protocol:?}: {text}");
    }
    let stranger = open(Gateway::builder(url()));
    let mut client = Client::connect(listen(stranger).await, Version::HTTP_11).await;
    let response = client.send(get("/")).await;
    assert_eq!(response.status(), 502);
    let text = text(response).await;
    assert!(text.contains("\"the upstream cannot be reached\""), "{text}");
    assert!(!text.to_lowercase().contains("certificate"), "internals: {text}");
}
