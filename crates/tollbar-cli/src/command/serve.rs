//! `tollbar serve`: the daemon, until it is told to stop.

use clap::Args;
use tracing::error;

use super::ExitStatus;
use crate::config::Config;
use crate::serve::{self, PreparedConfig};
use tollbar_daemon::store::{FaultKind, StoreFault, StoreProbe};
use tollbar_daemon::{panics, telemetry};

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(super) config: Config,

    /// Says whether flags, rules, certificates and tokens can be used and the store takes writes, and serves nothing
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
  1  it could not go on: an address is taken, or the snapshot cannot be read or written;
     or, with --check-config, the store refuses
  2  flags, rules, certificates or tokens cannot be used";

/// Says whether the store takes writes. A store that is away is no reason to fail: the daemon starts without it.
fn check_store(prepared: &PreparedConfig) -> ExitStatus {
    let StoreProbe { faults, error } = match prepared.probe_store() {
        Ok(probe) => probe,
        Err(error) => {
            eprintln!("{error}");
            return ExitStatus::UsageError;
        }
    };
    for fault in &faults {
        eprintln!("--store: {fault}");
    }
    if let Some(error) = error.filter(|_| faults.is_empty()) {
        eprintln!("--store: it could not be seen whether the store takes writes: {error}");
    }
    let refuses =
        |fault: &StoreFault| matches!(fault.kind, FaultKind::Refused(_) | FaultKind::Unserved);
    if faults.iter().any(refuses) {
        return ExitStatus::Findings;
    }
    println!("all is well: {} rules", prepared.rules.len());
    ExitStatus::Success
}

impl ServeArgs {
    pub(crate) fn run(self) -> ExitStatus {
        let _log = telemetry::start(self.config.log);
        panics::install_hook();
        let prepared = match serve::prepare(self.config) {
            Ok(prepared) => prepared,
            Err(error) => {
                eprintln!("{error}");
                return ExitStatus::UsageError;
            }
        };
        if self.check_config {
            prepared.warn_of_idle_fields();
            return check_store(&prepared);
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
