//! Small files, read up to a bound: a path to something endless is a mistake, not a reason to run out
//! of memory.

pub mod secret;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use tollbar_rules::FileError;

/// Secrets and tokens have a few lines.
const BYTES_MAX: u64 = 64 * 1024;

/// The text in a file of at most 64 KiB.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it has more than 64 KiB"));
    }
    Ok(text)
}

/// Returns an error of a rules file with its source, which the error's own text leaves out.
pub fn file_error_text(error: &FileError) -> String {
    match error {
        FileError::Read { source, .. } => format!("{error}: {source}"),
        _ => error.to_string(),
    }
}
