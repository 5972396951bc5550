//! The JSON of a rule, the one place where it is read and written: the fields of a file, in camelCase, of
//! which a few have flat names that a table can have as columns.
//!
//! | flat field | field of a file |
//! |---|---|
//! | `tenantId`, `httpMethod`, `pathPattern` | `match.tenant`, `match.method`, `match.path` |
//! | `scope` | follows from those three |
//! | `maxRequests`, `windowSeconds` | `limit: 100/min` |
//! | `burstCapacity` | `burst` |
//!
//! Both ways of saying something are read, also in `snake_case`. What flat names can say is written in flat
//! names.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::{FormError, Problem, fields};
use crate::admin::json;
use crate::file::reader::Case;
use crate::message::shorten;
use crate::{AlgorithmKind, Condition, Finding, Limit, LimitOptions, Rule, Test};

type Fields = Map<String, Value>;

/// What a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// All requests.
    #[default]
    Global,
    /// Those of a tenant.
    Tenant,
    /// Those for a path.
    Endpoint,
}

/// What the flat fields say of a rule. A field is absent where the rule says something that it cannot
/// express.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleView {
    /// What the rule is about.
    pub scope: Scope,
    /// The one tenant it is for.
    pub tenant_id: Option<String>,
    /// The one method of an endpoint.
    pub http_method: Option<String>,
    /// The one path of an endpoint, as in `match`.
    pub path_pattern: Option<String>,
    /// How its limits count, where the rule says so.
    pub algorithm: Option<AlgorithmKind>,
    /// The limit, where it is one in whole seconds. For permits, how many may be in flight.
    pub max_requests: Option<u64>,
    /// The window of that limit. Permits have none.
    pub window_seconds: Option<u64>,
    /// What a bucket holds, instead of one window's worth.
    pub burst_capacity: Option<u64>,
}

/// The flat fields that stand for others. The rest of a rule's fields are those of a file.
const FLAT_FIELDS: [&str; 7] = [
    "scope",
    "tenant_id",
    "http_method",
    "path_pattern",
    "max_requests",
    "window_seconds",
    "burst_capacity",
];

/// The flat fields of conditions, and the attributes they are about.
pub(super) const CONDITIONS: [(&str, &str); 3] =
    [("tenant_id", "tenant"), ("http_method", "method"), ("path_pattern", "path")];

impl Scope {
    /// Every scope with its name.
    pub const NAMED: [(&'static str, Self); 3] =
        [("global", Self::Global), ("tenant", Self::Tenant), ("endpoint", Self::Endpoint)];

    /// Returns its name in JSON and in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMED[self as usize].0
    }

    /// Returns the scope of that name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(known, _)| *known == name).map(|(_, scope)| *scope)
    }

    /// Returns the scope that follows from which of the three fields are there.
    fn of_fields(has_tenant: bool, has_endpoint: bool) -> Self {
        match (has_tenant, has_endpoint) {
            (_, true) => Self::Endpoint,
            (true, false) => Self::Tenant,
            (false, false) => Self::Global,
        }
    }
}

impl RuleView {
    /// Returns the view of a rule.
    #[must_use]
    pub fn from_rule(rule: &Rule) -> Self {
        let shared = fields::shared_options(rule);
        let path_pattern = single(rule, "path");
        let tenant_id = single(rule, "tenant");
        let (max_requests, window_seconds) = match rule.limits.as_slice() {
            [limit] => flat_limit(limit, shared),
            _ => (None, None),
        };
        Self {
            scope: Scope::of_fields(tenant_id.is_some(), path_pattern.is_some()),
            http_method: path_pattern.as_ref().and_then(|_| single(rule, "method")),
            tenant_id,
            path_pattern,
            algorithm: shared.counting,
            max_requests,
            window_seconds,
            burst_capacity: shared.burst,
        }
    }
}

/// Returns the one value that an attribute must have.
fn single(rule: &Rule, attribute: &str) -> Option<String> {
    let mut tests =
        rule.conditions.all().iter().filter(|condition| &*condition.attribute == attribute);
    match (tests.next(), tests.next()) {
        (Some(Condition { test: Test::OneOf(values), .. }), None) if attribute != "path" => {
            (values.len() == 1).then(|| values[0].to_string())
        }
        (Some(Condition { test: Test::Path(patterns), .. }), None) if attribute == "path" => {
            (patterns.len() == 1).then(|| patterns[0].to_string())
        }
        _ => None,
    }
}

/// Returns a limit as its number and the seconds of its window, where that is how it was written.
fn flat_limit(limit: &Limit, shared: LimitOptions) -> (Option<u64>, Option<u64>) {
    let (policy, text) = (limit.policy(), limit.text());
    let seconds = policy.window().as_secs();
    if fields::own_options(limit, shared, true) != LimitOptions::default() {
        return (None, None);
    }
    if policy.has_permits() {
        return ((text == policy.limit().to_string()).then(|| policy.limit()), None);
    }
    let is_whole = text == limit_text(policy.limit(), seconds);
    (is_whole.then(|| policy.limit()), is_whole.then_some(seconds))
}

/// Returns `100/min` for 100 and 60.
fn limit_text(max_requests: u64, seconds: u64) -> String {
    format!("{max_requests}/{}", fields::time_text(Duration::from_secs(seconds)))
}

/// Returns a rule as JSON: every flat field, `null` where it is absent, `priority` and `enabled`, and the
/// fields of a file that differ from their defaults.
#[must_use]
pub fn to_json(rule: &Rule) -> Fields {
    let view = RuleView::from_rule(rule);
    let mut json: Fields = fields::rule_fields(rule, Case::Camel)
        .into_iter()
        .map(|(name, value)| (name.into(), value))
        .collect();
    if let Some(Value::Object(conditions)) = json.get_mut("match") {
        let flat = [
            ("tenant", &view.tenant_id),
            ("method", &view.http_method),
            ("path", &view.path_pattern),
        ];
        for (attribute, _) in flat.iter().filter(|(_, value)| value.is_some()) {
            conditions.remove(*attribute);
        }
        if conditions.is_empty() {
            json.remove("match");
        }
    }
    json.remove("burst");
    if view.max_requests.is_some() {
        json.remove("limit");
    }
    let flat = json!({
        "scope": view.scope.name(),
        "tenantId": view.tenant_id,
        "httpMethod": view.http_method,
        "pathPattern": view.path_pattern,
        "algorithm": view.algorithm.map(AlgorithmKind::name),
        "maxRequests": view.max_requests,
        "windowSeconds": view.window_seconds,
        "burstCapacity": view.burst_capacity,
        "priority": rule.priority,
        "enabled": rule.enabled,
    });
    if let Value::Object(flat) = flat {
        json.extend(flat);
    }
    json
}

/// A field of a rule's JSON that says something else.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FieldChange {
    /// Its name in JSON.
    pub field: String,
    /// What it said; `null` where it said nothing.
    pub before: Value,
    /// What it says.
    pub after: Value,
}

/// Returns the fields in which the JSON of two rules differs, by name.
#[must_use]
pub fn changed_fields(before: &Rule, after: &Rule) -> Vec<FieldChange> {
    let (mut before, mut after) = (to_json(before), to_json(after));
    let names: BTreeSet<String> = before.keys().chain(after.keys()).cloned().collect();
    let mut take = |field: String| {
        let [before, after] =
            [&mut before, &mut after].map(|fields| fields.remove(&field).unwrap_or_default());
        (before != after).then_some(FieldChange { field, before, after })
    };
    names.into_iter().filter_map(&mut take).collect()
}

/// Reads a rule from JSON. A field that is `null` is as good as absent. Whether the rule fits together with
/// others, [`RuleSet::new`](crate::RuleSet::new) says.
///
/// # Errors
///
/// Every field that is wrong, with what to send instead.
pub fn from_json(json: Value) -> Result<Rule, FormError> {
    let Value::Object(mut fields) = json else {
        let message = "a rule is an object: send one such as {\"name\": \"per_client\", \
                       \"maxRequests\": 10, \"windowSeconds\": 1}";
        return Err(FormError::new("", message));
    };
    fields.retain(|_, value| !value.is_null());
    let mut form = FlatForm { fields, problems: Vec::new() };
    let flat = form.lower();
    let FlatForm { fields, problems } = form;
    if !problems.is_empty() {
        return Err(FormError { problems });
    }
    let problem = |finding: Finding| {
        let field = match finding.field.as_str() {
            "limit" if flat.contains(&"max_requests") => "maxRequests".to_owned(),
            "burst" if flat.contains(&"burst_capacity") => "burstCapacity".to_owned(),
            _ => {
                let attribute = finding.field.strip_prefix("match.");
                let named = CONDITIONS.iter().find(|condition| attribute == Some(condition.1));
                named
                    .filter(|condition| flat.contains(&condition.0))
                    .map_or(finding.field, |condition| Case::Camel.spell(condition.0).into_owned())
            }
        };
        Problem { field, message: finding.message }
    };
    crate::file::read_rule(&json::to_node(&Value::Object(fields))?, &FLAT_FIELDS)
        .map_err(|findings| FormError { problems: findings.into_iter().map(problem).collect() })
}

/// What was sent, on its way to the fields of a file.
struct FlatForm {
    fields: Fields,
    problems: Vec<Problem>,
}

impl FlatForm {
    /// Puts the fields of a file in the place of the flat ones, and returns which those were.
    fn lower(&mut self) -> Vec<&'static str> {
        self.check_types();
        let is_there = |name: &&'static str| {
            spellings(name).any(|spelling| self.fields.contains_key(&spelling))
        };
        let flat: Vec<&'static str> = FLAT_FIELDS.into_iter().filter(is_there).collect();
        let scope = self.scope();
        let conditions = CONDITIONS.map(|(name, attribute)| {
            let what = match attribute {
                "tenant" => "a text such as \"acme\"",
                "method" => "a text such as \"GET\"",
                _ => "a text such as \"/v1/**\"",
            };
            (name, attribute, self.text(name, what))
        });
        let are_there = conditions.each_ref().map(|condition| condition.2.is_some());
        self.problems.extend(scope_problems(scope, are_there));
        self.put_conditions(conditions);
        self.put_limit();
        flat
    }

    /// A file knows the type of a field by its name; JSON has types of its own.
    fn check_types(&mut self) {
        match self.fields.get("name") {
            None => self.refuse("name", "the rule has no name: send one such as \"per_client\""),
            Some(Value::String(name)) if name.is_empty() => {
                self.refuse("name", "this is empty: send a text such as \"per_client\"");
            }
            Some(Value::String(_)) => {}
            Some(_) => self.refuse("name", "this is no text: send a text such as \"per_client\""),
        }
        let priority = self.fields.get("priority");
        if priority
            .is_some_and(|value| value.as_i64().is_none_or(|number| i32::try_from(number).is_err()))
        {
            let message = "this is no whole number of 32 bits: send one such as 10 or -1";
            self.refuse("priority", message);
        }
        if self.fields.get("enabled").is_some_and(|value| !value.is_boolean()) {
            self.refuse("enabled", "this is neither true nor false: send one of them");
        }
        if self.fields.get("match").is_some_and(|value| !value.is_object()) {
            self.refuse("match", "this is no object: send one such as {\"plan\": \"bulk\"}");
        }
    }

    fn scope(&mut self) -> Option<Scope> {
        let what = Scope::NAMED.map(|(name, _)| format!("\"{name}\"")).join(", ");
        let what = format!("one of {what}");
        let text = self.text("scope", &what)?;
        let scope = Scope::of_name(&text);
        if scope.is_none() {
            self.refuse("scope", format!("`{}` is not known here: send {what}", shorten(&text)));
        }
        scope
    }

    fn put_conditions(&mut self, named: [(&'static str, &'static str, Option<String>); 3]) {
        let mut conditions = match self.fields.remove("match") {
            Some(Value::Object(conditions)) => conditions,
            _ => Fields::new(),
        };
        for (name, attribute, value) in named {
            if let Some(value) = value
                && conditions.insert(attribute.to_owned(), json!(value)).is_some()
            {
                let message =
                    format!("`match` says what `{attribute}` is too: leave one of them out");
                self.refuse(name, message);
            }
        }
        if !conditions.is_empty() {
            self.fields.insert("match".to_owned(), Value::Object(conditions));
        }
    }

    fn put_limit(&mut self) {
        let is_of_permits = self.fields.get("algorithm") == Some(&json!("concurrency"));
        let before = self.problems.len();
        let [max_requests, seconds, burst] =
            ["max_requests", "window_seconds", "burst_capacity"].map(|name| self.count(name));
        let mut limit = None;
        if self.problems.len() == before {
            match limit_of(max_requests, seconds, is_of_permits) {
                Ok(text) => limit = text,
                Err(problem) => self.problems.push(problem),
            }
        }
        self.put("limit", "max_requests", limit.map(Value::from));
        self.put("burst", "burst_capacity", burst.map(Value::from));
    }

    fn put(&mut self, field: &str, flat: &'static str, value: Option<Value>) {
        if let Some(value) = value
            && self.fields.insert(field.to_owned(), value).is_some()
        {
            self.refuse(flat, format!("`{field}` says it too: leave one of them out"));
        }
    }

    fn refuse(&mut self, field: &'static str, message: impl Into<String>) {
        self.problems.push(Problem::new(&Case::Camel.spell(field), message));
    }

    fn take(&mut self, name: &'static str) -> Option<Value> {
        let mut found: Vec<Value> =
            spellings(name).filter_map(|spelling| self.fields.remove(&spelling)).collect();
        if found.len() > 1 {
            self.refuse(name, format!("`{name}` says it too: leave one of them out"));
        }
        found.pop()
    }

    fn text(&mut self, name: &'static str, what: &str) -> Option<String> {
        match self.take(name)? {
            Value::String(text) if !text.is_empty() => return Some(text),
            Value::String(_) => {
                self.refuse(name, format!("this is empty: send {what}, or leave it out"));
            }
            _ => self.refuse(name, format!("this is no text: send {what}")),
        }
        None
    }

    fn count(&mut self, name: &'static str) -> Option<u64> {
        let count = self.take(name)?.as_u64().filter(|count| *count > 0);
        if count.is_none() {
            self.refuse(name, "this is no whole number above 0: send one such as 100");
        }
        count
    }
}

/// A scope says which of the tenant, the method and the path are there; where it is left out, it follows from
/// them.
pub(super) fn scope_problems(
    scope: Option<Scope>,
    [tenant, method, path]: [bool; 3],
) -> Vec<Problem> {
    let scope = scope.unwrap_or(Scope::of_fields(tenant, method || path));
    let name = scope.name();
    let excess = [
        ("tenantId", tenant && scope == Scope::Global, "tenant"),
        ("httpMethod", method && scope != Scope::Endpoint, "endpoint"),
        ("pathPattern", path && scope != Scope::Endpoint, "endpoint"),
    ];
    let excess =
        excess.into_iter().filter(|(_, is_excess, _)| *is_excess).map(|(field, _, meant)| {
            let message = format!(
                "a rule of scope \"{name}\" has none: send scope \"{meant}\", or leave it out"
            );
            Problem::new(field, message)
        });
    let missing = match scope {
        Scope::Tenant if !tenant => Some(("tenantId", "the tenant, such as \"acme\"")),
        Scope::Endpoint if !path => Some(("pathPattern", "the path, such as \"/v1/**\"")),
        _ => None,
    };
    let missing = missing.map(|(field, what)| {
        Problem::new(field, format!("a rule of scope \"{name}\" has one: send {what}"))
    });
    excess.chain(missing).collect()
}

/// Returns the text of the limit that two flat fields mean; none where they mean none.
pub(super) fn limit_of(
    max_requests: Option<u64>,
    seconds: Option<u64>,
    is_of_permits: bool,
) -> Result<Option<String>, Problem> {
    match (max_requests, seconds) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) if is_of_permits => {
            Err(Problem::new("windowSeconds", "what is in flight has no window: leave it out"))
        }
        (Some(max_requests), None) if is_of_permits => Ok(Some(max_requests.to_string())),
        (Some(max_requests), Some(seconds)) => Ok(Some(limit_text(max_requests, seconds))),
        (Some(_), None) => {
            let message = "a limit has a window: send its seconds, such as 60";
            Err(Problem::new("windowSeconds", message))
        }
        (None, Some(_)) => {
            Err(Problem::new("maxRequests", "a window has a limit: send one such as 100"))
        }
    }
}

/// Returns the ways in which a field may be spelled.
fn spellings(name: &'static str) -> impl Iterator<Item = String> {
    let camel = Case::Camel.spell(name).into_owned();
    let snake = (camel != name).then(|| name.to_owned());
    [camel].into_iter().chain(snake)
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to_json(self).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from_json(Value::deserialize(from)?).map_err(D::Error::custom)
    }
}
