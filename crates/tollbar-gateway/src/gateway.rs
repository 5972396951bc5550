//! The gateway: connections of clients on one side, an upstream on the other, rules between.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, StatusCode, Version};
use http_body::Body;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::RootCertStore;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tollbar_http::{
    ClientIp, Identity, TollbarBody, TollbarLayer, TollbarLayerBuilder, TollbarService,
    UntrustedPeer,
};
use tollbar_rules::AsyncEngine;
use tollbar_tls::{Pem, PemError};
use tower_layer::Layer;
use tower_service::Service;

use crate::client::activity::{ActiveBody, PendingResponse};
use crate::client::checked_stream::CheckedStream;
use crate::client::findings::Findings;
use crate::client::framing::{headers_bytes_max, line_bytes_max};
use crate::client::interim::InterimResponses;
use crate::exchange::{Exchange, Upstream};
use crate::executor::GatewayExecutor;
use crate::forwarded;
use crate::problem::Problem;
use crate::request::{AMBIGUOUS, RequestSettings};
use crate::upstream::body::UpstreamBody;
use crate::upstream::breaker::Breaker;
use crate::upstream::connector::Connector;
use crate::upstream::pool::Pool;
use crate::{
    BodyBounds, ConnectionActivity, ConnectionInfo, HeadBounds, UpstreamOptions, UpstreamUrl,
};

/// How many requests a client may have under way on one connection over HTTP/2.
const STREAMS_MAX: u32 = 128;

/// How many headers hyper takes unless it is told otherwise, and keeps on the stack.
const HEADERS_OF_HYPER: usize = 100;

/// Rules in front of an upstream. Clones are the same gateway.
#[derive(Clone)]
pub struct Gateway {
    shared: Arc<GatewayState>,
}

struct GatewayState {
    layer: TollbarLayer,
    upstream: Arc<Upstream>,
    bounds: HeadBounds,
    head_time_max: Duration,
    server: auto::Builder<GatewayExecutor>,
}

type LayerOptions = dyn FnOnce(TollbarLayerBuilder) -> TollbarLayerBuilder + Send;

/// A [`Gateway`] in the making.
pub struct GatewayBuilder {
    layer: Option<Box<LayerOptions>>,
    url: UpstreamUrl,
    options: UpstreamOptions,
    authorities: RootCertStore,
    identity: Identity,
    client_ip: ClientIp,
    exempt: Vec<Box<str>>,
    bounds: HeadBounds,
    body_bounds: BodyBounds,
    head_time_max: Duration,
    executor: GatewayExecutor,
}

/// Why there can be no gateway.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GatewayError {
    /// TLS to the upstream cannot be set up.
    #[error("no TLS to the upstream: {0}")]
    Tls(#[from] rustls::Error),
    /// The upstream's name is no value of a header.
    #[error("the upstream `{url}` has a name that cannot be sent as `Host`")]
    Host {
        /// Which one.
        url: UpstreamUrl,
    },
}

impl Gateway {
    /// In front of the upstream at `url`.
    #[must_use]
    pub fn builder(url: UpstreamUrl) -> GatewayBuilder {
        GatewayBuilder {
            layer: None,
            url,
            options: UpstreamOptions::default(),
            authorities: tollbar_tls::public_authorities(),
            identity: Identity::new(),
            client_ip: ClientIp::peer(),
            exempt: Vec::new(),
            bounds: HeadBounds::default(),
            body_bounds: BodyBounds::default(),
            head_time_max: Duration::from_secs(30),
            executor: GatewayExecutor::default(),
        }
    }

    /// Connects to the upstream once, and logs a warning if that fails: at the start of a server, before a client finds out.
    pub async fn probe_upstream(&self) {
        self.shared.upstream.probe().await;
    }

    /// Serves a client's connection to its end.
    pub async fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        connection_info: ConnectionInfo,
    ) {
        self.serve_until(stream, connection_info, Arc::default(), pending(), || false).await;
    }

    /// Serves a client's connection to its end, or until `stop` says to come to one: what has been asked
    /// is answered then, and a tunnel goes on until this is dropped.
    ///
    /// `activity` shows others whether the client waits for a response.
    ///
    /// From when `is_announced` is true, answers over HTTP/1.1 tell clients to go elsewhere.
    pub async fn serve_until<I, A>(
        &self,
        stream: I,
        connection_info: ConnectionInfo,
        activity: Arc<ConnectionActivity>,
        stop: impl Future<Output = ()>,
        is_announced: A,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        A: Fn() -> bool + Send + Sync + 'static,
    {
        let (findings, interim) = (Arc::<Findings>::default(), Arc::<InterimResponses>::default());
        let (of_stream, bounds) = (Arc::clone(&findings), self.shared.bounds);
        let stream = CheckedStream::new(stream, bounds, of_stream, Arc::clone(&interim));
        let upstream = Arc::clone(&self.shared.upstream);
        let exchange = Exchange::new(upstream, connection_info, Arc::clone(&interim));
        let service = self.shared.layer.layer(exchange.clone());
        let service = match connection_info.peer {
            Some(peer) => service.with_peer(peer),
            None => service,
        };
        let connection = Arc::new(ClientConnection {
            service,
            shared: Arc::clone(&self.shared),
            findings: Arc::clone(&findings),
            interim,
            is_untrusted: !connection_info.may_be_proxy,
            activity,
            is_announced,
        });
        let service = service_fn(move |request| Arc::clone(&connection).respond(request));
        let served =
            self.shared.server.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut served = pin!(served);
        let mut stop = pin!(stop);
        // Which version of HTTP it is shows in the first bytes, which have no other bound in time.
        let mut silence = pin!(tokio::time::sleep(self.shared.head_time_max));
        let silence = poll_fn(|cx| {
            if findings.has_begun() {
                return Poll::Pending;
            }
            silence.as_mut().poll(cx)
        });
        tokio::select! {
            biased;
            // What a client does to its connection is its own affair: errors end it.
            _ = served.as_mut() => {}
            () = stop.as_mut() => {
                served.as_mut().graceful_shutdown();
                #[expect(clippy::let_underscore_must_use, reason = "an error of the client's connection ends it, and it has ended")]
                let _ = served.as_mut().await;
            }
            () = silence => return,
        }
        let tunnel = exchange.tunnel().take();
        if let Some(tunnel) = tunnel {
            tunnel.run().await;
        }
    }
}

/// One connection of a client.
struct ClientConnection<A> {
    service: TollbarService<Exchange>,
    shared: Arc<GatewayState>,
    findings: Arc<Findings>,
    interim: Arc<InterimResponses>,
    is_untrusted: bool,
    activity: Arc<ConnectionActivity>,
    is_announced: A,
}

type ResponseBody = Either<TollbarBody<UpstreamBody>, Full<Bytes>>;

impl<A: Fn() -> bool> ClientConnection<A> {
    async fn respond(
        self: Arc<Self>,
        mut request: Request<Incoming>,
    ) -> Result<Response<ActiveBody<ResponseBody>>, Infallible> {
        let pending = Arc::new(PendingResponse::new(Arc::clone(&self.activity)));
        if request.body().is_end_stream() {
            pending.begin();
        } else {
            request.extensions_mut().insert(Arc::clone(&pending));
        }
        if self.is_untrusted {
            request.extensions_mut().insert(UntrustedPeer);
        }
        let is_http1 = request.version() < Version::HTTP_2;
        if is_http1 {
            self.interim.begin_request();
        }
        let flaw = self.findings.asked(is_http1);
        let problem = match flaw {
            Some(flaw) => Some(flaw.problem()),
            None => self.shared.check(&request).err(),
        };
        let is_refused = problem.is_some();
        let mut response = match problem {
            None => self.answer(request).await,
            Some(problem) => problem_response(problem),
        };
        if is_http1 {
            poll_fn(|cx| self.interim.poll_written(cx)).await;
        }
        pending.begin();
        self.findings.answered(response.status() == StatusCode::SWITCHING_PROTOCOLS);
        // What follows a request that was refused is not read: it may be a part of it.
        let is_last = is_refused || (self.is_announced)();
        if is_http1 && is_last && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response.map(|body| ActiveBody { body, _response: pending }))
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let Ok(response) = self.service.clone().call(request).await;
        let (head, body) = response.into_parts();
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            // The server drops the body of such a response; what it holds must outlive it.
            if let Some(tunnel) = &mut *self.service.get_ref().tunnel() {
                tunnel.held = Some(body);
            }
            return Response::from_parts(head, Either::Right(Full::default()));
        }
        Response::from_parts(head, Either::Left(body))
    }
}

impl GatewayState {
    /// Returns why a request is refused before the rules see it, if it is.
    fn check<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        self.bounds.check(request)?;
        forwarded::host(request.uri(), request.headers()).map(drop).map_err(|_| AMBIGUOUS)
    }
}

fn problem_response(problem: Problem) -> Response<ResponseBody> {
    problem.response().map(|body| Either::Right(Full::new(body)))
}

impl GatewayBuilder {
    /// How the upstream is treated.
    #[must_use]
    pub fn upstream(mut self, options: UpstreamOptions) -> Self {
        self.options = options;
        self
    }

    /// Whose signature under the upstream's certificate counts. Without this, the authorities that browsers
    /// trust.
    pub fn authorities(mut self, pem: &Pem) -> Result<Self, PemError> {
        self.authorities = pem.authorities()?;
        Ok(self)
    }

    /// Whose word is taken for who the client is: for rules, and for what the upstream is told.
    #[must_use]
    pub fn client_ip(mut self, client_ip: ClientIp) -> Self {
        self.client_ip = client_ip;
        self
    }

    /// Sets who asks. Its own [`ClientIp`] gives way to [`client_ip`](Self::client_ip). Headers that say who asks reach
    /// the upstream only if a trusted proxy has sent them and [`Identity::trusted_header`] names them.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// Paths that no rule sees, exactly as they are written: those by which others look whether the
    /// upstream is well.
    #[must_use]
    pub fn exempt(mut self, paths: impl IntoIterator<Item = impl Into<Box<str>>>) -> Self {
        self.exempt = paths.into_iter().map(Into::into).collect();
        self
    }

    /// How much the head of a request may be.
    #[must_use]
    pub fn head_bounds(mut self, bounds: HeadBounds) -> Self {
        self.bounds = bounds;
        self
    }

    /// How slow the body of a request may be.
    #[must_use]
    pub fn body_bounds(mut self, bounds: BodyBounds) -> Self {
        self.body_bounds = bounds;
        self
    }

    /// How long a client may take to send a head: also how long an idle connection is kept.
    #[must_use]
    pub fn head_time_max(mut self, time: Duration) -> Self {
        self.head_time_max = time;
        self
    }

    /// Runs the streams of HTTP/2, and connections to the upstream over it, by `spawn`: to know of their panics, for
    /// example. Without this, tokio's `spawn` runs them.
    #[must_use]
    pub fn spawn_with(
        mut self,
        spawn: impl Fn(Pin<Box<dyn Future<Output = ()> + Send>>) + Send + Sync + 'static,
    ) -> Self {
        self.executor = GatewayExecutor(Some(Arc::new(spawn)));
        self
    }

    /// Other options of the layer: what is answered to whom is denied, and with which headers.
    #[must_use]
    pub fn layer(
        mut self,
        options: impl FnOnce(TollbarLayerBuilder) -> TollbarLayerBuilder + Send + 'static,
    ) -> Self {
        self.layer = Some(Box::new(options));
        self
    }

    /// The gateway, which limits by what `engine` says.
    pub fn build(self, engine: impl Into<Arc<AsyncEngine>>) -> Result<Gateway, GatewayError> {
        let Self { url, options, client_ip, bounds, head_time_max, executor, .. } = self;
        let host = url.host_header().ok_or_else(|| GatewayError::Host { url: url.clone() })?;
        let connector = Connector::new(url.clone(), options.protocol, self.authorities)?;
        let trusted_headers = forwarded::trusted_headers(&self.identity, &client_ip).into();
        let rewrites_host = options.rewrites_host;
        let terms = RequestSettings {
            url,
            host,
            rewrites_host,
            body_bounds: self.body_bounds,
            trusted_headers,
        };
        let breaker = Breaker::new(options.breaker);
        let layer = TollbarLayer::builder(engine);
        let layer = match self.layer {
            Some(options) => options(layer),
            None => layer,
        };
        let mut layer = layer.identity(self.identity.client_ip(client_ip.clone()));
        if !self.exempt.is_empty() {
            let exempt = self.exempt;
            layer = layer.skip(move |parts| exempt.iter().any(|path| **path == *parts.uri.path()));
        }
        let pool = Pool::new(connector, options, executor.clone());
        let upstream = Arc::new(Upstream { pool, breaker, terms, client_ip });
        let server = server(executor, &bounds, head_time_max);
        let layer = layer.build();
        Ok(Gateway {
            shared: Arc::new(GatewayState { layer, upstream, bounds, head_time_max, server }),
        })
    }
}

fn server(
    executor: GatewayExecutor,
    bounds: &HeadBounds,
    head_time_max: Duration,
) -> auto::Builder<GatewayExecutor> {
    let mut server = auto::Builder::new(executor);
    // Room for everything that is cut off and refused politely.
    let head_bytes = line_bytes_max(bounds.uri_bytes_max)
        .saturating_add(headers_bytes_max(bounds.header_bytes_max))
        .saturating_add(8 * 1_024);
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(head_time_max)
        .max_buf_size(head_bytes);
    // The line that is too much is the last that gets that far.
    let header_count_max = bounds.header_count_max.saturating_add(1);
    if header_count_max > HEADERS_OF_HYPER {
        server.http1().max_headers(header_count_max);
    }
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(head_bytes).unwrap_or(u32::MAX));
    server
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms = &self.shared.upstream.terms;
        f.debug_struct("Gateway").field("upstream", &terms.url).finish_non_exhaustive()
    }
}

impl fmt::Debug for GatewayBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayBuilder").field("upstream", &self.url).finish_non_exhaustive()
    }
}
