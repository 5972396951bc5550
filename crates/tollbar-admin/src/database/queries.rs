//! What the repository does, in statements that every database understands: a file for each kind of
//! row. Everything here happens inside a transaction that somebody else has begun.

pub(crate) mod audit;
pub(crate) mod changes;
pub(crate) mod exemptions;
pub(crate) mod keys;
pub(crate) mod nodes;
pub(crate) mod rules;
pub(crate) mod tokens;
pub(crate) mod usage;

use super::{RepositoryError, Result};

/// The longest text that is kept in a column for people: reasons, names of tokens, actors.
const TEXT_BYTES_MAX: usize = 4_096;

/// The longest text that names somebody or something: as long as an attribute of a request may be.
const NAME_BYTES_MAX: usize = 8_192;

/// Refuses what is longer than a column is meant for, and the one character that PostgreSQL has no
/// place for.
fn check_text(field: &'static str, text: &str, bytes_max: usize) -> Result<()> {
    let invalid = |message: String| Err(RepositoryError::Invalid { field, message });
    if text.len() > bytes_max {
        return invalid(format!("this has {} bytes: send at most {bytes_max}", text.len()));
    }
    if text.contains('\0') {
        return invalid("this has a character of code 0: leave it out".to_owned());
    }
    Ok(())
}

/// The same for a text that must say something.
fn check_name(field: &'static str, text: &str) -> Result<()> {
    if text.is_empty() {
        let message = "this is empty: send a value".to_owned();
        return Err(RepositoryError::Invalid { field, message });
    }
    check_text(field, text, NAME_BYTES_MAX)
}
