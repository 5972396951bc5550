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
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use thiserror::Error;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};

use crate::upstream::connection::Http1Connection;
use crate::upstream::failure::Failure;
use crate::upstream::pool::Pool;
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

/// A body on its way to the upstream.
#[derive(Debug)]
pub(crate) struct RequestBody {
    body: Incoming,
    /// `None` where there is nothing to wait for.
    progress: Option<Arc<BodyProgress>>,
}

impl RequestBody {
    pub(crate) fn new(body: Incoming) -> Self {
        let progress = (!body.is_end_stream()).then(Arc::default);
        Self { body, progress }
    }

    pub(crate) fn progress(&self) -> Option<Arc<BodyProgress>> {
        self.progress.clone()
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let (Poll::Ready(frame), Some(progress)) = (&frame, &self.progress) {
            let moved = match frame {
                Some(Err(_)) => BROKEN,
                Some(Ok(_)) if !self.body.is_end_stream() => MOVED,
                _ => ENDED,
            };
            progress.0.store(moved, Ordering::Relaxed);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
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
