//! A connection to the upstream that speaks HTTP/1.1: one request at a time.
//!
//! It has no task of its own. Whoever waits for its answer drives it, in the same task in which the
//! client's connection is served: what passes through wakes one task and crosses no threads.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, Sleep};

use crate::upstream::body::{BodyProgress, RequestBody};
use crate::upstream::failure::Failure;
use crate::upstream::stream::UpstreamStream;
use crate::upstream::trailers::{RequestTrailers, TrailerStream};
use crate::upstream::waker::{WakerRelay, asleep};

/// What the head of an answer may take, and what is read of a body at once.
const BUFFER_BYTES_MAX: usize = 64 * 1024;

pub(crate) struct Http1Connection {
    sender: SendRequest<RequestBody>,
    /// `None` once it has handed back a request.
    connection: Option<Connection<TokioIo<TrailerStream>, RequestBody>>,
    trailers: Arc<RequestTrailers>,
    /// Made once, since setting it further into the future costs next to nothing.
    timer: Pin<Box<Sleep>>,
    relay: WakerRelay,
    is_over: bool,
    idle_since: Instant,
}

/// Why there is no answer.
pub(crate) enum SendError {
    /// The connection had ended, and nothing of the request was sent.
    Unsent(Box<Request<RequestBody>>, hyper::Error),
    Failed(Failure),
}

impl Http1Connection {
    pub(crate) async fn open(wire: UpstreamStream) -> Result<Self, Failure> {
        let trailers = Arc::<RequestTrailers>::default();
        let stream = TrailerStream { io: wire, trailers: Arc::clone(&trailers) };
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(BUFFER_BYTES_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(Failure::Handshake)?;
        let timer = Box::pin(tokio::time::sleep(Duration::ZERO));
        let (connection, idle_since) = (Some(connection), Instant::now());
        let (relay, is_over) = (WakerRelay::new(), false);
        Ok(Self { sender, connection, trailers, timer, relay, is_over, idle_since })
    }

    /// Lets the connection do what it can.
    pub(crate) fn drive(&mut self, cx: &mut Context<'_>) {
        if let (Some(connection), false) = (&mut self.connection, self.is_over) {
            self.is_over = Pin::new(connection).poll(&mut self.relay.to(cx)).is_ready();
        }
    }

    /// How long it has been at [rest](Self::rest).
    pub(crate) fn idle_for(&self) -> Duration {
        self.idle_since.elapsed()
    }

    /// True where the next request can be sent: the last one, its body and its answer are through.
    pub(crate) fn is_free(&self) -> bool {
        !self.is_over && self.sender.is_ready()
    }

    /// It is of no concern to anybody for a while.
    pub(crate) fn rest(&mut self) {
        self.relay.to_nobody();
        self.idle_since = Instant::now();
    }

    /// Sets the timer for [`is_late`](Self::is_late).
    pub(crate) fn expect_within(&mut self, time: Duration) {
        self.timer.as_mut().reset(Instant::now() + time);
    }

    pub(crate) fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        self.timer.as_mut().poll(&mut self.relay.to(cx)).is_ready()
    }

    /// Sends a request, and waits for the head of its answer. The request is made here, so that nobody
    /// keeps room for it meanwhile.
    pub(crate) async fn send(
        &mut self,
        request: impl FnOnce() -> Request<RequestBody>,
        progress: Option<Arc<BodyProgress>>,
        first_byte_time_max: Duration,
    ) -> Result<Response<Incoming>, SendError> {
        self.trailers.begin_request();
        let mut answer = pin!(self.sender.try_send_request(with_trailers(request, &self.trailers)));
        self.expect_within(first_byte_time_max);
        poll_fn(|cx| {
            self.drive(cx);
            let mut polled = answer.as_mut().poll(&mut asleep(cx));
            if polled.is_pending() && self.is_over {
                // It has ended without a look at the request, and hands it back when it is dropped.
                self.connection = None;
                polled = answer.as_mut().poll(&mut asleep(cx));
            }
            if let Poll::Ready(answer) = polled {
                return Poll::Ready(answer.map_err(|mut error| match error.take_message() {
                    Some(request) => SendError::Unsent(Box::new(request), error.into_error()),
                    None => SendError::Failed(Failure::Broken(error.into_error())),
                }));
            }
            while self.is_late(cx) {
                match progress.as_ref().map_or(Ok(false), |progress| progress.has_moved()) {
                    // The answer may come behind a long body: only silence counts.
                    Ok(true) => self.expect_within(first_byte_time_max),
                    Ok(false) => return Poll::Ready(Err(SendError::Failed(Failure::NoAnswer))),
                    Err(silent) => return Poll::Ready(Err(SendError::Failed(silent))),
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The connection as it is once its protocol has changed, and what was read of the new one.
    ///
    /// `None` where it has handed back a request, which one that was answered has not.
    pub(crate) async fn upgraded(mut self) -> Option<(UpstreamStream, Bytes)> {
        poll_fn(|cx| {
            self.drive(cx);
            if self.is_over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let parts = self.connection?.into_parts();
        Some((parts.io.into_inner().io, parts.read_buf))
    }
}

/// Makes a request whose trailers are sent by the connection of `trailers`.
fn with_trailers(
    request: impl FnOnce() -> Request<RequestBody>,
    trailers: &Arc<RequestTrailers>,
) -> Request<RequestBody> {
    let mut request = request();
    request.body_mut().send_trailers_by(trailers);
    request
}
