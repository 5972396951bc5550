//! A file that is there whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::SnapshotError;

/// Has `write` write a new file, and puts it in the place of `path` once it is on the disk.
pub(super) fn write_atomically<T>(
    path: &Path,
    write: impl FnOnce(&mut File) -> Result<T, SnapshotError>,
) -> Result<T, SnapshotError> {
    let beside = name_beside(path)?;
    let mut file = create(&beside).map_err(SnapshotError::io("create a file for the snapshot"))?;
    let written = write(&mut file).and_then(|written| {
        file.sync_all().map_err(SnapshotError::io("bring the snapshot to the disk"))?;
        fs::rename(&beside, path).map_err(SnapshotError::io("put the snapshot in place"))?;
        Ok(written)
    });
    if written.is_err() {
        // What went wrong is told; that the remains could not be removed either adds nothing.
        #[expect(
            clippy::let_underscore_must_use,
            reason = "the error that made the file useless is returned"
        )]
        let _ = fs::remove_file(&beside);
    } else {
        sync_directory(path).map_err(SnapshotError::io("bring the snapshot's name to the disk"))?;
    }
    written
}

/// Opens a snapshot. That there is none is an answer of its own.
pub(super) fn open(path: &Path) -> Result<File, SnapshotError> {
    File::open(path).map_err(|source| match source.kind() {
        ErrorKind::NotFound => SnapshotError::Missing { path: path.to_owned() },
        _ => SnapshotError::Io { action: "open the snapshot", source },
    })
}

/// In the same directory, so that it can be renamed; one that nobody else uses.
fn name_beside(path: &Path) -> Result<PathBuf, SnapshotError> {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    let no_name = || io::Error::new(ErrorKind::InvalidInput, "the path does not name a file");
    let name = path.file_name().ok_or_else(no_name);
    let mut name = name.map_err(SnapshotError::io("create a file for the snapshot"))?.to_owned();
    name.push(format!(".{}-{}.tmp", process::id(), TAKEN.fetch_add(1, Ordering::Relaxed)));
    Ok(path.with_file_name(name))
}

fn create(path: &Path) -> io::Result<File> {
    // Remains of a process that had our number and died; in a container it always has.
    #[expect(clippy::let_underscore_must_use, reason = "a file that is not there needs no removal")]
    let _ = fs::remove_file(path);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    // The secret key of the hash is in it: whoever reads that can choose keys that collide.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// A new name is on the disk once its directory is.
#[cfg(unix)]
fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(not(unix))]
fn sync_directory(_path: &Path) -> io::Result<()> {
    Ok(())
}
