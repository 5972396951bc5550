//! The gateway: a reverse proxy on a listener of its own. What passes it is decided by the daemon's
//! rules, and sent by [`tollbar_gateway`].

use std::path::PathBuf;
use std::sync::Arc;

use clap::{ArgAction, Args, ValueEnum};
use thiserror::Error;
use tollbar_gateway::{
    BodyBounds, ConnectionInfo, Gateway, GatewayBuilder, GatewayError, Pem, PemError,
    UpstreamOptions, UpstreamProtocol, UpstreamUrl,
};
use tollbar_http::{ClientIp, DecisionReport};
use tollbar_rules::{Limit, LimitError};

use crate::count_flag::count;
use crate::daemon::Daemon;
use crate::duration_flag::DurationFlag;
use crate::header_flags::ClientHeaders;
use crate::net::endpoint::Endpoint;
use crate::net::stream::Peer;
use crate::net::{AddressSlots, Bounds, Connection, Protocol};
use crate::protocol::forward_auth::{ProxyFlags, ProxyTrust};
use crate::shutdown::ShutdownSignal;
use crate::tasks::{spawn_connection, spawn_short};

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
    #[arg(long, env = "TOLLBAR_PROXY", value_name = "ENDPOINT")]
    proxy: Option<Endpoint>,

    /// The one limit for each client, such as 100/min: instead of a file of rules
    #[arg(long, env = "TOLLBAR_LIMIT", value_name = "RATE", value_parser = limit)]
    pub limit: Option<String>,

    /// Every connection to the proxy begins with a PROXY header, version 1 or 2, and comes from one of
    /// --trusted-proxies
    #[arg(long, env = "TOLLBAR_PROXY_PROTOCOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", default_value_t = false, value_name = "BOOL",
          action = ArgAction::Set)]
    proxy_protocol: bool,

    /// How many connections one address may hold on the proxy, an IPv6 address by its /64; one of --trusted-proxies may
    /// hold any number [default: a quarter of --max-connections]
    #[arg(long, env = "TOLLBAR_MAX_CONNECTIONS_PER_ADDRESS", value_name = "COUNT",
          value_parser = count::<u32>(1..=1_000_000))]
    max_connections_per_address: Option<u32>,

    /// How many bytes per second the body of a request to the proxy must have while the client is waited for, after
    /// --body-timeout; later it is 408. 0 is no bound. gRPC is exempt
    #[arg(long, env = "TOLLBAR_MIN_BODY_RATE", value_name = "BYTES", default_value_t = 256,
          value_parser = count::<u32>(0..=u32::MAX.into()))]
    min_body_rate: u32,

    /// For the body of a request to the proxy, from its first byte to its last; later it is 408. gRPC is exempt
    #[arg(long, env = "TOLLBAR_REQUEST_TIME_MAX", value_name = "TIME", default_value = "1h")]
    request_time_max: DurationFlag,

    /// Paths of the upstream that are never limited, exactly as they are written, such as /health
    #[arg(long, env = "TOLLBAR_EXEMPT_PATHS", value_name = "PATH", value_delimiter = ',',
          value_parser = exempt_path)]
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
    #[error(
        "{flag} has no effect on --upstream without --trusted-proxies: say whose headers to believe, such as \
         --trusted-proxies 10.0.0.0/8"
    )]
    HeadersOfNobody { flag: &'static str },
    #[error(
        "--upstream-ca has no effect on {url}, which has no certificate: write an https:// URL, or leave \
         --upstream-ca out"
    )]
    PlainUpstream { url: UpstreamUrl },
    #[error(
        "--max-connections-per-address has no effect on {endpoint}, whose peers have no addresses: leave it out, or add \
         --proxy-protocol, which names them"
    )]
    NoAddresses { endpoint: Endpoint },
}

/// Everything the proxy needs but its rules, read and found good.
pub struct PreparedProxy {
    builder: GatewayBuilder,
    balancers: Option<ClientIp>,
    address_slots: Arc<AddressSlots>,
}

/// The proxy as a protocol of a listener.
pub struct Proxy {
    gateway: Gateway,
    /// Who sends PROXY headers, where they are asked for.
    balancers: Option<ClientIp>,
    address_slots: Arc<AddressSlots>,
}

/// A text that can be the limit of a rule.
fn limit(text: &str) -> Result<String, LimitError> {
    Limit::parse(text).map(|limit| limit.text().to_owned())
}

/// A path that a request can have. Patterns and queries would match nothing.
fn exempt_path(text: &str) -> Result<String, &'static str> {
    let is_path = text.starts_with('/') && !text.contains(['*', '{', '?', '#']);
    is_path.then(|| text.to_owned()).ok_or(
        "it is compared as it is written: begin it with `/`, leave out queries, and for a pattern write a rule \
         with `unlimited: true`",
    )
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
        proxies: &ProxyFlags,
        trust: &ProxyTrust,
        bounds: Bounds,
    ) -> Result<Option<PreparedProxy>, GatewayFlagsError> {
        let Some(url) = &self.upstream else {
            return Ok(None);
        };
        let trusted_proxies = &proxies.trusted_proxies;
        let mut client_ip = ClientIp::behind_proxies(trusted_proxies.iter().copied());
        let header_flag = proxies.header_flag();
        let is_unix = matches!(self.endpoint(), Endpoint::Unix(_));
        if trusted_proxies.is_empty() && !is_unix {
            if self.proxy_protocol {
                return Err(GatewayFlagsError::TrustsNobody);
            }
            if let Some(flag) = header_flag {
                return Err(GatewayFlagsError::HeadersOfNobody { flag });
            }
        } else if is_unix && (!trusted_proxies.is_empty() || header_flag.is_some()) {
            // Who may connect to a path its permissions say, as for proxies that ask.
            client_ip = client_ip.trusting_nameless_peers();
        }
        if is_unix && !self.proxy_protocol && self.max_connections_per_address.is_some() {
            return Err(GatewayFlagsError::NoAddresses { endpoint: self.endpoint() });
        }
        if self.upstream_ca.is_some() && !url.is_secure() {
            return Err(GatewayFlagsError::PlainUpstream { url: url.clone() });
        }
        let mut builder = Gateway::builder(url.clone())
            .upstream(self.upstream_options(bounds))
            .client_ip(client_ip.clone())
            .identity(trust.gateway_identity())
            .exempt(self.exempt_paths.iter().map(String::as_str))
            .head_time_max(bounds.head_timeout.0)
            .body_bounds(self.body_bounds(bounds));
        if let Some(path) = &self.upstream_ca {
            builder = builder.authorities(&Pem::read(path)?)?;
        }
        let share = bounds.max_connections.div_ceil(4);
        let per_address_max = self.max_connections_per_address.unwrap_or(share);
        let address_slots = AddressSlots::new(per_address_max, client_ip.clone());
        let balancers = self.proxy_protocol.then_some(client_ip);
        Ok(Some(PreparedProxy { builder, balancers, address_slots }))
    }

    fn body_bounds(&self, bounds: Bounds) -> BodyBounds {
        let mut body_bounds = BodyBounds::default();
        body_bounds.rate_min = self.min_body_rate.into();
        body_bounds.grace_time = bounds.body_timeout.0;
        body_bounds.time_max = self.request_time_max.0;
        body_bounds
    }

    fn upstream_options(&self, bounds: Bounds) -> UpstreamOptions {
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
        options
    }
}

impl PreparedProxy {
    /// Over the engine of `daemon`, which counts what passes, as usage too, and keeps denials.
    pub fn open(self, daemon: &Arc<Daemon>) -> Result<Proxy, GatewayFlagsError> {
        let [for_decisions, for_invalid, for_holds] = [(); 3].map(|()| Arc::clone(daemon));
        let builder = self.builder.spawn_with(|task| spawn_connection("--proxy", task));
        let waiters = Arc::clone(&daemon.queue_waiters);
        let ClientHeaders { http: headers, jitter, .. } = daemon.client_headers;
        let builder = builder.layer(move |layer| {
            layer
                .on_decision(move |report| conclude(&for_decisions, report))
                .on_invalid_request(move |error| for_invalid.reject(&error.to_string()))
                .on_hold_error(move |error| for_holds.report_hold_failure(error))
                .queue_waiters(waiters)
                .headers(headers)
                .retry_jitter(jitter)
        });
        let gateway = builder.build(Arc::clone(&daemon.engine))?;
        Ok(Proxy { gateway, balancers: self.balancers, address_slots: self.address_slots })
    }
}

impl Proxy {
    /// Connects to the upstream once, beside the start. A failure is logged, so that an operator learns of it before a client.
    pub fn probe_upstream(&self) {
        let gateway = self.gateway.clone();
        spawn_short("upstream_probe", async move { gateway.probe_upstream().await });
    }
}

/// Counts, meters and traces a request, and records it if it is denied: the response has the id by which it can
/// be looked up.
fn conclude(daemon: &Daemon, report: DecisionReport<'_>) {
    let DecisionReport { request, verdict, began, headers, response_headers, .. } = report;
    daemon.meter(verdict, request);
    let id = daemon.conclude_since(verdict, request, began, headers);
    if let Some(response_headers) = response_headers {
        response_headers.extend(id.header());
    }
}

impl Protocol for Proxy {
    const ALPN: &'static [&'static [u8]] = &[b"h2", b"http/1.1"];

    const EVICTS_SLOWEST: bool = true;

    fn balancers(&self) -> Option<&ClientIp> {
        self.balancers.as_ref()
    }

    fn address_slots(&self) -> Option<&Arc<AddressSlots>> {
        Some(&self.address_slots)
    }

    async fn serve(self: Arc<Self>, connection: Connection, mut stopped: ShutdownSignal) {
        let peer = match connection.peer {
            Peer::Tcp(address) => Some(address.ip()),
            Peer::Unix => None,
        };
        let connection_info = ConnectionInfo {
            peer,
            is_secure: connection.stream.is_secure(),
            may_be_proxy: connection.names_client,
        };
        let activity = connection.activity.unwrap_or_default();
        let announced = stopped.clone();
        let is_announced = move || announced.is_announced();
        self.gateway
            .serve_until(connection.stream, connection_info, activity, stopped.wait(), is_announced)
            .await;
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        gateway: GatewayFlags,
    }

    #[test]
    fn each_flag_sets_its_own_part_of_the_upstream() {
        for (flag, expected) in [
            ("--upstream-protocol=http2", "protocol: Http2,"),
            ("--upstream-connect-timeout=7s", "connect_time_max: 7s,"),
            ("--upstream-answer-timeout=7s", "first_byte_time_max: 7s,"),
            ("--upstream-idle-timeout=7s", "idle_time_max: 7s,"),
            ("--upstream-host", "rewrites_host: true,"),
        ] {
            let options = |args: &[&str]| {
                let line = Line::parse_from([&["tollbar"], args].concat());
                format!("{:?}", line.gateway.upstream_options(Bounds::default()))
            };
            assert!(options(&[flag]).contains(expected), "{flag}: {}", options(&[flag]));
            assert!(!options(&[]).contains(expected), "{flag} is not the default");
        }
    }
}
