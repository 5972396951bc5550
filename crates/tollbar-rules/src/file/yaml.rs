//! Other files in YAML, read as files of rules are: every mistake told at once, with its line, its column
//! and what to write instead. For the daemon's own files; no promise to anybody else.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

pub use crate::file::node::{Key, Node, Position, Value};
pub use crate::file::reader::{Field, Fields, Finding, Reader};
use crate::file::{FileError, read_bounded};
pub use crate::message::nearest;

/// What `read` makes of the file at `path`, and what it warns of; `what` says what to write where the file
/// is empty. A file is taken whole: where `read` reports an error, what it returns is dropped.
pub fn read_file<T>(
    path: &Path,
    what: &str,
    read: impl FnOnce(&mut Reader, &Field<'_>) -> Option<T>,
) -> Result<(T, Vec<Finding>), FileError> {
    let file = path.display().to_string();
    let bytes = read_bounded(path)
        .map_err(|error| FileError::Read { file: file.clone(), source: Arc::new(error) })?;
    crate::file::read_bytes(&file, &bytes, what, read)
}

/// As [`read_file`], of a text that is there already; `file` is its name in messages.
pub fn read_text<T>(
    file: &str,
    text: &str,
    what: &str,
    read: impl FnOnce(&mut Reader, &Field<'_>) -> Option<T>,
) -> Result<(T, Vec<Finding>), FileError> {
    crate::file::read_text(file, text, what, read)
}

/// Returns a hash of what the file at `path` holds, by which a change of it is known; `None` if it cannot be
/// read.
#[must_use]
pub fn content_hash(path: &Path) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    read_bounded(path).ok()?.hash(&mut hasher);
    Some(hasher.finish())
}
