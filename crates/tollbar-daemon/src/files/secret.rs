//! Secrets of 32 bytes in files of their own, written in hexadecimal digits. They are never printed.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::files;

/// Why a file gives no secret.
#[derive(Debug, Error)]
pub enum SecretError {
    #[error("{flag}: cannot read {}: {source}", path.display())]
    Read { flag: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{flag}: {} is no secret: write 64 hexadecimal digits, such as `openssl rand -hex 32` prints",
        path.display()
    )]
    Digits { flag: &'static str, path: PathBuf },
}

/// The secret in the file that `flag` names.
pub fn read(flag: &'static str, path: &Path) -> Result<[u8; 32], SecretError> {
    let text = files::read_to_string(path).map_err(|source| SecretError::Read {
        flag,
        path: path.to_owned(),
        source,
    })?;
    parse(text.trim()).ok_or_else(|| SecretError::Digits { flag, path: path.to_owned() })
}

fn parse(text: &str) -> Option<[u8; 32]> {
    let mut secret = [0; 32];
    hex::decode_to_slice(text, &mut secret).ok().map(|()| secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixty_four_digits_are_a_secret_and_nothing_else_is() {
        let mut expected = [0x0f; 32];
        expected[0] = 0xA5;
        assert_eq!(parse(&format!("a5{}", "0F".repeat(31))), Some(expected));
        for text in ["", "0f", &"0f".repeat(33), &"0g".repeat(32), &"é".repeat(32)] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
