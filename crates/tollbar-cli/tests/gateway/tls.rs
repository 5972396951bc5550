//! The daemon as a reverse proxy with TLS on both sides, over each version of HTTP on each side: what the
//! two ends see of each other.

#![expect(clippy::disallowed_methods, reason = "a test that panics is seen")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::common::authority::{Authority, Identity};
use crate::common::{Daemon, Scratch};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

const PATIENCE: Duration = Duration::from_secs(30);

const HTTP1: &[&[u8]] = &[b"http/1.1"];
const HTTP2: &[&[u8]] = &[b"h2"];
const BOTH: &[&[u8]] = &[b"h2", b"http/1.1"];

/// What is trusted, and what is shown by it for `localhost`.
struct TestCertificates {
    authority: Authority,
    identity: Identity,
}

impl TestCertificates {
    fn new() -> Self {
        let authority = Authority::new();
        let identity = authority.issue("localhost");
        Self { authority, identity }
    }

    fn acceptor(&self, alpn: &[&[u8]]) -> TlsAcceptor {
        let chain = vec![CertificateDer::from_pem_slice(self.identity.cert.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(self.identity.key.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let mut config = config.with_single_cert(chain, key).unwrap();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }

    async fn connect(&self, address: &str, alpn: &[&[u8]]) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.authority.pem().as_bytes()).unwrap())
            .unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let stream = TcpStream::connect(address).await.unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect("localhost".try_into().unwrap(), stream).await.unwrap()
    }
}

/// Tells the version, the headers that proxies write, and how long the body was.
async fn tell(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let said =
        |name: &str| head.headers.get(name).map_or("-", |value| value.to_str().unwrap()).to_owned();
    let host = head.uri.authority().map_or_else(|| said("host"), ToString::to_string);
    let scheme = said("x-forwarded-proto");
    let text = format!("{:?} {} {host} {scheme} {}", head.version, head.uri.path(), body.len());
    Ok(Response::new(text.into()))
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let server = auto::Builder::new(TokioExecutor::new());
    let _ = server.serve_connection(TokioIo::new(stream), service_fn(tell)).await;
}

/// An upstream that speaks what it is spoken to in; over TLS, where it has certificates, what it offers.
async fn upstream(tls: Option<TlsAcceptor>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let tls = tls.clone();
            tokio::spawn(async move {
                match tls {
                    None => answer(stream).await,
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            answer(stream).await;
                        }
                    }
                }
            });
        }
    });
    address
}

/// Sends requests with a body of that size one after the other on one connection; what each is answered.
async fn ask(
    stream: TlsStream<TcpStream>,
    version: Version,
    count: usize,
    body_bytes: usize,
) -> Vec<(StatusCode, Version, String)> {
    let mut answers = Vec::new();
    let request = |at: usize| {
        let body = Full::new(Bytes::from(vec![b'x'; body_bytes]));
        let request = if version == Version::HTTP_2 {
            Request::post(format!("https://localhost/{at}"))
        } else {
            Request::post(format!("/{at}")).header("host", "localhost")
        };
        request.body(body).unwrap()
    };
    let io = TokioIo::new(stream);
    let told = async |response: Response<Incoming>| {
        let (status, version) = (response.status(), response.version());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, version, String::from_utf8(body.to_vec()).unwrap())
    };
    if version == Version::HTTP_2 {
        let opened = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await;
        let (mut sender, connection) = opened.unwrap();
        tokio::spawn(connection);
        for at in 0..count {
            let response = timeout(PATIENCE, sender.send_request(request(at))).await.unwrap();
            answers.push(told(response.unwrap()).await);
        }
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        for at in 0..count {
            sender.ready().await.unwrap();
            let response = timeout(PATIENCE, sender.send_request(request(at))).await.unwrap();
            answers.push(told(response.unwrap()).await);
        }
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_version_meets_each_other_over_tls() {
    let (ours, theirs) = (TestCertificates::new(), TestCertificates::new());
    let scratch = Scratch::new("gateway-tls");
    let cert = scratch.file("cert.pem", &ours.identity.cert);
    let key = scratch.file("key.pem", &ours.identity.key);
    let ca = scratch.file("ca.pem", &theirs.authority.pem());
    // What the upstream offers, what the gateway is told, and what the two come to.
    for (tls, protocol, told) in [
        (None, "auto", Version::HTTP_11),
        (None, "http2", Version::HTTP_2),
        (Some(HTTP1), "auto", Version::HTTP_11),
        (Some(BOTH), "auto", Version::HTTP_2),
        (Some(BOTH), "http1", Version::HTTP_11),
        (Some(HTTP2), "http2", Version::HTTP_2),
    ] {
        let upstream = upstream(tls.map(|alpn| theirs.acceptor(alpn))).await;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://localhost:{}", upstream.port());
        let flags = ["--listen", "off", "--grpc", "off", "--resp", "off", "--limit", "8/day"];
        let proxy = ["--proxy", "127.0.0.1:0", "--upstream", &url, "--upstream-protocol", protocol];
        let files = ["--tls-cert", &cert, "--tls-key", &key];
        // It has no effect on an upstream without TLS, and is an error there.
        let authority: &[&str] = if tls.is_some() { &["--upstream-ca", &ca] } else { &[] };
        let daemon = Daemon::start(&[&flags[..], &proxy, &files, authority].concat());
        for (offered, asked) in
            [(HTTP1, Version::HTTP_11), (HTTP2, Version::HTTP_2), (BOTH, Version::HTTP_2)]
        {
            let case = format!("{asked:?} to {told:?} by {protocol} {scheme}");
            let stream = ours.connect(daemon.address("proxys"), offered).await;
            let agreed = stream.get_ref().1.alpn_protocol();
            assert_eq!(agreed == Some(b"h2"), asked == Version::HTTP_2, "{case}");
            // Eight requests in all; those behind are denied, in the version they came in.
            let answers = ask(stream, asked, 3, 100_000).await;
            let last = if offered == BOTH { 2 } else { 3 };
            for (at, (status, version, text)) in answers.iter().enumerate() {
                assert_eq!(*version, asked, "{case}");
                if at < last {
                    assert_eq!(*status, 200, "{case}: {text}");
                    assert_eq!(*text, format!("{told:?} /{at} localhost https 100000"), "{case}");
                } else {
                    assert_eq!(*status, 429, "{case}: {text}");
                }
            }
        }
        assert_eq!(daemon.stop(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_nobody_vouches_for_gets_nothing() {
    let (ours, theirs) = (TestCertificates::new(), TestCertificates::new());
    let scratch = Scratch::new("gateway-tls-other");
    let cert = scratch.file("cert.pem", &ours.identity.cert);
    let key = scratch.file("key.pem", &ours.identity.key);
    let ca = scratch.file("ca.pem", &Authority::new().pem());
    let upstream = upstream(Some(theirs.acceptor(BOTH))).await;
    let url = format!("https://localhost:{}", upstream.port());
    let flags = ["--listen", "off", "--grpc", "off", "--resp", "off", "--limit", "8/day"];
    let proxy = ["--proxy", "127.0.0.1:0", "--upstream", &url, "--upstream-ca", &ca];
    let files = ["--tls-cert", &cert, "--tls-key", &key];
    let daemon = Daemon::start(&[&flags[..], &proxy, &files].concat());
    for (alpn, version) in [(HTTP1, Version::HTTP_11), (HTTP2, Version::HTTP_2)] {
        let stream = ours.connect(daemon.address("proxys"), alpn).await;
        // A larger body might not be sent before the answer closes the connection.
        for (status, _, text) in ask(stream, version, 1, 10).await {
            assert_eq!(status, 502, "{text}");
            assert!(text.contains("the upstream cannot be reached"), "{text}");
        }
    }
    assert_eq!(daemon.stop(), 0);
}
