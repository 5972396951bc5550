//! Gateways, upstreams and clients over real sockets, for every file of tests beside this directory.

#![expect(clippy::disallowed_methods, reason = "a test that panics is seen")]
#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tollbar_gateway::{ConnectionInfo, Gateway, GatewayBuilder};
use tollbar_rules::{Engine, RuleFile};

/// No test waits longer than this for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) type AnyBody = BoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

pub(crate) fn body(text: impl Into<Bytes>) -> AnyBody {
    Full::new(text.into()).map_err(|never| match never {}).boxed()
}

pub(crate) fn engine(rules: &str) -> Engine {
    Engine::new(RuleFile::parse("rules.yaml", rules).unwrap().rules)
}

/// Rules that let everything pass.
pub(crate) const OPEN: &str = "rules: [{ name: open, limit: 1000000/s }]";

/// A gateway in front of `upstream`.
pub(crate) fn builder(upstream: SocketAddr) -> GatewayBuilder {
    Gateway::builder(format!("http://{upstream}").parse().unwrap())
}

/// The gateway that lets everything pass.
pub(crate) fn open(builder: GatewayBuilder) -> Gateway {
    builder.build(engine(OPEN)).unwrap()
}

/// Serves on a free port.
pub(crate) async fn listen(gateway: Gateway) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let gateway = gateway.clone();
            stream.set_nodelay(true).unwrap();
            tokio::spawn(async move {
                gateway.serve(stream, ConnectionInfo::from_peer(peer.ip())).await;
            });
        }
    });
    address
}

/// A gateway that lets everything pass.
pub(crate) async fn open_gateway(upstream: SocketAddr) -> SocketAddr {
    listen(open(builder(upstream))).await
}

/// An upstream that speaks both versions of HTTP.
pub(crate) async fn upstream<F, R>(respond: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<AnyBody>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            tokio::spawn(serve_upstream(stream, respond.clone()));
        }
    });
    address
}

/// Serves one connection as an upstream.
pub(crate) async fn serve_upstream<S, F, R>(stream: S, respond: F)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<AnyBody>> + Send + 'static,
{
    let service = service_fn(move |request| {
        let respond = respond.clone();
        async move { Ok::<_, Infallible>(respond(request).await) }
    });
    let server = auto::Builder::new(TokioExecutor::new());
    let _ = server.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
}

/// Tells what it was asked: version, method, URI, headers, and the body behind an empty line.
pub(crate) async fn tell(request: Request<Incoming>) -> Response<AnyBody> {
    let (head, sent) = request.into_parts();
    let sent = sent.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let mut text = format!("{:?} {} {}\n", head.version, head.method, head.uri);
    for (name, value) in &head.headers {
        text += [name.as_str(), ": ", value.to_str().unwrap(), "\n"].concat().as_str();
    }
    let text = [text.as_bytes(), b"\n", &sent].concat();
    Response::new(body(text))
}

/// A client's connection.
pub(crate) enum Client {
    Http1(hyper::client::conn::http1::SendRequest<AnyBody>),
    Http2(hyper::client::conn::http2::SendRequest<AnyBody>),
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr, version: Version) -> Self {
        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        if version == Version::HTTP_2 {
            let executor = TokioExecutor::new();
            let (sender, connection) =
                hyper::client::conn::http2::handshake(executor, stream).await.unwrap();
            tokio::spawn(connection);
            Self::Http2(sender)
        } else {
            let (sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
            tokio::spawn(connection.with_upgrades());
            Self::Http1(sender)
        }
    }

    pub(crate) async fn send(&mut self, request: Request<AnyBody>) -> Response<Incoming> {
        self.try_send(request).await.unwrap()
    }

    pub(crate) async fn try_send(
        &mut self,
        mut request: Request<AnyBody>,
    ) -> hyper::Result<Response<Incoming>> {
        let answer = async {
            match self {
                Self::Http1(sender) => {
                    sender.ready().await?;
                    request
                        .headers_mut()
                        .entry("host")
                        .or_insert(http::HeaderValue::from_static("a.example"));
                    sender.send_request(request).await
                }
                Self::Http2(sender) => {
                    sender.ready().await?;
                    let path = request.uri().path_and_query().unwrap().as_str();
                    let uri = format!("http://a.example{path}").parse().unwrap();
                    *request.uri_mut() = uri;
                    sender.send_request(request).await
                }
            }
        };
        tokio::time::timeout(PATIENCE, answer).await.expect("an answer")
    }
}

pub(crate) fn get(path: &str) -> Request<AnyBody> {
    Request::get(path).body(body("")).unwrap()
}

pub(crate) async fn text(response: Response<Incoming>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8_lossy(&body).into_owned()
}

/// Sends these bytes; all that comes back until the connection ends.
pub(crate) async fn raw(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // It may be closed before it has read all.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .unwrap_or_else(|_| panic!("{} is never answered", bytes.escape_ascii()));
    String::from_utf8_lossy(&answer).into_owned()
}

/// An upstream that writes down what it is sent, byte by byte, and answers each message it makes out.
pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    pub(crate) async fn start(answer: &'static [u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Vec<u8>>>::default();
        let kept = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(record(stream, Arc::clone(&kept), answer));
            }
        });
        Self { address, seen }
    }

    /// What was sent since the last time, over all connections.
    pub(crate) fn seen(&self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut *self.seen.lock().unwrap())).into_owned()
    }
}

async fn record(mut stream: TcpStream, seen: Arc<Mutex<Vec<u8>>>, answer: &'static [u8]) {
    let mut pending = Vec::new();
    let mut buffer = [0; 4_096];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        seen.lock().unwrap().extend_from_slice(&buffer[..count]);
        pending.extend_from_slice(&buffer[..count]);
        while let Some(bytes) = message_bytes(&pending) {
            pending.drain(..bytes);
            if stream.write_all(answer).await.is_err() {
                return;
            }
        }
    }
}

/// How long the first message is, once all of it is there.
fn message_bytes(bytes: &[u8]) -> Option<usize> {
    let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
    let (head, rest) = text.split_once("\r\n\r\n")?;
    let head_bytes = head.len() + 4;
    if head.contains("transfer-encoding: chunked") {
        let last = if rest.starts_with("0\r\n") { 0 } else { rest.find("\r\n0\r\n")? + 2 };
        // Behind the last chunk are trailers, or nothing.
        return rest[last..].find("\r\n\r\n").map(|at| head_bytes + last + at + 4);
    }
    let length = head.split("\r\n").find_map(|line| line.strip_prefix("content-length: "));
    let length = length.map_or(0, |text| text.parse::<usize>().unwrap());
    (rest.len() >= length).then_some(head_bytes + length)
}

/// Kilobytes of memory that this process has in use.
pub(crate) fn rss_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}
