//! The admin API and the dashboard over HTTP/1.1: two routers, and what they know of a connection.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::header::ALLOW;
use hyper::{Response, StatusCode};
use tower_service::Service;

use crate::api::response::with_allowed_methods;
use crate::api::routes::router;
use crate::dashboard::{self, Dashboard};
use crate::operations::Admin;
use crate::origin::Origin;
use tollbar_daemon::net::http1::{self, Responder, TimedBody};
use tollbar_daemon::net::phase_timer::PhaseTimer;
use tollbar_daemon::net::{Connection, Peer, Protocol};
use tollbar_daemon::shutdown::ShutdownSignal;

/// HTTP/1.1, answered by an [`Admin`], and for people by a [`Dashboard`].
pub struct AdminHttp {
    api: Router,
    pages: Router,
}

impl AdminHttp {
    pub fn new(admin: Arc<Admin>, dashboard: Dashboard) -> Self {
        Self { api: router(admin), pages: dashboard::router(dashboard) }
    }
}

impl Protocol for AdminHttp {
    const ALPN: &'static [&'static [u8]] = http1::ALPN;

    async fn serve(self: Arc<Self>, connection: Connection, stopped: ShutdownSignal) {
        http1::serve(self, connection, stopped).await;
    }
}

impl Responder for AdminHttp {
    type Body = TimedBody<Body>;

    async fn respond(
        &self,
        request: hyper::Request<Incoming>,
        peer: Peer,
        phase_timer: &Arc<PhaseTimer>,
    ) -> Response<TimedBody<Body>> {
        let mut request = request.map(Body::new);
        let origin = Origin::new(peer, Arc::clone(phase_timer));
        request.extensions_mut().insert(origin);
        let response = if Dashboard::has_path(request.uri().path()) {
            let mut page = self.pages.clone().call(request).await.into_response();
            if page.status() != StatusCode::METHOD_NOT_ALLOWED {
                // The router adds it wherever a path takes other methods, also to a redirect.
                page.headers_mut().remove(ALLOW);
            }
            page
        } else {
            let method = request.method().clone();
            with_allowed_methods(&method, self.api.clone().call(request).await.into_response())
        };
        response.map(|body| TimedBody::new(body, phase_timer))
    }
}
