//! What stands behind the `?`: parameters that a path knows, each once.

use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tollbar_rules::admin::Scope;

use super::paging::{Asked, LIMIT_DEFAULT, LIMIT_MAX};
use super::problem::Problem;
use crate::rfc3339::Date;

/// A parameter that some path takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parameter {
    Tenant,
    Scope,
    Enabled,
    Name,
    Limit,
    Cursor,
    RuleId,
    Subject,
    SubjectType,
    SubjectId,
    From,
    To,
    Format,
    DryRun,
}

/// How an export is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Csv,
    JsonLines,
}

/// Parameters that were sent.
#[derive(Debug, Default)]
pub(crate) struct Query {
    sent: Vec<(Parameter, String)>,
}

/// The longest value.
const VALUE_BYTES_MAX: usize = 1_024;

impl Parameter {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Scope => "scope",
            Self::Enabled => "enabled",
            Self::Name => "name",
            Self::Limit => "limit",
            Self::Cursor => "cursor",
            Self::RuleId => "ruleId",
            Self::Subject => "subject",
            Self::SubjectType => "subjectType",
            Self::SubjectId => "subjectId",
            Self::From => "from",
            Self::To => "to",
            Self::Format => "format",
            Self::DryRun => "dryRun",
        }
    }

    pub(crate) fn is_required(self) -> bool {
        matches!(self, Self::SubjectType | Self::SubjectId)
    }

    /// For the document.
    pub(crate) fn schema(self) -> Value {
        match self {
            Self::Scope => json!({ "type": "string", "enum": ["global", "tenant", "endpoint"] }),
            Self::Enabled | Self::DryRun => json!({ "type": "boolean" }),
            Self::Limit => {
                json!({ "type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT })
            }
            Self::From | Self::To => json!({ "type": "string", "format": "date" }),
            Self::Format => json!({ "type": "string", "enum": ["csv", "jsonl"], "default": "csv" }),
            Self::SubjectType | Self::SubjectId => {
                json!({ "type": "string", "minLength": 1, "maxLength": 1_024 })
            }
            _ => json!({ "type": "string", "maxLength": VALUE_BYTES_MAX }),
        }
    }

    /// For the document.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Tenant => "Of this tenant",
            Self::Scope => "Of this scope",
            Self::Enabled => "That are enabled, or that are not",
            Self::Name => "Of this name",
            Self::Limit => "How many at most",
            Self::Cursor => "The `nextCursor` of the page before",
            Self::RuleId => "Of this rule",
            Self::Subject => "Of this subject, such as `user:42`",
            Self::SubjectType => {
                "The attribute that names the subject, such as `user` or `api_key`"
            }
            Self::SubjectId => "Its value",
            Self::From => "From this day on, in UTC",
            Self::To => "Up to this day, which is included",
            Self::Format => "CSV, or an object of JSON a line",
            Self::DryRun => "Changes nothing, and tells what would be different",
        }
    }
}

impl Query {
    /// Reads those of `known` that were sent; anything else is refused.
    pub(crate) fn read(text: &str, known: &[Parameter]) -> Result<Self, Problem> {
        let mut query = Self::default();
        for pair in text.split('&').filter(|it| !it.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decoded(name)?, decoded(value)?);
            let Some(parameter) = known.iter().find(|it| it.name() == name) else {
                let listed = known.iter().map(|it| format!("`{}`", it.name())).collect::<Vec<_>>();
                let detail = match listed.as_slice() {
                    [] => "this path takes no parameters: leave it out".to_owned(),
                    listed => format!("this path takes {} only", listed.join(", ")),
                };
                return Err(Problem::bad_parameter(&short(&name), detail));
            };
            if query.text(*parameter).is_some() {
                return Err(Problem::bad_parameter(parameter.name(), "send it once"));
            }
            if value.len() > VALUE_BYTES_MAX || value.contains('\0') {
                let detail = format!("send at most {VALUE_BYTES_MAX} bytes, none of them 0");
                return Err(Problem::bad_parameter(parameter.name(), detail));
            }
            query.sent.push((*parameter, value));
        }
        match known.iter().find(|it| it.is_required() && query.text(**it).is_none()) {
            Some(missing) => {
                Err(Problem::bad_parameter(missing.name(), "this is missing: send it"))
            }
            None => Ok(query),
        }
    }

    pub(crate) fn text(&self, parameter: Parameter) -> Option<&str> {
        self.sent.iter().find(|(it, _)| *it == parameter).map(|(_, value)| &**value)
    }

    pub(crate) fn owned(&self, parameter: Parameter) -> Option<String> {
        self.text(parameter).map(str::to_owned)
    }

    pub(crate) fn flag(&self, parameter: Parameter) -> Result<Option<bool>, Problem> {
        self.one_of(parameter, &[("true", true), ("false", false)])
    }

    pub(crate) fn scope(&self) -> Result<Option<Scope>, Problem> {
        let scopes = [Scope::Global, Scope::Tenant, Scope::Endpoint].map(|it| (it.name(), it));
        self.one_of(Parameter::Scope, &scopes)
    }

    pub(crate) fn format(&self) -> Result<Format, Problem> {
        let formats = [("csv", Format::Csv), ("jsonl", Format::JsonLines)];
        Ok(self.one_of(Parameter::Format, &formats)?.unwrap_or(Format::Csv))
    }

    pub(crate) fn day(&self, parameter: Parameter) -> Result<Option<i32>, Problem> {
        let day = self.text(parameter).map(str::parse::<Date>).transpose();
        let day =
            day.map_err(|error| Problem::bad_parameter(parameter.name(), error.to_string()))?;
        Ok(day.map(|it| it.0))
    }

    pub(crate) fn paging(&self) -> Result<Asked, Problem> {
        let cursor = self.owned(Parameter::Cursor);
        let Some(text) = self.text(Parameter::Limit) else {
            return Ok(Asked { cursor, ..Asked::default() });
        };
        let is_digits = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
        let limit = text.parse().ok().filter(|it| is_digits && (1..=LIMIT_MAX).contains(it));
        let refuse = || Problem::bad_parameter("limit", format!("send 1 to {LIMIT_MAX}"));
        Ok(Asked { limit: limit.ok_or_else(refuse)?, cursor })
    }

    fn one_of<T: Copy>(
        &self,
        parameter: Parameter,
        words: &[(&str, T)],
    ) -> Result<Option<T>, Problem> {
        let Some(text) = self.text(parameter) else {
            return Ok(None);
        };
        let word = words.iter().find(|(word, _)| *word == text);
        word.map(|(_, it)| Some(*it)).ok_or_else(|| {
            let listed = words.iter().map(|(word, _)| format!("`{word}`")).collect::<Vec<_>>();
            Problem::bad_parameter(parameter.name(), format!("send {}", listed.join(" or ")))
        })
    }
}

/// A name or a value, as forms write it: `+` is a space.
fn decoded(text: &str) -> Result<String, Problem> {
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8();
    decoded.map(Into::into).map_err(|_| Problem::bad_request("the query is no UTF-8: encode it so"))
}

/// What is quoted back is cut.
fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Parameter] = &[
        Parameter::Limit,
        Parameter::Cursor,
        Parameter::Name,
        Parameter::Enabled,
        Parameter::From,
    ];

    #[test]
    fn what_a_path_knows_is_read_and_nothing_else_is() {
        let query =
            Query::read("name=a%20b+c%2Bd&limit=7&enabled=false&from=2026-11-16", KNOWN).unwrap();
        assert_eq!(query.text(Parameter::Name), Some("a b c+d"));
        assert_eq!(query.paging(), Ok(Asked { limit: 7, cursor: None }));
        assert_eq!(query.flag(Parameter::Enabled), Ok(Some(false)));
        assert_eq!(query.day(Parameter::From), Ok(Some(20_773)));
        for wrong in ["nme=a", "name=a&name=b", "name=%ff", "name=%00", "%ff=1", "Name=a"] {
            assert_eq!(Query::read(wrong, KNOWN).unwrap_err().status, 400, "{wrong}");
        }
        let wrong =
            ["limit=0", "limit=1001", "limit=+5", "limit=", "limit=1e3", "limit=99999999999"];
        for wrong in wrong {
            assert!(Query::read(wrong, KNOWN).unwrap().paging().is_err(), "{wrong}");
        }
        for wrong in ["enabled=1", "enabled=", "enabled=TRUE"] {
            assert!(
                Query::read(wrong, KNOWN).unwrap().flag(Parameter::Enabled).is_err(),
                "{wrong}"
            );
        }
        assert!(Query::read("", &[Parameter::SubjectId]).is_err(), "it is missing");
    }
}
