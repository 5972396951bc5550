//! `tollbar serve`: the daemon, until it is told to stop.

use clap::Args;

use super::Ending;
use crate::app;
use crate::config::Config;

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Serve {
    #[command(flatten)]
    config: Config,

    /// Says whether flags, rules and token can be used, and serves nothing
    #[arg(long)]
    check_config: bool,
}

const EXIT_CODES: &str = "\
Signals:
  SIGHUP           reads the rules again; a file with errors leaves them as they are
  SIGTERM, SIGINT  answers what has been asked, writes the snapshot and ends

Exit codes:
  0  it was told to stop, and did; or, with --check-config, all is well
  1  it could not go on: the address is taken, or the snapshot cannot be read or written
  2  flags, rules or token cannot be used";

impl Serve {
    pub(crate) fn run(self) -> Ending {
        let prepared = match app::prepare(self.config) {
            Ok(prepared) => prepared,
            Err(error) => {
                eprintln!("{error}");
                return Ending::Misused;
            }
        };
        if self.check_config {
            println!("all is well: {} rules", prepared.rules.len());
            return Ending::Well;
        }
        match app::run(prepared) {
            Ok(()) => Ending::Well,
            Err(error) => {
                eprintln!("{error}");
                Ending::Found
            }
        }
    }
}
