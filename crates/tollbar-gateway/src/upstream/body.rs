//! Bodies on their way: the client's to the upstream, and the upstream's to the client.
//!
//! Frames are handed on as they come. Nothing is asked for before the last one was taken.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderName, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use thiserror::Error;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};

use crate::client::activity::PendingResponse;
use crate::forwarded::passing_trailers;
use crate::upstream::connection::Http1Connection;
use crate::upstream::failure::Failure;
use crate::upstream::pool::Pool;
use crate::upstream::trailers::{RequestTrailers, end_with};
use crate::upstream::waker::asleep;

/// How far the body of a request is, for whoever waits for the answer.
#[derive(Debug, Default)]
pub(crate) struct BodyProgress(AtomicU8);

const SILENT: u8 = 0;
const MOVED: u8 = 1;
const ENDED: u8 = 2;
const BROKEN: u8 = 3;

impl BodyProgress {
    /// Whether something has moved since it was last asked. `Err` where the client is the one who is
    /// waited for.
    pub(crate) fn has_moved(&self) -> Result<bool, Failure> {
        match self.0.compare_exchange(MOVED, SILENT, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Ok(true),
            Err(ENDED) => Ok(false),
            Err(_) => Err(Failure::ClientSilent),
        }
    }

    /// True where the client has broken its body off.
    pub(crate) fn is_broken(&self) -> bool {
        self.0.load(Ordering::Relaxed) == BROKEN
    }
}

/// How slow the body of a request may be. What is slower gets 408. A call of gRPC over HTTP/2 may be a stream that is
/// mostly silent, so these bounds do not apply to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BodyBounds {
    /// Bytes per second, over the time in which the client was waited for. 0 is no bound.
    pub rate_min: u64,
    /// How long the client may be waited for before the rate counts.
    pub grace_time: Duration,
    /// From the first byte to the last, whoever was waited for.
    pub time_max: Duration,
}

impl Default for BodyBounds {
    fn default() -> Self {
        Self {
            rate_min: 256,
            grace_time: Duration::from_secs(10),
            time_max: Duration::from_hours(1),
        }
    }
}

/// Measures the body of a request. Time in which the upstream takes no bytes is not the client's.
#[derive(Debug)]
struct BodyTimer {
    bounds: BodyBounds,
    begun: Instant,
    bytes: u64,
    /// How long the client was waited for, up to the last frame.
    waited: Duration,
    waiting_since: Option<Instant>,
}

impl BodyTimer {
    fn new(bounds: BodyBounds) -> Self {
        let (begun, waited) = (Instant::now(), Duration::ZERO);
        Self { bounds, begun, bytes: 0, waited, waiting_since: None }
    }

    /// Notes that the client is waited for.
    fn wait(&mut self) {
        self.waiting_since.get_or_insert_with(Instant::now);
    }

    /// Notes that so many bytes have come. Returns true if the body is too slow.
    fn is_too_slow(&mut self, bytes: usize) -> bool {
        let now = Instant::now();
        self.bytes += bytes as u64;
        self.waited += self.waiting_since.take().map_or(Duration::ZERO, |since| now - since);
        let BodyBounds { rate_min, grace_time, time_max } = self.bounds;
        // 256 bytes per second for 10,500 ms are 2,688 bytes.
        let expected = self.waited.as_millis() * u128::from(rate_min);
        let is_below_rate = self.waited > grace_time && u128::from(self.bytes) * 1_000 < expected;
        is_below_rate || now - self.begun > time_max
    }
}

/// A body on its way to the upstream.
#[derive(Debug)]
pub(crate) struct RequestBody {
    body: Incoming,
    /// `None` where there is nothing to wait for.
    progress: Option<Arc<BodyProgress>>,
    /// `None` where a body may take its time.
    timer: Option<Box<BodyTimer>>,
    /// The response, which is due when the body has ended.
    response: Option<Arc<PendingResponse>>,
    /// `None` if there can be no trailers.
    trailers: Option<Box<BodyTrailers>>,
}

/// What may follow a body.
#[derive(Debug)]
struct BodyTrailers {
    /// Headers that no trailer may have the name of.
    trusted_headers: Arc<[HeaderName]>,
    /// True if the body is sent in chunks.
    is_chunked: bool,
    /// The connection over HTTP/1.1 that sends them; `None` over HTTP/2.
    connection: Option<Arc<RequestTrailers>>,
    /// The end of the body with its trailers, once they have come.
    end: Option<Bytes>,
}

/// Why the body of a request ends before its end.
#[derive(Debug, Error)]
pub(crate) enum RequestBodyError {
    #[error("the client broke off")]
    Broken(#[from] hyper::Error),
    #[error("the client is too slow")]
    TooSlow,
}

impl RequestBody {
    /// The body of the request with this head.
    pub(crate) fn new(
        body: Incoming,
        head: &mut Parts,
        bounds: BodyBounds,
        trusted_headers: &Arc<[HeaderName]>,
    ) -> Self {
        let has_body = !body.is_end_stream();
        let progress = has_body.then(Arc::default);
        let is_timed = has_body && !is_grpc(head.version, &head.headers);
        let timer = is_timed.then(|| Box::new(BodyTimer::new(bounds)));
        // Over HTTP/1.1 they follow chunks only.
        let has_trailers =
            has_body && (head.version == Version::HTTP_2 || body.size_hint().exact().is_none());
        let trailers = has_trailers.then(|| {
            let trusted_headers = Arc::clone(trusted_headers);
            let (is_chunked, connection, end) = (false, None, None);
            Box::new(BodyTrailers { trusted_headers, is_chunked, connection, end })
        });
        Self { body, progress, timer, response: head.extensions.remove(), trailers }
    }

    /// Notes that it is sent in chunks.
    pub(crate) fn set_chunked(&mut self) {
        if let Some(trailers) = &mut self.trailers {
            trailers.is_chunked = true;
        }
    }

    /// Has its trailers sent by this connection, if it is in chunks.
    pub(crate) fn send_trailers_by(&mut self, connection: &Arc<RequestTrailers>) {
        if let Some(trailers) = &mut self.trailers {
            trailers.connection = trailers.is_chunked.then(|| Arc::clone(connection));
        }
    }

    pub(crate) fn progress(&self) -> Option<Arc<BodyProgress>> {
        self.progress.clone()
    }

    /// Waits for the turn of trailers that have come, over HTTP/1.1. `None` if there are none.
    fn poll_end(&self, cx: &Context<'_>) -> Option<Poll<()>> {
        let trailers = self.trailers.as_ref()?;
        Some(trailers.connection.as_ref()?.poll_end(trailers.end.as_ref()?, cx))
    }
}

impl BodyTrailers {
    /// Returns a frame as the upstream gets it; `None` at the end.
    fn pass(&mut self, frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
        let trailers = match frame.into_trailers() {
            Ok(trailers) => passing_trailers(trailers, &self.trusted_headers),
            Err(frame) => {
                if let Some(connection) = &self.connection {
                    connection.add_data();
                }
                return Some(frame);
            }
        };
        if self.connection.is_some() && !trailers.is_empty() {
            self.end = Some(end_with(&trailers));
            return None;
        }
        (!trailers.is_empty()).then(|| Frame::trailers(trailers))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let this = &mut *self;
        if let Some(end) = this.poll_end(cx) {
            return end.map(|()| None);
        }
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) else {
            if let Some(timer) = this.timer.as_mut() {
                timer.wait();
            }
            return Poll::Pending;
        };
        let mut frame = frame.map(|frame| frame.map_err(RequestBodyError::Broken));
        let is_end = this.body.is_end_stream();
        if let (Some(Ok(piece)), Some(timer), false) = (&frame, &mut this.timer, is_end)
            && timer.is_too_slow(piece.data_ref().map_or(0, Bytes::len))
        {
            frame = Some(Err(RequestBodyError::TooSlow));
        }
        let frame = match (frame, &mut this.trailers) {
            (Some(Ok(frame)), Some(trailers)) => trailers.pass(frame).map(Ok),
            (frame, _) => frame,
        };
        if let Some(progress) = &this.progress {
            let moved = match &frame {
                Some(Err(_)) => BROKEN,
                Some(Ok(_)) if !is_end => MOVED,
                _ => ENDED,
            };
            progress.0.store(moved, Ordering::Relaxed);
            if let (ENDED, Some(response)) = (moved, this.response.as_ref()) {
                response.begin();
            }
        }
        match this.poll_end(cx) {
            Some(end) => end.map(|()| None),
            None => Poll::Ready(frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        let has_end = self.trailers.as_ref().is_some_and(|trailers| trailers.end.is_some());
        !has_end && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// True for a call of gRPC. Over HTTP/1.1 there are none, whatever the header says.
fn is_grpc(version: Version, headers: &HeaderMap) -> bool {
    let rest = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.as_bytes().strip_prefix(b"application/grpc"));
    version == Version::HTTP_2
        && rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// Why a body ends before its end.
#[derive(Debug, Error)]
pub(crate) enum BodyError {
    #[error("the upstream broke off")]
    Broken(#[from] hyper::Error),
    #[error("the upstream is silent in the middle of its answer")]
    Silent,
}

/// A body on its way to the client.
pub(crate) enum UpstreamBody {
    /// Ours, or empty.
    Whole(Bytes),
    /// Over a connection that has to be driven.
    Http1(Box<Http1Body>),
    /// Over a connection that others share.
    Http2(Box<Http2Body>),
    /// None: what follows is not HTTP. It has no end, so that what its request holds is held until
    /// it is dropped.
    Upgraded,
}

pub(crate) struct Http1Body {
    body: Incoming,
    /// `None` once it was given back.
    connection: Option<Box<Http1Connection>>,
    pool: Arc<Pool>,
    /// Whether the timer runs for this silence.
    is_timed: bool,
    _place: OwnedSemaphorePermit,
}

pub(crate) struct Http2Body {
    body: Incoming,
    idle_time_max: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    is_timed: bool,
    _place: OwnedSemaphorePermit,
}

impl UpstreamBody {
    pub(crate) fn shared(
        body: Incoming,
        idle_time_max: Duration,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let (timer, is_timed) = (None, false);
        Self::Http2(Box::new(Http2Body { body, idle_time_max, timer, is_timed, _place: place }))
    }
}

type FramePoll = Poll<Option<Result<Frame<Bytes>, BodyError>>>;

impl Http1Body {
    pub(crate) fn new(
        body: Incoming,
        connection: Box<Http1Connection>,
        pool: Arc<Pool>,
        place: OwnedSemaphorePermit,
    ) -> Self {
        Self { body, connection: Some(connection), pool, is_timed: false, _place: place }
    }

    /// Gives the connection back at once where there is no body: nobody will ask for its end.
    pub(crate) async fn end_if_empty(&mut self) {
        if self.body.is_end_stream() {
            poll_fn(|cx| {
                self.give_back(cx);
                Poll::Ready(())
            })
            .await;
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> FramePoll {
        let mut frame = Pin::new(&mut self.body).poll_frame(&mut asleep(cx));
        // Asked for first, so that the connection knows that it is wanted when it is driven.
        if let (Poll::Pending, Some(connection)) = (&frame, &mut self.connection) {
            connection.drive(cx);
            frame = Pin::new(&mut self.body).poll_frame(&mut asleep(cx));
        }
        let Poll::Ready(frame) = frame else {
            if let Some(connection) = &mut self.connection {
                if !std::mem::replace(&mut self.is_timed, true) {
                    connection.expect_within(self.pool.idle_time_max());
                }
                if connection.is_late(cx) {
                    self.connection = None;
                    return Poll::Ready(Some(Err(BodyError::Silent)));
                }
            }
            return Poll::Pending;
        };
        self.is_timed = false;
        match &frame {
            Some(Err(_)) => self.connection = None,
            Some(Ok(_)) if !self.body.is_end_stream() => {}
            _ => self.give_back(cx),
        }
        Poll::Ready(frame.map(|result| result.map_err(BodyError::Broken)))
    }

    fn give_back(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = self.connection.take() {
            self.pool.release(connection, cx);
        }
    }
}

impl Http2Body {
    fn poll(&mut self, cx: &mut Context<'_>) -> FramePoll {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.is_timed = false;
            return Poll::Ready(frame.map(|result| result.map_err(BodyError::Broken)));
        }
        let until = Instant::now() + self.idle_time_max;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        if !std::mem::replace(&mut self.is_timed, true) {
            timer.as_mut().reset(until);
        }
        timer.as_mut().poll(cx).map(|()| Some(Err(BodyError::Silent)))
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> FramePoll {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Http1(body) => body.poll(cx),
            Self::Http2(body) => body.poll(cx),
            Self::Upgraded => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Http1(body) => body.body.is_end_stream(),
            Self::Http2(body) => body.body.is_end_stream(),
            Self::Upgraded => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Http1(body) => body.body.size_hint(),
            Self::Http2(body) => body.body.size_hint(),
            Self::Upgraded => SizeHint::default(),
        }
    }
}

impl fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UpstreamBody(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_keeps_its_rate_while_the_client_is_waited_for() {
        let mut timer = BodyTimer::new(BodyBounds::default());
        // A byte each 4 s: the time of grace is over with the third.
        for expected in [false, false, true] {
            timer.wait();
            pass(4).await;
            assert_eq!(timer.is_too_slow(1), expected);
        }
        let mut timer = BodyTimer::new(BodyBounds::default());
        for _ in 0..100 {
            timer.wait();
            pass(1).await;
            assert!(!timer.is_too_slow(256));
        }
        timer.wait();
        pass(1).await;
        assert!(timer.is_too_slow(255));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_upstream_is_not_held_against_the_client_but_the_whole_time_is() {
        let mut timer = BodyTimer::new(BodyBounds::default());
        pass(3_600).await;
        assert!(!timer.is_too_slow(1), "the client was not waited for");
        pass(1).await;
        assert!(timer.is_too_slow(1_000_000));
    }

    #[test]
    fn only_calls_of_grpc_may_take_their_time() {
        let is_exempt = |version, kind: &'static str| {
            let kind = http::HeaderValue::from_static(kind);
            is_grpc(version, &HeaderMap::from_iter([(CONTENT_TYPE, kind)]))
        };
        for kind in ["application/grpc", "application/grpc+proto", "application/grpc;a=b"] {
            assert!(is_exempt(Version::HTTP_2, kind), "{kind}");
            assert!(!is_exempt(Version::HTTP_11, kind), "{kind}");
        }
        for kind in ["application/grpc-web", "application/json", "application/grpcx"] {
            assert!(!is_exempt(Version::HTTP_2, kind), "{kind}");
        }
    }
}
