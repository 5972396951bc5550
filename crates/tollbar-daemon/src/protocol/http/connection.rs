//! Questions over HTTP/1.1. What is answered is the [`Api`]'s business, and that of [`ForwardAuth`].

use std::pin::pin;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use opentelemetry::context::FutureExt;
use tollbar_http::Format;

use crate::daemon::Daemon;
use crate::metrics::Wire;
use crate::net::http1::{self, Responder};
use crate::net::patience::Patience;
use crate::net::{Connection, Peer, Protocol};
use crate::protocol::forward_auth::{self, ForwardAuth, Trust};
use crate::protocol::http::{Api, BODY_BYTES_MAX, Head, Refusal};
use crate::shutdown::Stopped;
use crate::telemetry::Traces;

/// HTTP/1.1, answered by the [`Api`].
pub struct Http {
    api: Api,
    forward_auth: ForwardAuth,
    traces: Option<Arc<Traces>>,
}

impl Http {
    pub fn new(daemon: Arc<Daemon>, trust: Arc<ArcSwap<Trust>>) -> Self {
        let forward_auth = ForwardAuth::new(daemon.for_protocol(Wire::ForwardAuth), trust);
        let traces = daemon.traces.clone();
        Self { api: Api::new(daemon), forward_auth, traces }
    }
}

impl Protocol for Http {
    const ALPN: &'static [&'static [u8]] = http1::ALPN;

    async fn serve(self: Arc<Self>, connection: Connection, stopped: Stopped) {
        http1::serve(self, connection, stopped).await;
    }
}

impl Responder for Http {
    type Body = Full<Bytes>;

    async fn respond(
        &self,
        request: Request<Incoming>,
        peer: Peer,
        patience: &Arc<Patience>,
    ) -> Response<Full<Bytes>> {
        let context = self.traces.as_ref().and_then(|it| it.context_of(request.headers()));
        // In one place, traced or not: each connection has room for it.
        let answer = pin!(self.answer(request, peer, patience));
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
        patience: &Arc<Patience>,
    ) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let Self { api, forward_auth, .. } = self;
        if head.uri.path().starts_with(forward_auth::PREFIX) {
            // In a box, so that a check does not carry the room for it around.
            return Box::pin(forward_auth.answer(head, peer)).await.map(Full::new);
        }
        let asked = Head { method: &head.method, uri: &head.uri, headers: &head.headers };
        let answer = match api.admit(&asked) {
            Err(answer) => *answer,
            Ok(route) if !route.has_body() => api.answer(route, &asked, &[]).await,
            Ok(route) => match http1::read(body, BODY_BYTES_MAX, patience).await {
                Ok(body) => api.answer(route, &asked, &body).await,
                Err(unread) => Refusal::from(unread).answer(Format::wanted(&head.headers)),
            },
        };
        answer.map(Full::new)
    }
}
