//! `tollbar rules`: files of rules, and the rules of a daemon's database.

mod apply;
mod changes;
mod check;
mod explain;
mod export;
mod history;
mod list;
mod remote;
mod rollback;

use std::path::Path;

use clap::Subcommand;
use tollbar_rules::{FileError, Finding, RuleFile};

use super::Ending;
pub(super) use explain::RequestFlags;
pub(super) use remote::{find as find_rule, id_of, path_of};

/// Where the rules of a daemon are.
const RULES: &str = "/v1/rate-limit/rules";

#[derive(Debug, Subcommand)]
pub(crate) enum Rules {
    /// Says what is wrong with files of rules, and what to write instead
    Check(check::Check),
    /// Says which rules of a file apply to a request, and why the others do not
    Explain(explain::Explain),
    /// Lists the rules that a daemon enforces
    List(list::List),
    /// Shows one rule of a daemon
    Get(list::Get),
    /// Makes the rules of a daemon's database those of a file
    Apply(apply::Apply),
    /// Says what `apply` would change
    Diff(apply::Diff),
    /// Prints the rules of a daemon's database as a file
    Export(export::Export),
    /// Shows who has changed a rule, when and how
    History(history::History),
    /// Makes a rule what it was in an earlier version
    Rollback(rollback::Rollback),
}

impl Rules {
    pub(crate) fn run(self) -> Ending {
        match self {
            Self::Check(check) => check.run(),
            Self::Explain(explain) => explain.run(),
            Self::List(list) => list.run(),
            Self::Get(get) => get.run(),
            Self::Apply(apply) => apply.run(),
            Self::Diff(diff) => diff.run(),
            Self::Export(export) => export.run(),
            Self::History(history) => history.run(),
            Self::Rollback(rollback) => rollback.run(),
        }
    }
}

/// Reads a file, and says on standard error what is wrong with it.
fn read(path: &Path) -> Result<RuleFile, Ending> {
    let file = RuleFile::read(path).map_err(|error| {
        let ending = match &error {
            FileError::Read { source, .. } => {
                eprintln!("{error}: {source}");
                return Ending::Misused;
            }
            FileError::Findings { file, findings } => {
                tell(file, "error", findings);
                return Ending::Found;
            }
            _ => Ending::Found,
        };
        eprintln!("{error}");
        ending
    })?;
    tell(&path.display().to_string(), "warning", &file.warnings);
    Ok(file)
}

/// `rules.yaml:3:12: error: rules[0].limit: ..`, the form that editors can jump to.
fn tell(file: &str, severity: &str, findings: &[Finding]) {
    for Finding { position, field, message, .. } in findings {
        let field = if field.is_empty() { String::new() } else { format!("{field}: ") };
        eprintln!("{file}:{}:{}: {severity}: {field}{message}", position.line, position.column);
    }
}
