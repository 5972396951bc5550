//! The name of a decision, by which it can be looked up.

use hyper::header::{HeaderName, HeaderValue};
use serde::{Serialize, Serializer};

/// Names one decision. Random, so that nobody can guess another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DecisionId(pub(crate) u128);

impl DecisionId {
    pub(crate) fn random() -> Self {
        Self(rand::random())
    }

    /// As it was written: 32 digits, in small letters.
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_id = text.len() == 32 && text.bytes().all(is_digit);
        is_id.then(|| u128::from_str_radix(text, 16).ok().map(Self))?
    }

    /// As it is written.
    pub(crate) fn digits(self) -> [u8; 32] {
        let mut digits = [0; 32];
        for (at, digit) in digits.iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(self.0 >> (124 - 4 * at) & 0xf) as usize];
        }
        digits
    }
}

impl DecisionId {
    /// The name of the header that a denial has it in.
    pub(crate) const HEADER: &'static str = "x-tollbar-decision-id";

    /// As a header of a denial. Also how nginx knows one of ours from a 403 of its own.
    pub(crate) fn header(self) -> Option<(HeaderName, HeaderValue)> {
        let name = HeaderName::from_static(Self::HEADER);
        HeaderValue::from_bytes(&self.digits()).ok().map(|value| (name, value))
    }
}

impl std::fmt::Display for DecisionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(std::str::from_utf8(&self.digits()).unwrap_or_default())
    }
}

impl Serialize for DecisionId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(std::str::from_utf8(&self.digits()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written_and_nothing_else_is() {
        for id in [0, 1, 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef, u128::MAX] {
            let text = DecisionId(id).to_string();
            assert_eq!(text, format!("{id:032x}"));
            assert_eq!(DecisionId::parse(&text), Some(DecisionId(id)));
        }
        for text in ["", "0", &"A".repeat(32), &"+".repeat(32), &"0".repeat(33), "é"] {
            assert_eq!(DecisionId::parse(text), None, "{text}");
        }
    }
}
