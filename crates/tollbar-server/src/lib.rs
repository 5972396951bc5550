//! The daemon behind the binary `tollbar`, as a library so that fuzzers and benchmarks can reach its
//! parsers. It promises nothing to anybody else: the binary is the interface.

mod api;
mod app;
mod command;
mod config;
mod counters;
mod daemon;
mod decisions;
mod endpoint;
#[doc(hidden)]
pub mod fuzzing;
mod listener;
mod rfc3339;
mod token;

use std::process::ExitCode;

use clap::Parser;

/// The binary: reads the command line, does what it says, and says how it went.
#[must_use]
pub fn main() -> ExitCode {
    command::Command::parse().run()
}
