//! A client's connection with a second reader on it. What the reader refuses is handed to the parser as a
//! head that is whole, so that it is answered in its turn, and nothing behind it is handed on. Characters that stand in no URI
//! are handed on percent-encoded. Interim responses are written between the messages of the server.

use std::future::Future;
use std::io;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::HeadBounds;
use crate::client::findings::Findings;
use crate::client::framing::{Framing, FramingEnd, is_raw};
use crate::client::interim::InterimResponses;
use crate::vectored_write;

/// What is still taken from a client who was refused in the middle of its request, and for how long: a
/// connection that is closed over unread bytes is reset, and the answer may be lost with it.
const LINGER_BYTES_MAX: usize = 8 * 1024 * 1024;
const LINGER_TIME_MAX: Duration = Duration::from_secs(2);
const LINGER_BUFFER_BYTES: usize = 4 * 1024;

pub(crate) struct CheckedStream<I> {
    io: I,
    framing: Framing,
    findings: Arc<Findings>,
    interim: Arc<InterimResponses>,
    /// Bytes that were read and are handed on before anything else.
    encoded: Bytes,
    /// What is handed on behind them.
    rest: &'static [u8],
    /// Nothing more is handed on.
    is_over: bool,
    lingering: Option<Linger>,
}

struct Linger {
    bytes: usize,
    timer: Pin<Box<Sleep>>,
}

impl<I> CheckedStream<I> {
    pub(crate) fn new(
        io: I,
        bounds: HeadBounds,
        findings: Arc<Findings>,
        interim: Arc<InterimResponses>,
    ) -> Self {
        Self {
            io,
            framing: Framing::new(bounds),
            findings,
            interim,
            encoded: Bytes::new(),
            rest: b"",
            is_over: false,
            lingering: None,
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for CheckedStream<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.encoded.is_empty() {
            this.hand_on_encoded(buf);
            return Poll::Ready(Ok(()));
        }
        if !this.rest.is_empty() {
            this.hand_on_rest(buf);
            return Poll::Ready(Ok(()));
        }
        if this.is_over {
            // The answer ends the connection.
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
        if this.findings.is_tunnel() {
            this.framing.leave();
        } else if this.framing.is_undecided() && this.findings.is_answered() {
            this.framing.stay();
        }
        let read = this.framing.read(&buf.filled()[before..]);
        this.findings.read(this.framing.head_count);
        match read {
            ControlFlow::Continue(()) => {}
            ControlFlow::Break(FramingEnd::Refused { flaw, taken, rest }) => {
                this.findings.refuse(flaw);
                buf.set_filled(before + taken);
                (this.rest, this.is_over) = (rest, true);
                if taken == 0 {
                    // Nothing at all would be the end of the connection.
                    this.hand_on_rest(buf);
                }
            }
            ControlFlow::Break(FramingEnd::Broken) => {
                let broken = "a body is not what it was announced to be";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, broken)));
            }
        }
        if !this.framing.raw_targets.is_empty() {
            this.encode_targets(buf, before);
        }
        Poll::Ready(Ok(()))
    }
}

impl<I> CheckedStream<I> {
    /// Encodes raw characters in the targets that were just read, behind `before`.
    #[cold]
    fn encode_targets(&mut self, buf: &mut ReadBuf<'_>, before: usize) {
        let targets = &self.framing.raw_targets;
        let Some(first) = targets.first() else { return };
        // A head that is too long may be cut off before it.
        let Some(read) = buf.filled().get(before + first.start..) else { return };
        let mut encoded = Vec::with_capacity(read.len() + 64);
        for (at, byte) in (first.start..).zip(read) {
            if is_raw(*byte) && targets.iter().any(|target| target.contains(&at)) {
                encoded.extend_from_slice(format!("%{byte:02X}").as_bytes());
            } else {
                encoded.push(*byte);
            }
        }
        buf.set_filled(before + first.start);
        self.encoded = encoded.into();
        self.hand_on_encoded(buf);
    }

    fn hand_on_encoded(&mut self, buf: &mut ReadBuf<'_>) {
        let count = self.encoded.len().min(buf.remaining());
        buf.put_slice(&self.encoded.split_to(count));
    }

    fn hand_on_rest(&mut self, buf: &mut ReadBuf<'_>) {
        let (now, later) = self.rest.split_at(self.rest.len().min(buf.remaining()));
        buf.put_slice(now);
        self.rest = later;
    }
}

impl<I: AsyncRead + Unpin> CheckedStream<I> {
    /// Takes what the client is still sending, until it has read its answer and closes.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let lingering = self.lingering.get_or_insert_with(|| Linger {
            bytes: 0,
            timer: Box::pin(tokio::time::sleep(LINGER_TIME_MAX)),
        });
        let mut scratch = [0; LINGER_BUFFER_BYTES];
        while lingering.bytes < LINGER_BYTES_MAX {
            if lingering.timer.as_mut().poll(cx).is_ready() {
                break;
            }
            let mut buf = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut self.io).poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => lingering.bytes += buf.filled().len(),
                _ => break,
            }
        }
        Poll::Ready(())
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for CheckedStream<I> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    /// The server flushes when it has written all that it has, which is between two messages if an interim response waits.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.interim.poll_write(Pin::new(&mut this.io), cx))?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.io).poll_shutdown(cx))?;
        }
        if this.is_over {
            ready!(this.poll_linger(cx));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        vectored_write::poll_write(Pin::new(&mut self.get_mut().io), cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
