//! What the daemon tells of itself while it runs: events with fields, on standard error. Neither tokens
//! nor clients' keys are among the fields. Denials and traces have files of their own.

mod denial_log;
mod traces;

use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use clap::{Args, ValueEnum};
use tracing::Level;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

pub use denial_log::{DenialFlags, DenialLog};
pub use traces::{CheckSpan, FinishedCheck, TraceFlags, Traces, TracesError};

/// How much is told, and how.
#[derive(Debug, Clone, Copy, Args)]
pub struct LogFlags {
    /// How events are written to standard error
    #[arg(long, env = "TOLLBAR_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,

    /// The least important events that are told
    #[arg(long, env = "TOLLBAR_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    log_level: LogLevel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// A line for people
    Text,
    /// A JSON object a line
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// So many lines wait for standard error to take them; more are dropped and counted.
const LINES_MAX: usize = 10_000;

/// Counts the lines that were dropped, once there is a log.
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Writes the log until it is dropped, which writes what is left.
#[must_use]
#[derive(Debug)]
pub struct LogWriter {
    _guard: WorkerGuard,
}

/// Starts the log. Called twice, the first stands.
///
/// A thread of its own writes it: a terminal or a pipe that takes no more lines must not hold up a check.
pub fn start(flags: LogFlags) -> LogWriter {
    let writer = NonBlockingBuilder::default().buffered_lines_limit(LINES_MAX);
    let (writer, guard) = writer.thread_name("tollbar-log").finish(io::stderr());
    DROPPED.get_or_init(|| writer.error_counter());
    let ours = flags.log_level.filter();
    // What libraries say below a warning speaks of single connections and their bytes.
    let others = ours.min(LevelFilter::WARN);
    // A target matches all modules that begin with it: `tollbar_daemon`, `tollbar_admin` and the binary itself.
    let targets = Targets::new().with_default(others).with_target("tollbar", ours);
    let layer = layer().with_writer(writer).with_target(false).log_internal_errors(false);
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match flags.log_format {
        LogFormat::Text => layer.with_ansi(io::stderr().is_terminal()).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    #[expect(
        clippy::let_underscore_must_use,
        reason = "only the first call sets the subscriber; tests call it again"
    )]
    let _ = tracing_subscriber::registry().with(layer.with_filter(targets)).try_init();
    LogWriter { _guard: guard }
}

/// Returns how many lines of the log were dropped because standard error did not take them.
pub(crate) fn dropped_line_count() -> usize {
    DROPPED.get().map_or(0, ErrorCounter::dropped_lines)
}

impl LogLevel {
    fn filter(self) -> LevelFilter {
        LevelFilter::from_level(match self {
            Self::Error => Level::ERROR,
            Self::Warn => Level::WARN,
            Self::Info => Level::INFO,
            Self::Debug => Level::DEBUG,
            Self::Trace => Level::TRACE,
        })
    }
}
