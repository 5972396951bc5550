//! A reverse proxy that limits: rules in front of one upstream.
//!
//! ```no_run
//! use tollbar_gateway::{ConnectionInfo, Gateway};
//! use tollbar_rules::{Engine, RuleFile};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = RuleFile::parse("rules.yaml", "rules: [{ name: per_client, limit: 10/s }]")?.rules;
//! let gateway = Gateway::builder("http://127.0.0.1:3000".parse()?).build(Engine::new(rules))?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8000").await?;
//! loop {
//!     let (stream, peer) = listener.accept().await?;
//!     let (gateway, connection_info) = (gateway.clone(), ConnectionInfo::from_peer(peer.ip()));
//!     tokio::spawn(async move { gateway.serve(stream, connection_info).await });
//! }
//! # }
//! ```
//!
//! Clients and the upstream speak HTTP/1.1 or HTTP/2, each as it likes. Bodies are streamed both ways
//! and never gathered: who reads slowly is sent slowly. An upgrade, such as to WebSocket, is passed on,
//! and holds what its request holds until both ends have closed.
//!
//! Nothing is sent twice. Headers of one connection end there, what strangers claim about clients is
//! removed, and whatever could be read in two ways is refused. An upstream that is down is left alone
//! for a while.
//!
//! It accepts no connections and knows no certificates of its own: whoever calls
//! [`serve`](Gateway::serve) has a stream, and bounds how many there are and how long they may be silent.
//!
//! | module | what it has |
//! |---|---|
//! | `gateway` | the builder, and one connection from a client to its end |
//! | `client` | who a connection is from, a stream that refuses ambiguous requests, interim responses, the bounds of a head, the PROXY header |
//! | `upstream` | connections to the upstream and their pool, bodies and trailers, the breaker |
//! | `exchange`, `request` | the service behind the rules; a request as the upstream receives it |
//! | `forwarded`, `hop_by_hop` | headers about the client; headers that end at each connection |
//! | `tunnel` | upgraded connections |
//! | `problem`, `vectored_write` | responses of our own; small pieces written together |
//! | `executor` | where streams of HTTP/2 run |

#![cfg_attr(
    test,
    allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")
)]

mod client;
mod exchange;
mod executor;
mod forwarded;
mod gateway;
mod hop_by_hop;
mod problem;
mod request;
mod tunnel;
mod upstream;
mod vectored_write;

pub use client::ConnectionInfo;
pub use client::activity::ConnectionActivity;
#[doc(hidden)]
pub use client::framing::differential::compare_framing;
pub use client::guard::HeadBounds;
pub use client::proxy_protocol::{ProxyProtocolError, read_proxy_header};
pub use gateway::{Gateway, GatewayBuilder, GatewayError};
pub use tollbar_tls::{Pem, PemError};
pub use upstream::body::BodyBounds;
pub use upstream::breaker::BreakerOptions;
pub use upstream::options::{UpstreamOptions, UpstreamProtocol, UpstreamUrl, UpstreamUrlError};
