//! Tokens as texts, and what is kept of them: a hash. A text is shown once and never printed again.

use std::fmt;

/// What a token begins with, so that people and scanners for leaked secrets know one.
const PREFIX: &str = "tbar_";

/// 256 bits, in hexadecimal digits.
const DIGITS: usize = 64;

/// A token that nobody has yet.
pub struct Credential(String);

/// What is kept of a token. Two are compared in the same time wherever they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenHash(blake3::Hash);

impl Credential {
    /// Of 256 random bits.
    pub(crate) fn random() -> Self {
        Self(format!("{PREFIX}{}", hex::encode(rand::random::<[u8; DIGITS / 2]>())))
    }

    /// For whoever it was made for, and nobody else.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub(crate) fn hash(&self) -> TokenHash {
        TokenHash(blake3::hash(self.0.as_bytes()))
    }
}

impl TokenHash {
    /// Hashes a token; `None` if the text cannot be one.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX.as_bytes())?;
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_token = digits.len() == DIGITS && digits.iter().all(is_digit);
        // Fast on purpose: nobody can guess 256 bits, however fast a guess is checked.
        is_token.then(|| Self(blake3::hash(text)))
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_known_by_its_hash_and_nothing_else_is_one() {
        let credential = Credential::random();
        let text = credential.reveal();
        assert_eq!(text.len(), PREFIX.len() + DIGITS);
        assert_eq!(TokenHash::parse(text.as_bytes()), Some(credential.hash()));
        let other = Credential::random();
        assert!(credential.hash() != other.hash());
        assert!(!format!("{credential:?}").contains(&text[PREFIX.len()..]));
        let upper = text.to_uppercase();
        let longer = format!("{text}0");
        for wrong in ["", PREFIX, &text[1..], &text[..68], &longer, &upper, " "] {
            assert_eq!(TokenHash::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
