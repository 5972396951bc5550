//! The secrets that clients show. They are never printed, and comparing them tells nothing by time.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;

const BYTES: std::ops::RangeInclusive<usize> = 16..=1_024;
/// The most tokens: enough for every caller to have one of its own, and another while it changes.
const TOKENS_MAX: usize = 256;

/// Tokens, any of which admits. They change as a whole, while requests are served.
#[derive(Debug)]
pub struct Tokens(ArcSwap<Vec<Token>>);

/// A token of visible ASCII characters.
#[derive(Clone)]
struct Token(Box<[u8]>);

impl Tokens {
    /// One token a line; empty lines and those that begin with `#` say nothing. `None` where there is
    /// none, too many, or a line that is no token.
    pub fn parse(text: &str) -> Option<Self> {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let tokens: Option<Vec<Token>> = lines.map(Token::parse).collect();
        let tokens = tokens.filter(|tokens| (1..=TOKENS_MAX).contains(&tokens.len()))?;
        Some(Self(ArcSwap::from_pointee(tokens)))
    }

    /// Compares with every token, also where one was right already.
    pub(crate) fn has(&self, shown: &[u8]) -> bool {
        self.0.load().iter().fold(false, |is_one, token| token.is_equal_to(shown) | is_one)
    }

    /// Admits by the tokens of `others` from now on.
    pub fn replace(&self, others: &Self) {
        self.0.store(Arc::clone(&others.0.load()));
    }
}

impl Token {
    /// `None` where the text is too short or too long to be one, or has other characters.
    fn parse(text: &str) -> Option<Self> {
        let token = text.as_bytes();
        let is_token = BYTES.contains(&token.len()) && token.iter().all(u8::is_ascii_graphic);
        is_token.then(|| Self(token.into()))
    }

    /// Compares all of the token whatever was shown, so that time does not tell how much was right.
    fn is_equal_to(&self, shown: &[u8]) -> bool {
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
    fn only_a_whole_token_is_one() {
        let tokens = Tokens::parse("# ours\n 0123456789abcdef\r\n\nfedcba9876543210").unwrap();
        assert!(tokens.has(b"0123456789abcdef"));
        assert!(tokens.has(b"fedcba9876543210"));
        for wrong in ["", "0123456789abcde", "0123456789abcdeg", "0123456789abcdef0", "# ours"] {
            assert!(!tokens.has(wrong.as_bytes()), "{wrong}");
        }
        assert!(!format!("{tokens:?}").contains("0123"));
    }

    #[test]
    fn what_is_replaced_admits_no_more() {
        let tokens = Tokens::parse("0123456789abcdef").unwrap();
        tokens.replace(&Tokens::parse("fedcba9876543210").unwrap());
        assert!(!tokens.has(b"0123456789abcdef"));
        assert!(tokens.has(b"fedcba9876543210"));
    }

    #[test]
    fn what_is_too_short_not_visible_or_too_much_is_none() {
        for text in ["", "\n#\n", "0123456789abcde", "0123456789 abcdef", "0123456789abcdé"] {
            assert!(Tokens::parse(text).is_none(), "{text}");
        }
        assert!(Tokens::parse(&"x".repeat(1_025)).is_none());
        assert!(Tokens::parse(&"0123456789abcdef\n".repeat(256)).is_some());
        assert!(Tokens::parse(&"0123456789abcdef\n".repeat(257)).is_none());
        assert!(Tokens::parse("0123456789abcdef\nshort\n").is_none(), "one bad line is a mistake");
    }
}
