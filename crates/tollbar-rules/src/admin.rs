//! Rules and exemptions in the form in which an admin API speaks of them: JSON of a few named fields,
//! which a table can have as columns, and beside them whatever else a rule of a file can say.
//!
//! Only the form: who may change rules, and where they are kept, is for others to say.
//!
//! ```
//! use serde_json::json;
//! use tollbar_rules::admin::RuleForm;
//! # fn main() -> Result<(), tollbar_rules::admin::FormError> {
//! let form = RuleForm::from_json(&json!({
//!     "name": "search", "scope": "endpoint", "httpMethod": "GET", "pathPattern": "/v1/search/**",
//!     "algorithm": "token_bucket", "maxRequests": 100, "windowSeconds": 60, "burstCapacity": 20,
//!     "exempt": [{ "api_key": "internal" }],
//! }))?;
//! let rule = form.rule()?;
//! assert_eq!(rule.limits[0].text(), "100/min");
//! assert_eq!(RuleForm::of(&rule), Some(form));
//! # Ok(())
//! # }
//! ```

mod error;
mod exemption;
mod named;
mod node;
mod reading;
mod same;
mod spec;

use serde_json::{Map, Value, json};

use crate::{Counting, Rule};

pub use crate::date::parse_instant;
pub use error::{FormError, Problem};
pub use exemption::{ExemptionForm, SubjectType};

/// A rule as an admin API speaks of it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RuleForm {
    /// What people call it.
    pub name: String,
    /// What it is about.
    pub scope: Scope,
    /// The tenant it is for: of every rule of that scope, and of an endpoint's where it is one
    /// tenant's.
    pub tenant_id: Option<String>,
    /// The method of an endpoint; none is any.
    pub http_method: Option<String>,
    /// The path of an endpoint, as in `match`.
    pub path_pattern: Option<String>,
    /// How its limit counts.
    pub algorithm: Option<Counting>,
    /// The limit, where it is one of whole seconds: so many requests. For permits, so many in flight.
    pub max_requests: Option<u64>,
    /// In so long a window. Permits have none.
    pub window_seconds: Option<u64>,
    /// What a bucket holds, instead of one window's worth.
    pub burst_capacity: Option<u64>,
    /// Which rules are looked at first: the higher the sooner.
    pub priority: i32,
    /// Whether it is looked at.
    pub enabled: bool,
    /// Everything else, by the fields of a file.
    pub spec: Map<String, Value>,
}

/// What a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Scope {
    /// All requests.
    #[default]
    Global,
    /// Those of a tenant.
    Tenant,
    /// Those for a path.
    Endpoint,
}

/// The fields of a file that are not named otherwise here.
pub const SPEC_FIELDS: [&str; 24] = [
    "id",
    "description",
    "match",
    "per",
    "missing",
    "burst",
    "staggered",
    "utc_offset",
    "subwindows",
    "warm_up",
    "lease",
    "queue",
    "max_wait",
    "limit",
    "tiers",
    "candidate",
    "cost",
    "stop",
    "fallback",
    "unlimited",
    "replaces",
    "mode",
    "on_store_failure",
    "exempt",
];

impl Scope {
    /// Every one with its name.
    const NAMED: [(&'static str, Self); 3] =
        [("global", Self::Global), ("tenant", Self::Tenant), ("endpoint", Self::Endpoint)];

    /// Its name in JSON and in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMED[self as usize].0
    }

    /// The one of that name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(known, _)| *known == name).map(|(_, it)| *it)
    }
}

impl RuleForm {
    /// A global rule that says nothing yet.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            scope: Scope::Global,
            tenant_id: None,
            http_method: None,
            path_pattern: None,
            algorithm: None,
            max_requests: None,
            window_seconds: None,
            burst_capacity: None,
            priority: 0,
            enabled: true,
            spec: Map::new(),
        }
    }

    /// The form of a rule: what its named fields can say is there, and the rest among the fields of a
    /// file. It reads as the same rule again, but for the order in which attributes, tiers and costs
    /// were written, which means nothing. `None` where no file could say it either.
    #[must_use]
    pub fn of(rule: &Rule) -> Option<Self> {
        let canonical = same::canonical(rule.clone());
        let written = spec::fields_of(rule);
        // The first that reads as the rule is the one that says most in named fields.
        [(true, true), (true, false), (false, true), (false, false)].into_iter().find_map(|lift| {
            let form = named::lift(rule, written.clone(), lift);
            let read = form.rule().ok()?;
            (same::canonical(read) == canonical).then_some(form)
        })
    }

    /// The rule that the form means. Whether it fits together with others,
    /// [`RuleSet::new`](crate::RuleSet::new) says.
    pub fn rule(&self) -> Result<Rule, FormError> {
        let fields = named::lower(self)?;
        let node = node::of(&Value::Object(fields))?;
        let told = |finding: crate::Finding| Problem {
            field: self.field_of(finding.field),
            message: finding.message,
        };
        crate::file::read_rule(&node)
            .map_err(|findings| FormError { problems: findings.into_iter().map(told).collect() })
    }

    /// The same rule by the fields of a file, in JSON.
    pub fn file_fields(&self) -> Result<Map<String, Value>, FormError> {
        named::lower(self)
    }

    /// What a field of a file is called here, where a named one stands for it.
    fn field_of(&self, field: String) -> String {
        let named = match field.as_str() {
            "limit" if self.max_requests.is_some() => "maxRequests",
            "burst" if self.burst_capacity.is_some() => "burstCapacity",
            "match.tenant" if self.tenant_id.is_some() => "tenantId",
            "match.method" if self.http_method.is_some() => "httpMethod",
            "match.path" if self.path_pattern.is_some() => "pathPattern",
            _ => return field,
        };
        named.to_owned()
    }

    /// The form that JSON of it has. A field that is `null` is as good as absent.
    pub fn from_json(json: &Value) -> Result<Self, FormError> {
        let Value::Object(fields) = json else {
            let message = "a rule is an object: send one such as {\"name\": \"per_client\", \
                           \"maxRequests\": 10, \"windowSeconds\": 1}";
            return Err(FormError::of("", message));
        };
        reading::read(fields)
    }

    /// As JSON: every named field, `null` where there is none, and those of the file that are said.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut fields = self.spec.clone();
        let named = json!({
            "name": self.name,
            "scope": self.scope.name(),
            "tenantId": self.tenant_id,
            "httpMethod": self.http_method,
            "pathPattern": self.path_pattern,
            "algorithm": self.algorithm.map(Counting::name),
            "maxRequests": self.max_requests,
            "windowSeconds": self.window_seconds,
            "burstCapacity": self.burst_capacity,
            "priority": self.priority,
            "enabled": self.enabled,
        });
        if let Value::Object(named) = named {
            fields.extend(named);
        }
        Value::Object(fields)
    }
}
