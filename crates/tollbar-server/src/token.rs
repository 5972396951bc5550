//! The secret that clients show. It is never printed, and comparing it tells nothing by time.

use std::fmt;

const BYTES: std::ops::RangeInclusive<usize> = 16..=1_024;

/// A token of visible ASCII characters.
#[derive(Clone)]
pub(crate) struct Token(Box<[u8]>);

impl Token {
    /// `None` where the text, trimmed, is too short or too long to be one, or has other characters.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let token = text.trim().as_bytes();
        let is_token = BYTES.contains(&token.len()) && token.iter().all(u8::is_ascii_graphic);
        is_token.then(|| Self(token.into()))
    }

    /// Compares all of the token whatever was shown, so that time does not tell how much was right.
    pub(crate) fn is(&self, shown: &[u8]) -> bool {
        let differ = |at: usize| self.0[at] ^ shown.get(at).copied().unwrap_or_default();
        let difference = (0..self.0.len()).fold(0, |sum, at| sum | differ(at));
        std::hint::black_box(difference) == 0 && shown.len() == self.0.len()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_it() {
        let token = Token::parse(" 0123456789abcdef\n").unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for wrong in ["", "0123456789abcde", "0123456789abcdeg", "0123456789abcdef0"] {
            assert!(!token.is(wrong.as_bytes()), "{wrong}");
        }
        assert_eq!(format!("{token:?}"), "Token(..)");
    }

    #[test]
    fn what_is_too_short_or_not_visible_is_none() {
        for text in ["", "0123456789abcde", "0123456789 abcdef", "0123456789abcdé"] {
            assert!(Token::parse(text).is_none(), "{text}");
        }
        assert!(Token::parse(&"x".repeat(1_025)).is_none());
    }
}
