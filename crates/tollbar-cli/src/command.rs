//! The command line: what there is to say, and which file does it.

mod client;
mod counters;
mod exempt;
mod expiry;
mod explain;
mod key;
mod nodes;
mod rules;
mod serve;
mod table;
mod token;
mod usage;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use thiserror::Error;
use tollbar_rules::FileError;

#[cfg(test)]
use crate::config::Config;
use crate::config::ConfigError;
use crate::config::file::ConfigFile;
use crate::config::options::Sources;
use client::{ApiError, Client, ServerFlags};

/// Limits the rate of requests.
#[derive(Debug, Parser)]
#[command(name = "tollbar", version, propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Answers whether requests may pass
    Serve(Box<serve::ServeArgs>),
    /// Checks files of rules, and shows and changes those of a daemon
    #[command(subcommand)]
    Rules(rules::RulesCommand),
    /// Exempts subjects from a rule
    Exempt(RemoteCommand<exempt::ExemptCommand>),
    /// Shows, resets, boosts and bans what a rule counts
    Key(RemoteCommand<key::KeyCommand>),
    /// Clears counters that owe more than their policy can
    Counters(RemoteCommand<counters::CountersCommand>),
    /// Shows who has used how much
    Usage(usage::UsageArgs),
    /// Says what the rules of a daemon make of a request, by its counters of this moment
    Explain(explain::ExplainArgs),
    /// Lists the daemons over one database, and which rules they enforce
    Nodes(nodes::NodesArgs),
    /// Makes, lists and revokes tokens for the admin interface
    Token(RemoteCommand<token::TokenCommand>),
    /// Prints what a shell needs to complete these commands
    #[command(after_help = "Example:\n  tollbar completions bash > /etc/bash_completion.d/tollbar")]
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Prints the document of the HTTP interface, as `OpenAPI` 3.1
    Openapi {
        /// That of the admin API
        #[arg(long)]
        admin: bool,
    },
}

/// Commands that speak to a daemon.
#[derive(Debug, Args)]
struct RemoteCommand<C: Subcommand> {
    #[command(subcommand)]
    command: C,

    #[command(flatten)]
    server: ServerFlags,
}

impl<C: Subcommand> RemoteCommand<C> {
    fn run(self, run: impl AsyncFnOnce(C, &Client) -> Result<ExitStatus, ApiError>) -> ExitStatus {
        self.server.run(async |client| run(self.command, client).await)
    }
}

/// The name of the command that serves.
const SERVE: &str = "serve";

/// Why a command line cannot be used.
#[derive(Debug, Error)]
pub(crate) enum ParseError {
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    #[error(transparent)]
    File(FileError),
}

/// What the exit code says, for scripts.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  all is well
  1  something was found: the file has errors (or, with --strict, warnings), or differs from the rules
  2  the command line is wrong, or a file cannot be read
  3  the daemon refuses, and says why
  4  the daemon cannot be reached, or what answers is none";

/// How a command ended, as its exit code says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitStatus {
    Success,
    Findings,
    UsageError,
    Refused,
    Unreachable,
}

impl ExitStatus {
    pub(crate) fn code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Success => 0,
            Self::Findings => 1,
            Self::UsageError => 2,
            Self::Refused => 3,
            Self::Unreachable => 4,
        })
    }
}

impl Command {
    /// Reads the command line, and the file that it names. Ends the process where that is
    /// wrong, or where nothing but help is asked for.
    pub(crate) fn read() -> Result<Self, ConfigError> {
        match Self::parse(std::env::args_os()) {
            Ok(command) => Ok(command),
            Err(ParseError::CommandLine(error)) => error.exit(),
            Err(ParseError::File(error)) => Err(ConfigError::File(error)),
        }
    }

    /// What these arguments say, the program's name first.
    pub(crate) fn parse(
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<Self, ParseError> {
        let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
        let mut command = Self::clap_command();
        let mut matches = command.clone().try_get_matches_from(&arguments)?;
        let path = match matches.subcommand() {
            Some((SERVE, serve)) => serve.get_one::<PathBuf>("config").cloned(),
            _ => None,
        };
        let mut file = None;
        if let (Some(path), Some(serve)) = (path, command.find_subcommand(SERVE)) {
            let config_file = ConfigFile::read(serve, &path).map_err(ParseError::File)?;
            // Said again, to a command whose defaults are the file's.
            command = command.mut_subcommand(SERVE, |serve| config_file.apply(serve));
            matches = command.try_get_matches_from(&arguments)?;
            file = Some(config_file);
        }
        let mut parsed = Self::from_arg_matches(&matches)?;
        if let (Verb::Serve(serve), Some((SERVE, matches))) =
            (&mut parsed.verb, matches.subcommand())
        {
            serve.config.sources = Sources::new(matches, file.as_ref());
            serve.config.close_unrequested_listeners();
        }
        Ok(parsed)
    }

    /// The configuration that `serve` is called with.
    #[cfg(test)]
    pub(crate) fn into_config(self) -> Config {
        match self.verb {
            Verb::Serve(serve) => serve.config,
            _ => panic!("not `serve`"),
        }
    }

    /// The command line with its exit codes.
    fn clap_command() -> clap::Command {
        with_exit_codes(Self::command())
    }

    pub(crate) fn run(self) -> ExitCode {
        let exit_status = match self.verb {
            Verb::Serve(serve) => serve.run(),
            Verb::Rules(rules) => rules.run(),
            Verb::Exempt(command) => command.run(exempt::ExemptCommand::run),
            Verb::Key(command) => command.run(key::KeyCommand::run),
            Verb::Counters(command) => command.run(counters::CountersCommand::run),
            Verb::Usage(usage) => usage.run(),
            Verb::Explain(explain) => explain.run(),
            Verb::Nodes(nodes) => nodes.run(),
            Verb::Token(command) => command.run(token::TokenCommand::run),
            Verb::Completions { shell } => {
                let mut text = Vec::new();
                clap_complete::generate(shell, &mut Self::clap_command(), "tollbar", &mut text);
                print_text(&String::from_utf8_lossy(&text));
                ExitStatus::Success
            }
            Verb::Openapi { admin } => {
                print_text(if admin {
                    tollbar_admin::api::openapi::document()
                } else {
                    tollbar_daemon::protocol::http::document()
                });
                ExitStatus::Success
            }
        };
        exit_status.code()
    }
}

/// Says below every command what its exit code means, unless the command says it itself.
fn with_exit_codes(command: clap::Command) -> clap::Command {
    let command = command.mut_subcommands(with_exit_codes);
    if command.get_after_help().is_some() { command } else { command.after_help(EXIT_CODES) }
}

/// Prints a text. The reader may have stopped: `tollbar rules list | head` is no mistake.
fn print_text(text: &str) {
    #[expect(clippy::let_underscore_must_use, reason = "a reader that has hung up needs no text")]
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Command::clap_command().debug_assert();
    }
}
