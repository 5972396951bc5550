//! The file that keeps the counters of the memory store over a restart.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tollbar::{MemoryStore, MemoryStoreBuilder, SnapshotError};
use tracing::warn;

use crate::background;
use crate::duration_flag::DurationFlag;
use crate::shutdown::ShutdownSignal;

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
}

/// A file and the counters that belong there.
#[derive(Debug)]
pub struct SnapshotFile {
    path: PathBuf,
    every: Duration,
    pub store: Arc<MemoryStore>,
}

impl SnapshotFlags {
    /// A store with the counters of the file, or with none where there is no such file.
    pub(crate) fn restore(
        &self,
        builder: impl Fn() -> MemoryStoreBuilder,
    ) -> Result<MemoryStore, SnapshotError> {
        let Some(path) = &self.snapshot else {
            return Ok(builder().build());
        };
        match builder().restore_from_file(path) {
            Err(SnapshotError::Missing { .. }) => Ok(builder().build()),
            restored => restored,
        }
    }

    /// Where the counters of `store` are to be kept, if they are.
    pub fn file_for(&self, store: Option<&Arc<MemoryStore>>) -> Option<SnapshotFile> {
        let (path, store) = (self.snapshot.clone()?, Arc::clone(store?));
        Some(SnapshotFile { path, every: self.snapshot_every.0, store })
    }
}

impl SnapshotFile {
    /// Writes every so often until `ended`, and then once more: what is returned is how that went.
    pub async fn run(self, mut ended: ShutdownSignal) -> Result<(), SnapshotError> {
        let mut turns = tokio::time::interval(self.every);
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // The first is at once, and there is nothing to write yet.
        turns.tick().await;
        let mut is_failing = false;
        loop {
            tokio::select! {
                () = ended.wait() => return self.write().await,
                _ = turns.tick() => match self.write().await {
                    Ok(()) => is_failing = false,
                    // The next may go better; the counters are in memory all the same.
                    Err(error) => if !std::mem::replace(&mut is_failing, true) {
                        let file = self.path.display();
                        warn!(%file, error = snapshot_error_text(&error), "cannot write the snapshot");
                    },
                },
            }
        }
    }

    async fn write(&self) -> Result<(), SnapshotError> {
        let (store, path) = (Arc::clone(&self.store), self.path.clone());
        match background::run(move || store.snapshot_to_file(path)).await {
            Some(written) => written.map(|_| ()),
            None => Err(SnapshotError::Io {
                action: "write the snapshot",
                source: io::Error::other("the thread that writes it has ended"),
            }),
        }
    }
}

/// What an error of a snapshot says, with what the system said.
pub fn snapshot_error_text(error: &SnapshotError) -> String {
    match error {
        SnapshotError::Io { source, .. } => format!("{error}: {source}"),
        _ => error.to_string(),
    }
}
