//! The file that keeps the counters of the memory store over a restart.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Args};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tollbar::{MemoryStore, MemoryStoreBuilder, SnapshotError};
use tracing::{error, warn};

use crate::background;
use crate::duration_flag::DurationFlag;
use crate::health::HealthPart;
use crate::shutdown::ShutdownSignal;
use crate::tasks::{Pulse, Tasks};

/// The snapshot, as a part of the daemon.
pub const SNAPSHOT: HealthPart = HealthPart {
    name: "snapshot",
    degraded: "cannot write the snapshot: a restart forgets what was counted since the last one",
    recovered: "the snapshot is written again",
};

/// For writing one snapshot. A thousand million keys are 32 GB.
const WRITE_MAX: Duration = Duration::from_mins(2);

/// How much of a file is looked at to tell a snapshot that was lost from a file that never was one.
const LOOKED_AT_BYTES: u64 = 64;

/// A file that is shorter than the first word of a snapshot is nothing at all.
const MAGIC_BYTES: usize = 8;

/// Where and how often counters are written.
#[derive(Debug, Clone, Args)]
pub struct SnapshotFlags {
    /// Keeps the counters in this file over a restart: read at the start, written now and then and at
    /// the end
    #[arg(long, env = "TOLLBAR_SNAPSHOT", value_name = "FILE")]
    pub(crate) snapshot: Option<PathBuf>,

    /// How often the snapshot is written while the daemon runs: what a crash may lose
    #[arg(long, env = "TOLLBAR_SNAPSHOT_EVERY", value_name = "TIME", default_value = "1min")]
    snapshot_every: DurationFlag,

    /// Does not start without the counters of the snapshot: where the file is missing, empty or damaged.
    /// Otherwise the daemon warns and starts with fresh counters
    #[arg(long, env = "TOLLBAR_SNAPSHOT_REQUIRED", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", default_value_t = false, value_name = "BOOL",
          action = ArgAction::Set)]
    pub(super) snapshot_required: bool,
}

/// A file and the counters that belong there.
#[derive(Debug)]
pub struct SnapshotFile {
    path: PathBuf,
    every: Duration,
    store: Arc<MemoryStore>,
    /// Held while it is written: a disk that hangs must not take one thread after the other.
    writing: Arc<Mutex<()>>,
}

impl SnapshotFlags {
    /// Returns a store with the counters of the file. Where there is no such file, or its content was lost, the
    /// counters are fresh, unless the snapshot is required.
    pub(crate) fn restore(
        &self,
        builder: impl Fn() -> MemoryStoreBuilder,
    ) -> Result<MemoryStore, SnapshotError> {
        let Some(path) = &self.snapshot else {
            return Ok(builder().build());
        };
        let error = match builder().restore_from_file(path) {
            Err(error) if !self.snapshot_required => error,
            restored => return restored,
        };
        let file = path.display();
        match &error {
            SnapshotError::Missing { .. } => {
                warn!(%file, "there is no snapshot: counters begin fresh, as on a first start");
            }
            SnapshotError::Corrupt { .. } => warn_of_loss(path, &error),
            SnapshotError::NotASnapshot if is_blank(path) => warn_of_loss(path, &error),
            // Of another version, or a file of somebody else: it is not ours to replace.
            _ => return Err(error),
        }
        Ok(builder().build())
    }

    /// Returns where the counters of `store` are to be kept, if they are.
    pub fn file_for(&self, store: Option<&Arc<MemoryStore>>) -> Option<Arc<SnapshotFile>> {
        let (path, store) = (self.snapshot.clone()?, Arc::clone(store?));
        let (every, writing) = (self.snapshot_every.0, Arc::default());
        Some(Arc::new(SnapshotFile { path, every, store, writing }))
    }
}

/// Keeps a file whose counters cannot be read for those who look into it, and says that they are lost.
fn warn_of_loss(path: &Path, error: &SnapshotError) {
    let (file, why) = (path.display(), snapshot_error_text(error));
    let mut aside = OsString::from(path);
    aside.push(".damaged");
    match fs::rename(path, &aside) {
        Ok(()) => {
            let kept = Path::new(&aside).display();
            warn!(%file, %kept, why, "COUNTERS ARE LOST: the snapshot cannot be used and is kept aside; all counters begin fresh");
        }
        Err(error) => {
            warn!(%file, why, "COUNTERS ARE LOST: the snapshot cannot be used; all counters begin fresh");
            error!(%file, %error, "cannot keep the damaged snapshot aside: the next one replaces it");
        }
    }
}

/// True where nothing was ever written to the file, or a crash has cut it off or left zeros in it.
fn is_blank(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LOOKED_AT_BYTES).read_to_end(&mut head));
    read.is_ok() && (head.len() < MAGIC_BYTES || head.iter().all(|byte| *byte == 0))
}

impl SnapshotFile {
    /// Starts the task that writes the file every so often until `stopped`.
    pub fn start(self: &Arc<Self>, tasks: &Tasks, stopped: &ShutdownSignal) -> Pulse {
        let file = Arc::clone(self);
        let mut is_first = true;
        tasks.start_periodic("snapshot", self.every, WRITE_MAX, stopped, move || {
            // The first turn is at once, and there is nothing to write yet.
            let is_due = !std::mem::take(&mut is_first);
            let file = Arc::clone(&file);
            async move {
                if is_due {
                    file.write().await.map_err(|error| file.describe(&error))
                } else {
                    Ok(())
                }
            }
        })
    }

    /// Writes the file for the last time. A disk that hangs does not hold up the end for ever.
    pub async fn write_last(&self) -> Result<(), SnapshotError> {
        let late = |_| SnapshotError::Io {
            action: "write the snapshot",
            source: io::ErrorKind::TimedOut.into(),
        };
        timeout(WRITE_MAX, self.write()).await.map_err(late)?
    }

    /// Writes the file once, after a write that goes on.
    async fn write(&self) -> Result<(), SnapshotError> {
        let (store, path) = (Arc::clone(&self.store), self.path.clone());
        let writing = Arc::clone(&self.writing).lock_owned().await;
        let write = move || {
            let written = store.snapshot_to_file(path);
            drop(writing);
            written
        };
        match background::run(write).await {
            Some(written) => written.map(|_| ()),
            None => Err(SnapshotError::Io {
                action: "write the snapshot",
                source: io::Error::other("the thread that writes it has ended"),
            }),
        }
    }

    fn describe(&self, error: &SnapshotError) -> Arc<str> {
        format!("{}: {}", self.path.display(), snapshot_error_text(error)).into()
    }
}

/// What an error of a snapshot says, with what the system said.
pub fn snapshot_error_text(error: &SnapshotError) -> String {
    match error {
        SnapshotError::Io { source, .. } => format!("{error}: {source}"),
        _ => error.to_string(),
    }
}
