//! The connections to the upstream: those under way, bounded by places, and those kept for the next
//! request, bounded in number and time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;
use std::time::Duration;

use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::body::RequestBody;
use crate::connector::{Connected, Connector};
use crate::failure::Failure;
use crate::line::Line;
use crate::upstream::{UpstreamOptions, UpstreamProtocol};
use crate::wire::Wire;

/// How often a shared connection is asked whether it is there, and how long it may take to say so.
const PING_EVERY: Duration = Duration::from_secs(10);

/// What the headers of an answer over HTTP/2 may take.
const HEADER_BYTES_MAX: u32 = 64 * 1024;

pub(crate) struct Pool {
    connector: Connector,
    options: UpstreamOptions,
    places: Arc<Semaphore>,
    kept: Mutex<Kept>,
    shared: Mutex<Option<SendRequest<RequestBody>>>,
    /// Whether the upstream speaks HTTP/2, as far as is known.
    is_shared: AtomicBool,
    /// Who holds it makes the connection that all others will share.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Kept {
    /// The latest last, and used first: those that are not needed grow old.
    #[expect(clippy::vec_box, reason = "they are a kilobyte, and go from hand to hand")]
    lines: Vec<Box<Line>>,
    has_sweeper: bool,
}

/// A way to send a request.
pub(crate) enum Way {
    Line(Box<Line>),
    Shared(SendRequest<RequestBody>),
}

impl Pool {
    pub(crate) fn new(connector: Connector, options: UpstreamOptions) -> Arc<Self> {
        Arc::new(Self {
            connector,
            places: Arc::new(Semaphore::new(options.exchanges_max)),
            kept: Mutex::default(),
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

    /// A connection that was kept, or is shared, or a new one. `needs_line` where the request wants
    /// to change the protocol, which HTTP/2 has no way for.
    pub(crate) async fn way(self: &Arc<Self>, needs_line: bool) -> Result<Way, Failure> {
        let needs_line = needs_line && self.options.protocol != UpstreamProtocol::Http2;
        if !needs_line && let Some(sender) = self.sender() {
            return Ok(Way::Shared(sender));
        }
        while let Some(line) = self.take() {
            // One that has ended meanwhile gives its request back.
            if line.kept_for() < self.options.kept_time_max && line.is_free() {
                return Ok(Way::Line(line));
            }
        }
        // In a box, as it is long: most requests have no need of it.
        Box::pin(self.fresh(needs_line)).await
    }

    /// A new connection, unless another one that can be shared is made meanwhile.
    pub(crate) async fn fresh(self: &Arc<Self>, needs_line: bool) -> Result<Way, Failure> {
        let opened = async {
            let _connecting = if self.is_shared.load(Ordering::Relaxed) && !needs_line {
                let turn = self.connecting.lock().await;
                if let Some(sender) = self.sender() {
                    return Ok(Way::Shared(sender));
                }
                Some(turn)
            } else {
                None
            };
            let connected = self.connector.connect(self.options.protocol, needs_line).await;
            let Connected { wire, is_http2 } = connected.map_err(Failure::Connect)?;
            if !needs_line {
                self.is_shared.store(is_http2, Ordering::Relaxed);
            }
            if is_http2 {
                self.share(wire).await.map(Way::Shared)
            } else {
                Line::open(wire).await.map(|it| Way::Line(Box::new(it)))
            }
        };
        timeout(self.options.connect_time_max, opened).await.unwrap_or(Err(Failure::ConnectTimeout))
    }

    async fn share(&self, wire: Wire) -> Result<SendRequest<RequestBody>, Failure> {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY)
            .max_header_list_size(HEADER_BYTES_MAX)
            .handshake(TokioIo::new(wire))
            .await
            .map_err(Failure::Handshake)?;
        // Ends when the upstream closes it, and when nobody has a sender any more. How it ends, each
        // who has asked is told.
        tokio::spawn(async move {
            let _ = connection.await;
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

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Box<Line>> {
        self.lock().lines.pop()
    }

    /// Keeps a connection for the next request, if it can be used again.
    pub(crate) fn keep(self: &Arc<Self>, mut line: Box<Line>, cx: &mut Context<'_>) {
        if !line.is_free() {
            line.drive(cx);
        }
        if !line.is_free() {
            return;
        }
        line.rest();
        let mut kept = self.lock();
        if kept.lines.len() >= self.options.kept_max {
            return;
        }
        kept.lines.push(line);
        if !std::mem::replace(&mut kept.has_sweeper, true) {
            tokio::spawn(sweep(Arc::downgrade(self), self.options.kept_time_max));
        }
    }
}

/// Closes what was kept for too long, as long as anything is kept: nobody else looks at a connection
/// that is not needed.
async fn sweep(pool: std::sync::Weak<Pool>, kept_time_max: Duration) {
    loop {
        tokio::time::sleep(kept_time_max).await;
        let Some(pool) = pool.upgrade() else {
            return;
        };
        let mut kept = pool.lock();
        kept.lines.retain(|line| line.kept_for() < kept_time_max);
        if kept.lines.is_empty() {
            kept.has_sweeper = false;
            return;
        }
    }
}
