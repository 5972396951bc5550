//! `tollbar`: one file per verb, under `command/`.

mod api;
mod app;
mod command;
mod config;
mod listener;
mod rfc3339;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    command::Command::parse().run()
}
