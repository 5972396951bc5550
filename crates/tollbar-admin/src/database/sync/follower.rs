//! From the database to what is enforced: looks for changes, loads them, and puts them in force.
//!
//! Changes are heard of the moment they are made, and looked for every second all the same. While the
//! database is away the last rules stay in force. One that accepts questions and answers none is away, too.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};
use tollbar::Timestamp;
use tollbar_rules::Diff;
use tracing::{info, warn};

use super::cache::{Cache, CacheError};
use crate::database::sync::contents::DatabaseContents;
use crate::database::sync::live_rules::LiveRules;
use crate::database::sync::node_stores::{NodeStore, NodesApart, all_know_loans};
use crate::database::{Repository, RepositoryError, Result};
use tollbar_daemon::background;
use tollbar_daemon::shutdown::ShutdownSignal;
use tollbar_daemon::store::loans::Loans;
use tollbar_daemon::tasks::{Pulse, Task, Tasks};

/// How often the database is polled, whether or not a notification came.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// A poll that takes longer than this may have much to read, or wait for a database that is silent.
const POLL_MAX: Duration = Duration::from_secs(1);

/// For one poll: ten thousand rules are read and put in force in some seconds, and a database that is silent is given
/// up after half a minute.
const TURN_MAX: Duration = Duration::from_mins(2);

/// For connecting once.
const NOTIFICATIONS_TURN_MAX: Duration = Duration::from_mins(1);

/// How often a node says what it enforces where nothing changes.
const REPORT_EVERY_US: u64 = 10_000_000;

/// After which a node that says nothing is forgotten.
const SILENCE_MAX_US: u64 = 300_000_000;

/// How often everything is read where only changes were: whatever went past them is found by then.
const READ_EVERY_US: u64 = 600_000_000;

/// How often the cache is written at most: it is all rules, each time.
const SAVE_EVERY_US: u64 = 5_000_000;

/// Keeps what is enforced up with the database.
#[derive(Debug)]
pub struct Follower {
    live: Arc<LiveRules>,
    repository: Repository,
    cache: Option<Cache>,
    node: NodeStore,
    nodes_apart: Arc<NodesApart>,
    /// Borrows while all nodes know loans.
    loans: Option<Arc<Loans>>,
    /// What was reported last, and when.
    reported: Option<(u64, Timestamp)>,
    /// When everything was read last, and not only what had changed.
    read_at: Option<Timestamp>,
    /// True where what is in force is not in the cache yet.
    is_unsaved: bool,
    saved_at: Option<Timestamp>,
}

/// Why there are no rules to begin with.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    #[error("--database: {0}")]
    Database(#[from] RepositoryError),
    #[error("--database: {away}; and there are no rules from before to go on with: {cache}")]
    NoCache { away: RepositoryError, cache: String },
}

impl Follower {
    /// Puts in force what the database says, or, where it does not answer, what it said last.
    pub async fn start(
        live: Arc<LiveRules>,
        repository: Repository,
        cache: Option<Cache>,
        node: NodeStore,
    ) -> std::result::Result<Self, FollowError> {
        let mut follower = Self {
            live,
            repository,
            cache,
            node,
            nodes_apart: Arc::default(),
            loans: None,
            reported: None,
            read_at: None,
            is_unsaved: false,
            saved_at: None,
        };
        match follower.read_all().await {
            Ok(()) => {
                follower.save().await;
                follower.live.mark_reachable();
                // Before the first request: until it has counted the nodes, this one takes the whole of a local
                // limit for its part. If the database goes away meanwhile, the first poll finds it.
                if let Err(away) = follower.report().await {
                    follower.live.mark_unreachable(&away);
                }
            }
            Err(away) if away.is_outage() => {
                let contents = match follower.read_cache().await {
                    Ok(Some(contents)) => contents,
                    Ok(None) => {
                        let cache = "nothing was kept in --rules-cache".to_owned();
                        return Err(FollowError::NoCache { away, cache });
                    }
                    Err(error) => {
                        let cache = error.to_string();
                        return Err(FollowError::NoCache { away, cache });
                    }
                };
                let (rules, revision) = (contents.rules.len(), contents.revisions.rules);
                warn!(rules, revision, why = %away, "the database does not answer: starting with the rules that it said last");
                follower.live.put_contents(Arc::new(contents));
                follower.live.mark_unreachable(&away);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(follower)
    }

    /// Has `loans` know whether all nodes know loans.
    #[must_use]
    pub fn with_loans(self, loans: Option<Arc<Loans>>) -> Self {
        // They have to hear of the nodes as well.
        Self { loans, reported: None, ..self }
    }

    /// Which other nodes count elsewhere.
    #[must_use]
    pub fn nodes_apart(&self) -> Arc<NodesApart> {
        Arc::clone(&self.nodes_apart)
    }

    async fn read_cache(&self) -> std::result::Result<Option<DatabaseContents>, CacheError> {
        let Some(cache) = self.cache.clone() else {
            return Ok(None);
        };
        background::run(move || cache.read()).await.unwrap_or(Ok(None))
    }

    /// Returns the rules that it keeps up with the database.
    pub fn live(&self) -> &Arc<LiveRules> {
        &self.live
    }

    /// True where the rules are kept for a start without the database.
    pub fn has_cache(&self) -> bool {
        self.cache.is_some()
    }

    /// Starts the tasks that follow the database until `stopped`.
    pub fn start_tasks(self, tasks: &Tasks, stopped: &ShutdownSignal) {
        let notifications = NotificationTask(self.repository.clone());
        tasks.start("database_notifications", NOTIFICATIONS_TURN_MAX, stopped, notifications);
        tasks.start("database_rules", TURN_MAX, stopped, self);
    }

    async fn poll(&mut self) -> Result<()> {
        let (live, repository) = (Arc::clone(&self.live), self.repository.clone());
        let polled = with_ping(self.try_poll(), &live, &repository).await;
        match &polled {
            Ok(()) => live.mark_reachable(),
            Err(error) => live.mark_unreachable(error),
        }
        self.save_if_due().await;
        polled
    }

    async fn try_poll(&mut self) -> Result<()> {
        let found = self.repository.revisions().await?;
        let enforced = self.live.enforced_revisions();
        // Not only where it has grown: a database that was restored is at an older one. And what came
        // from the file may be of another database that was at the same number.
        if found.rules != enforced.rules || !self.live.is_of_database() {
            self.read().await?;
        } else if self.is_full_read_due() {
            self.read_all().await?;
        } else if found.tokens != enforced.tokens {
            self.live.set_token_revision(found.tokens);
        }
        self.report().await
    }

    /// Reads what has changed, or everything where that is not known.
    async fn read(&mut self) -> Result<()> {
        let changes = match self.live.known_revision() {
            Some(known_revision) => self.repository.changes_since(known_revision).await?,
            None => None,
        };
        if let Some(changes) = changes {
            let live = Arc::clone(&self.live);
            let put = background::run(move || live.put_changes(changes)).await;
            if let Some(diff) = put.ok_or_else(work_lost)? {
                self.log_enforced(&diff);
                return Ok(());
            }
        }
        self.read_all().await
    }

    async fn read_all(&mut self) -> Result<()> {
        let contents = self.repository.load().await?;
        self.read_at = Some(self.repository.now());
        let live = Arc::clone(&self.live);
        let put = move || {
            let is_enforced = live.is_of_database()
                && live.enforced_revisions() == contents.revisions
                && *live.contents() == contents;
            (!is_enforced).then(|| live.put_from_database(Arc::new(contents)))
        };
        if let Some(diff) = background::run(put).await.ok_or_else(work_lost)? {
            self.log_enforced(&diff);
        }
        Ok(())
    }

    /// True where everything is to be read again although nothing is known to have changed.
    fn is_full_read_due(&self) -> bool {
        let since_us =
            |at: Timestamp| self.repository.now().as_micros().saturating_sub(at.as_micros());
        self.read_at.is_none_or(|at| since_us(at) >= READ_EVERY_US)
    }

    fn log_enforced(&mut self, diff: &Diff) {
        self.is_unsaved = true;
        let revision = self.live.enforced_revisions().rules;
        let [added, removed] = [diff.added.len(), diff.removed.len()];
        let changed = diff.changed.len();
        info!(revision, added, changed, removed, "rules of the database in force");
    }

    /// Keeps what is in force for a start without the database, where that is not so yet.
    async fn save(&mut self) {
        let Some(cache) = self.cache.clone().filter(|_| self.is_unsaved) else {
            return;
        };
        self.is_unsaved = false;
        let contents = self.live.contents();
        self.saved_at = Some(self.repository.now());
        let written = background::run(move || cache.write(&contents)).await;
        let cache_error = match written {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(error.to_string().into()),
            None => Some("the thread that writes it panicked".into()),
        };
        // What could not be written is written by the next save.
        self.is_unsaved = cache_error.is_some();
        self.live.set_cache_error(cache_error);
    }

    /// The same, but not at every change where many come one after the other.
    async fn save_if_due(&mut self) {
        let now = self.repository.now();
        let is_recent =
            |at: Timestamp| now.as_micros().saturating_sub(at.as_micros()) < SAVE_EVERY_US;
        if !self.saved_at.is_some_and(is_recent) {
            self.save().await;
        }
    }

    /// Says what this node enforces, when that has changed and now and then.
    async fn report(&mut self) -> Result<()> {
        let (revision, now) = (self.live.enforced_revisions().rules, self.repository.now());
        let is_due = |(reported, at): (u64, Timestamp)| {
            reported != revision
                || now.as_micros().saturating_sub(at.as_micros()) >= REPORT_EVERY_US
        };
        if self.reported.is_some_and(|report| !is_due(report)) {
            return Ok(());
        }
        self.repository.report_node(&self.node.name, revision, &self.node.store).await?;
        self.reported = Some((revision, now));
        let silent = Timestamp::from_micros(now.as_micros().saturating_sub(SILENCE_MAX_US));
        self.repository.forget_nodes(silent).await?;
        let nodes = self.repository.nodes().await?;
        self.nodes_apart.update(&self.node, &nodes, now);
        if let Some(loans) = &self.loans {
            loans.set_known_to_all(all_know_loans(&self.node, &nodes));
        }
        // Whichever has not been silent for long may still serve: too many share a limit rather than too few.
        let (node_count, live) = (nodes.len() as u64, Arc::clone(&self.live));
        background::run(move || live.put_node_count(node_count.max(1), now)).await;
        Ok(())
    }
}

/// What was read is not in force, and is tried again.
fn work_lost() -> RepositoryError {
    RepositoryError::unavailable(
        "its rules could not be put in force: a thread panicked, see the log",
    )
}

impl Task for Follower {
    async fn run(&mut self, pulse: &Pulse, mut stopped: ShutdownSignal) {
        let mut ticks = interval(POLL_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let repository = self.repository.clone();
        loop {
            tokio::select! {
                () = stopped.wait() => break,
                () = repository.change_notify().notified() => {}
                _ = ticks.tick() => {}
            }
            tokio::select! {
                () = stopped.wait() => break,
                polled = self.poll() => pulse.record(polled.map_err(|error| error.to_string().into())),
            }
        }
        self.save().await;
    }
}

/// Waits for `poll`. While that takes long, the database is asked whether it is there: one that is silent is
/// found away 2.5 s after a look began, however long a look may take.
async fn with_ping(
    poll: impl Future<Output = Result<()>>,
    live: &LiveRules,
    repository: &Repository,
) -> Result<()> {
    let mut poll = pin!(poll);
    loop {
        if let Ok(result) = timeout(POLL_MAX, &mut poll).await {
            return result;
        }
        tokio::select! {
            result = &mut poll => return result,
            ping = repository.ping() => if let Err(silent) = ping {
                live.mark_unreachable(&silent);
            },
        }
    }
}

/// Passes on the notifications of PostgreSQL. SQLite sends none: there, changes are found by polling.
struct NotificationTask(Repository);

impl Task for NotificationTask {
    async fn run(&mut self, pulse: &Pulse, mut stopped: ShutdownSignal) {
        tokio::select! {
            () = stopped.wait() => {}
            () = self.forward(pulse) => {}
        }
    }
}

impl NotificationTask {
    async fn forward(&self, pulse: &Pulse) {
        let Self(repository) = self;
        let mut turns = interval(POLL_EVERY);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // The database is polled every second meanwhile, so there is no hurry.
            turns.tick().await;
            let mut listening = match repository.listen().await {
                // Nothing will ever come.
                None => {
                    pulse.succeed();
                    continue;
                }
                Some(Err(error)) => {
                    pulse.fail(error.to_string());
                    continue;
                }
                Some(Ok(listening)) => listening,
            };
            // Something may have been said while nobody listened.
            repository.change_notify().notify_one();
            loop {
                tokio::select! {
                    _ = turns.tick() => pulse.succeed(),
                    heard = listening.next() => match heard {
                        Ok(()) => repository.change_notify().notify_one(),
                        Err(error) => {
                            pulse.fail(error.to_string());
                            break;
                        }
                    },
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
