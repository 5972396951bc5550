//! `tollbar`: one file per verb, under `command/`.

mod command;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    command::Command::parse().run()
}
