//! What is known of one task: its turns, its failures and its restarts.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::health::Health;

/// For so long after a restart the task is reported, so that whoever looks twice a minute sees it.
const RESTART_REPORTED: Duration = Duration::from_mins(1);

/// For so long at least the turns of a task fail before that is its fault.
const FAILING_MIN: Duration = Duration::from_secs(10);

/// By which a task says how its turns go, and others see it.
#[derive(Clone)]
pub struct Pulse(Arc<TaskState>);

/// A task as others see it.
#[derive(Debug, Clone)]
pub struct TaskReport {
    pub name: &'static str,
    /// The time since its last turn that succeeded, or since its start.
    pub age: Duration,
    /// Turns that failed.
    pub failures: u64,
    /// How often it was started again.
    pub restarts: u64,
    fault: Option<String>,
}

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskEnd {
    Returned,
    Panicked,
    Late,
}

pub(super) struct TaskState {
    pub(super) name: &'static str,
    turn_max: Duration,
    record: Mutex<TaskRecord>,
}

struct TaskRecord {
    turned_at: Instant,
    succeeded_at: Instant,
    successes: u64,
    failures: u64,
    restarts: u64,
    /// Why the last turn failed, where it did.
    last_error: Option<Arc<str>>,
    /// When the first of the turns failed that have failed since the last success.
    failing_since: Option<Instant>,
    last_restart: Option<(Instant, TaskEnd)>,
    /// True from a restart to the next turn.
    is_restarting: bool,
}

impl Pulse {
    pub(super) fn new(name: &'static str, turn_max: Duration) -> Self {
        let now = Instant::now();
        let record = TaskRecord {
            turned_at: now,
            succeeded_at: now,
            successes: 0,
            failures: 0,
            restarts: 0,
            last_error: None,
            failing_since: None,
            last_restart: None,
            is_restarting: false,
        };
        Self(Arc::new(TaskState { name, turn_max, record: Mutex::new(record) }))
    }

    pub(super) fn state(&self) -> &Arc<TaskState> {
        &self.0
    }

    /// Says that a turn did what it is for.
    pub fn succeed(&self) {
        let mut record = self.0.record();
        let now = Instant::now();
        (record.turned_at, record.succeeded_at) = (now, now);
        record.successes += 1;
        (record.last_error, record.failing_since, record.is_restarting) = (None, None, false);
    }

    /// Says that a turn failed. The task goes on, and the next turn may succeed.
    pub fn fail(&self, why: impl Into<Arc<str>>) {
        let mut record = self.0.record();
        let now = Instant::now();
        record.turned_at = now;
        record.failing_since.get_or_insert(now);
        record.failures += 1;
        (record.last_error, record.is_restarting) = (Some(why.into()), false);
    }

    /// Says how a turn went.
    pub fn record(&self, turn: Result<(), Arc<str>>) {
        match turn {
            Ok(()) => self.succeed(),
            Err(why) => self.fail(why),
        }
    }

    /// Returns how the last turn went, or that the next one takes too long.
    pub fn health(&self) -> Health {
        let report = self.0.report(Instant::now());
        let late = report.fault.filter(|_| self.0.turn_deadline() <= Instant::now());
        match (&self.0.record().last_error, late) {
            (Some(why), _) => Health::Degraded { why: Arc::clone(why) },
            (None, Some(late)) => Health::degraded(late),
            (None, None) => Health::Ok,
        }
    }
}

impl TaskState {
    /// Begins a run, and returns how many turns have succeeded so far.
    pub(super) fn begin(&self) -> u64 {
        let mut record = self.record();
        record.turned_at = Instant::now();
        record.successes
    }

    pub(super) fn restart(&self, end: TaskEnd) {
        let mut record = self.record();
        record.restarts += 1;
        record.last_restart = Some((Instant::now(), end));
        record.is_restarting = true;
    }

    pub(super) fn successes(&self) -> u64 {
        self.record().successes
    }

    /// Returns when the present turn is to be over.
    pub(super) fn turn_deadline(&self) -> Instant {
        self.record().turned_at + self.turn_max
    }

    pub(super) fn report(&self, now: Instant) -> TaskReport {
        let record = self.record();
        let since = |at: Instant| now.saturating_duration_since(at);
        let is_reported = |at: Instant| record.is_restarting || since(at) < RESTART_REPORTED;
        let name = self.name;
        let restart = record.last_restart.filter(|(at, _)| is_reported(*at));
        let is_late = since(record.turned_at) > self.turn_max && !record.is_restarting;
        let failing_max = self.turn_max.max(FAILING_MIN);
        let is_failing = record.failing_since.is_some_and(|at| since(at) > failing_max);
        let error = record.last_error.as_ref().filter(|_| is_failing);
        let fault = match restart {
            // Also where the thread is blocked, and the task cannot be started again.
            _ if is_late => Some(format!("task {name} hangs")),
            Some((_, end)) => Some(format!("task {name} {} and was started again", end.describe())),
            None => error.map(|error| format!("task {name} fails: {error}")),
        };
        let age = since(record.succeeded_at);
        TaskReport { name, age, failures: record.failures, restarts: record.restarts, fault }
    }

    fn record(&self) -> MutexGuard<'_, TaskRecord> {
        // Nothing can go wrong halfway through setting numbers.
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TaskReport {
    /// Returns what is wrong with the task. A turn that fails is not; turns that keep failing are.
    pub fn fault(&self) -> Option<String> {
        self.fault.clone()
    }
}

impl TaskEnd {
    pub(super) fn from_result(ended: &Result<(), Box<dyn Any + Send>>) -> Self {
        if ended.is_ok() { Self::Returned } else { Self::Panicked }
    }

    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Returned => "ended",
            Self::Panicked => "panicked",
            Self::Late => "took too long",
        }
    }
}

impl fmt::Debug for Pulse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskState").field("name", &self.name).finish_non_exhaustive()
    }
}
