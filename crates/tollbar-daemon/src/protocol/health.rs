//! Health checks on a listener of their own, which are answered while clients hold every connection of the others. It
//! serves `/healthz` and `/readyz`, needs no token and speaks no TLS, as probes expect.

use std::sync::Arc;

use axum::body::Body;
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};

use super::http::HealthResponse;
use crate::daemon::Daemon;
use crate::net::http1::{self, Responder};
use crate::net::phase_timer::PhaseTimer;
use crate::net::{Connection, Peer, Protocol};
use crate::problem::Problem;
use crate::shutdown::ShutdownSignal;

/// The two paths of health checks over HTTP/1.1.
pub struct HealthProtocol {
    daemon: Arc<Daemon>,
}

impl HealthProtocol {
    pub fn new(daemon: Arc<Daemon>) -> Self {
        Self { daemon }
    }
}

impl Protocol for HealthProtocol {
    async fn serve(self: Arc<Self>, connection: Connection, stopped: ShutdownSignal) {
        http1::serve(self, connection, stopped).await;
    }
}

impl Responder for HealthProtocol {
    type Body = Body;

    async fn respond(
        &self,
        request: Request<Incoming>,
        _peer: Peer,
        _phase_timer: &Arc<PhaseTimer>,
    ) -> Response<Body> {
        let is_read = [Method::GET, Method::HEAD].contains(request.method());
        if !is_read || !matches!(request.uri().path(), "/healthz" | "/readyz") {
            let detail = "this listener answers GET /healthz and GET /readyz only";
            return Problem::new(StatusCode::NOT_FOUND, "not_found", detail).into_response();
        }
        // An object of words always becomes JSON.
        let health = serde_json::to_vec(&HealthResponse::new(&self.daemon)).unwrap_or_default();
        let mut response = Response::new(Body::from(health));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}
