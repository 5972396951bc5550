//! Rate limits in front of a tower service: axum, hyper, tonic.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tollbar_http::TollbarLayer;
//! use tollbar_rules::{Engine, RuleFile};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = RuleFile::parse("rules.yaml", "rules: [{ name: per_client, limit: 10/s }]")?.rules;
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(TollbarLayer::new(Engine::new(rules)));
//! # let _ = app;
//! # Ok(())
//! # }
//! ```
//!
//! A [`TollbarLayer`] reads [who asks](Identity), has the [rules](tollbar_rules::Engine) decide, and
//! tells the client in [headers](HeaderStyle) what is left. Who is turned away is told
//! [when to come back](Denial). What a request costs can be [settled](Settle) when it is over.
//!
//! Serve with `into_make_service_with_connect_info::<SocketAddr>()` and the feature `axum`, so that
//! the peer's address is known; without one, all who have no user and no key count as one.
//!
//! | feature | what it adds |
//! |---|---|
//! | `axum` | the peer's address, as axum leaves it with a request |
//! | `tonic` | the same for tonic |
//! | `jwt` | users by the claims of a JSON Web Token that is verified here |
//!
//! # The modules
//!
//! | module | what it has |
//! |---|---|
//! | `layer` | [`TollbarLayer`] and its options |
//! | `service` | [`TollbarService`]: checks a request, then calls the service behind it |
//! | `future` | [`ResponseFuture`], and what is added to the response of a request that passes |
//! | `body` | [`TollbarBody`], which ends what the request holds when it ends itself |
//! | `layer_state` | what all services of one layer share |
//! | `hold_guard`, `settle` | what a request holds while it lasts; what it has spent in the end |
//! | `queue_waiters` | how long requests wait in queues, and how many at once |
//! | `identity`, `client_ip` | the attributes of a request: API keys, tokens, headers, the client's address |
//! | `headers` | the headers about limits |
//! | `response`, `grpc`, `jitter` | the response to a request that is denied, in JSON, as a problem or for gRPC, and its retry-after |

#![cfg_attr(
    test,
    allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")
)]

mod body;
mod client_ip;
mod future;
mod grpc;
mod headers;
mod hold_guard;
mod identity;
mod jitter;
mod layer;
mod layer_state;
mod queue_waiters;
mod response;
mod service;
mod settle;
#[cfg(test)]
mod testing;

pub use body::TollbarBody;
pub use client_ip::ClientIp;
pub use future::ResponseFuture;
pub use headers::{HeaderStyle, HeaderStyleError, LimitReport, Reset, retry_after_s, window_s};
pub use identity::{
    ApiKeys, Attributes, Identity, IdentityError, Peer, TermHeaderError, TermHeaders, UntrustedPeer,
};
#[cfg(feature = "jwt")]
pub use identity::{Jwt, JwtAlgorithm, JwtKey};
pub use jitter::{RetryJitter, RetryJitterError};
pub use layer::{PerClientError, TollbarLayer, TollbarLayerBuilder};
pub use layer_state::DecisionReport;
pub use queue_waiters::{QueuePlace, QueueWaiters};
pub use response::{Denial, Format, status_of};
pub use service::TollbarService;
pub use settle::{ResponseEnd, Settle};
