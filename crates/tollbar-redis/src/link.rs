//! The way to one server: two connections that all checks share, or none.
//!
//! Checks that are under way at the same time go out in one write and come back in one read: the
//! connection's driver takes what has come in meanwhile, and waits for nothing. An idle connection
//! sends a check at once. One whose deadline has passed before it was written is never sent. There are
//! two, so that the server has something to do while the answers of one are handed out.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::breaker::{Breaker, BreakerState};
use crate::connection::Connection;
use crate::error::RedisStoreError;
use crate::exchange::Exchange;
use crate::keeper;
use crate::node::{Connections, Node};

/// How a store's connection is doing.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Health {
    /// Whether checks are sent. In a cluster, whether any are.
    pub breaker: BreakerState,
    /// How often the circuit breaker has opened; in a cluster, those of all nodes.
    pub opened: u64,
    /// Why the last connection was given up, or could not be made; `None` while one works. In a cluster,
    /// why there is none to some node.
    pub last_error: Option<Arc<str>>,
}

/// Connections, and which ones they are: a check that fails late must not take the next ones down.
struct Live {
    number: u64,
    connections: Connections,
}

/// Whether there are connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nobody has tried yet.
    New,
    Live,
    Lost,
}

/// What checks and the keeper have in common.
pub(crate) struct Shared {
    pub(crate) node: Node,
    live: ArcSwapOption<Live>,
    /// The same for those who wait for it.
    state: watch::Sender<State>,
    /// By turns.
    turn: AtomicUsize,
    breaker: Breaker,
    last_error: Mutex<Option<Arc<str>>>,
}

/// The link itself. Its keeper ends with it.
pub(crate) struct Link {
    shared: Arc<Shared>,
    keeper: AbortHandle,
}

/// How a question is to be understood by a node of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    Plain,
    /// About what the node is taking over at the moment.
    Ahead,
}

impl Link {
    /// A link to `node`, which connects by itself on `runtime`; `first` are connections that are there
    /// already.
    pub(crate) fn new(
        node: Node,
        failures_max: u32,
        runtime: &Handle,
        first: Option<Connections>,
    ) -> Self {
        let shared = Arc::new(Shared {
            node,
            live: ArcSwapOption::empty(),
            state: watch::Sender::new(State::New),
            turn: AtomicUsize::new(0),
            breaker: Breaker::new(failures_max),
            last_error: Mutex::new(Some("not connected yet".into())),
        });
        let is_connected = first.map(|connections| shared.connected(connections)).is_some();
        let keeper = runtime.spawn(keeper::keep(shared.clone(), is_connected)).abort_handle();
        Self { shared, keeper }
    }

    /// Asks, in time.
    pub(crate) async fn ask(
        &self,
        exchange: &Exchange<'_>,
        question: &Cmd,
        manner: Manner,
    ) -> Result<Value, RedisStoreError> {
        let live = self.shared.live.load_full();
        let Some((live, mut connection)) = live.and_then(|live| {
            let connection = self.by_turns(&live)?;
            Some((live, connection))
        }) else {
            return Err(self.shared.disconnected());
        };
        let asked = async {
            Ok(match manner {
                Manner::Plain => connection.ask(question).await,
                Manner::Ahead => connection.ask_ahead(question).await,
            }?)
        };
        let answer = exchange.in_time(asked).await;
        match &answer {
            Err(error) if error.is_of_connection() => self.shared.failed(live.number, error),
            // A refusal is an answer too.
            _ => self.shared.breaker.succeed(),
        }
        answer
    }

    /// Until there is a connection, or an attempt has failed.
    pub(crate) async fn tried(&self) {
        self.shared.until(|state| state != State::New).await;
    }

    /// A connection, if there is one, for what is no check.
    pub(crate) fn connection(&self) -> Option<Connection> {
        self.by_turns(self.shared.live.load().as_ref()?)
    }

    fn by_turns(&self, live: &Live) -> Option<Connection> {
        let turn = self.shared.turn.fetch_add(1, Ordering::Relaxed);
        live.connections.get(turn % live.connections.len().max(1)).cloned()
    }

    pub(crate) fn name(&self) -> Arc<str> {
        self.shared.node.name()
    }

    /// Why there is no connection.
    pub(crate) fn disconnected(&self) -> RedisStoreError {
        self.shared.disconnected()
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

impl Shared {
    /// Checks go over these from now on.
    pub(crate) fn connected(&self, connections: Connections) {
        self.breaker.succeed();
        *self.last_error() = None;
        // Every connection comes after an opening, but for the first.
        let number = self.breaker.opened();
        self.live.store(Some(Arc::new(Live { number, connections })));
        self.state.send_replace(State::Live);
    }

    /// An attempt to connect has failed.
    pub(crate) fn not_connected(&self, error: &RedisStoreError) {
        *self.last_error() = Some(describe(error));
        self.state.send_replace(State::Lost);
    }

    /// Until there is no connection.
    pub(crate) async fn lost(&self) {
        self.until(|state| state == State::Lost).await;
    }

    async fn until(&self, is_so: impl Fn(State) -> bool) {
        // Fails only where nobody can send any more, and we can.
        let _ = self.state.subscribe().wait_for(|state| is_so(*state)).await;
    }

    fn failed(&self, number: u64, error: &RedisStoreError) {
        let may_pass = matches!(error, RedisStoreError::DeadlineMissed { .. });
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
            self.state.send_replace(State::Lost);
        }
    }

    fn disconnected(&self) -> RedisStoreError {
        let cause = self.last_error().clone().unwrap_or_else(|| "connecting".into());
        RedisStoreError::Disconnected { node: self.node.name(), cause }
    }

    fn last_error(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        // Nothing can go wrong halfway through replacing a value.
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error and what it comes from, in one line.
pub(crate) fn describe(error: &dyn std::error::Error) -> Arc<str> {
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
            .field("node", &self.name())
            .field("health", &self.health())
            .finish_non_exhaustive()
    }
}
