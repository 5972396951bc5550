//! Bodies: JSON objects, every field of which is known and said once.

use std::fmt;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::error::Category;
use serde_json::{Map, Value};

use crate::operations::rule_json::RuleForm;
use tollbar_daemon::problem::Problem;
use tollbar_daemon::protocol::http::Object;

/// The largest body that is read.
pub(crate) const BODY_BYTES_MAX: usize = 1024 * 1024;

/// Reads a body. What is no JSON is told with line and column, what is wrong in it with its field.
pub(crate) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8], example: &str) -> Result<T, Problem> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let read: Result<Object<T>, _> = serde_path_to_error::deserialize(&mut reader);
    let message = |error: &serde_json::Error| {
        format!("the body cannot be used: {error}; send JSON such as {example}")
    };
    let read = read.map_err(|error| match error.inner().classify() {
        Category::Data => Problem::invalid_field(&field_of(&error), message(error.inner())),
        _ => Problem::bad_request(message(error.inner())),
    })?;
    // Nothing may stand behind it.
    reader.end().map_err(|error| Problem::bad_request(message(&error)))?;
    Ok(read.0)
}

/// Returns the field that a mistake is about: the one that serde names, or else its place.
pub(crate) fn field_of<E: fmt::Display>(error: &serde_path_to_error::Error<E>) -> String {
    let text = error.inner().to_string();
    let named = ["unknown field `", "missing field `", "duplicate field `"];
    let named = named.iter().find_map(|prefix| text.strip_prefix(prefix)?.split_once('`'));
    let path = error.path().to_string();
    let path = if path == "." { String::new() } else { path };
    let field = match named {
        Some((name, _)) if path.is_empty() || path == name => name.to_owned(),
        _ => path,
    };
    field.chars().take(64).collect()
}

impl<'de> Deserialize<'de> for RuleForm {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct RuleFormVisitor;

        impl<'de> Visitor<'de> for RuleFormVisitor {
            type Value = RuleForm;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rule")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<RuleForm, M::Error> {
                let mut fields = Map::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    // Which of the two is meant would be a guess.
                    if fields.insert(name.clone(), value).is_some() {
                        let name: String = name.chars().take(64).collect();
                        return Err(M::Error::custom(format_args!("duplicate field `{name}`")));
                    }
                }
                Ok(RuleForm::read(fields))
            }
        }

        from.deserialize_map(RuleFormVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::tokens::TokenForm;

    #[test]
    fn a_mistake_is_told_with_its_field() {
        for (body, status, at) in [
            ("", 400, None),
            ("{", 400, None),
            ("{\"name\":\"a\",\"scopes\":[\"read\"]} {}", 400, None),
            ("\u{feff}{}", 400, None),
            ("[\"a\",[\"read\"],null,null]", 422, Some("")),
            ("null", 422, Some("")),
            ("{\"name\":\"a\"}", 422, Some("scopes")),
            ("{\"name\":\"a\",\"scope\":[]}", 422, Some("scope")),
            ("{\"name\":7,\"scopes\":[]}", 422, Some("name")),
            ("{\"name\":\"a\",\"name\":\"b\",\"scopes\":[]}", 422, Some("name")),
            ("{\"name\":\"a\",\"scopes\":[7]}", 422, Some("scopes[0]")),
        ] {
            let problem = parse::<TokenForm>(body.as_bytes(), "{}").unwrap_err();
            let field = problem.fields.first().map(|error| error.field.as_str());
            assert_eq!((problem.status.as_u16(), field), (status, at), "{body}: {problem:?}");
        }
    }

    #[test]
    fn a_rule_says_everything_once() {
        let twice = parse::<RuleForm>(b"{\"name\":\"a\",\"name\":\"b\"}", "{}").unwrap_err();
        assert_eq!(twice.status, 422);
        assert!(twice.detail.contains("duplicate field `name`"), "{}", twice.detail);
        assert!(parse::<RuleForm>(b"{\"name\":\"a\"}", "{}").is_ok());
        let deep = "[".repeat(200_000);
        assert_eq!(parse::<RuleForm>(deep.as_bytes(), "{}").unwrap_err().status, 422);
    }
}
