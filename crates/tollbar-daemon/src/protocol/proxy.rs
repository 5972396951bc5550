//! The gateway: a reverse proxy on a listener of its own. What passes it is decided by the daemon's
//! rules, and sent by [`tollbar_gateway`].

use std::path::PathBuf;
use std::sync::Arc;

use clap::{ArgAction, Args, ValueEnum};
use hyper::Response;
use hyper::body::Bytes;
use hyper::http::request::Parts;
use thiserror::Error;
use tollbar::Rate;
use tollbar_gateway::{
    Gateway, GatewayBuilder, GatewayError, Pem, PemError, UpstreamOptions, UpstreamProtocol,
    UpstreamUrl, Visitor,
};
use tollbar_http::{ClientIp, Denial, Format, Identity};
use tollbar_rules::{Cidr, Request, Verdict};

use crate::daemon::Daemon;
use crate::decision_log::LoggedRequest;
use crate::duration_flag::DurationFlag;
use crate::net::endpoint::Endpoint;
use crate::net::stream::Peer;
use crate::net::{Bounds, Connection, Protocol};
use crate::shutdown::ShutdownSignal;

/// Where it listens unless it is told otherwise.
const DEFAULT_ENDPOINT: &str = "127.0.0.1:8000";

/// How many requests are under way to the upstream at once; more wait. Connections are mostly idle, so
/// that many of them do with fewer.
const EXCHANGES_MAX: u32 = 4_096;

/// How many connections to the upstream are kept for the next request.
const KEPT_MAX: usize = 256;

fn exchanges_max(bounds: Bounds) -> usize {
    bounds.max_connections.min(EXCHANGES_MAX) as usize
}

/// What the gateway is told.
#[derive(Debug, Clone, Args)]
pub struct GatewayFlags {
    /// Is a reverse proxy too: limits what goes to this server.
    #[arg(
        long,
        env = "TOLLBAR_UPSTREAM",
        value_name = "URL",
        help = "Is a reverse proxy too: limits what goes to this server, such as http://127.0.0.1:3000"
    )]
    pub upstream: Option<UpstreamUrl>,

    /// Where the proxy listens: an address and a port (0 takes any free one), unix:PATH, or off
    /// [default: 127.0.0.1:8000]
    #[arg(long, env = "TOLLBAR_PROXY", value_name = "ENDPOINT", requires = "upstream")]
    proxy: Option<Endpoint>,

    /// The one limit for each client, such as 100/min: instead of a file of rules
    #[arg(long, env = "TOLLBAR_LIMIT", value_name = "RATE", conflicts_with = "rules", value_parser = rate)]
    pub limit: Option<String>,

    /// Every connection to the proxy begins with a PROXY header, version 1 or 2, and comes from one of
    /// --trusted-proxies
    #[arg(long, env = "TOLLBAR_PROXY_PROTOCOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", default_value_t = false, value_name = "BOOL",
          action = ArgAction::Set)]
    proxy_protocol: bool,

    /// Paths of the upstream that are never limited, such as /health
    #[arg(long, env = "TOLLBAR_EXEMPT_PATHS", value_name = "PATH", value_delimiter = ',')]
    exempt_paths: Vec<String>,

    /// Believes certificates of the upstream that an authority in this file has signed, in PEM; without
    /// it, those that browsers believe
    #[arg(long, env = "TOLLBAR_UPSTREAM_CA", value_name = "FILE")]
    upstream_ca: Option<PathBuf>,

    /// What the upstream is spoken to in; auto is HTTP/1.1, or what it offers over TLS
    #[arg(long, env = "TOLLBAR_UPSTREAM_PROTOCOL", value_enum, default_value_t = UpstreamProtocolFlag::Auto)]
    upstream_protocol: UpstreamProtocolFlag,

    /// Tells the upstream its own name as Host, and not the one that the client asks for
    #[arg(long, env = "TOLLBAR_UPSTREAM_HOST", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", default_value_t = false, value_name = "BOOL",
          action = ArgAction::Set)]
    upstream_host: bool,

    /// To connect to the upstream; later it is 504
    #[arg(
        long,
        env = "TOLLBAR_UPSTREAM_CONNECT_TIMEOUT",
        value_name = "TIME",
        default_value = "5s"
    )]
    upstream_connect_timeout: DurationFlag,

    /// For the upstream to begin its answer; later it is 504
    #[arg(
        long,
        env = "TOLLBAR_UPSTREAM_ANSWER_TIMEOUT",
        value_name = "TIME",
        default_value = "30s"
    )]
    upstream_answer_timeout: DurationFlag,

    /// For the upstream to go on with an answer it has begun; later it is broken off
    #[arg(
        long,
        env = "TOLLBAR_UPSTREAM_IDLE_TIMEOUT",
        value_name = "TIME",
        default_value = "1min"
    )]
    upstream_idle_timeout: DurationFlag,
}

/// What the upstream is spoken to in.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum UpstreamProtocolFlag {
    Auto,
    Http1,
    Http2,
}

/// Why there can be no gateway.
#[derive(Debug, Error)]
pub enum GatewayFlagsError {
    #[error("--upstream-ca: {0}")]
    Authorities(#[from] PemError),
    #[error("--upstream: {0}")]
    Upstream(#[from] GatewayError),
    #[error(
        "--proxy-protocol believes who the client is from anybody: say whom to believe by \
         --trusted-proxies, such as 10.0.0.0/8"
    )]
    TrustsNobody,
}

/// Everything the proxy needs but its rules, read and found good.
pub struct PreparedProxy {
    builder: GatewayBuilder,
    client_ip: ClientIp,
    balancers: Option<ClientIp>,
}

/// The proxy as a protocol of a listener.
pub struct Proxy {
    gateway: Gateway,
    /// Who sends PROXY headers, where they are asked for.
    balancers: Option<ClientIp>,
}

fn rate(text: &str) -> Result<String, String> {
    match text.parse::<Rate>() {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl GatewayFlags {
    /// Where the proxy listens; off where there is no upstream.
    pub fn endpoint(&self) -> Endpoint {
        match (&self.upstream, &self.proxy) {
            (None, _) => Endpoint::Off,
            (Some(_), Some(endpoint)) => endpoint.clone(),
            (Some(_), None) => DEFAULT_ENDPOINT.parse().unwrap_or(Endpoint::Off),
        }
    }

    /// How many connections to the upstream there may be.
    pub fn upstream_connections_max(&self, bounds: Bounds) -> usize {
        if self.endpoint() == Endpoint::Off { 0 } else { exchanges_max(bounds) + KEPT_MAX }
    }

    /// What the proxy is made of, if there is to be one.
    pub fn prepare(
        &self,
        trusted_proxies: &[Cidr],
        bounds: Bounds,
    ) -> Result<Option<PreparedProxy>, GatewayFlagsError> {
        let Some(url) = &self.upstream else {
            return Ok(None);
        };
        if self.proxy_protocol && trusted_proxies.is_empty() {
            return Err(GatewayFlagsError::TrustsNobody);
        }
        let client_ip = ClientIp::behind_proxies(trusted_proxies.iter().copied());
        let mut options = UpstreamOptions::default();
        options.protocol = match self.upstream_protocol {
            UpstreamProtocolFlag::Auto => UpstreamProtocol::Auto,
            UpstreamProtocolFlag::Http1 => UpstreamProtocol::Http1,
            UpstreamProtocolFlag::Http2 => UpstreamProtocol::Http2,
        };
        options.connect_time_max = self.upstream_connect_timeout.0;
        options.first_byte_time_max = self.upstream_answer_timeout.0;
        options.idle_time_max = self.upstream_idle_timeout.0;
        options.exchanges_max = exchanges_max(bounds);
        options.kept_max = KEPT_MAX;
        options.rewrites_host = self.upstream_host;
        let mut builder = Gateway::builder(url.clone())
            .upstream(options)
            .client_ip(client_ip.clone())
            .exempt(self.exempt_paths.iter().map(String::as_str))
            .head_time_max(bounds.head_timeout.0);
        if let Some(path) = &self.upstream_ca {
            builder = builder.authorities(&Pem::read(path)?)?;
        }
        let balancers = self.proxy_protocol.then(|| client_ip.clone());
        Ok(Some(PreparedProxy { builder, client_ip, balancers }))
    }
}

impl PreparedProxy {
    /// Over the engine of `daemon`, which counts what passes, as usage too, and keeps denials.
    pub fn open(self, daemon: &Arc<Daemon>) -> Result<Proxy, GatewayFlagsError> {
        let identity = Identity::new().client_ip(self.client_ip);
        let [for_decisions, for_denials, for_holds] = [(); 3].map(|()| Arc::clone(daemon));
        let on_decision = move |request: &Request<'_>, verdict: &Verdict| {
            for_decisions.count_verdict(verdict);
            for_decisions.meter(verdict, request);
        };
        let builder = self.builder.layer(move |layer| {
            layer
                .on_decision(on_decision)
                .on_hold_error(move |_| for_holds.metrics.count_hold_failure())
                .denial_response(move |denial, parts| {
                    denial_response(&for_denials, &identity, denial, parts)
                })
        });
        let gateway = builder.build(Arc::clone(&daemon.engine))?;
        Ok(Proxy { gateway, balancers: self.balancers })
    }
}

/// The answer to a request that does not pass, which can be asked about.
fn denial_response(
    daemon: &Daemon,
    identity: &Identity,
    denial: &Denial<'_>,
    parts: &Parts,
) -> Response<Bytes> {
    let mut response = denial.response(Format::wanted(&parts.headers));
    let attributes = identity.attributes(parts, daemon.now());
    let pairs: Vec<_> = attributes.get("ip").map(|ip| ("ip", ip)).into_iter().collect();
    let request = Request::new(parts.method.as_str(), parts.uri.path());
    // It was one when it was denied.
    if let Ok(request) = request.and_then(|it| it.with_attributes(&pairs)) {
        let id = daemon.record_denial(&LoggedRequest::of(&request), denial.verdict());
        response.headers_mut().extend(id.header());
    }
    response
}

impl Protocol for Proxy {
    const ALPN: &'static [&'static [u8]] = &[b"h2", b"http/1.1"];

    fn balancers(&self) -> Option<&ClientIp> {
        self.balancers.as_ref()
    }

    async fn serve(self: Arc<Self>, connection: Connection, mut stopped: ShutdownSignal) {
        let peer = match connection.peer {
            Peer::Tcp(address) => Some(address.ip()),
            Peer::Unix => None,
        };
        let visitor = Visitor { peer, is_secure: connection.stream.is_secure() };
        let announced = stopped.clone();
        let is_announced = move || announced.is_announced();
        self.gateway.serve_until(connection.stream, visitor, stopped.wait(), is_announced).await;
    }
}
