//! What the daemon has where it has a database: its rules are followed, usage is written there, and this
//! node has a name among others.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::task::JoinHandle;
use tollbar::SystemClock;

use crate::config::Config;
use tollbar_admin::database::sync::follower::{FollowError, Follower};
use tollbar_admin::database::{LiveRules, Repository, RepositoryError};
use tollbar_admin::usage::node::NodeIdentity;
use tollbar_admin::usage::writer::UsageWriter;
use tollbar_daemon::shutdown::ShutdownSignal;
use tollbar_daemon::usage::Tally;

/// A database whose rules are in force.
pub(crate) struct Database {
    pub(crate) repository: Repository,
    follower: Follower,
    usage_writer: UsageWriter<Repository>,
    flush_every: Duration,
    node: NodeIdentity,
}

/// The tasks that follow a database and write usage to it.
pub(crate) struct DatabaseTasks {
    follower: JoinHandle<()>,
    usage_writer: JoinHandle<()>,
    /// Its name is this node's for as long as the daemon runs.
    _node: NodeIdentity,
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
    ) -> Result<Option<Self>, DatabaseError> {
        let (Some(location), Some(tally)) = (&config.database.database, tally) else {
            return Ok(None);
        };
        let repository = Repository::open_later(location, Arc::new(SystemClock::new()))?;
        let state_path = config.database.state_path();
        let node = NodeIdentity::new(config.metering.node.as_deref(), state_path.as_deref());
        let node = node.map_err(DatabaseError::NodeIdentity)?;
        let (live, cache) = (Arc::clone(live), config.database.cache());
        let follower = Follower::start(live, repository.clone(), cache, node.name.clone()).await?;
        let usage_writer = UsageWriter::new(repository.clone(), node.name.clone(), tally);
        let flush_every = config.metering.usage_flush.0;
        Ok(Some(Self { repository, follower, usage_writer, flush_every, node }))
    }

    /// Follows it and writes usage until `ended`.
    pub(crate) fn start(self, ended: &ShutdownSignal) -> DatabaseTasks {
        let follower = tokio::spawn(self.follower.run(ended.clone()));
        let usage_writer = tokio::spawn(self.usage_writer.run(self.flush_every, ended.clone()));
        DatabaseTasks { follower, usage_writer, _node: self.node }
    }
}

impl DatabaseTasks {
    /// Returns when all usage and the last rules are written, or cannot be.
    pub(crate) async fn finish(self) {
        // What went wrong has been told.
        let _ = (self.follower.await, self.usage_writer.await);
    }
}
