//! Who is measured when: workers, rounds, and the timed loop.
//!
//! Every subject lives in a process of its own, a *worker*, so that its memory can be told from
//! the others' and does not disturb them. A worker builds and fills its table, says hello, and
//! then answers requests one at a time over its standard input and output; while it waits it
//! costs nothing, so the workers of a group can take turns.

mod rounds;
mod timed_loop;
mod worker;

use serde::{Deserialize, Serialize};

pub use rounds::{Contest, Figures, run_rounds};
pub use timed_loop::{CHUNK, Checks, LoopTimes, time_checks};
pub use worker::{Worker, serve};

/// What a worker says once its table is filled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerGreeting {
    /// What is known of its subject before anything is measured, metric and value.
    pub facts: Vec<(String, f64)>,
}

/// One measurement asked of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasureRequest {
    /// Which subject of the worker.
    pub subject: String,
    /// Which of its workloads.
    pub workload: String,
    /// How many threads at once.
    pub threads: usize,
    /// For how long.
    pub duration_ms: u64,
    /// The round, from 0; each begins elsewhere in the sequence of keys.
    pub round: usize,
}

/// A worker's answer: nanoseconds per check, or why there are none.
pub type MeasureResult = Result<f64, String>;

/// Why there is no worker, or no answer from one.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The process could not be started.
    #[error("cannot start worker `{worker}`")]
    Start {
        /// Its arguments.
        worker: String,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The process ended, or its pipe broke, while an answer was due.
    #[error("worker `{worker}` ended before it answered")]
    Ended {
        /// Its arguments.
        worker: String,
        /// What the system says, if it says anything.
        #[source]
        source: Option<std::io::Error>,
    },
    /// It answered something else than was agreed.
    #[error("worker `{worker}` answered what cannot be read")]
    Garbled {
        /// Its arguments.
        worker: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// It could not measure what was asked.
    #[error("worker `{worker}` cannot measure: {reason}")]
    Refused {
        /// Its arguments.
        worker: String,
        /// Why not.
        reason: String,
    },
}
