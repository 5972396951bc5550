//! HTTP/1.1: `/v1/check` and the other paths of the [`Api`], and forward-auth below its prefix.
//!
//! | module | what it has |
//! |---|---|
//! | `route` | the table of paths: what each takes, returns and does |
//! | `request` | the JSON that clients send |
//! | `callers` | which `Host` and `Origin` are served on loopback |
//! | `api` | a request from its head to its response; checks, peeks and batches |
//! | `check_response`, `explain_response` | verdicts and explanations as JSON and headers |
//! | `holds` | reservations and leases |
//! | `inspect` | explanations, usage, denials and resets |
//! | `response`, `refusal` | statuses, headers and bodies; errors that a client caused |
//! | `openapi` | the document of the interface |

mod api;
mod bounds_response;
mod callers;
mod check_response;
mod explain_response;
mod holds;
mod inspect;
mod openapi;
mod refusal;
mod request;
mod response;
mod route;

#[cfg(test)]
mod tests;

use std::pin::pin;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::http::request::Parts;
use hyper::{Request, Response};
use opentelemetry::context::FutureExt;
use tollbar_http::Format;

use super::forward_auth::{self, ForwardAuth, ProxyTrust};
use crate::daemon::Daemon;
use crate::finish::Finish;
use crate::metrics::ProtocolName;
use crate::net::http1::{self, Responder};
use crate::net::phase_timer::PhaseTimer;
use crate::net::{Connection, Peer, Protocol};
use crate::shutdown::ShutdownSignal;
use crate::telemetry::Traces;
pub use api::Api;
use api::BODY_BYTES_MAX;
pub(crate) use api::RequestHead;
pub use bounds_response::BoundsResponse;
pub use callers::{AllowedHost, Callers};
pub(crate) use check_response::{ReasonName, millis};
pub use explain_response::ExplainResponse;
pub(crate) use holds::{RESERVATION_TTL_DEFAULT, reservation_ttl};
pub(crate) use inspect::explain_decision;
pub use inspect::{HealthResponse, IncompleteUsage, describe_denial};
pub use openapi::{ExplainRequest, document};
pub(crate) use refusal::Refusal;
pub use request::Object;
pub use response::ApiResponse;
pub(crate) use route::Route;

/// HTTP/1.1, answered by the [`Api`].
pub struct Http {
    api: Api,
    callers: Callers,
    forward_auth: ForwardAuth,
    traces: Option<Arc<Traces>>,
}

impl Http {
    pub fn new(daemon: Arc<Daemon>, trust: Arc<ProxyTrust>, callers: Callers) -> Self {
        let forward_auth = ForwardAuth::new(daemon.for_protocol(ProtocolName::ForwardAuth), trust);
        let traces = daemon.traces.clone();
        Self { api: Api::new(daemon), callers, forward_auth, traces }
    }
}

impl Protocol for Http {
    const ALPN: &'static [&'static [u8]] = http1::ALPN;

    async fn serve(self: Arc<Self>, connection: Connection, stopped: ShutdownSignal) {
        http1::serve(self, connection, stopped).await;
    }
}

impl Responder for Http {
    type Body = Full<Bytes>;

    async fn respond(
        &self,
        request: Request<Incoming>,
        peer: Peer,
        phase_timer: &Arc<PhaseTimer>,
    ) -> Response<Full<Bytes>> {
        let context = self.traces.as_ref().and_then(|traces| traces.context_of(request.headers()));
        // In one place, traced or not: each connection has room for it.
        let answer = pin!(self.answer(request, peer, phase_timer));
        match context {
            None => answer.await,
            Some(context) => answer.with_context(context).await,
        }
    }
}

impl Http {
    async fn answer(
        &self,
        request: Request<Incoming>,
        peer: Peer,
        phase_timer: &Arc<PhaseTimer>,
    ) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let Self { api, callers, forward_auth, .. } = self;
        if head.uri.path().starts_with(forward_auth::PREFIX) {
            // Proxies send their client's `Host` and `Origin` along, and are trusted by address instead.
            // In a box, so that a check does not carry the room for it around.
            return Box::pin(forward_auth.answer(head, peer)).await.map(Full::new);
        }
        let (method, uri, headers) = (&head.method, &head.uri, &head.headers);
        let head_ref = RequestHead { method, uri, headers, peer };
        if let Err(refusal) = callers.check(&head_ref) {
            return refusal.answer(Format::wanted(headers)).map(Full::new);
        }
        let answer = match api.route_for(&head_ref) {
            Err(answer) => *answer,
            Ok(route) if !route.has_body() => api.answer(route, &head_ref, &[]).await,
            Ok(route) => match http1::read_body(body, BODY_BYTES_MAX, phase_timer).await {
                Ok(body) if api.daemon.finishes_checks() => {
                    let api = api.clone();
                    Finish::new(Box::pin(async move {
                        let Parts { method, uri, headers, .. } = &head;
                        let head = RequestHead { method, uri, headers, peer };
                        api.answer(route, &head, &body).await
                    }))
                    .await
                }
                Ok(body) => api.answer(route, &head_ref, &body).await,
                Err(error) => api.refuse(route, &head_ref, &error.into()),
            },
        };
        answer.map(Full::new)
    }
}
