//! Parameters in the query: a path takes some of them, each once.

use std::collections::BTreeMap;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use schemars::JsonSchema;
use serde::Deserialize;
use tollbar::parse_duration;
use tollbar_rules::admin::Scope;

use super::body::field_of;
use crate::database::{
    Cursor, KeyFilter, PAGE_ROWS_MAX, PageRequest, RuleFilter, UsageFilter, UsageGroup,
};
use crate::operations::usage::UsageSubject;
use tollbar_daemon::problem::Problem;
use tollbar_daemon::rfc3339::{Date, DateError};

/// Rows of a page where nothing else is asked for.
const LIMIT_DEFAULT: u32 = 100;

/// Every parameter that some path takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Query {
    /// Of this tenant
    #[schemars(length(max = 1_024))]
    tenant: Option<String>,
    /// Of this scope
    #[serde(default)]
    #[schemars(with = "String", extend("enum" = Scope::NAMED.map(|named| named.0)))]
    scope: Option<Scope>,
    /// That are enabled, or that are not
    enabled: Option<bool>,
    /// Of this name
    #[schemars(length(max = 1_024))]
    name: Option<String>,
    /// Of this rule
    #[schemars(length(max = 1_024))]
    pub(crate) rule_id: Option<String>,
    /// Of this subject, such as `user:42`
    #[schemars(length(max = 1_024))]
    subject: Option<String>,
    /// The attribute that names the subject, such as `user` or `api_key`
    #[schemars(required, length(min = 1, max = 1_024))]
    subject_type: Option<String>,
    /// Its value
    #[schemars(required, length(min = 1, max = 1_024))]
    subject_id: Option<String>,
    /// The tier whose limits are asked about; without it, the limits of the latest request and whatever is in use
    #[schemars(length(max = 1_024))]
    tier: Option<String>,
    /// The path, of rules that count by it
    #[schemars(length(max = 1_024))]
    path: Option<String>,
    /// The method, of rules that count by it
    #[schemars(length(max = 1_024))]
    method: Option<String>,
    /// Other attributes that rules count by, as JSON: `{"region":"eu"}`
    #[serde(default)]
    attributes: QueryAttributes,
    /// From this day on, in UTC
    from: Option<QueryDate>,
    /// Up to this day, which is included
    to: Option<QueryDate>,
    /// How many at most
    #[serde(default)]
    limit: PageLimit,
    /// The `nextCursor` of the page before
    #[schemars(length(max = 1_024))]
    cursor: Option<String>,
    /// Adds usage up by this: requests, and tokens rule by rule, with the totals of all at the end
    pub(crate) by: Option<UsageGroup>,
    /// CSV, or an object of JSON a line
    #[serde(default)]
    pub(crate) format: Format,
    /// The lengths of the intervals, such as `1s,10min`; `1s,1min,1h` where it is left out
    #[serde(default)]
    pub(crate) over: IntervalLengths,
    /// Changes nothing, and tells what would be different
    #[serde(default)]
    pub(crate) dry_run: bool,
}

/// The names of the parameters that a path takes.
pub(crate) trait Parameters: Send + 'static {
    const NAMES: &[&str];
}

macro_rules! parameters {
    ($($name:ident: $($parameter:literal)*;)*) => {$(
        #[derive(Debug)]
        pub(crate) enum $name {}

        impl Parameters for $name {
            const NAMES: &[&str] = &[$($parameter),*];
        }
    )*};
}

parameters! {
    NoParameters: ;
    PageParameters: "limit" "cursor";
    RuleParameters: "tenant" "scope" "enabled" "name" "limit" "cursor";
    DryRunParameters: "dryRun";
    BoundsParameters: "over";
    AuditParameters: "ruleId" "limit" "cursor";
    UsageParameters: "subjectType" "subjectId" "ruleId" "tier" "path" "method" "attributes";
    OwnUsageParameters: "tier" "path" "method";
    DailyParameters: "from" "to" "tenant" "subject" "ruleId" "limit" "cursor";
    ExportParameters: "by" "format" "from" "to" "tenant";
    TopParameters: "ruleId" "limit";
    KeyParameters: "ruleId" "subject" "limit" "cursor";
}

/// How an export is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline, extend("default" = "csv"))]
pub(crate) enum Format {
    #[default]
    Csv,
    #[serde(rename = "jsonl")]
    JsonLines,
}

/// How many rows a page has at most.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(
    inline,
    extend("type" = "integer", "minimum" = 1, "maximum" = PAGE_ROWS_MAX, "default" = LIMIT_DEFAULT)
)]
struct PageLimit(u32);

/// A day, by days since 1970-01-01.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(inline, extend("format" = "date"))]
struct QueryDate(i32);

/// Attributes by their names.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(inline, extend("type" = "string", "contentMediaType" = "application/json"))]
struct QueryAttributes(BTreeMap<String, String>);

/// Lengths of intervals.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(inline, extend("type" = "string", "default" = "1s,1min,1h"))]
pub(crate) struct IntervalLengths(pub(crate) Vec<Duration>);

/// The most intervals that are asked about at once.
const INTERVALS_MAX: usize = 16;

/// The longest value.
const VALUE_BYTES_MAX: usize = 1_024;

impl Query {
    /// Reads a query that has none but the parameters `P`.
    pub(crate) fn read<P: Parameters>(query: &str) -> Result<Self, Problem> {
        // The parser below replaces what is no UTF-8, and would read another text than was sent.
        if percent_decode_str(query).decode_utf8().is_err() {
            return Err(Problem::bad_request("the query is no UTF-8: encode it so"));
        }
        let pairs = form_urlencoded::parse(query.as_bytes());
        for (name, value) in pairs {
            let detail = if !P::NAMES.contains(&&*name) {
                match P::NAMES {
                    [] => "this path takes no parameters: leave it out".to_owned(),
                    names => format!("this path takes `{}` only", names.join("`, `")),
                }
            } else if value.len() > VALUE_BYTES_MAX || value.contains('\0') {
                format!("send at most {VALUE_BYTES_MAX} bytes, none of them 0")
            } else if pairs.into_iter().filter(|pair| pair.0 == name).count() > 1 {
                "send it once".to_owned()
            } else {
                continue;
            };
            return Err(Problem::bad_parameter(&name.chars().take(64).collect::<String>(), detail));
        }
        let parsed = serde_path_to_error::deserialize(serde_urlencoded::Deserializer::new(pairs));
        parsed.map_err(|error| Problem::bad_parameter(&field_of(&error), advice(error.inner())))
    }

    pub(crate) fn page(&self) -> PageRequest {
        PageRequest { after: self.cursor.as_deref().map(Cursor::of_text), rows_max: self.limit.0 }
    }

    pub(crate) fn count(&self) -> usize {
        self.limit.0 as usize
    }

    pub(crate) fn rules(&self) -> RuleFilter {
        let (tenant, name) = (self.tenant.clone(), self.name.clone());
        RuleFilter { tenant, scope: self.scope, enabled: self.enabled, name }
    }

    pub(crate) fn keys(&self) -> KeyFilter {
        let (rule, subject) = (self.rule_id.clone(), self.subject.clone());
        KeyFilter { rule, subject, with_expired: false }
    }

    pub(crate) fn usage(&self) -> UsageFilter {
        UsageFilter {
            first_day: self.from.map(|date| date.0),
            last_day: self.to.map(|date| date.0),
            tenant: self.tenant.clone(),
            subject: self.subject.clone(),
            rule: self.rule_id.clone(),
        }
    }

    /// Returns the subject whose usage is asked for. It is required.
    pub(crate) fn usage_subject(&self) -> Result<UsageSubject<'_>, Problem> {
        let missing = |name: &str| Problem::bad_parameter(name, "this is missing: send it");
        Ok(UsageSubject {
            subject_type: self.subject_type.as_deref().ok_or_else(|| missing("subjectType"))?,
            subject_id: self.subject_id.as_deref().ok_or_else(|| missing("subjectId"))?,
            rule: self.rule_id.as_deref(),
            attributes: self.attributes(),
        })
    }

    /// Returns what is said of a subject besides who it is.
    pub(crate) fn attributes(&self) -> BTreeMap<&str, &str> {
        let named = [("tier", &self.tier), ("path", &self.path), ("method", &self.method)];
        let named = named.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        let others = self.attributes.0.iter().map(|(name, value)| (&**name, &**value));
        others.chain(named).collect()
    }
}

/// Says what to send, where an error says what would have been right.
fn advice(error: &impl ToString) -> String {
    let error = error.to_string();
    let right = error.rsplit_once("expected ").or_else(|| error.rsplit_once(" was not "));
    right.map_or_else(|| error.clone(), |(_, right)| format!("send {right}"))
}

impl Default for PageLimit {
    fn default() -> Self {
        Self(LIMIT_DEFAULT)
    }
}

impl TryFrom<String> for PageLimit {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let limit =
            text.parse().ok().filter(|limit| is_digits && (1..=PAGE_ROWS_MAX).contains(limit));
        limit.map(Self).ok_or_else(|| format!("send 1 to {PAGE_ROWS_MAX}"))
    }
}

impl TryFrom<String> for QueryAttributes {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        serde_json::from_str(&text).map(Self).map_err(|_| r#"send JSON such as {"region":"eu"}"#)
    }
}

impl Default for IntervalLengths {
    fn default() -> Self {
        Self([1, 60, 3_600].map(Duration::from_secs).to_vec())
    }
}

impl TryFrom<String> for IntervalLengths {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let lengths: Result<Vec<Duration>, _> = text.split(',').map(parse_duration).collect();
        let lengths = lengths.map_err(|error| error.to_string())?;
        if lengths.len() > INTERVALS_MAX {
            return Err(format!("these are too many: send at most {INTERVALS_MAX}"));
        }
        Ok(Self(lengths))
    }
}

impl TryFrom<String> for QueryDate {
    type Error = DateError;

    fn try_from(text: String) -> Result<Self, DateError> {
        text.parse::<Date>().map(|date| Self(date.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The field and the detail of what is wrong with a query.
    fn mistake<P: Parameters>(query: &str) -> (String, String) {
        let problem = Query::read::<P>(query).err().unwrap_or_else(|| panic!("{query} is read"));
        assert_eq!(problem.status, 400, "{query}");
        let field = problem.fields.first().map(|error| error.field.clone()).unwrap_or_default();
        (field, problem.detail.into_owned())
    }

    #[test]
    fn what_a_path_knows_is_read_and_nothing_else_is() {
        let query = "name=a%20b+c%2Bd&limit=7&&enabled=false";
        let query = Query::read::<RuleParameters>(query).unwrap();
        let wanted = query.rules();
        assert_eq!((wanted.name.as_deref(), wanted.enabled), (Some("a b c+d"), Some(false)));
        assert_eq!(query.page(), PageRequest::first(7));
        assert_eq!(
            Query::read::<NoParameters>("").unwrap().page(),
            PageRequest::first(LIMIT_DEFAULT)
        );
        let days = Query::read::<DailyParameters>("from=2026-11-16").unwrap().usage();
        assert_eq!(days.first_day, Some(20_773));
        for wrong in ["nme=a", "name=a&name=b", "name=%ff", "name=%00", "%ff=1", "Name=a"] {
            mistake::<RuleParameters>(wrong);
        }
        for wrong in
            ["limit=0", "limit=1001", "limit=+5", "limit=", "limit=1e3", "limit=9999999999"]
        {
            let (_, detail) = mistake::<RuleParameters>(wrong);
            assert_eq!(detail, "`limit` in the query: send 1 to 1000", "{wrong}");
        }
    }

    #[test]
    fn a_mistake_says_which_parameter_it_is_and_what_to_send() {
        let long = format!("name={}", "x".repeat(1_025));
        for (query, field, said) in [
            ("enabled=1", "enabled", "send `true` or `false`"),
            ("enabled=", "enabled", "send `true` or `false`"),
            ("scope=all", "scope", "send one of `global`, `tenant`, `endpoint`"),
            ("limit=1&limit=2", "limit", "send it once"),
            ("ruleId=1", "ruleId", "`tenant`, `scope`, `enabled`, `name`, `limit`, `cursor` only"),
            (&long, "name", "send at most 1024 bytes, none of them 0"),
        ] {
            let (name, detail) = mistake::<RuleParameters>(query);
            assert_eq!(name, field, "{query}");
            assert!(detail.contains(said), "{detail}");
        }
        assert!(mistake::<NoParameters>("x").1.contains("takes no parameters: leave it out"));
        let (field, detail) = mistake::<DailyParameters>("to=today");
        assert!(field == "to" && detail.contains("such as 2026-11-16"), "{detail}");
        let query = Query::read::<UsageParameters>("subjectType=user").unwrap();
        assert_eq!(query.usage_subject().unwrap_err().fields[0].field, "subjectId");
    }
}
