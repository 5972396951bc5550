//! `tollbar rules check`: for editors, hooks and continuous integration.

use std::path::PathBuf;

use clap::Args;

use super::read;
use crate::command::Ending;

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The files, each of which stands for itself
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Takes warnings for errors
    #[arg(long)]
    strict: bool,
}

impl Check {
    pub(crate) fn run(self) -> Ending {
        let mut ending = Ending::Well;
        for path in &self.files {
            match read(path) {
                Ok(file) => {
                    let (rules, warnings) = (file.rules.len(), file.warnings.len());
                    println!("{}: {rules} rules, {warnings} warnings", path.display());
                    if self.strict && warnings > 0 && ending == Ending::Well {
                        ending = Ending::Found;
                    }
                }
                Err(Ending::Misused) => ending = Ending::Misused,
                Err(worse) if ending == Ending::Well => ending = worse,
                Err(_) => {}
            }
        }
        ending
    }
}
