//! `tollbar rules check`: for editors, hooks and continuous integration.

use std::path::PathBuf;

use clap::Args;

use super::read;
use crate::command::ExitStatus;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The files, each of which stands for itself
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Takes warnings for errors
    #[arg(long)]
    strict: bool,
}

impl CheckArgs {
    pub(crate) fn run(self) -> ExitStatus {
        let mut exit_status = ExitStatus::Success;
        for path in &self.files {
            match read(path) {
                Ok(file) => {
                    let (rules, warnings) = (file.rules.len(), file.warnings.len());
                    println!("{}: {rules} rules, {warnings} warnings", path.display());
                    if self.strict && warnings > 0 && exit_status == ExitStatus::Success {
                        exit_status = ExitStatus::Findings;
                    }
                }
                Err(ExitStatus::UsageError) => exit_status = ExitStatus::UsageError,
                Err(worse) if exit_status == ExitStatus::Success => exit_status = worse,
                Err(_) => {}
            }
        }
        exit_status
    }
}
