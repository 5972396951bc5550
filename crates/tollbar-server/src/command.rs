//! The command line: what there is to say, and which file does it.

mod openapi;
mod rules;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// Answers over HTTP whether requests may pass
    Serve(serve::Serve),
    /// Checks and explains files of rules
    #[command(subcommand, after_help = EXIT_CODES)]
    Rules(rules::Rules),
    /// Prints the document of the HTTP interface, OpenAPI 3.1
    Openapi(openapi::Openapi),
}

/// What the exit code says, for scripts.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  all is well
  1  something was found: the file has errors (or, with --strict, warnings)
  2  the command line is wrong, or a file cannot be read";

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Well,
    Found,
    Misused,
}

impl Command {
    pub(crate) fn run(self) -> ExitCode {
        let ending = match self.verb {
            Verb::Serve(serve) => serve.run(),
            Verb::Rules(rules) => rules.run(),
            Verb::Openapi(openapi) => openapi.run(),
        };
        ExitCode::from(match ending {
            Ending::Well => 0,
            Ending::Found => 1,
            Ending::Misused => 2,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Command::command().debug_assert();
    }
}
