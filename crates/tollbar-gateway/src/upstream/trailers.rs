//! Trailers of a request on their way to an upstream over HTTP/1.1.
//!
//! hyper sends only trailers that the head has announced by `Trailer`, which few clients do. So its body ends without them,
//! and the stream writes them in place of the end that hyper writes.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::hop_by_hop;
use crate::upstream::stream::UpstreamStream;

/// The end of a body in chunks, as hyper writes it.
const END: &[u8] = b"0\r\n\r\n";

/// The trailers of the request that a connection is at. HTTP/1.1 has one at a time.
#[derive(Debug, Default)]
pub(crate) struct RequestTrailers {
    /// True once everything that hyper was given is written.
    is_flushed: AtomicBool,
    /// True from when the body has ended with trailers until they are written.
    is_due: AtomicBool,
    state: Mutex<TrailerState>,
}

#[derive(Debug, Default)]
struct TrailerState {
    /// What is written in place of [`END`].
    text: Bytes,
    /// Waits until everything before the trailers is written.
    waker: Option<Waker>,
}

impl RequestTrailers {
    /// Notes that a request begins.
    pub(crate) fn begin_request(&self) {
        self.is_due.store(false, Ordering::Relaxed);
        self.add_data();
    }

    /// Notes that hyper gets something to write.
    pub(crate) fn add_data(&self) {
        self.is_flushed.store(false, Ordering::Relaxed);
    }

    /// Waits until everything that hyper was given is written. Then the next bytes that it writes are the end of the body,
    /// and `text` takes their place.
    pub(crate) fn poll_end(&self, text: &Bytes, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if !self.is_flushed.load(Ordering::Relaxed) {
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        state.text = text.clone();
        self.is_due.store(true, Ordering::Relaxed);
        Poll::Ready(())
    }

    fn flushed(&self) {
        if !self.is_flushed.swap(true, Ordering::Relaxed)
            && let Some(waker) = self.lock().waker.take()
        {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, TrailerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the end of a body in chunks with these trailers.
pub(crate) fn end_with(trailers: &HeaderMap) -> Bytes {
    let mut text = b"0\r\n".to_vec();
    hop_by_hop::write_lines(trailers, &mut text);
    text.extend_from_slice(b"\r\n");
    text.into()
}

/// A connection to an upstream over HTTP/1.1, with the trailers of its request.
#[derive(Debug)]
pub(crate) struct TrailerStream {
    pub(crate) io: UpstreamStream,
    pub(crate) trailers: Arc<RequestTrailers>,
}

impl TrailerStream {
    /// Writes the trailers that are due in place of `end`, which is all that hyper has to write.
    #[cold]
    fn poll_write_trailers(&mut self, cx: &mut Context<'_>, end: &[u8]) -> Poll<io::Result<usize>> {
        if end != END {
            let unexpected = "trailers are due, and the body does not end";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, unexpected)));
        }
        let mut state = self.trailers.lock();
        while !state.text.is_empty() {
            let count = ready!(Pin::new(&mut self.io).poll_write(cx, &state.text))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            state.text.advance(count);
        }
        self.trailers.is_due.store(false, Ordering::Relaxed);
        Poll::Ready(Ok(END.len()))
    }
}

impl AsyncRead for TrailerStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buf)
    }
}

impl AsyncWrite for TrailerStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.trailers.is_due.load(Ordering::Relaxed) {
            return this.poll_write_trailers(cx, buf);
        }
        Pin::new(&mut this.io).poll_write(cx, buf)
    }

    /// hyper flushes when it has written all that it has.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.io).poll_flush(cx))?;
        this.trailers.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.trailers.is_due.load(Ordering::Relaxed) {
            let end = bufs.iter().flat_map(|buf| buf.iter().copied()).take(END.len() + 1);
            let end: arrayvec::ArrayVec<u8, { END.len() + 1 }> = end.collect();
            return this.poll_write_trailers(cx, &end);
        }
        Pin::new(&mut this.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
