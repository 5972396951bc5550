//! What a rule of the database is called by programs and by its counters: a UUID, for good.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Names a rule of the database, whatever people call it. Its counters are kept under this text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(u128);

/// Not a UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this is no id of a rule: send one such as 7d444840-9dc0-41d1-b245-5ffdce74fad2")]
pub struct RuleIdError;

impl RuleId {
    /// A new one, of random bits.
    #[must_use]
    pub fn random() -> Self {
        let bits = fastrand::u128(..);
        // Version 4, variant 1: made of random bits, as others read it.
        Self((bits & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62))
    }

    /// Its bits.
    #[must_use]
    pub fn as_u128(self) -> u128 {
        self.0
    }

    /// The one of these bits.
    #[must_use]
    pub fn of_u128(bits: u128) -> Self {
        Self(bits)
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", self.0);
        let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
        f.write_str(&parts.join("-"))
    }
}

impl FromStr for RuleId {
    type Err = RuleIdError;

    /// In small or capital letters, with its four hyphens and nothing else.
    fn from_str(text: &str) -> Result<Self, RuleIdError> {
        let lengths = text.split('-').map(str::len);
        let is_id = lengths.eq([8, 4, 4, 4, 12])
            && text.bytes().all(|it| it == b'-' || it.is_ascii_hexdigit());
        let bits = u128::from_str_radix(&text.replace('-', ""), 16);
        is_id.then_some(bits.ok()).flatten().map(Self).ok_or(RuleIdError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written_and_nothing_else_is() {
        for id in [RuleId(0), RuleId(u128::MAX), RuleId::random()] {
            let text = id.to_string();
            assert_eq!((text.len(), text.parse()), (36, Ok(id)), "{text}");
            assert_eq!(text.to_uppercase().parse(), Ok(id));
        }
        let whole = "7d444840-9dc0-41d1-b245-5ffdce74fad2";
        for text in
            ["", "-", "----", &whole[1..], &whole.replace('-', ""), &format!("+{}", &whole[1..])]
        {
            assert_eq!(text.parse::<RuleId>(), Err(RuleIdError), "{text}");
        }
    }

    #[test]
    fn a_random_id_says_that_it_is_random() {
        let text = RuleId::random().to_string();
        assert_eq!(text.as_bytes()[14], b'4');
        assert!(b"89ab".contains(&text.as_bytes()[19]), "{text}");
    }
}
