//! What a rule of the database is called by programs and by its counters: a UUID, for good.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;
use uuid::{Builder, Uuid};

/// Names a rule of the database, whatever people call it. Its counters are kept under this text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(Uuid);

/// Not a UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this is no id of a rule: send one such as 7d444840-9dc0-41d1-b245-5ffdce74fad2")]
pub struct RuleIdError;

impl RuleId {
    /// A new one, of random bits.
    #[must_use]
    pub fn random() -> Self {
        Self(Builder::from_random_bytes(rand::random()).into_uuid())
    }

    /// Its bits.
    #[must_use]
    pub fn as_u128(self) -> u128 {
        self.0.as_u128()
    }

    /// The one of these bits.
    #[must_use]
    pub fn of_u128(bits: u128) -> Self {
        Self(Uuid::from_u128(bits))
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl FromStr for RuleId {
    type Err = RuleIdError;

    /// In small or capital letters, with its four hyphens and nothing else.
    fn from_str(text: &str) -> Result<Self, RuleIdError> {
        // The shorter and longer ways to write one would be other names of the same rule.
        let hyphenated = (text.len() == 36).then(|| Uuid::try_parse(text).ok()).flatten();
        hyphenated.map(Self).ok_or(RuleIdError)
    }
}

impl Serialize for RuleId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RuleId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for RuleId {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "RuleId".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written_and_nothing_else_is() {
        for id in [RuleId::of_u128(0), RuleId::of_u128(u128::MAX), RuleId::random()] {
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
