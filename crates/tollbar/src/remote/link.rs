//! The way to one server: a few connections that all checks share, or none.
//!
//! A task makes new connections whenever there are none, for as long as it takes. Until then checks
//! fail at once: the circuit breaker is open.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::backoff;
use super::breaker::{Breaker, BreakerState};
use super::deadlines::Exchange;
use super::failure::{Failure, FailureKind, RemoteError};
use super::restart::spawn_restarting;

/// A server, and how connections to it are made.
pub trait Connector: Send + Sync + 'static {
    /// One connection. Clones share it.
    type Connection: Clone + Send + Sync + 'static;
    /// What can go wrong.
    type Error: Failure;

    /// What to call the server in messages. No secrets.
    fn name(&self) -> Arc<str>;

    /// Makes connections that have answered, within a time: checks use them by turns.
    fn connect(&self) -> impl Future<Output = Result<Vec<Self::Connection>, Self::Error>> + Send;
}

/// How a store's connection is doing.
#[derive(Debug, Clone)]
pub struct Health {
    /// Whether checks are sent. In a cluster, whether all are.
    pub breaker: BreakerState,
    /// How often the circuit breaker has opened; in a cluster, those of all nodes.
    pub opened: u64,
    /// Why the last connection was given up, or could not be made; `None` while one works. In a cluster,
    /// which masters and slots cannot be reached.
    pub last_error: Option<Arc<str>>,
}

/// Connections, and which ones they are: a check that fails late must not take the next ones down.
struct LiveConnections<C> {
    number: u64,
    connections: Vec<C>,
}

/// Whether there are connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkState {
    /// Nothing has been tried yet.
    New,
    Live,
    Lost,
}

/// What checks and the task that connects have in common.
struct LinkShared<D: Connector> {
    server: D,
    live: ArcSwapOption<LiveConnections<D::Connection>>,
    /// Whether there are connections, for those that wait for it.
    state: watch::Sender<LinkState>,
    /// By turns.
    turn: AtomicUsize,
    breaker: Breaker,
    last_error: Mutex<Option<Arc<str>>>,
}

/// The link itself. The task that connects ends with it.
pub struct Link<D: Connector> {
    shared: Arc<LinkShared<D>>,
    connect_task: AbortHandle,
}

impl<D: Connector> Link<D> {
    /// A link to `server`, which connects by itself on `runtime` and gives connections up after so many
    /// missed deadlines in a row; `first` are connections that are there already.
    #[must_use]
    pub fn new(
        server: D,
        failures_max: u32,
        runtime: &Handle,
        first: Option<Vec<D::Connection>>,
    ) -> Self {
        let shared = Arc::new(LinkShared {
            server,
            live: ArcSwapOption::empty(),
            state: watch::Sender::new(LinkState::New),
            turn: AtomicUsize::new(0),
            breaker: Breaker::new(failures_max),
            last_error: Mutex::new(Some("not connected yet".into())),
        });
        let is_connected = first.map(|connections| shared.set_connections(connections)).is_some();
        let (task_shared, mut is_connected) = (shared.clone(), is_connected);
        let connect_task = spawn_restarting(runtime, move || {
            // After a panic nothing is known of the connections, so new ones are made.
            maintain(task_shared.clone(), std::mem::take(&mut is_connected))
        });
        Self { shared, connect_task }
    }

    /// Asks over one of the connections, in time.
    pub async fn ask<T, F: Future<Output = Result<T, D::Error>>>(
        &self,
        exchange: &Exchange<'_>,
        ask: impl FnOnce(D::Connection) -> F,
    ) -> Result<T, D::Error> {
        let live = self.shared.live.load_full();
        let Some((live, connection)) = live.and_then(|live| {
            let connection = self.next_connection(&live)?;
            Some((live, connection))
        }) else {
            return Err(self.disconnected());
        };
        let answer = exchange.in_time(ask(connection)).await;
        match &answer {
            Err(error) if error.kind().is_of_connection() => {
                self.shared.record_error(live.number, error);
            }
            // A refusal is an answer too.
            _ => self.shared.breaker.succeed(),
        }
        answer
    }

    /// Waits until there is a connection, or an attempt has failed.
    pub async fn wait_for_attempt(&self) {
        self.shared.wait_until(|state| state != LinkState::New).await;
    }

    /// A connection, if there is one, for what is no check.
    #[must_use]
    pub fn connection(&self) -> Option<D::Connection> {
        self.next_connection(self.shared.live.load().as_ref()?)
    }

    fn next_connection(&self, live: &LiveConnections<D::Connection>) -> Option<D::Connection> {
        let turn = self.shared.turn.fetch_add(1, Ordering::Relaxed);
        live.connections.get(turn % live.connections.len().max(1)).cloned()
    }

    /// The server that it leads to.
    #[must_use]
    pub fn server(&self) -> &D {
        &self.shared.server
    }

    /// What the server is called.
    #[must_use]
    pub fn name(&self) -> Arc<str> {
        self.shared.server.name()
    }

    /// Why there is no connection.
    #[must_use]
    pub fn disconnected(&self) -> D::Error {
        let cause = self.shared.last_error().clone().unwrap_or_else(|| "connecting".into());
        RemoteError::Disconnected { node: self.name(), cause }.into()
    }

    /// How it is doing.
    #[must_use]
    pub fn health(&self) -> Health {
        let breaker = match self.shared.live.load().as_ref() {
            Some(_) => BreakerState::Closed,
            None => BreakerState::Open,
        };
        let last_error = self.shared.last_error().clone();
        Health { breaker, opened: self.shared.breaker.opened(), last_error }
    }
}

/// Makes a new connection whenever there is none. Runs until it is aborted.
async fn maintain<D: Connector>(shared: Arc<LinkShared<D>>, is_connected: bool) {
    let mut failures = 0;
    if is_connected {
        shared.wait_until_lost().await;
    }
    loop {
        match shared.server.connect().await {
            Ok(connections) => {
                shared.set_connections(connections);
                shared.wait_until_lost().await;
                // One that is lost as soon as it is made counts as a failure.
                failures = 1;
            }
            Err(error) => {
                shared.record_failure(&error);
                failures += 1;
            }
        }
        tokio::time::sleep(backoff::delay(failures)).await;
    }
}

impl<D: Connector> LinkShared<D> {
    /// Checks go over these from now on.
    fn set_connections(&self, connections: Vec<D::Connection>) {
        self.breaker.succeed();
        *self.last_error() = None;
        // Every connection comes after an opening, but for the first.
        let number = self.breaker.opened();
        self.live.store(Some(Arc::new(LiveConnections { number, connections })));
        self.state.send_replace(LinkState::Live);
    }

    /// An attempt to connect has failed.
    fn record_failure(&self, error: &D::Error) {
        *self.last_error() = Some(describe(error));
        self.state.send_replace(LinkState::Lost);
    }

    /// Until there is no connection.
    async fn wait_until_lost(&self) {
        self.wait_until(|state| state == LinkState::Lost).await;
    }

    async fn wait_until(&self, is_so: impl Fn(LinkState) -> bool) {
        // Fails only if nothing can send any more, and we can.
        #[expect(
            clippy::let_underscore_must_use,
            reason = "it fails only when the link is dropped, and then nobody waits"
        )]
        let _ = self.state.subscribe().wait_for(|state| is_so(*state)).await;
    }

    fn record_error(&self, number: u64, error: &D::Error) {
        let may_pass = error.kind() == FailureKind::DeadlineMissed;
        if may_pass && !self.breaker.fail() {
            return;
        }
        let live = self.live.load();
        let Some(failed) = live.as_ref().filter(|live| live.number == number) else {
            return;
        };
        // Only one of those that see it fail takes it away.
        let before = self.live.compare_and_swap(failed, None);
        if before.as_ref().is_some_and(|before| Arc::ptr_eq(before, failed)) {
            self.breaker.count_opening();
            *self.last_error() = Some(describe(error));
            self.state.send_replace(LinkState::Lost);
        }
    }

    fn last_error(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        // Nothing can go wrong halfway through replacing a value.
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error and what it comes from, in one line.
#[must_use]
pub fn describe(error: &dyn std::error::Error) -> Arc<str> {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text.into()
}

impl<D: Connector> Drop for Link<D> {
    fn drop(&mut self) {
        self.connect_task.abort();
    }
}

impl<D: Connector> fmt::Debug for Link<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Link")
            .field("node", &self.name())
            .field("health", &self.health())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use super::*;

    /// The first attempts to connect panic.
    struct PanickingServer {
        attempts: AtomicU32,
        panics: u32,
    }

    impl Connector for PanickingServer {
        type Connection = ();
        type Error = RemoteError;

        fn name(&self) -> Arc<str> {
            "server".into()
        }

        async fn connect(&self) -> Result<Vec<()>, RemoteError> {
            let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
            assert!(attempt >= self.panics, "a fault on purpose");
            Ok(vec![()])
        }
    }

    /// A task that ended with its first panic would leave the link without a connection for ever.
    #[tokio::test(start_paused = true)]
    async fn a_panic_while_connecting_is_followed_by_another_attempt_and_shows_until_then() {
        let server = PanickingServer { attempts: AtomicU32::new(0), panics: 3 };
        let link = Link::new(server, 1, &Handle::current(), None);
        assert_eq!(link.health().breaker, BreakerState::Open);
        assert!(link.health().last_error.is_some());
        let connected = tokio::time::timeout(Duration::from_mins(1), link.wait_for_attempt());
        connected.await.expect("it connects in the end");
        assert_eq!(link.health().breaker, BreakerState::Closed);
        assert!(link.connection().is_some());
    }
}
