//! `tollbar rules`: files of rules, and the rules of a daemon's database.

mod apply;
mod bounds;
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

use super::ExitStatus;
pub(super) use explain::{RequestFlags, attribute};
pub(super) use remote::{find as find_rule, id_of, path_of, with_rule_names};

/// Where the rules of a daemon are.
const RULES: &str = "/v1/rate-limit/rules";

#[derive(Debug, Subcommand)]
pub(crate) enum RulesCommand {
    /// Says what is wrong with files of rules, and what to write instead
    Check(check::CheckArgs),
    /// Says which rules of a file apply to a request, and why the others do not
    Explain(explain::ExplainFileArgs),
    /// Says what each limit of a file admits at most and at least in any interval
    Bounds(bounds::BoundsArgs),
    /// Lists the rules that a daemon enforces
    List(list::ListArgs),
    /// Shows one rule of a daemon
    Get(list::GetArgs),
    /// Makes the rules of a daemon's database those of a file
    Apply(apply::ApplyArgs),
    /// Says what `apply` would change
    Diff(apply::DiffArgs),
    /// Prints the rules of a daemon's database as a file
    Export(export::ExportArgs),
    /// Shows who has changed a rule, when and how
    History(history::HistoryArgs),
    /// Makes a rule what it was in an earlier version
    Rollback(rollback::RollbackArgs),
}

impl RulesCommand {
    pub(crate) fn run(self) -> ExitStatus {
        match self {
            Self::Check(check) => check.run(),
            Self::Explain(explain) => explain.run(),
            Self::Bounds(bounds) => bounds.run(),
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
fn read(path: &Path) -> Result<RuleFile, ExitStatus> {
    let file = RuleFile::read(path).map_err(|error| {
        let exit_status = match &error {
            FileError::Read { source, .. } => {
                eprintln!("{error}: {source}");
                return ExitStatus::UsageError;
            }
            FileError::Findings { file, findings } => {
                print_findings(file, "error", findings);
                return ExitStatus::Findings;
            }
            _ => ExitStatus::Findings,
        };
        eprintln!("{error}");
        exit_status
    })?;
    print_findings(&path.display().to_string(), "warning", &file.warnings);
    Ok(file)
}

/// `rules.yaml:3:12: error: rules[0].limit: ..`, the form that editors can jump to.
fn print_findings(file: &str, severity: &str, findings: &[Finding]) {
    for Finding { position, field, message, .. } in findings {
        let field = if field.is_empty() { String::new() } else { format!("{field}: ") };
        eprintln!("{file}:{}:{}: {severity}: {field}{message}", position.line, position.column);
    }
}
