//! The limits in force of the reference service's files. They change while the daemon serves; files that
//! cannot be used leave them as they were.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use tollbar_rules::FileError;
use tracing::{error, info, warn};

use super::config_file;
use super::config_file::EnvoyFiles;
use super::domains::Domains;
use crate::files::file_error_text;

/// Every domain of the files, as it is in force.
#[derive(Debug, Default)]
pub struct EnvoyLimits {
    path: Option<PathBuf>,
    domains: ArcSwap<Domains>,
    /// What the files looked like when they were last read.
    file_states: Mutex<Vec<FileState>>,
}

/// What a file looks like from outside.
type FileState = (PathBuf, u64, Option<SystemTime>);

impl EnvoyLimits {
    /// Those at `path`; without one, no domain is known.
    pub fn read(path: Option<PathBuf>) -> Result<Self, FileError> {
        let limits = Self { path, ..Self::default() };
        limits.put_in_force()?;
        Ok(limits)
    }

    pub(super) fn domains(&self) -> Arc<Domains> {
        self.domains.load_full()
    }

    /// For who has domains already.
    pub(super) fn replace(&self, domains: Domains) {
        self.domains.store(Arc::new(domains));
    }

    /// Reads the files again, and tells what came of it.
    pub fn reload(&self) {
        match self.put_in_force() {
            Ok(None) => {}
            Ok(Some(domains)) => info!(domains, "limits of Envoy reloaded"),
            Err(error) => {
                error!(error = file_error_text(&error), "the limits of Envoy stay as they were");
            }
        }
    }

    /// The same, if they do not look as they did.
    pub fn reload_changed(&self) {
        if let Some(path) = &self.path
            && *self.file_states.lock().unwrap_or_else(PoisonError::into_inner) != file_states(path)
        {
            self.reload();
        }
    }

    /// How many domains are in force now; `None` where there is nothing to read.
    fn put_in_force(&self) -> Result<Option<usize>, FileError> {
        let Some(path) = &self.path else {
            return Ok(None);
        };
        // Before they are read: what changes meanwhile is seen at the next look.
        *self.file_states.lock().unwrap_or_else(PoisonError::into_inner) = file_states(path);
        let EnvoyFiles { domains, warnings } = EnvoyFiles::read(path)?;
        for warning in warnings {
            warn!(%warning, "--envoy-config");
        }
        let count = domains.len();
        self.replace(domains);
        Ok(Some(count))
    }
}

/// What the files at `path` look like; one that cannot be looked at is as good as absent.
fn file_states(path: &Path) -> Vec<FileState> {
    let file_state = |path: PathBuf| {
        let metadata = path.metadata().ok()?;
        Some((path, metadata.len(), metadata.modified().ok()))
    };
    config_file::paths(path).unwrap_or_default().into_iter().filter_map(file_state).collect()
}
