//! What the daemon tells of itself while it runs: events with fields, on standard error. Neither tokens
//! nor clients' keys are among the fields. Denials and traces have files of their own.

mod denial_log;
mod traces;

use std::io::{self, IsTerminal};

use clap::{Args, ValueEnum};
use tracing::Level;
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

/// Tells from now on. Called twice, the first stands.
pub fn start(flags: LogFlags) {
    let ours = flags.log_level.filter();
    // What libraries say below a warning speaks of single connections and their bytes.
    let others = ours.min(LevelFilter::WARN);
    // A target matches all modules that begin with it: `tollbar_daemon`, `tollbar_admin` and the binary itself.
    let targets = Targets::new().with_default(others).with_target("tollbar", ours);
    let layer = layer().with_writer(io::stderr).with_target(false).log_internal_errors(false);
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match flags.log_format {
        LogFormat::Text => layer.with_ansi(io::stderr().is_terminal()).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    let _ = tracing_subscriber::registry().with(layer.with_filter(targets)).try_init();
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
