//! The limits in force of the reference service's files. They change while the daemon serves; files that
//! cannot be used leave them as they were.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use tollbar_rules::FileError;
use tollbar_rules::yaml;
use tracing::{error, info, warn};

use super::config_file;
use super::config_file::{EnvoyFiles, FileOptions};
use super::domains::Domains;
use super::flags::EnvoyFlags;
use crate::files::file_error_text;

/// Every domain of the files, as it is in force.
#[derive(Debug, Default)]
pub struct EnvoyLimits {
    path: Option<PathBuf>,
    options: FileOptions,
    domains: ArcSwap<Domains>,
    long_windows: ArcSwap<Vec<Arc<str>>>,
    /// The hash of what the files held when they were last read. Not their dates: those are coarse, are kept
    /// by some copies, and mean nothing where a link is put in the place of another.
    content_hash: Mutex<u64>,
}

impl EnvoyLimits {
    /// Reads the files that the flags name. Without any, no domain is known.
    pub fn read(flags: &EnvoyFlags) -> Result<Self, FileError> {
        Self::read_path(flags.envoy_config.clone(), flags.file_options())
    }

    pub(super) fn read_path(
        path: Option<PathBuf>,
        options: FileOptions,
    ) -> Result<Self, FileError> {
        let limits = Self { path, options, ..Self::default() };
        limits.put_in_force()?;
        Ok(limits)
    }

    /// Returns the limits whose counters matter for an hour or longer, by their domains and descriptors:
    /// `shop/user_7`. It is the same `Arc` until the limits change.
    pub fn limits_with_long_windows(&self) -> Arc<Vec<Arc<str>>> {
        self.long_windows.load_full()
    }

    pub(super) fn domains(&self) -> Arc<Domains> {
        self.domains.load_full()
    }

    /// For who has domains already.
    pub(super) fn replace(&self, domains: Domains) {
        self.long_windows.store(Arc::new(domains.limits_with_long_windows()));
        self.domains.store(Arc::new(domains));
    }

    /// Reads the files again, and logs what came of it. Returns whether they could be used; `None` where there
    /// is nothing to read.
    pub fn reload(&self) -> Option<bool> {
        match self.put_in_force() {
            Ok(None) => None,
            Ok(Some(domains)) => {
                info!(domains, "limits of Envoy reloaded");
                Some(true)
            }
            Err(error) => {
                error!(error = file_error_text(&error), "the limits of Envoy stay as they were");
                Some(false)
            }
        }
    }

    /// Reads the files again, as [`reload`](Self::reload) does, if their content has changed.
    pub fn reload_changed(&self) -> Option<bool> {
        let path = self.path.as_ref()?;
        let has_changed = *self.content_hash() != content_hash(path);
        if has_changed { self.reload() } else { None }
    }

    fn content_hash(&self) -> MutexGuard<'_, u64> {
        self.content_hash.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many domains are in force now; `None` where there is nothing to read.
    fn put_in_force(&self) -> Result<Option<usize>, FileError> {
        let Some(path) = &self.path else {
            return Ok(None);
        };
        // Before they are read: what changes meanwhile is seen at the next look.
        *self.content_hash() = content_hash(path);
        let EnvoyFiles { domains, warnings } = EnvoyFiles::read(path, self.options)?;
        for warning in warnings {
            warn!(%warning, "--envoy-config");
        }
        let count = domains.len();
        self.replace(domains);
        Ok(Some(count))
    }
}

/// The hash of the names and the content of the files at `path`; of one that cannot be read, of its name.
fn content_hash(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    for path in config_file::paths(path).unwrap_or_default() {
        yaml::content_hash(&path).hash(&mut hasher);
        path.hash(&mut hasher);
    }
    hasher.finish()
}
