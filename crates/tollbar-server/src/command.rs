//! The command line: what there is to say, and which file does it.

mod client;
mod completions;
mod counters;
mod exempt;
mod explain;
mod key;
mod nodes;
mod openapi;
mod rules;
mod serve;
mod table;
mod token;
mod until;
mod usage;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{self, ConfigError};

/// Limits the rate of requests.
#[derive(Debug, Parser)]
#[command(name = "tollbar", version, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Answers whether requests may pass
    Serve(Box<serve::Serve>),
    /// Checks files of rules, and shows and changes those of a daemon
    #[command(subcommand, after_help = EXIT_CODES)]
    Rules(rules::Rules),
    /// Exempts subjects from a rule
    #[command(subcommand, after_help = EXIT_CODES)]
    Exempt(exempt::Exempt),
    /// Shows, resets, boosts and bans what a rule counts
    #[command(subcommand, after_help = EXIT_CODES)]
    Key(key::Key),
    /// Clears counters that owe more than their policy can
    #[command(subcommand, after_help = EXIT_CODES)]
    Counters(counters::Counters),
    /// Shows who has used how much
    Usage(usage::Usage),
    /// Says what the rules of a daemon make of a request, by its counters of this moment
    Explain(explain::Explain),
    /// Lists the daemons over one database, and which rules they enforce
    Nodes(nodes::Nodes),
    /// Makes, lists and revokes tokens for the admin interface
    #[command(subcommand, after_help = EXIT_CODES)]
    Token(token::Token),
    /// Prints what a shell needs to complete these commands
    Completions(completions::Completions),
    /// Prints the document of the HTTP interface, as `OpenAPI` 3.1
    Openapi(openapi::Openapi),
}

/// What the exit code says, for scripts.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  all is well
  1  something was found: the file has errors (or, with --strict, warnings), or differs from the rules
  2  the command line is wrong, or a file cannot be read
  3  the daemon refuses, and says why
  4  the daemon cannot be reached, or what answers is none";

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Well,
    Found,
    Misused,
    Refused,
    Unreachable,
}

impl Ending {
    pub(crate) fn code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Well => 0,
            Self::Found => 1,
            Self::Misused => 2,
            Self::Refused => 3,
            Self::Unreachable => 4,
        })
    }
}

impl Command {
    /// Reads the command line, and the file of settings that it names. Ends the process where that is
    /// wrong, or where nothing but help is asked for.
    pub(crate) fn read() -> Result<Self, ConfigError> {
        let said: Vec<OsString> = std::env::args_os().collect();
        let mut matches = Self::command().get_matches_from(&said);
        let file = match matches.subcommand() {
            Some(("serve", serve)) => serve.get_one::<PathBuf>("config").cloned(),
            _ => None,
        };
        if let Some(path) = file {
            // Said again, to a command whose defaults are the file's.
            let mut wrong = None;
            let command = Self::command().mut_subcommand("serve", |serve| {
                config::file::apply(serve.clone(), &path).unwrap_or_else(|error| {
                    wrong = Some(error);
                    serve
                })
            });
            if let Some(error) = wrong {
                return Err(ConfigError::File(error));
            }
            matches = command.get_matches_from(&said);
        }
        Ok(Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
    }

    pub(crate) fn run(self) -> ExitCode {
        let ending = match self.verb {
            Verb::Serve(serve) => serve.run(),
            Verb::Rules(rules) => rules.run(),
            Verb::Exempt(exempt) => exempt.run(),
            Verb::Key(key) => key.run(),
            Verb::Counters(counters) => counters.run(),
            Verb::Usage(usage) => usage.run(),
            Verb::Explain(explain) => explain.run(),
            Verb::Nodes(nodes) => nodes.run(),
            Verb::Token(token) => token.run(),
            Verb::Completions(completions) => completions.run(),
            Verb::Openapi(openapi) => openapi.run(),
        };
        ending.code()
    }
}

/// Prints. Whoever reads may have stopped: `tollbar rules list | head` is no mistake.
fn say(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Command::command().debug_assert();
    }
}
