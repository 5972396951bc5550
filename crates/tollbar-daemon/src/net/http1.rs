//! HTTP/1.1 on a connection: a bound and a time for heads and bodies. What is answered is a
//! [`Responder`]'s business.

use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::phase_timer::{ConnectionPhase, PhaseTimer};
use super::{Connection, Peer, Stream};
use crate::problem::Problem;
use crate::shutdown::ShutdownSignal;

/// How TLS calls it.
pub const ALPN: &[&[u8]] = &[b"http/1.1"];

/// What the heads of a connection's requests may take of memory.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Chunks of a byte each cost a thousand times what their bytes do.
const BODY_PIECES_MAX: u32 = 4_096;

/// How long a client that has closed its side is still answered.
const HANG_UP_TIME: Duration = Duration::from_secs(1);

/// Answers requests.
pub trait Responder: Send + Sync + 'static {
    /// What is sent behind the head of an answer.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static;

    fn respond(
        &self,
        request: Request<Incoming>,
        peer: Peer,
        phase_timer: &Arc<PhaseTimer>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// Why a request body cannot be used. What is left of it is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyError {
    TooLarge { bytes_max: usize },
    TooManyPieces,
    TooSlow,
    CutShort,
}

/// Serves one connection to its end, or until `stopped` says so and what was asked is answered.
pub async fn serve<R: Responder>(
    responder: Arc<R>,
    connection: Connection,
    mut stopped: ShutdownSignal,
) {
    let (bounds, peer) = (connection.bounds, connection.peer);
    let phase_timer = Arc::new(PhaseTimer::new(bounds.head_timeout.0, bounds.body_timeout.0));
    let announced = stopped.clone();
    let (responder, phase_timer) = (&*responder, &phase_timer);
    let stream = HangUpStream {
        stream: connection.stream,
        phase_timer: Arc::clone(phase_timer),
        flushed: phase_timer.state(),
        timer: None,
    };
    let service = service_fn(|request| {
        let announced = &announced;
        phase_timer.enter(ConnectionPhase::Response);
        async move {
            let mut answer = responder.respond(request, peer, phase_timer).await;
            if announced.is_announced() {
                // The next request would find the connection closed.
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            // For the answer to be taken, and the next head to come.
            phase_timer.enter(ConnectionPhase::Head);
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        // A client that hangs up while it waits is noticed, and its request dropped with all that it holds.
        .half_close(false)
        // Answers are small: to copy one behind its head costs less than to send two pieces.
        .writev(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut late = pin!(phase_timer.wait_until_late());
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

/// Hides the end of a client's stream for a moment while a response is due: a client may close its side when it has said
/// all, and is still answered. TCP cannot tell it from one that is gone, so a longer wait is ended.
struct HangUpStream {
    stream: Stream,
    phase_timer: Arc<PhaseTimer>,
    /// The state of the phase timer when all that was written had been sent.
    flushed: u64,
    timer: Option<Pin<Box<Sleep>>>,
}

impl AsyncRead for HangUpStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let is_end = buf.filled().len() == before;
        if is_end && self.phase_timer.is_response_due(self.flushed) {
            let sleep = || Box::pin(tokio::time::sleep(HANG_UP_TIME));
            ready!(self.timer.get_or_insert_with(sleep).as_mut().poll(cx));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for HangUpStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.flushed = self.phase_timer.state();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Reads the whole body. One that came in one piece, as most do, is not copied.
pub async fn read_body<B: Body<Data = Bytes> + Unpin>(
    mut body: B,
    bytes_max: usize,
    phase_timer: &PhaseTimer,
) -> Result<Bytes, BodyError> {
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(BodyError::TooLarge { bytes_max });
    }
    phase_timer.enter(ConnectionPhase::Body);
    let mut first = Bytes::new();
    let mut rest = Vec::new();
    let mut piece_count = 0;
    while !body.is_end_stream() {
        let frame = poll_fn(|cx| match Pin::new(&mut body).poll_frame(cx) {
            Poll::Pending if phase_timer.is_late() => Poll::Ready(Err(BodyError::TooSlow)),
            frame => frame.map(Ok),
        });
        let data = match frame.await? {
            None => break,
            Some(Err(_)) => return Err(BodyError::CutShort),
            // Trailers say nothing that anybody reads.
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
        };
        if first.len() + rest.len() + data.len() > bytes_max {
            return Err(BodyError::TooLarge { bytes_max });
        }
        piece_count += 1;
        if piece_count > BODY_PIECES_MAX {
            return Err(BodyError::TooManyPieces);
        }
        if first.is_empty() {
            first = data;
        } else {
            rest.extend_from_slice(&data);
        }
    }
    let whole = if rest.is_empty() { first } else { [&first[..], &rest].concat().into() };
    phase_timer.enter(ConnectionPhase::Response);
    Ok(whole)
}

/// A response body that is sent in pieces. The client has the time of a head to take each piece.
pub struct TimedBody<B> {
    body: B,
    phase_timer: Arc<PhaseTimer>,
}

impl<B> TimedBody<B> {
    pub fn new(body: B, phase_timer: &Arc<PhaseTimer>) -> Self {
        Self { body, phase_timer: Arc::clone(phase_timer) }
    }
}

impl<B: Body + Unpin> Body for TimedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_ready() {
            self.phase_timer.enter(ConnectionPhase::Head);
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

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Self {
        let (status, code) = match error {
            BodyError::TooLarge { .. } | BodyError::TooManyPieces => {
                (StatusCode::PAYLOAD_TOO_LARGE, "too_large")
            }
            BodyError::TooSlow => (StatusCode::REQUEST_TIMEOUT, "too_slow"),
            BodyError::CutShort => (StatusCode::BAD_REQUEST, "bad_request"),
        };
        Self { ends_connection: true, ..Self::new(status, code, error.advice()) }
    }
}

impl BodyError {
    /// What to do instead.
    pub(crate) fn advice(self) -> String {
        match self {
            Self::TooLarge { bytes_max } => {
                format!("the body is too large: send at most {bytes_max} bytes")
            }
            Self::TooManyPieces => "the body comes in too many pieces: send larger chunks".into(),
            Self::TooSlow => "the body did not come in time: send it at once".into(),
            Self::CutShort => {
                "the body ended early, or its chunks are none: send all that was announced".into()
            }
        }
    }
}
