//! `tollbar rules`: what can be done with a file of rules without serving anything.

mod check;
mod explain;

use std::path::Path;

use clap::Subcommand;
use tollbar_rules::{FileError, Finding, RuleFile};

use super::Ending;

#[derive(Debug, Subcommand)]
pub(crate) enum Rules {
    /// Says what is wrong with files of rules, and what to write instead
    Check(check::Check),
    /// Says which rules apply to a request, and why the others do not
    Explain(explain::Explain),
}

impl Rules {
    pub(crate) fn run(self) -> Ending {
        match self {
            Self::Check(check) => check.run(),
            Self::Explain(explain) => explain.run(),
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
