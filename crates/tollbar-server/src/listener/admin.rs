//! The admin API over HTTP/1.1. What is answered is [`Admin`]'s business.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Request, Response};

use super::http1::{self, Responder};
use super::patience::Patience;
use super::{Connection, Peer, Protocol, Stopped};
use crate::admin::wire::{Head, Payload, refused};
use crate::admin::{Admin, BODY_BYTES_MAX};

/// HTTP/1.1, answered by an [`Admin`].
pub(crate) struct AdminHttp {
    admin: Arc<Admin>,
}

impl AdminHttp {
    pub(crate) fn new(admin: Arc<Admin>) -> Self {
        Self { admin }
    }
}

impl Protocol for AdminHttp {
    const ALPN: &'static [&'static [u8]] = http1::ALPN;

    async fn serve(self: Arc<Self>, connection: Connection, stopped: Stopped) {
        http1::serve(self, connection, stopped).await;
    }
}

impl Responder for AdminHttp {
    type Body = Payload;

    async fn respond(
        &self,
        request: Request<Incoming>,
        peer: Peer,
        patience: &Arc<Patience>,
    ) -> Response<Payload> {
        let (parts, body) = request.into_parts();
        let head = Head {
            method: parts.method.as_str(),
            path: parts.uri.path(),
            query: parts.uri.query().unwrap_or_default(),
            headers: &parts.headers,
            peer,
        };
        let admitted = match self.admin.admit(head).await {
            Ok(admitted) => admitted,
            Err(answer) => return *answer,
        };
        let body = match admitted.route.body {
            None => Ok(hyper::body::Bytes::new()),
            Some(_) => http1::read(body, BODY_BYTES_MAX, patience).await,
        };
        let answer = match body {
            Ok(body) => self.admin.answer(&admitted, &body).await,
            Err(unread) => refused(&unread.into()),
        };
        answer.map(|it| http1::Taken::new(it, patience).boxed_unsync())
    }
}
