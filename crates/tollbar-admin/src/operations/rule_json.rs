//! A rule as the admin API sends and takes it: what it says, and beside that what only the daemon knows
//! of it.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tollbar_rules::admin::{FormError, from_json};
use tollbar_rules::{Rule, RuleWarning};

use crate::database::{LiveStatus, Owner, RuleRow};
use tollbar_daemon::problem::Problem;
use tollbar_daemon::rfc3339::Rfc3339;

/// A rule as the daemon sends it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleJson {
    /// The name of a rule for programs: of the database's its id, of the file's its `id` or name.
    pub(crate) rule_id: Option<String>,
    pub(crate) source: Source,
    /// Who made the rule: `operator`, or `tenant:<id>`. Daemons of earlier versions do not say.
    #[serde(default)]
    pub owner: Owner,
    /// The version of a rule of the database: its `ETag`.
    pub version: Option<u64>,
    pub(crate) created_at: Option<Rfc3339>,
    pub(crate) updated_at: Option<Rfc3339>,
    /// Why the node that answers does not enforce the rule, although it is enabled.
    #[serde(default)]
    pub not_in_force: Option<String>,
    /// What is allowed in the rule and probably not meant.
    #[serde(default)]
    pub warnings: Vec<RuleWarning>,
    #[serde(flatten)]
    pub rule: Rule,
}

/// Where a rule is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Source {
    Database,
    /// Rules of the file are changed there.
    File,
}

/// A rule as clients send it, or what is wrong with it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RuleForm(pub(crate) Result<Rule, FormError>);

/// What only the daemon knows. Taken back and ignored, so that what a GET gave can be changed and PUT.
const OURS: [&str; 8] =
    ["ruleId", "source", "owner", "version", "createdAt", "updatedAt", "notInForce", "warnings"];

impl RuleJson {
    /// The id by which the daemon knows the rule; empty if it has none.
    pub fn id(&self) -> &str {
        self.rule_id.as_deref().unwrap_or_default()
    }

    /// Of a rule in the database, where `status` is how this node follows that.
    pub(crate) fn of_row(row: &RuleRow, status: &LiveStatus) -> Self {
        let id = row.id.to_string();
        let mut json = Self::of_rule(&row.rule, Some(id.clone()));
        json.owner = row.owner.clone();
        json.version = Some(row.version);
        json.created_at = Some(Rfc3339(row.created_at));
        json.updated_at = Some(Rfc3339(row.updated_at));
        if row.rule.enabled {
            json.not_in_force = status.why_not_in_force(&id).map(str::to_owned);
            json.warnings.extend(status.void_replaces(&id));
        }
        json
    }

    /// Of a rule in the file.
    pub(crate) fn of_file(rule: &Rule) -> Self {
        let id = Some(rule.identity().to_string());
        Self { source: Source::File, ..Self::of_rule(rule, id) }
    }

    /// Of a rule that is only proposed.
    pub(crate) fn of_rule(rule: &Rule, rule_id: Option<String>) -> Self {
        Self {
            rule_id,
            source: Source::Database,
            owner: Owner::Operator,
            version: None,
            created_at: None,
            updated_at: None,
            not_in_force: None,
            warnings: rule.warnings(),
            rule: rule.clone(),
        }
    }
}

impl RuleForm {
    /// Reads the fields that were sent.
    pub(crate) fn read(mut fields: Map<String, Value>) -> Self {
        fields.retain(|name, _| !OURS.contains(&name.as_str()));
        Self(from_json(Value::Object(fields)))
    }

    /// The rule that was sent.
    pub(crate) fn rule(&self) -> Result<Rule, Problem> {
        let rule = self.0.clone()?;
        if rule.id.is_some() {
            let detail = "counters of this rule are kept under its `ruleId`: leave it out";
            return Err(Problem::invalid_field("id", detail));
        }
        Ok(rule)
    }
}

/// Returns the schema of a rule with other properties beside its own.
fn schema_with(generator: &mut SchemaGenerator, others: Value) -> Schema {
    let mut schema = Rule::json_schema(generator);
    if let (Some(Value::Object(properties)), Value::Object(others)) =
        (schema.get_mut("properties"), others)
    {
        properties.extend(others);
    }
    schema
}

impl JsonSchema for RuleJson {
    fn schema_name() -> Cow<'static, str> {
        "Rule".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let instant = json!({ "type": ["string", "null"], "format": "date-time" });
        let source = json!({
            "enum": ["database", "file"], "description": "Rules of the file are changed there",
        });
        let others = json!({
            "ruleId": { "type": ["string", "null"] },
            "source": source,
            "owner": {
                "type": "string", "examples": ["operator", "tenant:acme"],
                "description": "Who made the rule. A tenant changes its own rules only",
            },
            "version": { "type": ["integer", "null"], "description": "Its ETag" },
            "createdAt": instant,
            "updatedAt": instant,
            "notInForce": {
                "type": ["string", "null"],
                "description": "Why the node that answers does not enforce the rule, although it is enabled",
            },
            "warnings": {
                "type": "array",
                "items": generator.subschema_for::<RuleWarning>(),
                "description": "What is allowed in the rule and probably not meant",
            },
        });
        let mut schema = schema_with(generator, others);
        let flat = ["scope", "tenantId", "httpMethod", "pathPattern", "algorithm", "maxRequests"];
        let always = ["name", "windowSeconds", "burstCapacity", "priority", "enabled"];
        let required: Vec<&str> = OURS.into_iter().chain(flat).chain(always).collect();
        schema.insert("required".to_owned(), json!(required));
        schema
    }
}

impl JsonSchema for RuleForm {
    fn schema_name() -> Cow<'static, str> {
        "RuleForm".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let ignored = |name: &str| (name.to_owned(), json!({ "description": "Taken and ignored" }));
        let mut schema = schema_with(generator, OURS.into_iter().map(ignored).collect());
        // What identifies a rule of the database is its `ruleId`.
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            properties.remove("id");
        }
        schema
    }
}
