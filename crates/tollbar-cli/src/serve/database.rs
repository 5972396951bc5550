//! What the daemon has where it has a database: its rules are followed, usage is written there, and this
//! node has a name among others.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tollbar::SystemClock;

use crate::config::Config;
use tollbar_admin::database::sync::follower::{FollowError, Follower};
use tollbar_admin::database::sync::node_stores::{NODES, NodeStore};
use tollbar_admin::database::{LiveRules, RULES_CACHE, Repository, RepositoryError};
use tollbar_admin::usage::node::NodeIdentity;
use tollbar_admin::usage::writer::{USAGE, UsageWriter};
use tollbar_daemon::daemon::Daemon;
use tollbar_daemon::shutdown::ShutdownSignal;
use tollbar_daemon::store::loans::Loans;
use tollbar_daemon::usage::Tally;

/// A database whose rules are in force.
pub(crate) struct Database {
    pub(crate) repository: Repository,
    follower: Follower,
    usage_writer: UsageWriter<Repository>,
    flush_every: Duration,
    node: NodeIdentity,
}

/// Why there is none.
#[derive(Debug, Error)]
pub(crate) enum DatabaseError {
    #[error("--database: {0}")]
    Repository(#[from] RepositoryError),
    #[error("cannot keep this node's name beside the database: {0}; give it one by --node NAME")]
    NodeIdentity(io::Error),
    #[error(transparent)]
    Follower(#[from] FollowError),
}

impl Database {
    /// The database that `config` names, where it does. Its rules, or those that it said last, are in
    /// force when this returns: no request passes by rules that are not there yet.
    pub(crate) async fn open(
        config: &Config,
        live: &Arc<LiveRules>,
        tally: Option<Arc<Tally>>,
        loans: Option<Arc<Loans>>,
    ) -> Result<Option<Self>, DatabaseError> {
        let (Some(location), Some(tally)) = (&config.database.database, tally) else {
            return Ok(None);
        };
        let repository = Repository::open_later(location, Arc::new(SystemClock::new()))?;
        let state_path = config.database.state_path();
        let node = NodeIdentity::new(config.metering.node.as_deref(), state_path.as_deref());
        let node = node.map_err(DatabaseError::NodeIdentity)?;
        let (live, cache) = (Arc::clone(live), config.database.cache());
        let store = config.store.counting_place();
        let node_store = NodeStore { name: node.name.clone(), store };
        let follower = Follower::start(live, repository.clone(), cache, node_store).await?;
        let follower = follower.with_loans(loans);
        let usage_writer = UsageWriter::new(repository.clone(), node.name.clone(), tally);
        let flush_every = config.metering.usage_flush.0;
        Ok(Some(Self { repository, follower, usage_writer, flush_every, node }))
    }

    /// Follows it and writes usage until `ended`. Returns the name of this node, which is taken while it is held.
    pub(crate) fn start(self, daemon: &Daemon, ended: &ShutdownSignal) -> NodeIdentity {
        let live = Arc::clone(self.follower.live());
        if self.follower.has_cache() {
            daemon.health.add(RULES_CACHE, move || Some(live.cache_health()));
        }
        let nodes_apart = self.follower.nodes_apart();
        daemon.health.add(NODES, move || Some(nodes_apart.health()));
        self.follower.start_tasks(&daemon.tasks, ended);
        let pulse = self.usage_writer.start(&daemon.tasks, self.flush_every, ended);
        daemon.health.add(USAGE, move || Some(pulse.health()));
        self.node
    }
}
