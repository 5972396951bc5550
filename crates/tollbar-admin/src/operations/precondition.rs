//! `ETag` and `If-Match`: which version of a rule a change is meant for.

use aide::OperationInput;
use aide::generate::GenContext;
use aide::openapi::Operation;
use axum::extract::FromRequestParts;
use hyper::header::{HeaderMap, IF_MATCH};
use hyper::http::request::Parts;
use serde_json::json;

use tollbar_daemon::openapi::{add_parameter, refuse};
use tollbar_daemon::problem::Problem;

/// What `If-Match` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IfMatch {
    /// `*`: whichever it is.
    Any,
    /// One of these.
    OneOf(Vec<String>),
}

impl IfMatch {
    pub(crate) fn read(headers: &HeaderMap) -> Result<Self, Problem> {
        let mut tags = Vec::new();
        for value in headers.get_all(IF_MATCH) {
            let text = value.to_str().map_err(|_| malformed())?;
            tags.extend(text.split(',').map(|tag| tag.trim().to_owned()));
        }
        match tags.as_slice() {
            [] => Err(Problem::precondition_required()),
            [one] if one == "*" => Ok(Self::Any),
            _ if tags.iter().all(|tag| is_tag(tag)) => Ok(Self::OneOf(tags)),
            _ => Err(malformed()),
        }
    }

    /// The version that is changed, if it is the one that is meant.
    pub(crate) fn check_version(&self, version: u64) -> Result<u64, Problem> {
        match self {
            Self::Any => Ok(version),
            Self::OneOf(tags) if tags.contains(&etag(version)) => Ok(version),
            Self::OneOf(_) => Err(Problem::conflict(format!(
                "it is version {version} by now: read it again, and send its ETag"
            ))),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Self::read(&parts.headers)
    }
}

impl OperationInput for IfMatch {
    fn operation_input(_: &mut GenContext, operation: &mut Operation) {
        let parameter = json!({
            "name": "If-Match",
            "in": "header",
            "required": true,
            "description": "The ETag of the version that is changed, or `*`",
            "schema": { "type": "string", "pattern": "^(\\*|\"[0-9]{1,19}\")$" },
            "example": "\"1\"",
        });
        add_parameter(operation, parameter);
        refuse(operation, &[412, 428]);
    }
}

/// The `ETag` of a version.
pub(crate) fn etag(version: u64) -> String {
    format!("\"{version}\"")
}

/// As RFC 9110 has it. A weak one never matches.
fn is_tag(text: &str) -> bool {
    let text = text.strip_prefix("W/").unwrap_or(text);
    let opaque = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    opaque.is_some_and(|tag| !tag.contains('"'))
}

fn malformed() -> Problem {
    Problem::bad_request(
        "`If-Match` is no ETag: send what a GET gave, with its quotes, such as \"3\"",
    )
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn read(values: &[&str]) -> Result<IfMatch, Problem> {
        let values = values.iter().map(|value| (IF_MATCH, HeaderValue::from_str(value).unwrap()));
        IfMatch::read(&values.collect())
    }

    #[test]
    fn a_change_is_made_to_the_version_that_is_meant() {
        assert_eq!(read(&["*"]).unwrap().check_version(7), Ok(7));
        assert_eq!(read(&["\"7\""]).unwrap().check_version(7), Ok(7));
        assert_eq!(read(&["\"6\", \"7\""]).unwrap().check_version(7), Ok(7));
        assert_eq!(read(&["\"6\"", "\"7\""]).unwrap().check_version(7), Ok(7));
        for other in ["\"6\"", "W/\"7\"", "\"07\"", "\"\"", "\"7\u{20}\""] {
            assert_eq!(
                read(&[other]).unwrap().check_version(7).unwrap_err().status,
                412,
                "{other}"
            );
        }
        for wrong in ["7", "\"7", "", "*, \"7\""] {
            assert_eq!(read(&[wrong]).unwrap_err().status, 400, "{wrong}");
        }
        assert_eq!(read(&[]).unwrap_err().status, 428);
    }
}
