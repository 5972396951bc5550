//! `tollbar`: the command line of the daemon.
//!
//! | module | what it has |
//! |---|---|
//! | [`command`] | one module per command, and the client of the admin API |
//! | [`config`] | flags, environment and file of `tollbar serve` |
//! | [`serve`] | the daemon from start to end: open, start, run, drain |

mod command;
mod config;
mod serve;

use std::process::ExitCode;

/// Reads the command line and does what it says.
fn main() -> ExitCode {
    command::Command::read().run()
}
