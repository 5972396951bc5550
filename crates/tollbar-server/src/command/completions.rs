//! `tollbar completions`: what a shell needs to complete these commands.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Command, Ending, say};

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tollbar completions bash > /etc/bash_completion.d/tollbar")]
pub(crate) struct Completions {
    /// Which shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> Ending {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Command::command(), "tollbar", &mut text);
        say(&String::from_utf8_lossy(&text));
        Ending::Well
    }
}
