//! What can be wrong with a snapshot, and what to do about it.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a snapshot was not written, or no store could be made from it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file system, or whatever else is read from or written to, has failed.
    #[error("cannot {action}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// There is no such file. On a first start that is as it should be.
    #[error("there is no snapshot at `{}`: start with an empty store, or correct the path", path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// Whatever it is, `write_snapshot` did not write it.
    #[error("this is not a snapshot of a memory store: correct the path")]
    NotASnapshot,
    /// Written by another version of this library.
    #[error(
        "the snapshot is of format {found}, and this version reads format {supported}: start with \
         an empty store, or restore with the version that wrote it"
    )]
    Version {
        /// The format of the snapshot.
        found: u32,
        /// The format that can be read.
        supported: u32,
    },
    /// Damaged or cut short. Nothing was taken from it.
    #[error("the snapshot is damaged, {what}: take an older one, or start with an empty store")]
    Corrupt {
        /// What gave it away.
        what: &'static str,
    },
    /// More than a snapshot may have.
    #[error(
        "the snapshot has more than {bytes_max} bytes: snapshot a store with a smaller `max_keys`"
    )]
    TooLarge {
        /// The most it may have.
        bytes_max: u64,
    },
    /// The snapshot of a very small store fits only a store of the same size: its counters' names
    /// cannot be told from their places.
    #[error(
        "the snapshot is of a store for {keys_max} keys, too small a one to be restored into one of \
         another size: build the new store with `max_keys({keys_max})`"
    )]
    OtherSize {
        /// What to give to [`max_keys`](crate::MemoryStoreBuilder::max_keys).
        keys_max: u64,
    },
}

impl SnapshotError {
    /// For `map_err`.
    pub(super) fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }
}
