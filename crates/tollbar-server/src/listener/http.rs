//! HTTP/1.1: a bound and a time for heads and bodies. What is answered is the [`Api`]'s
//! business, and that of [`ForwardAuth`].

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use http_body_util::Full;
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opentelemetry::context::FutureExt;
use tollbar_http::Format;

use super::patience::{Patience, Phase};
use super::{Connection, Peer, Protocol, Stopped};
use crate::api::{Api, BODY_BYTES_MAX, Head, Refusal};
use crate::daemon::Daemon;
use crate::forward_auth::{self, ForwardAuth, Trust};
use crate::metrics::Wire;
use crate::telemetry::Traces;

/// What the heads of a connection's requests may take of memory.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Chunks of a byte each cost a thousand times what their bytes do.
const BODY_PIECES_MAX: u32 = 4_096;

/// HTTP/1.1, answered by the [`Api`].
pub(crate) struct Http {
    api: Api,
    forward_auth: ForwardAuth,
    traces: Option<Arc<Traces>>,
}

impl Http {
    pub(crate) fn new(daemon: Arc<Daemon>, trust: Trust) -> Self {
        let forward_auth = ForwardAuth::new(daemon.over(Wire::ForwardAuth), trust);
        let traces = daemon.traces.clone();
        Self { api: Api::new(daemon), forward_auth, traces }
    }
}

impl Protocol for Http {
    const ALPN: &'static [&'static [u8]] = &[b"http/1.1"];

    async fn serve(self: Arc<Self>, connection: Connection, mut stopped: Stopped) {
        let (bounds, peer) = (connection.bounds, connection.peer);
        let patience = Arc::new(Patience::new(bounds.head_timeout.0, bounds.body_timeout.0));
        let (waiting, announced) = (Arc::clone(&patience), stopped.clone());
        let service = service_fn(move |request| {
            let (http, patience) = (Arc::clone(&self), Arc::clone(&waiting));
            let is_announced = announced.is_announced();
            async move {
                let traces = http.traces.as_ref();
                let context = traces.and_then(|it| it.context_of(request.headers()));
                // In one place, traced or not: each connection has room for it.
                let answer = pin!(respond(&http, request, peer, &patience));
                let mut answer = match context {
                    None => answer.await,
                    Some(context) => answer.with_context(context).await,
                };
                if is_announced {
                    // The next request would find the connection closed.
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                // For the answer to be taken, and the next head to come.
                patience.enter(Phase::Head);
                Ok::<_, std::convert::Infallible>(answer)
            }
        });
        let connection = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            // Who has said all and closes that side is still answered.
            .half_close(true)
            // Answers are small: to copy one behind its head costs less than to send two pieces.
            .writev(false)
            .serve_connection(TokioIo::new(connection.stream), service);
        let mut connection = pin!(connection);
        let mut late = pin!(patience.run_out());
        // What a client does to its connection is its own affair: errors end it, and are not told.
        // Lateness is looked at first, so that it is known to the request that it is about.
        tokio::select! {
            biased;
            () = late.as_mut() => return,
            _ = connection.as_mut() => return,
            () = stopped.wait() => connection.as_mut().graceful_shutdown(),
        }
        tokio::select! {
            biased;
            () = late => {}
            _ = connection => {}
        }
    }
}

async fn respond(
    http: &Http,
    request: Request<Incoming>,
    peer: Peer,
    patience: &Patience,
) -> Response<Full<Bytes>> {
    patience.enter(Phase::Answer);
    let (head, body) = request.into_parts();
    let Http { api, forward_auth, .. } = http;
    if head.uri.path().starts_with(forward_auth::PREFIX) {
        // In a box, so that a check does not carry the room for it around.
        return Box::pin(forward_auth.answer(head, peer)).await.map(Full::new);
    }
    let asked = Head { method: &head.method, uri: &head.uri, headers: &head.headers };
    let answer = match api.admit(&asked) {
        Err(answer) => *answer,
        Ok(route) if !route.has_body() => api.answer(route, &asked, &[]).await,
        Ok(route) => match read(body, patience).await {
            Ok(body) => api.answer(route, &asked, &body).await,
            Err(refusal) => refusal.answer(Format::wanted(&head.headers)),
        },
    };
    answer.map(Full::new)
}

/// The whole body. One that came in one piece, as most do, is not copied.
async fn read(mut body: Incoming, patience: &Patience) -> Result<Bytes, Refusal> {
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(Refusal::too_large());
    }
    patience.enter(Phase::Body);
    let mut first = Bytes::new();
    let mut rest = Vec::new();
    let mut piece_count = 0;
    while !body.is_end_stream() {
        let frame = poll_fn(|cx| match Pin::new(&mut body).poll_frame(cx) {
            Poll::Pending if patience.is_late() => Poll::Ready(Err(Refusal::too_slow())),
            frame => frame.map(Ok),
        });
        let data = match frame.await? {
            None => break,
            Some(Err(_)) => return Err(Refusal::cut_short()),
            // Trailers say nothing that anybody reads.
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
        };
        if first.len() + rest.len() + data.len() > BODY_BYTES_MAX {
            return Err(Refusal::too_large());
        }
        piece_count += 1;
        if piece_count > BODY_PIECES_MAX {
            return Err(Refusal::too_many_pieces());
        }
        if first.is_empty() {
            first = data;
        } else {
            rest.extend_from_slice(&data);
        }
    }
    let whole = if rest.is_empty() { first } else { [&first[..], &rest].concat().into() };
    patience.enter(Phase::Answer);
    Ok(whole)
}
