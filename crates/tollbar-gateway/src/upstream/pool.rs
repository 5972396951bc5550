//! The connections to the upstream: those under way, bounded by places, and those kept for the next
//! request, bounded in number and time.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::client::conn::http2::{self, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tracing::debug;

use crate::executor::GatewayExecutor;
use crate::upstream::body::RequestBody;
use crate::upstream::connection::Http1Connection;
use crate::upstream::connector::{Connector, NegotiatedStream};
use crate::upstream::failure::Failure;
use crate::upstream::options::{UpstreamOptions, UpstreamProtocol};
use crate::upstream::stream::UpstreamStream;

/// How often a shared connection is asked whether it is there, and how long it may take to say so.
const PING_EVERY: Duration = Duration::from_secs(10);

/// What the headers of an answer over HTTP/2 may take.
const HEADER_BYTES_MAX: u32 = 64 * 1024;

pub(crate) struct Pool {
    connector: Connector,
    options: UpstreamOptions,
    executor: GatewayExecutor,
    places: Arc<Semaphore>,
    idle: Mutex<IdleConnections>,
    shared: Mutex<Option<SendRequest<RequestBody>>>,
    /// Whether the upstream speaks HTTP/2, as far as is known.
    is_shared: AtomicBool,
    /// Who holds it makes the connection that all others will share.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct IdleConnections {
    /// The latest last, and used first: those that are not needed grow old.
    #[expect(clippy::vec_box, reason = "they are a kilobyte, and go from hand to hand")]
    connections: Vec<Box<Http1Connection>>,
    has_sweeper: bool,
}

/// A way to send a request.
pub(crate) enum PooledConnection {
    Http1(Box<Http1Connection>),
    Http2(SendRequest<RequestBody>),
}

impl Pool {
    pub(crate) fn new(
        connector: Connector,
        options: UpstreamOptions,
        executor: GatewayExecutor,
    ) -> Arc<Self> {
        Arc::new(Self {
            connector,
            executor,
            places: Arc::new(Semaphore::new(options.exchanges_max)),
            idle: Mutex::default(),
            shared: Mutex::default(),
            is_shared: AtomicBool::new(options.protocol == UpstreamProtocol::Http2),
            connecting: tokio::sync::Mutex::default(),
            options,
        })
    }

    pub(crate) fn idle_time_max(&self) -> Duration {
        self.options.idle_time_max
    }

    pub(crate) fn first_byte_time_max(&self) -> Duration {
        self.options.first_byte_time_max
    }

    /// A place among those under way, waited for as long as for a connection.
    pub(crate) async fn place(&self) -> Result<OwnedSemaphorePermit, Failure> {
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            return Ok(place);
        }
        let place = Arc::clone(&self.places).acquire_owned();
        match Box::pin(timeout(self.options.connect_time_max, place)).await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(Failure::Busy),
        }
    }

    /// A connection that was kept, or is shared, or a new one. `needs_http1` where the request wants
    /// to change the protocol, which HTTP/2 has no way for.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        needs_http1: bool,
    ) -> Result<PooledConnection, Failure> {
        let needs_http1 = needs_http1 && self.options.protocol != UpstreamProtocol::Http2;
        if !needs_http1 && let Some(sender) = self.sender() {
            return Ok(PooledConnection::Http2(sender));
        }
        while let Some(connection) = self.take() {
            // One that has ended meanwhile gives its request back.
            if connection.idle_for() < self.options.kept_time_max && connection.is_free() {
                return Ok(PooledConnection::Http1(connection));
            }
        }
        // In a box, as it is long: most requests have no need of it.
        Box::pin(self.connect(needs_http1)).await
    }

    /// A new connection, unless another one that can be shared is made meanwhile.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        needs_http1: bool,
    ) -> Result<PooledConnection, Failure> {
        let opened = async {
            let _connecting = if self.is_shared.load(Ordering::Relaxed) && !needs_http1 {
                let turn = self.connecting.lock().await;
                if let Some(sender) = self.sender() {
                    return Ok(PooledConnection::Http2(sender));
                }
                Some(turn)
            } else {
                None
            };
            let connected = self.connector.connect(self.options.protocol, needs_http1).await;
            let NegotiatedStream { wire, is_http2 } = connected.map_err(Failure::Connect)?;
            if !needs_http1 {
                self.is_shared.store(is_http2, Ordering::Relaxed);
            }
            if is_http2 {
                self.share(wire).await.map(PooledConnection::Http2)
            } else {
                Http1Connection::open(wire)
                    .await
                    .map(|connection| PooledConnection::Http1(Box::new(connection)))
            }
        };
        timeout(self.options.connect_time_max, opened).await.unwrap_or(Err(Failure::ConnectTimeout))
    }

    async fn share(&self, wire: UpstreamStream) -> Result<SendRequest<RequestBody>, Failure> {
        let (sender, connection) = http2::Builder::new(self.executor.clone())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY)
            .max_header_list_size(HEADER_BYTES_MAX)
            .handshake(TokioIo::new(wire))
            .await
            .map_err(Failure::Handshake)?;
        // Ends when the upstream closes it, and when nobody has a sender any more. Every request that waits on it
        // gets the error too. A panic closes the sender, so a new connection is made.
        self.executor.execute(async move {
            if let Err(error) = connection.await {
                debug!(%error, "a connection to the upstream has broken");
            }
        });
        *self.lock_shared() = Some(sender.clone());
        Ok(sender)
    }

    fn sender(&self) -> Option<SendRequest<RequestBody>> {
        let mut shared = self.lock_shared();
        if shared.as_ref().is_some_and(SendRequest::is_closed) {
            *shared = None;
        }
        shared.clone()
    }

    fn lock_shared(&self) -> MutexGuard<'_, Option<SendRequest<RequestBody>>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, IdleConnections> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Box<Http1Connection>> {
        self.lock().connections.pop()
    }

    /// Keeps a connection that nothing was sent on.
    pub(crate) async fn keep(self: &Arc<Self>, connection: Box<Http1Connection>) {
        let mut connection = Some(connection);
        poll_fn(|cx| {
            if let Some(connection) = connection.take() {
                self.release(connection, cx);
            }
            Poll::Ready(())
        })
        .await;
    }

    /// Keeps a connection for the next request, if it can be used again.
    pub(crate) fn release(
        self: &Arc<Self>,
        mut connection: Box<Http1Connection>,
        cx: &mut Context<'_>,
    ) {
        if !connection.is_free() {
            connection.drive(cx);
        }
        if !connection.is_free() {
            return;
        }
        connection.rest();
        let mut idle = self.lock();
        if idle.connections.len() >= self.options.kept_max {
            return;
        }
        idle.connections.push(connection);
        if !std::mem::replace(&mut idle.has_sweeper, true) {
            let sweeper = Sweeper(Arc::downgrade(self));
            #[expect(
                clippy::disallowed_methods,
                reason = "a panic makes room for the next sweeper"
            )]
            tokio::spawn(sweep(sweeper, self.options.kept_time_max));
        }
    }
}

/// The right to sweep a pool, which one task has.
struct Sweeper(std::sync::Weak<Pool>);

impl Drop for Sweeper {
    fn drop(&mut self) {
        // One that ends otherwise has said so itself, with the lock held.
        if std::thread::panicking()
            && let Some(pool) = self.0.upgrade()
        {
            pool.lock().has_sweeper = false;
        }
    }
}

/// Closes what was kept for too long, as long as anything is kept: nobody else looks at a connection
/// that is not needed.
async fn sweep(sweeper: Sweeper, kept_time_max: Duration) {
    loop {
        tokio::time::sleep(kept_time_max).await;
        let Some(pool) = sweeper.0.upgrade() else {
            return;
        };
        let mut idle = pool.lock();
        idle.connections.retain(|connection| connection.idle_for() < kept_time_max);
        if idle.connections.is_empty() {
            idle.has_sweeper = false;
            return;
        }
    }
}
