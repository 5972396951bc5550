//! The daemon behind the binary `tollbar`, as a library so that fuzzers and benchmarks can reach its
//! parsers. It promises nothing to anybody else: the binary is the interface.

mod admin;
mod ahead;
mod api;
mod app;
mod background;
mod bounded;
mod command;
mod config;
mod counters;
mod daemon;
mod dashboard;
mod database;
mod decisions;
mod endpoint;
mod forward_auth;
#[doc(hidden)]
pub mod fuzzing;
mod listener;
mod metering;
mod metrics;
mod open_files;
mod openapi;
mod problem;
mod reload;
#[doc(hidden)]
pub mod repository;
mod rfc3339;
mod secret;
mod snapshot;
mod span;
mod store;
mod systemd;
mod telemetry;
mod token;

// For fuzzers.
#[doc(hidden)]
pub use listener::envoy::fuzz as envoy_fuzz;
#[doc(hidden)]
pub use listener::resp::frame as resp_frame;

use std::process::ExitCode;

/// The binary: reads the command line, does what it says, and says how it went.
#[must_use]
pub fn main() -> ExitCode {
    match command::Command::read() {
        Ok(command) => command.run(),
        Err(error) => {
            eprintln!("{error}");
            command::Ending::Misused.code()
        }
    }
}
