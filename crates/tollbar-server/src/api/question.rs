//! What clients send: JSON, every field of which is known or refused.

use std::fmt;

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tollbar_rules::{Request, RequestError};

use super::Answer;

/// A request to be checked, peeked at or explained.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Question {
    #[serde(default = "any_method")]
    method: String,
    #[serde(default = "any_path")]
    path: String,
    #[serde(default)]
    attributes: Attributes,
    pub(super) cost: Option<u64>,
}

/// Requests that are decided one by one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Batch {
    pub(super) requests: Vec<Question>,
}

/// Whose counters are to be made fresh, as it is sent.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResetFields {
    rule: String,
    #[serde(default = "any_method")]
    method: String,
    #[serde(default = "any_path")]
    path: String,
    #[serde(default)]
    attributes: Attributes,
}

/// The same, as a rule and a request.
pub(super) struct Reset {
    pub(super) rule: String,
    pub(super) question: Question,
}

/// Names and values as they were sent. Not a map, which would keep one of two values for a name and
/// not tell: which of them counts would be a guess, and is refused.
#[derive(Debug, Default)]
struct Attributes(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Attributes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Attributes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts, such as {\"user\":\"42\"}")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Attributes, M::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Attributes(pairs))
            }
        }

        from.deserialize_map(Pairs)
    }
}

fn any_method() -> String {
    "GET".to_owned()
}

fn any_path() -> String {
    "/".to_owned()
}

impl ResetFields {
    pub(super) fn split(self) -> Reset {
        let Self { rule, method, path, attributes } = self;
        Reset { rule, question: Question { method, path, attributes, cost: None } }
    }
}

impl Question {
    pub(super) fn attributes(&self) -> Vec<(&str, &str)> {
        self.attributes.0.iter().map(|(name, value)| (&**name, &**value)).collect()
    }

    pub(super) fn request<'a>(
        &'a self,
        attributes: &'a [(&'a str, &'a str)],
        cost: u64,
    ) -> Result<Request<'a>, RequestError> {
        let request = Request::new(&self.method, &self.path)?.with_attributes(attributes)?;
        Ok(request.with_cost(cost))
    }

    pub(super) fn with_request<T>(
        &self,
        cost: u64,
        then: impl FnOnce(&Request<'_>) -> T,
    ) -> Result<T, RequestError> {
        let attributes = self.attributes();
        Ok(then(&self.request(&attributes, cost)?))
    }
}

/// Reads a body; what is wrong with it is told with line and column.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Answer> {
    serde_json::from_slice(body).map_err(|error| {
        Answer::bad_request(&format!(
            "the body cannot be used: {error}; send JSON such as {}",
            r#"{"method":"GET","path":"/","attributes":{"user":"42"}}"#
        ))
    })
}
