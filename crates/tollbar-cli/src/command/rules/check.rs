//! `tollbar rules check`: for editors, hooks and continuous integration.

use std::path::PathBuf;

use clap::Args;

use super::read;
use crate::command::ExitStatus;
use crate::serve::periodic::long_window_warning;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The files, each of which stands for itself
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Takes warnings for errors, but for those that depend on the daemon's store
    #[arg(long)]
    strict: bool,
}

impl CheckArgs {
    pub(crate) fn run(self) -> ExitStatus {
        let mut exit_status = ExitStatus::Success;
        for path in &self.files {
            match read(path) {
                Ok(file) => {
                    let (rules, findings) = (file.rules.len(), file.warnings.len());
                    let long: Vec<&str> =
                        file.rules.rules_with_long_windows().map(|rule| &*rule.name).collect();
                    let warnings = findings + usize::from(!long.is_empty());
                    if !long.is_empty() {
                        let text = long_window_warning("rules", long);
                        eprintln!(
                            "{}: warning: {text} (no error with --strict: only the daemon knows its store)",
                            path.display()
                        );
                    }
                    if let Some(login) = file.rules.login_path_without_options() {
                        eprintln!(
                            "{}: advice: `{login}` looks like a place where passwords are guessed, and many \
                             servers answer it under other spellings: write `paths: {{ case: insensitive }}` \
                             where yours ignores case, `paths: {{ matrix: strip }}` where it ignores what \
                             follows a `;`, or `paths: {{ case: sensitive }}` where it does neither",
                            path.display()
                        );
                    }
                    println!("{}: {rules} rules, {warnings} warnings", path.display());
                    if self.strict && findings > 0 && exit_status == ExitStatus::Success {
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
