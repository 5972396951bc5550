//! One connection, over TCP, TLS or a Unix socket, as one type.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::server::TlsStream;
use tollbar_gateway::ConnectionActivity;

use super::Bounds;
use super::idle_timer::IdleTimer;
use super::progress::ConnectionProgress;
use super::tls::ListenerTls;

/// Where connections come from.
#[derive(Debug)]
pub enum Socket {
    Tcp(TcpListener),
    Unix(UnixSocket),
}

/// A socket with a path, which goes with it.
#[derive(Debug)]
pub struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
}

/// Bytes in both directions, until nothing moves for too long.
#[derive(Debug)]
pub struct Stream {
    transport: Transport,
    idle: IdleTimer,
    /// Where bytes are counted, on listeners that close the slowest connection when they are full.
    progress: Option<Arc<ConnectionProgress>>,
    is_write_blocked: bool,
}

/// The socket that carries a stream, with or without TLS.
#[derive(Debug)]
pub(crate) enum Transport {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

/// Who is at the other end.
#[derive(Debug, Clone, Copy)]
pub enum Peer {
    Tcp(SocketAddr),
    Unix,
}

/// A connection that was accepted, and may have to agree on TLS yet.
#[derive(Debug)]
pub(crate) struct IncomingConnection {
    pub(crate) stream: Transport,
    pub(crate) peer: Peer,
}

/// A connection that can be spoken on.
#[derive(Debug)]
pub struct Connection {
    pub(crate) stream: Stream,
    pub(crate) peer: Peer,
    /// False if `peer` is a balancer whose PROXY header did not say who the client is.
    pub(crate) names_client: bool,
    pub(crate) bounds: Bounds,
    /// Whether the client waits for a response, on listeners that need to know.
    pub(crate) activity: Option<Arc<ConnectionActivity>>,
}

impl Socket {
    pub(crate) async fn accept(&self) -> io::Result<IncomingConnection> {
        match self {
            Self::Tcp(socket) => {
                let (stream, peer) = socket.accept().await?;
                // Answers are one small write; waiting for more would only delay them.
                #[expect(
                    clippy::let_underscore_must_use,
                    reason = "without it the connection is slower, not wrong"
                )]
                let _ = stream.set_nodelay(true);
                Ok(IncomingConnection { stream: Transport::Tcp(stream), peer: Peer::Tcp(peer) })
            }
            Self::Unix(socket) => {
                let (stream, _) = socket.listener.accept().await?;
                Ok(IncomingConnection { stream: Transport::Unix(stream), peer: Peer::Unix })
            }
        }
    }
}

/// With the port that was taken where any free one was asked for.
impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(socket) => match socket.local_addr() {
                Ok(address) => address.fmt(f),
                Err(error) => error.fmt(f),
            },
            Self::Unix(socket) => write!(f, "unix:{}", socket.path.display()),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix => f.write_str("unix"),
        }
    }
}

impl UnixSocket {
    pub(crate) fn new(listener: UnixListener, path: PathBuf) -> Self {
        Self { listener, path }
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        #[expect(
            clippy::let_underscore_must_use,
            reason = "a socket that is gone needs no removal"
        )]
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Transport {
    /// Does the TLS handshake; a Unix socket needs none.
    pub(crate) async fn into_tls(self, tls: &ListenerTls) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => Ok(Self::Tls(Box::new(tls.accept(stream).await?))),
            secure => Ok(secure),
        }
    }
}

impl Stream {
    pub(super) fn new(
        transport: Transport,
        idle_time_max: Duration,
        progress: Option<Arc<ConnectionProgress>>,
    ) -> Self {
        let idle = IdleTimer::new(idle_time_max);
        Self { transport, idle, progress, is_write_blocked: false }
    }

    /// True where nobody between the two ends can listen.
    pub(crate) fn is_secure(&self) -> bool {
        matches!(self.transport, Transport::Tls(_))
    }

    /// Returns what `poll` returns, or an error once it waits and no bytes have moved for too long.
    fn poll_unless_idle<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut Transport, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match poll(&mut self.transport, cx) {
            Poll::Pending => self.idle.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
            ready @ Poll::Ready(_) => ready,
        }
    }

    /// Polls something that moves bytes. Flushing does not: mostly there is nothing to flush.
    fn poll_transfer<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut Transport, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let polled = self.poll_unless_idle(cx, poll);
        if polled.is_ready() {
            self.idle.reset();
        }
        polled
    }

    /// Polls a write, and notes how far the client takes what is sent.
    fn poll_write_transfer(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut Transport, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let polled = self.poll_transfer(cx, poll);
        if let Some(progress) = &self.progress {
            if let Poll::Ready(Ok(count)) = polled {
                progress.add(count);
            }
            if self.is_write_blocked != polled.is_pending() {
                self.is_write_blocked = polled.is_pending();
                progress.set_write_blocked(self.is_write_blocked);
            }
        }
        polled
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = this.poll_transfer(cx, |transport, cx| match transport {
            Transport::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Transport::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Transport::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        });
        if let (Poll::Ready(Ok(())), Some(progress)) = (&polled, &this.progress) {
            progress.add(buf.filled().len() - before);
        }
        polled
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_write_transfer(cx, |transport, cx| match transport {
            Transport::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Transport::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Transport::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        })
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_unless_idle(cx, |transport, cx| match transport {
            Transport::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Unix(stream) => Pin::new(stream).poll_flush(cx),
        })
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_unless_idle(cx, |transport, cx| match transport {
            Transport::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Transport::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        })
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_write_transfer(cx, |transport, cx| match transport {
            Transport::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Transport::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Transport::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        })
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Tcp(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
            Transport::Unix(stream) => stream.is_write_vectored(),
        }
    }
}
