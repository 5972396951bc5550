//! The way to the server: two connections that all checks share, or none.
//!
//! Checks that are under way at the same time go out in one write and come back in one read: the
//! connection's driver takes what has come in meanwhile, and waits for nothing. An idle connection
//! sends a check at once. One whose deadline has passed before it was written is never sent. There are
//! two, so that the server has something to do while the answers of one are handed out.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::breaker::{Breaker, BreakerState};
use crate::connection::Connection;
use crate::error::RedisStoreError;
use crate::keeper;
use crate::node::Node;

/// How a store's connection is doing.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Health {
    /// Whether checks are sent.
    pub breaker: BreakerState,
    /// How often the circuit breaker has opened.
    pub opened: u64,
    /// Why the last connection was given up, or could not be made; `None` while one works.
    pub last_error: Option<Arc<str>>,
}

/// Connections, and which ones they are: a check that fails late must not take the next ones down.
struct Live {
    number: u64,
    connections: Connections,
}

/// As many as are shared.
pub(crate) type Connections = Vec<Connection>;

/// What checks and the keeper have in common.
pub(crate) struct Shared {
    pub(crate) node: Node,
    live: ArcSwapOption<Live>,
    /// By turns.
    turn: AtomicUsize,
    breaker: Breaker,
    lost: Notify,
    last_error: Mutex<Option<Arc<str>>>,
}

/// The link itself. Its keeper ends with it.
pub(crate) struct Link {
    shared: Arc<Shared>,
    keeper: AbortHandle,
    /// Deadlines are kept by this runtime, whichever thread waits for them.
    runtime: Handle,
    deadline: Duration,
}

/// How patient a link is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) deadline: Duration,
    pub(crate) failures_max: u32,
}

impl Link {
    /// A link to `node`, on the runtime that this is called on. It connects by itself; `first` is a
    /// connection that is there already.
    pub(crate) fn new(node: Node, patience: Patience, first: Option<Connections>) -> Self {
        let runtime = Handle::current();
        let shared = Arc::new(Shared {
            node,
            live: ArcSwapOption::empty(),
            turn: AtomicUsize::new(0),
            breaker: Breaker::new(patience.failures_max),
            lost: Notify::new(),
            last_error: Mutex::new(Some("not connected yet".into())),
        });
        let is_connected = first.map(|connections| shared.connected(connections)).is_some();
        let keeper = runtime.spawn(keeper::keep(shared.clone(), is_connected)).abort_handle();
        Self { shared, keeper, runtime, deadline: patience.deadline }
    }

    /// Runs `exchange` with the connection, no longer than the deadline allows.
    pub(crate) async fn exchange<T, E>(
        &self,
        exchange: impl FnOnce(Exchange) -> E,
    ) -> Result<T, RedisStoreError>
    where
        E: Future<Output = Result<T, RedisStoreError>>,
    {
        let live = self.shared.live.load_full();
        let Some((live, connection)) = live.and_then(|live| {
            let turn = self.shared.turn.fetch_add(1, Ordering::Relaxed);
            let connection = live.connections.get(turn % live.connections.len().max(1))?.clone();
            Some((live, connection))
        }) else {
            return Err(self.shared.disconnected());
        };
        let exchange = exchange(Exchange(connection));
        let timed = {
            // The timer belongs to the runtime; the thread that waits need not.
            let _guard = self.runtime.enter();
            tokio::time::timeout(self.deadline, exchange)
        };
        let deadline = self.deadline;
        let answer = timed.await.unwrap_or(Err(RedisStoreError::DeadlineMissed { deadline }));
        match &answer {
            Err(error) if error.is_of_connection() => self.shared.failed(live.number, error),
            // A refusal is an answer too.
            _ => self.shared.breaker.succeed(),
        }
        answer
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.shared.node.is_cluster()
    }

    pub(crate) fn health(&self) -> Health {
        let breaker = match self.shared.live.load().as_ref() {
            Some(_) => BreakerState::Closed,
            None => BreakerState::Open,
        };
        let last_error = self.shared.last_error().clone();
        Health { breaker, opened: self.shared.breaker.opened(), last_error }
    }
}

/// A connection for one exchange: a question, and perhaps others that follow from its answer.
#[derive(Clone)]
pub(crate) struct Exchange(Connection);

impl Exchange {
    pub(crate) async fn ask(&mut self, question: &Cmd) -> Result<Value, redis::RedisError> {
        self.0.ask(question).await
    }
}

impl Shared {
    /// Checks go over these from now on.
    pub(crate) fn connected(&self, connections: Connections) {
        self.breaker.succeed();
        *self.last_error() = None;
        // Every connection comes after an opening, but for the first.
        let number = self.breaker.opened();
        self.live.store(Some(Arc::new(Live { number, connections })));
    }

    /// An attempt to connect has failed.
    pub(crate) fn not_connected(&self, error: &RedisStoreError) {
        *self.last_error() = Some(describe(error));
    }

    /// Until there is no connection.
    pub(crate) async fn lost(&self) {
        while self.live.load().is_some() {
            self.lost.notified().await;
        }
    }

    fn failed(&self, number: u64, error: &RedisStoreError) {
        // The connections of a cluster look after themselves, and most of its nodes may be well: it is
        // given up only if nothing works any more.
        let may_pass =
            matches!(error, RedisStoreError::DeadlineMissed { .. }) || self.node.is_cluster();
        if may_pass && !self.breaker.fail() {
            return;
        }
        let live = self.live.load();
        let Some(failed) = live.as_ref().filter(|live| live.number == number) else {
            return;
        };
        // Only one of those who see it fail takes it away.
        let before = self.live.compare_and_swap(failed, None);
        if before.as_ref().is_some_and(|before| Arc::ptr_eq(before, failed)) {
            self.breaker.count_opening();
            *self.last_error() = Some(describe(error));
            self.lost.notify_one();
        }
    }

    fn disconnected(&self) -> RedisStoreError {
        let cause = self.last_error().clone().unwrap_or_else(|| "connecting".into());
        RedisStoreError::Disconnected { node: self.node.name(), cause }
    }

    fn last_error(&self) -> std::sync::MutexGuard<'_, Option<Arc<str>>> {
        // Nothing can go wrong halfway through replacing a value.
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error and what it comes from, in one line.
fn describe(error: &dyn std::error::Error) -> Arc<str> {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text.into()
}

impl Drop for Link {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Link")
            .field("node", &self.shared.node.name())
            .field("health", &self.health())
            .finish_non_exhaustive()
    }
}
