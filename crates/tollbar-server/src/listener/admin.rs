//! The admin API and the dashboard over HTTP/1.1: two routers, and what they know of a connection.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::header::ALLOW;
use hyper::http::Extensions;
use hyper::{Response, StatusCode};
use tower_service::Service;

use super::http1::{self, Responder, Taken};
use super::patience::Patience;
use super::{Connection, Peer, Protocol, Stopped, Unread};
use crate::admin::wire::tell_methods;
use crate::admin::{self, Admin};
use crate::dashboard::{self, Dashboard};

/// HTTP/1.1, answered by an [`Admin`], and for people by a [`Dashboard`].
pub(crate) struct AdminHttp {
    api: Router,
    pages: Router,
}

/// Where a request came from, for handlers: every request carries it.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) peer: Peer,
    patience: Arc<Patience>,
}

impl Origin {
    /// Returns the origin of the request with these extensions.
    pub(crate) fn of(extensions: &Extensions) -> &Self {
        extensions.get().expect("the listener adds it to every request")
    }

    /// Reads the whole body of a request, within bounds of size and time.
    pub(crate) async fn read(&self, body: Body, bytes_max: usize) -> Result<Bytes, Unread> {
        http1::read(body, bytes_max, &self.patience).await
    }
}

impl AdminHttp {
    pub(crate) fn new(admin: Arc<Admin>, dashboard: Dashboard) -> Self {
        Self { api: admin::router(admin), pages: dashboard::router(dashboard) }
    }
}

impl Protocol for AdminHttp {
    const ALPN: &'static [&'static [u8]] = http1::ALPN;

    async fn serve(self: Arc<Self>, connection: Connection, stopped: Stopped) {
        http1::serve(self, connection, stopped).await;
    }
}

impl Responder for AdminHttp {
    type Body = Taken<Body>;

    async fn respond(
        &self,
        request: hyper::Request<Incoming>,
        peer: Peer,
        patience: &Arc<Patience>,
    ) -> Response<Taken<Body>> {
        let mut request = request.map(Body::new);
        let origin = Origin { peer, patience: Arc::clone(patience) };
        request.extensions_mut().insert(origin);
        let answer = if Dashboard::has(request.uri().path()) {
            let mut page = self.pages.clone().call(request).await.into_response();
            if page.status() != StatusCode::METHOD_NOT_ALLOWED {
                // The router adds it wherever a path takes other methods, also to a redirect.
                page.headers_mut().remove(ALLOW);
            }
            page
        } else {
            let method = request.method().clone();
            tell_methods(&method, self.api.clone().call(request).await.into_response())
        };
        answer.map(|body| Taken::new(body, patience))
    }
}
