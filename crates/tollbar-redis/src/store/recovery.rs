//! Ends requests across slots whose process has not: it died, its caller hung up, or a slot did not answer.
//!
//! Every store in a cluster asks all coordinators once a second for intents whose deadline has passed. A
//! coordinator hands each to one store at a time, and the same script marks it so that it cannot be committed
//! any more. The store makes the calls that the intent lists, in all slots at once: they give back what was
//! charged, or settle what a settlement has left. When all have answered it removes the intent. Otherwise the
//! intent is handed out again, to this or another store, until it is dropped with the records it is about.
//!
//! So what a dead process has charged comes back when the deadline of the intent has passed (the store's
//! `timeout` and a second), one more second at most until the next look, and the time of two calls: by default
//! after a little more than 2 seconds, if some process of the fleet is there to look and the slots answer. If the
//! process that looks dies as well, it takes as long again.
//!
//! A store whose last complete look is older than 10 seconds reports that as a fault, with the error of the last one.
//! So does one that found a coordinator with too many intents.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tollbar::readable_duration;
use tollbar::remote::{describe, spawn_restarting};

use crate::error::RedisStoreError;
use crate::fault::{FaultKind, StoreFault};
use crate::keys::{COORDINATOR_COUNT, KeyNamer};
use crate::runner::{ScriptRunner, TestClock};
use crate::script::Scripts;
use crate::script::call::ScriptCall;
use crate::script::intent::{self, OverdueIntent};
use crate::server::findings::LastSeen;
use crate::server::route::Route;

/// How often it looks.
const PERIOD: Duration = Duration::from_secs(1);

/// So many intents are taken at once of each coordinator, and so often in a row.
const CLAIM_MAX: usize = 16;
const ROUNDS_MAX: usize = 64;

/// The age of the last complete look from which on it is a fault.
const LATE_AFTER: Duration = Duration::from_secs(10);

/// What it takes to end the requests of others.
pub(crate) struct Recovery {
    pub(crate) route: Arc<Route>,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) names: KeyNamer,
    pub(crate) test_clock: Option<TestClock>,
}

/// A recovery that runs. It ends when this is dropped.
pub(crate) struct RecoveryTask {
    task: AbortHandle,
    progress: Arc<Progress>,
}

/// How recovery is doing.
#[derive(Debug)]
struct Progress {
    last_sweep: Mutex<LastSweep>,
    /// A coordinator that had no room for another intent.
    backlog: LastSeen,
}

#[derive(Debug)]
struct LastSweep {
    /// When all coordinators had nothing more to hand out; at first, when the store was made.
    completed_at: Instant,
    /// Why the last one was not complete, if it was not.
    error: Option<Arc<str>>,
}

impl Drop for RecoveryTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl RecoveryTask {
    /// Notes that a coordinator had no room for another intent.
    pub(crate) fn record_backlog(&self) {
        self.progress.backlog.record();
    }

    /// Returns what is wrong with it, if something is.
    pub(crate) fn fault(&self) -> Option<StoreFault> {
        self.progress.fault()
    }
}

impl Progress {
    fn new() -> Self {
        let last_sweep = LastSweep { completed_at: Instant::now(), error: None };
        Self { last_sweep: Mutex::new(last_sweep), backlog: LastSeen::default() }
    }

    fn record_sweep(&self, swept: &Result<(), RedisStoreError>) {
        // Values are replaced whole.
        let mut last = self.last_sweep.lock().unwrap_or_else(PoisonError::into_inner);
        match swept {
            Ok(()) => *last = LastSweep { completed_at: Instant::now(), error: None },
            Err(error) => last.error = Some(describe(error)),
        }
    }

    fn fault(&self) -> Option<StoreFault> {
        let last = self.last_sweep.lock().unwrap_or_else(PoisonError::into_inner);
        let age = last.completed_at.elapsed();
        let detail = if age >= LATE_AFTER {
            let cause = last.error.as_deref().unwrap_or("it hangs");
            format!(
                "requests across slots have not been looked after for {} ({cause}): what dead processes have \
                 charged does not come back",
                readable_duration(age)
            )
        } else if self.backlog.is_recent() {
            "too many requests across slots wait for slots that cannot be asked: others are charged, and their \
             ids and reservations are not remembered"
                .to_owned()
        } else {
            return None;
        };
        let advice = "look at the masters of the cluster and at the permissions there".to_owned();
        Some(StoreFault { kind: FaultKind::Unrecovered, nodes: Vec::new(), detail, advice })
    }
}

impl Recovery {
    /// Runs it on the runtime of the store.
    pub(crate) fn start(self) -> RecoveryTask {
        let runtime = self.route.deadlines.runtime().clone();
        let (recovery, progress) = (Arc::new(self), Arc::new(Progress::new()));
        let task_progress = Arc::clone(&progress);
        let task = spawn_restarting(&runtime, move || {
            let (recovery, progress) = (Arc::clone(&recovery), Arc::clone(&task_progress));
            async move { recovery.run(&progress).await }
        });
        RecoveryTask { task, progress }
    }

    async fn run(&self, progress: &Progress) {
        loop {
            tokio::time::sleep(PERIOD).await;
            // A coordinator that does not answer is asked again the next time.
            let swept = join_all((0..COORDINATOR_COUNT).map(|number| self.sweep(number))).await;
            progress.record_sweep(&swept.into_iter().collect());
        }
    }

    /// Ends what one coordinator has to hand out.
    async fn sweep(&self, number: u8) -> Result<(), RedisStoreError> {
        let patience = self.route.deadlines.deadline().saturating_add(PERIOD);
        let claim = intent::claim(&self.names, number, patience, CLAIM_MAX);
        for _ in 0..ROUNDS_MAX {
            let overdue = intent::read_claim(&self.ask(&claim).await?)?;
            let ending = overdue.iter().map(|intent| self.end(number, intent));
            join_all(ending).await.into_iter().collect::<Result<(), _>>()?;
            if overdue.len() < CLAIM_MAX {
                break;
            }
        }
        Ok(())
    }

    async fn end(&self, number: u8, intent: &OverdueIntent) -> Result<(), RedisStoreError> {
        let Some(calls) = &intent.calls else {
            return Ok(());
        };
        let calls: Vec<ScriptCall> =
            calls.iter().map(|call| call.for_attempt(intent.attempt)).collect();
        for answer in join_all(calls.iter().map(|call| self.ask(call))).await {
            answer?;
        }
        self.ask(&intent.remove(&self.names, number)).await?;
        Ok(())
    }

    async fn ask(&self, call: &ScriptCall) -> Result<Vec<u8>, RedisStoreError> {
        let Self { route, scripts, test_clock, .. } = self;
        let runner =
            ScriptRunner { route, scripts, test_clock: test_clock.as_ref(), is_counted: false };
        runner.run(&route.deadlines.begin()?, call).await
    }
}
