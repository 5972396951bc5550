//! Everything that runs beside requests.
//!
//! Long-lived work is a [`Task`] of the [`Tasks`]: it has a name and says after each turn how that went. A task that
//! panics, ends early or takes too long for a turn is started again, and everybody can see it: in the log, in the
//! part `tasks` of the health, and in the metrics. Connections and other short work run by [`spawn_connection`] and
//! [`spawn_short`]. Nothing else in the daemon calls `tokio::spawn`, which would drop a panic.

#[cfg(debug_assertions)]
mod faults;
mod state;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::error;

use crate::health::{Health, HealthPart};
use crate::panics::{PanicOrigin, with_origin};
use crate::shutdown::ShutdownSignal;
pub use state::{Pulse, TaskReport};
use state::{TaskEnd, TaskState};

/// The tasks, as a part of the daemon.
pub const TASKS: HealthPart = HealthPart {
    name: "tasks",
    degraded: "a task of the daemon fails, hangs or had to be started again",
    recovered: "all tasks of the daemon run",
};

/// How often a task that waits for events says that it is there.
pub const IDLE_TURN: Duration = Duration::from_secs(1);

/// The time from the end of a task to its next start. It doubles up to [`PAUSE_MAX`] while the task fails at once.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// How long a task may take to end after the daemon was told to stop.
const END_MAX: Duration = Duration::from_secs(30);

/// Something that goes on until the daemon stops.
pub trait Task: Send + 'static {
    /// Runs until `stopped`, and calls [`Pulse::succeed`] or [`Pulse::fail`] after each turn.
    ///
    /// It is called again after a panic, an early end or a turn that took too long. In the last case the future was
    /// dropped at whatever it awaited.
    fn run(&mut self, pulse: &Pulse, stopped: ShutdownSignal) -> impl Future<Output = ()> + Send;
}

/// A closure that makes the future of a task, each time it is started.
impl<F, R> Task for F
where
    F: FnMut(Pulse, ShutdownSignal) -> R + Send + 'static,
    R: Future<Output = ()> + Send,
{
    fn run(&mut self, pulse: &Pulse, stopped: ShutdownSignal) -> impl Future<Output = ()> + Send {
        self(pulse.clone(), stopped)
    }
}

/// The long-lived tasks of the daemon.
#[derive(Debug, Default)]
pub struct Tasks {
    states: Mutex<Vec<Arc<TaskState>>>,
    running: Mutex<JoinSet<()>>,
}

impl Tasks {
    /// Starts a task, which may take `turn_max` from turn to turn. Returns a pulse by which others see how it does.
    pub fn start(
        &self,
        name: &'static str,
        turn_max: Duration,
        stopped: &ShutdownSignal,
        task: impl Task,
    ) -> Pulse {
        #[cfg(debug_assertions)]
        let turn_max = faults::turn_max(name, turn_max);
        let pulse = Pulse::new(name, turn_max);
        lock(&self.states).push(Arc::clone(pulse.state()));
        let supervisor = supervise(task, pulse.clone(), stopped.clone());
        lock(&self.running).spawn(supervisor);
        pulse
    }

    /// Starts a task that does `work` every `period`, which may take `work_max`.
    pub fn start_periodic<W, R>(
        &self,
        name: &'static str,
        period: Duration,
        work_max: Duration,
        stopped: &ShutdownSignal,
        work: W,
    ) -> Pulse
    where
        W: FnMut() -> R + Send + 'static,
        R: Future<Output = Result<(), Arc<str>>> + Send,
    {
        let turn_max = period * 2 + work_max;
        self.start(name, turn_max, stopped, Periodic { period, work })
    }

    /// Returns what is known of every task, in the order of their start.
    pub fn reports(&self) -> Vec<TaskReport> {
        let now = Instant::now();
        lock(&self.states).iter().map(|state| state.report(now)).collect()
    }

    /// Returns the health of all tasks together. `why` names those that are not well.
    pub fn health(&self) -> Health {
        let faults: Vec<String> = self.reports().iter().filter_map(TaskReport::fault).collect();
        if faults.is_empty() { Health::Ok } else { Health::degraded(faults.join("; ")) }
    }

    /// Waits until all tasks have ended, after the daemon was told to stop.
    pub async fn join(&self) {
        let mut running = std::mem::take(&mut *lock(&self.running));
        while running.join_next().await.is_some() {}
    }
}

/// Runs a connection of a listener to its end. A panic ends it alone, is logged and counted.
pub fn spawn_connection(
    listener: &'static str,
    connection: impl Future<Output = ()> + Send + 'static,
) {
    #[expect(clippy::disallowed_methods, reason = "the origin of its panics is known")]
    tokio::spawn(with_origin(PanicOrigin::Connection(listener), connection));
}

/// Runs short work beside a request. A panic ends it alone, is logged and counted.
pub fn spawn_short(name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
    #[expect(clippy::disallowed_methods, reason = "the origin of its panics is known")]
    tokio::spawn(with_origin(PanicOrigin::Task(name), work));
}

/// Spawns the calls of a connection over HTTP/2, whose panics are counted as those of the connection.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionExecutor(pub &'static str);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for ConnectionExecutor {
    fn execute(&self, future: F) {
        spawn_connection(self.0, future);
    }
}

struct Periodic<W> {
    period: Duration,
    work: W,
}

impl<W, R> Task for Periodic<W>
where
    W: FnMut() -> R + Send + 'static,
    R: Future<Output = Result<(), Arc<str>>> + Send,
{
    async fn run(&mut self, pulse: &Pulse, mut stopped: ShutdownSignal) {
        let mut turns = tokio::time::interval(self.period);
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let turn = async {
                turns.tick().await;
                (self.work)().await
            };
            tokio::select! {
                () = stopped.wait() => return,
                worked = turn => pulse.record(worked),
            }
        }
    }
}

/// Runs a task until the daemon stops, and starts it again when it fails before.
async fn supervise(mut task: impl Task, pulse: Pulse, mut stopped: ShutdownSignal) {
    let state = pulse.state();
    let mut pause = PAUSE_FIRST;
    loop {
        let successes = state.begin();
        let (origin, stop) = (PanicOrigin::Task(state.name), stopped.clone());
        // Called by the future: a task may panic before it has one of its own.
        let run = async { task.run(&pulse, stop).await };
        #[cfg(debug_assertions)]
        let run = faults::inject(state, run);
        let end = run_once(with_origin(origin, run), state, &mut stopped).await;
        if stopped.is_stopping() {
            match end {
                TaskEnd::Returned => {}
                end => error!(task = state.name, "at the stop, the task {}", end.describe()),
            }
            return;
        }
        error!(task = state.name, "the task {} and is started again", end.describe());
        state.restart(end);
        // A task that worked for a while is started again at once.
        pause =
            if state.successes() > successes { PAUSE_FIRST } else { (pause * 2).min(PAUSE_MAX) };
        tokio::select! {
            () = stopped.wait() => return,
            () = sleep(pause) => {}
        }
    }
}

/// Runs the future of a task until it ends or is late.
async fn run_once(
    run: impl Future<Output = ()>,
    state: &TaskState,
    stopped: &mut ShutdownSignal,
) -> TaskEnd {
    let mut run = pin!(AssertUnwindSafe(run).catch_unwind());
    loop {
        let deadline = state.turn_deadline();
        tokio::select! {
            ended = &mut run => return TaskEnd::from_result(&ended),
            () = sleep_until(deadline) => {
                if state.turn_deadline() <= Instant::now() {
                    return TaskEnd::Late;
                }
            }
            () = stopped.wait() => break,
        }
    }
    // The last turn may write what was counted, so it has a time of its own.
    match timeout(END_MAX, run).await {
        Ok(ended) => TaskEnd::from_result(&ended),
        Err(_) => TaskEnd::Late,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing can go wrong halfway through a push.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
