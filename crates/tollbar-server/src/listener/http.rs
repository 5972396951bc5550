//! HTTP/1.1: a bound and a time for heads and bodies. What is answered is the [`Api`]'s business.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::timeout;

use super::{Connection, Protocol, Stopped};
use crate::api::{Answer, Api, Asked, BODY_BYTES_MAX};
use crate::daemon::Daemon;

/// What the heads of a connection's requests may take of memory.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// HTTP/1.1, answered by the [`Api`].
pub(crate) struct Http {
    api: Api,
}

impl Http {
    pub(crate) fn new(daemon: Arc<Daemon>) -> Self {
        Self { api: Api::new(daemon) }
    }
}

impl Protocol for Http {
    const ALPN: &'static [&'static [u8]] = &[b"http/1.1"];

    async fn serve(self: Arc<Self>, connection: Connection, mut stopped: Stopped) {
        let bounds = connection.bounds;
        let announced = stopped.clone();
        let service = service_fn(move |request| {
            let (http, announced) = (Arc::clone(&self), announced.clone());
            async move {
                let mut response = respond(&http.api, request, bounds.body_timeout.0).await;
                if announced.is_announced() {
                    // The next request would find the connection closed.
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.head_timeout.0)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(connection.stream), service);
        let mut connection = pin!(connection);
        // What a client does to its connection is its own affair: errors end it, and are not told.
        tokio::select! {
            _ = connection.as_mut() => return,
            () = stopped.wait() => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }
}

async fn respond(
    api: &Api,
    request: Request<Incoming>,
    body_time_max: Duration,
) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = match timeout(body_time_max, Limited::new(body, BODY_BYTES_MAX).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return rendered(Answer::too_large());
        }
        Ok(Err(_)) => return rendered(Answer::cut_short()),
        Err(_) => return rendered(Answer::too_slow()),
    };
    let bearer = head.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let asked = Asked { method: head.method.as_str(), path: head.uri.path(), bearer, body: &body };
    rendered(api.answer(&asked).await)
}

fn rendered(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::builder().status(answer.status);
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    let body = Bytes::from(format!("{}\n", answer.body));
    let response = response.header("content-type", "application/json").body(Full::new(body));
    // Headers are made of numbers and printable ASCII, so there is always a response.
    response.unwrap_or_else(|_| {
        let mut empty = Response::new(Full::new(Bytes::new()));
        *empty.status_mut() = hyper::StatusCode::INTERNAL_SERVER_ERROR;
        empty
    })
}
