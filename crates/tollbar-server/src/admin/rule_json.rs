//! A rule as the admin API sends and takes it: its form, and beside that what only we know of it.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tollbar_rules::Rule;
use tollbar_rules::admin::{RuleForm, SPEC_FIELDS};

use super::problem::Problem;
use crate::repository::RuleRow;
use crate::rfc3339::Instant;

/// A rule as it is sent to people.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct RuleJson(Value);

/// A rule as people send it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RuleSent(pub(crate) Value);

/// What only we know. Taken back and ignored, so that what a GET gave can be changed and PUT.
const OURS: [&str; 5] = ["ruleId", "source", "version", "createdAt", "updatedAt"];

impl RuleJson {
    /// Of a rule in the database.
    pub(crate) fn of_row(row: &RuleRow) -> Self {
        Self::new(
            row.form.to_json(),
            json!({
                "ruleId": row.id.to_string(),
                "source": "database",
                "version": row.version,
                "createdAt": Instant(row.created_at),
                "updatedAt": Instant(row.updated_at),
            }),
        )
    }

    /// Of a rule in the file.
    pub(crate) fn of_file(rule: &Rule) -> Self {
        // A file can say whatever a form can.
        let form = RuleForm::of(rule).unwrap_or_else(|| RuleForm::new(&rule.name));
        Self::new(form.to_json(), Self::unversioned(Some(rule.identity()), "file"))
    }

    /// Of a rule that is only talked about.
    pub(crate) fn of_form(form: &RuleForm, id: Option<&str>) -> Self {
        Self::new(form.to_json(), Self::unversioned(id, "database"))
    }

    fn unversioned(id: Option<&str>, source: &str) -> Value {
        json!({ "ruleId": id, "source": source, "version": null, "createdAt": null, "updatedAt": null })
    }

    fn new(form: Value, ours: Value) -> Self {
        let (Value::Object(mut ours), Value::Object(form)) = (ours, form) else {
            return Self(Value::Null);
        };
        ours.extend(form);
        Self(Value::Object(ours))
    }
}

impl RuleSent {
    /// The form that was sent.
    pub(crate) fn form(&self) -> Result<RuleForm, Problem> {
        let mut sent = self.0.clone();
        if let Value::Object(fields) = &mut sent {
            fields.retain(|name, _| !OURS.contains(&name.as_str()));
        }
        let form = RuleForm::from_json(&sent)?;
        if form.spec.contains_key("id") {
            let detail = "counters of this rule are kept under its `ruleId`: leave it out";
            return Err(Problem::invalid_field("id", detail));
        }
        Ok(form)
    }
}

/// The named fields of a form, as a schema has them.
fn named(is_sent: bool) -> Map<String, Value> {
    let text = json!({ "type": ["string", "null"] });
    let count = json!({ "type": ["integer", "null"], "minimum": 1 });
    let algorithms = [
        "sliding_window_counter",
        "sliding_window_strict",
        "sliding_window_log",
        "token_bucket",
        "leaky_bucket",
        "leaky_queue",
        "fixed_window",
        "calendar_window",
        "concurrency",
    ];
    let algorithms: Vec<Value> =
        algorithms.map(Value::from).into_iter().chain([Value::Null]).collect();
    let scopes = json!(["global", "tenant", "endpoint", null]);
    let or_null = |kind: &str| if is_sent { json!([kind, "null"]) } else { json!(kind) };
    let fields = json!({
        "name": { "type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9_.:/-]+$",
                  "description": "What people call it" },
        "scope": { "enum": scopes, "description": "What it is about; follows from the next three where it is left out" },
        "tenantId": text,
        "httpMethod": text,
        "pathPattern": text,
        "algorithm": { "enum": algorithms },
        "maxRequests": count,
        "windowSeconds": count,
        "burstCapacity": count,
        "priority": { "type": or_null("integer"), "format": "int32" },
        "enabled": { "type": or_null("boolean") },
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn properties(is_sent: bool) -> Map<String, Value> {
    let mut fields = named(is_sent);
    // Their values are described in `rules.schema.json`. What identifies a rule here is its `ruleId`.
    for name in SPEC_FIELDS.into_iter().filter(|it| *it != "id") {
        fields.insert(name.to_owned(), json!({ "description": "As in a file of rules" }));
    }
    if is_sent {
        for name in OURS {
            fields.insert(name.to_owned(), json!({ "description": "Taken and ignored" }));
        }
    } else {
        let instant = json!({ "type": ["string", "null"], "format": "date-time" });
        fields.insert("ruleId".into(), json!({ "type": ["string", "null"] }));
        fields.insert(
            "source".into(),
            json!({
                "enum": ["database", "file"], "description": "Rules of the file are changed there",
            }),
        );
        fields.insert(
            "version".into(),
            json!({ "type": ["integer", "null"], "description": "Its ETag" }),
        );
        fields.insert("createdAt".into(), instant.clone());
        fields.insert("updatedAt".into(), instant);
    }
    fields
}

fn schema(is_sent: bool, required: &[&str]) -> Schema {
    let schema = json!({
        "type": "object",
        "properties": properties(is_sent),
        "required": required,
        "additionalProperties": false,
    });
    Schema::try_from(schema).unwrap_or_default()
}

impl JsonSchema for RuleJson {
    fn schema_name() -> Cow<'static, str> {
        "Rule".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let required: Vec<&str> = OURS
            .into_iter()
            .chain(["name", "scope", "tenantId", "httpMethod", "pathPattern", "algorithm"])
            .chain(["maxRequests", "windowSeconds", "burstCapacity", "priority", "enabled"])
            .collect();
        let mut schema = schema(false, &required);
        // A file's rule has an `id` of its own.
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            properties.insert("id".into(), json!({ "type": "string" }));
        }
        schema
    }
}

impl JsonSchema for RuleSent {
    fn schema_name() -> Cow<'static, str> {
        "RuleForm".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schema(true, &["name"])
    }
}
