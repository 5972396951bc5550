//! A client's connection with a second reader on it. What the reader refuses is handed to the parser as a
//! head that is whole, so that it is answered in its turn, and nothing behind it is handed on.

use std::future::Future;
use std::io;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::HeadBounds;
use crate::client::findings::Findings;
use crate::client::framing::{Framing, FramingEnd};
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
    /// What is handed on before anything else.
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
    pub(crate) fn new(io: I, bounds: HeadBounds, findings: Arc<Findings>) -> Self {
        let framing = Framing::new(bounds);
        Self { io, framing, findings, rest: b"", is_over: false, lingering: None }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for CheckedStream<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
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
        Poll::Ready(Ok(()))
    }
}

impl<I> CheckedStream<I> {
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

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
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
