//! `tollbar serve`: the daemon, until it is told to stop.

use clap::Args;
use tracing::error;

use super::ExitStatus;
use crate::config::Config;
use crate::serve;
use tollbar_daemon::store::{FaultKind, StoreFault, StoreFlags, StoreProbe};
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

pub(super) const AFTER_HELP: &str = "\
A flag goes before its variable, a variable before the file of --config, the file before the default.

Signals:
  SIGHUP           reads rules, tokens and certificates again; what has errors stays as it is
  SIGTERM, SIGINT  answers what has been asked, writes the snapshot and ends

Exit codes:
  0  it was told to stop, and did; or, with --check-config, all is well
  1  it could not go on: an address is taken, or the snapshot cannot be read or written;
     or, with --check-config, the store refuses
  2  flags, rules, certificates or tokens cannot be used";

/// Says whether the store takes writes: writes, reads and expires a key at every server of it. A store that is away is no
/// reason to fail: the daemon starts without it.
fn check_store(store: &StoreFlags) -> ExitStatus {
    let StoreProbe { faults, error } = match store.probe() {
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
    if faults.iter().any(refuses) { ExitStatus::Findings } else { ExitStatus::Success }
}

/// Says everything that is wrong, with the configuration and with the store.
fn check_config(config: Config) -> ExitStatus {
    let store = config.store.clone();
    let prepared = serve::prepare(config);
    if let Err(errors) = &prepared {
        eprintln!("{errors}");
    }
    let is_readable = prepared.as_ref().err().is_none_or(|errors| !errors.has_store());
    let of_store = if is_readable { check_store(&store) } else { ExitStatus::UsageError };
    match prepared {
        Err(_) => ExitStatus::UsageError,
        Ok(prepared) => {
            prepared.warn_of_idle_fields();
            if of_store == ExitStatus::Success {
                println!("all is well: {} rules", prepared.rules.len());
            }
            of_store
        }
    }
}

impl ServeArgs {
    pub(crate) fn run(self) -> ExitStatus {
        let _log = telemetry::start(self.config.log);
        panics::install_hook();
        if self.check_config {
            return check_config(self.config);
        }
        let prepared = match serve::prepare(self.config) {
            Ok(prepared) => prepared,
            Err(errors) => {
                eprintln!("{errors}");
                return ExitStatus::UsageError;
            }
        };
        match serve::run(prepared) {
            Ok(()) => ExitStatus::Success,
            Err(error) => {
                error!("{error}");
                ExitStatus::Findings
            }
        }
    }
}
