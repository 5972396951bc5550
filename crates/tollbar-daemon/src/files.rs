//! Small files, read up to a bound: a path to something endless is a mistake, not a reason to run out
//! of memory.

pub mod secret;

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tollbar_rules::FileError;
use tracing::warn;

/// Secrets and tokens have a few lines.
const BYTES_MAX: u64 = 64 * 1024;

/// Returns the text in a file of at most 64 KiB that holds secrets. A file that others can write is refused: they
/// could put tokens of their own there. One that others can read is warned of, because Kubernetes mounts secrets so.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = File::open(path)?;
    let mode = check_writers(&file)?;
    if mode & 0o004 != 0 {
        warn_of_readers(path);
    }
    file.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it has more than 64 KiB"));
    }
    Ok(text)
}

/// Refuses a file that every user can write. Returns its permissions.
fn check_writers(file: &File) -> io::Result<u32> {
    let metadata = file.metadata()?;
    // A pipe, such as a shell makes, is nobody else's.
    let mode = if metadata.is_file() { metadata.permissions().mode() } else { 0 };
    if mode & 0o002 != 0 {
        let message = "every user of this machine can write it: run `chmod o-w` on it";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(mode)
}

/// Refuses the file of settings if every user can write it: they could name files of tokens and keys of their own.
pub fn check_config_file(path: &Path) -> io::Result<()> {
    check_writers(&File::open(path)?).map(drop)
}

/// Logs that every user can read a file that holds a secret.
pub(crate) fn warn_of_readers(path: &Path) {
    warn!(file = %path.display(), "every user of this machine can read this file: run `chmod 600` on it");
}

/// Returns an error of a rules file with its source, which the error's own text leaves out.
pub fn file_error_text(error: &FileError) -> String {
    match error {
        FileError::Read { source, .. } => format!("{error}: {source}"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_others_can_write_is_refused() {
        let path = std::env::temp_dir().join(format!("tollbar-files-{}", std::process::id()));
        for (mode, is_read) in [(0o600, true), (0o644, true), (0o666, false), (0o602, false)] {
            std::fs::write(&path, "secret").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let read = read_to_string(&path);
            assert_eq!(read.is_ok(), is_read, "{mode:o}");
            assert!(read.is_ok_and(|text| text == "secret") || !is_read);
        }
        std::fs::remove_file(&path).unwrap();
    }
}
