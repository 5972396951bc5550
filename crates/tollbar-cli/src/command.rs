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

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

#[cfg(test)]
use crate::config::Config;
use crate::config::Unusable;
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

/// What the exit code says, for scripts.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  all is well
  1  something was found: the file has errors (or, with --strict, warnings), or differs from the rules
  2  the command line is wrong, or a file cannot be read
  3  the daemon refuses, and says why
  4  the daemon cannot be reached, or what answers is not a daemon";

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
    pub(crate) fn read() -> Self {
        Self::parse(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    /// What these arguments say, the program's name first. Options of `serve` that cannot be used are left out and noted,
    /// so that all of them are told at once.
    pub(crate) fn parse(
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<Self, clap::Error> {
        let mut arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
        let mut command = Self::clap_command();
        let mut unusable = Vec::new();
        let mut matches = loop {
            match command.clone().try_get_matches_from(&arguments) {
                Ok(matches) => break matches,
                Err(error) => {
                    let rest = without_unusable(&command, &mut arguments, &error);
                    unusable.push(Unusable::Flag(first_paragraph(&error)));
                    command = rest.ok_or(error)?;
                }
            }
        };
        let path = match matches.subcommand() {
            Some((SERVE, serve)) => serve.get_one::<PathBuf>("config").cloned(),
            _ => None,
        };
        let mut file = None;
        if let (Some(path), Some(serve)) = (path, command.find_subcommand(SERVE)) {
            let config_file = ConfigFile::read(serve, &path);
            unusable.extend(config_file.error.clone().map(Unusable::File));
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
            serve.config.unusable = unusable;
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

/// Leaves out the flag or the variable of `serve` whose value `error` is about. Returns the command that is asked next, or
/// `None` if the error is of another kind.
fn without_unusable(
    command: &clap::Command,
    arguments: &mut Vec<OsString>,
    error: &clap::Error,
) -> Option<clap::Command> {
    let is_value = matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue);
    let is_serve = arguments.get(1).is_some_and(|verb| verb == SERVE);
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    // `--max-keys <COUNT>`
    let flag = option.split(' ').next().filter(|_| is_value && is_serve)?;
    let is_joined = |argument: &OsString| {
        argument.to_str().and_then(|text| text.strip_prefix(flag)?.strip_prefix('=')).is_some()
    };
    if let Some(at) = arguments.iter().position(|it| it == flag || is_joined(it)) {
        let end = if is_joined(&arguments[at]) { at + 1 } else { at + 2 };
        arguments.drain(at..end.min(arguments.len()));
        return Some(command.clone());
    }
    let is_it = |argument: &clap::Arg| {
        argument.get_env().is_some() && argument.get_long() == flag.strip_prefix("--")
    };
    command.find_subcommand(SERVE)?.get_arguments().any(is_it).then(|| {
        command.clone().mut_subcommand(SERVE, |serve| {
            serve.mut_args(|it| if is_it(&it) { it.env(Resettable::Reset) } else { it })
        })
    })
}

/// Returns what an error of clap says, without its advice to ask for help.
fn first_paragraph(error: &clap::Error) -> String {
    let text = error.to_string();
    text.split("\n\n").next().unwrap_or_default().trim_end().to_owned()
}

/// Prints a text. The reader may have stopped: `tollbar rules list | head` is no mistake.
fn print_text(text: &str) {
    #[expect(clippy::let_underscore_must_use, reason = "a reader that has hung up needs no text")]
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference has one table of exit codes, and `--help` says the same.
    #[test]
    fn exit_codes_are_in_the_reference_once() {
        let reference = include_str!("../../../docs/reference/cli.md");
        let table = reference.split("## Exit codes\n").nth(1).expect("one section");
        let rows: Vec<Vec<&str>> = table
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.strip_suffix('|'))
            .map(|row| row.split('|').map(str::trim).collect())
            .collect();
        assert_eq!(rows.len(), 6, "a head and five codes");
        for (help, column) in [(EXIT_CODES, 1), (serve::AFTER_HELP, 2)] {
            let codes = help.split("Exit codes:\n").nth(1).expect("exit codes");
            for line in codes.replace("\n     ", " ").lines() {
                let (code, meaning) = line.trim().split_once("  ").unwrap();
                let row = rows.iter().find(|row| row[0] == code).expect(code);
                assert_eq!(row[column], meaning, "exit code {code}");
            }
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Command::clap_command().debug_assert();
    }
}
