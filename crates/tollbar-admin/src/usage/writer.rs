//! Writes the usage that was counted in memory to the database, each batch once.
//!
//! What is written goes in batches, and a batch has a number: the database adds a number of a node once.
//! One whose answer was lost is sent again under the same number, and nothing else is sent before it is
//! known to be there. A daemon that starts takes a number above all that its name has used, so what an
//! earlier one has left on the way comes too late to be taken for its own.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{error, warn};

use crate::database::{BatchOutcome, Repository, RepositoryError, Result};
use tollbar_daemon::health::HealthPart;
use tollbar_daemon::shutdown::ShutdownSignal;
use tollbar_daemon::tasks::{Pulse, Task, Tasks};
use tollbar_daemon::usage::Tally;
use tollbar_daemon::usage::UsageRow;

/// The usage that is written to the database, as a part of the daemon.
pub const USAGE: HealthPart = HealthPart {
    name: "usage",
    degraded: "cannot write usage: it is kept in memory",
    recovered: "usage is written again",
};

/// For one flush. A transaction is given up after half a minute, and a flush begins with one that failed before.
const FLUSH_MAX: Duration = Duration::from_mins(2);

/// Rows of one batch, which is one transaction.
const BATCH_ROWS_MAX: usize = 5_000;

/// How often a number that somebody else has taken is chosen anew, one after the other.
const NUMBERS_TRIED_MAX: usize = 8;

/// For what has been counted to be written at the end.
const LAST_FLUSH_MAX: Duration = Duration::from_secs(5);

/// Between two attempts at the end.
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// The table of usage. Tests put one in its place that loses requests and responses.
pub trait UsageTable: Send + Sync + 'static {
    /// The last number that was added for a node.
    fn last(&self, node: &str) -> impl Future<Output = Result<u64>> + Send;

    /// Adds a batch, unless its number is not above the last.
    fn add(
        &self,
        node: &str,
        number: u64,
        rows: &[UsageRow],
    ) -> impl Future<Output = Result<BatchOutcome>> + Send;
}

impl UsageTable for Repository {
    async fn last(&self, node: &str) -> Result<u64> {
        self.usage_sequence(node).await
    }

    async fn add(&self, node: &str, number: u64, rows: &[UsageRow]) -> Result<BatchOutcome> {
        self.add_usage(node, number, rows).await
    }
}

/// Writes usage to a table, batch by batch.
#[derive(Debug)]
pub struct UsageWriter<B> {
    table: B,
    node: String,
    tally: Arc<Tally>,
    /// The last number that is ours and was added; none until there is one.
    last: Option<u64>,
    /// Taken from memory, and not known to be written.
    batches: VecDeque<Vec<UsageRow>>,
    /// Whether the first batch has been sent, and may be there.
    is_sent: bool,
}

impl<B: UsageTable> UsageWriter<B> {
    pub fn new(table: B, node: String, tally: Arc<Tally>) -> Self {
        Self { table, node, tally, last: None, batches: VecDeque::new(), is_sent: false }
    }

    /// Starts the task that writes every so often until `ended`, and then once more.
    pub fn start(self, tasks: &Tasks, every: Duration, ended: &ShutdownSignal) -> Pulse {
        tasks.start("usage", every * 2 + FLUSH_MAX, ended, UsageTask { writer: self, every })
    }

    /// The last flush: a database that is away for a moment is waited for, one that stays away is not.
    async fn finish(&mut self) {
        let written = timeout(LAST_FLUSH_MAX, async {
            while self.flush().await.is_err() {
                tokio::time::sleep(LAST_PAUSE).await;
            }
        });
        if written.await.is_err() {
            let accounts: usize = self.batches.iter().map(Vec::len).sum();
            error!(
                accounts,
                "the database does not answer: their usage since the last write is lost"
            );
        }
    }

    /// Writes everything that was counted so far. What is not known to be written after an error is
    /// written by the next one, and not counted twice.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        // What an earlier one has left comes first, and then what was counted since.
        self.write_batches().await?;
        let rows = self.tally.take_all();
        self.batches.extend(rows.chunks(BATCH_ROWS_MAX).map(<[_]>::to_vec));
        self.write_batches().await
    }

    async fn write_batches(&mut self) -> Result<()> {
        let mut numbers_tried = 0;
        while let Some(rows) = self.batches.front() {
            let number = match self.last {
                Some(last) => last + 1,
                None => claim_number(&self.table, &self.node).await? + 1,
            };
            self.last = Some(number - 1);
            let may_be_there = std::mem::replace(&mut self.is_sent, true);
            match self.table.add(&self.node, number, rows).await? {
                BatchOutcome::AlreadyAdded if !may_be_there => {
                    // It is not ours that is there: somebody else has our name.
                    warn!(
                        node = self.node,
                        "another daemon has this name: give each its own by --node"
                    );
                    (self.last, self.is_sent) = (None, false);
                    numbers_tried += 1;
                    if numbers_tried == NUMBERS_TRIED_MAX {
                        return Err(name_conflict(&self.node));
                    }
                }
                BatchOutcome::Added | BatchOutcome::AlreadyAdded => {
                    (self.last, self.is_sent) = (Some(number), false);
                    self.batches.pop_front();
                }
            }
        }
        Ok(())
    }
}

struct UsageTask<B> {
    writer: UsageWriter<B>,
    every: Duration,
}

impl<B: UsageTable> Task for UsageTask<B> {
    async fn run(&mut self, pulse: &Pulse, mut ended: ShutdownSignal) {
        let mut turns = interval(self.every);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first is at once, and there is nothing to write yet.
        turns.tick().await;
        loop {
            let flushed = async {
                turns.tick().await;
                self.writer.flush().await
            };
            // A flush that waits for a silent database is given up: its batch is sent again by the last one.
            let flushed = tokio::select! {
                () = ended.wait() => return self.writer.finish().await,
                flushed = flushed => flushed,
            };
            pulse.record(flushed.map_err(|error| error.to_string().into()));
        }
    }
}

/// Takes a number above all that the name has used: what another has sent under those, and is still on its way,
/// is not added any more.
async fn claim_number(table: &impl UsageTable, node: &str) -> Result<u64> {
    for _ in 0..NUMBERS_TRIED_MAX {
        let number = table.last(node).await? + 1;
        if table.add(node, number, &[]).await? == BatchOutcome::Added {
            return Ok(number);
        }
    }
    Err(name_conflict(node))
}

fn name_conflict(node: &str) -> RepositoryError {
    let why = format!("others go on writing as node {node}");
    RepositoryError::Unavailable { why }
}

#[cfg(test)]
mod tests;
