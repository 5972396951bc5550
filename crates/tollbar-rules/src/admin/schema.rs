//! The JSON schema of a rule. The schema of files is written by hand and held against the reader by tests;
//! that of the admin API's JSON is made of it.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::Scope;
use crate::file::reader::camel;
use crate::{AlgorithmKind, Rule};

/// The schema of files of rules, by which editors complete them.
pub const FILE_SCHEMA: &str = include_str!("rules.schema.json");

/// What the names of definitions begin with among those of others.
const PREFIX: &str = "Rule";

impl JsonSchema for Rule {
    fn schema_name() -> Cow<'static, str> {
        "RuleFields".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let file: Value = serde_json::from_str(FILE_SCHEMA).unwrap_or_default();
        let path = format!("#{}/{PREFIX}", generator.settings().definitions_path);
        let Value::Object(definitions) = in_camel_case(&file["$defs"], &path) else {
            return Schema::default();
        };
        let mut properties = Map::new();
        for (name, definition) in definitions {
            if name == "rule" {
                properties
                    .extend(definition["properties"].as_object().cloned().unwrap_or_default());
            } else {
                generator
                    .definitions_mut()
                    .insert(format!("{PREFIX}{}", capitalised(&name)), definition);
            }
        }
        properties.extend(flat_properties());
        let schema = json!({
            "type": "object",
            "properties": properties,
            "required": ["name"],
            "additionalProperties": false,
        });
        Schema::try_from(schema).unwrap_or_default()
    }
}

/// The flat fields, and those of a file that are `null` where they say nothing.
fn flat_properties() -> Map<String, Value> {
    let text = |what: &str| json!({ "type": ["string", "null"], "description": what });
    let count =
        |what: &str| json!({ "type": ["integer", "null"], "minimum": 1, "description": what });
    let choice = |names: Vec<&str>, what: &str| {
        let names: Vec<Value> = names.into_iter().map(Value::from).chain([Value::Null]).collect();
        json!({ "enum": names, "description": what })
    };
    let scopes = Scope::NAMED.iter().map(|(name, _)| *name).collect();
    let algorithms = AlgorithmKind::NAMED.iter().map(|(name, _)| *name).collect();
    let fields = json!({
        "name": { "type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9_.:/-]+$",
                  "description": "What people call it" },
        "scope": choice(scopes, "What it is about; follows from the next three where it is left out"),
        "tenantId": text("The tenant, instead of `match.tenant`"),
        "httpMethod": text("The method of an endpoint, instead of `match.method`"),
        "pathPattern": text("The path of an endpoint, instead of `match.path`"),
        "algorithm": choice(algorithms, "How its limits count"),
        "maxRequests": count("How many may pass in a window, or be in flight, instead of `limit`"),
        "windowSeconds": count("The window of `maxRequests`"),
        "burstCapacity": count("What a bucket holds, instead of `burst`"),
        "priority": { "type": ["integer", "null"], "format": "int32", "description": "Higher is looked at first." },
        "enabled": { "type": ["boolean", "null"], "description": "Whether it is looked at." },
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// A part of the schema of files with its fields in camel case, and references to definitions at `path`.
fn in_camel_case(schema: &Value, path: &str) -> Value {
    match schema {
        Value::Array(items) => items.iter().map(|item| in_camel_case(item, path)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| keyword(name, value, path)).collect()
        }
        value => value.clone(),
    }
}

fn keyword(name: &str, value: &Value, path: &str) -> (String, Value) {
    let value = match (name, value) {
        ("$ref", Value::String(to)) => {
            let name = to.rsplit('/').next().unwrap_or_default();
            json!(format!("{path}{}", capitalised(name)))
        }
        ("properties", Value::Object(fields)) => {
            fields.iter().map(|(name, field)| (camel(name), in_camel_case(field, path))).collect()
        }
        ("required", Value::Array(names)) => {
            names.iter().filter_map(Value::as_str).map(|name| json!(camel(name))).collect()
        }
        _ => in_camel_case(value, path),
    };
    (name.to_owned(), value)
}

/// `warm_up` as the name of a type.
fn capitalised(name: &str) -> String {
    let name = camel(name);
    let mut chars = name.chars();
    let first = chars.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(chars).collect()
}
