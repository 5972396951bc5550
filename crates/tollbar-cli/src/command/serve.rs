//! `tollbar serve`: the daemon, until it is told to stop.

use clap::Args;
use tracing::error;

use super::ExitStatus;
use crate::config::Config;
use crate::serve;
use tollbar_daemon::telemetry;

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    config: Config,

    /// Says whether flags, rules, certificates and tokens can be used, and serves nothing
    #[arg(long)]
    check_config: bool,
}

const AFTER_HELP: &str = "\
A flag goes before its variable, a variable before the file of --config, the file before the default.

Signals:
  SIGHUP           reads rules, tokens and certificates again; what has errors stays as it is
  SIGTERM, SIGINT  answers what has been asked, writes the snapshot and ends

Exit codes:
  0  it was told to stop, and did; or, with --check-config, all is well
  1  it could not go on: an address is taken, or the snapshot cannot be read or written
  2  flags, rules, certificates or tokens cannot be used";

impl ServeArgs {
    pub(crate) fn run(self) -> ExitStatus {
        telemetry::start(self.config.log);
        let prepared = match serve::prepare(self.config) {
            Ok(prepared) => prepared,
            Err(error) => {
                eprintln!("{error}");
                return ExitStatus::UsageError;
            }
        };
        if self.check_config {
            println!("all is well: {} rules", prepared.rules.len());
            return ExitStatus::Success;
        }
        match serve::run(prepared) {
            Ok(()) => ExitStatus::Success,
            Err(error) => {
                error!("{error}");
                ExitStatus::Findings
            }
        }
    }
}
