//! The document of the interface, `OpenAPI` 3.1, written from the table of paths and from the types that
//! are read and written. `cargo xtask openapi` keeps a copy of it in `docs/reference`.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::question::{Form, Question};
use super::refusal::{Error, Problem};
use super::route::{CHECK, EXPLAIN, ROUTES, Route, Sent};
use crate::forward_auth::document as forward_auth;

/// The document, as it is served.
pub(crate) fn document() -> &'static str {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| format!("{:#}\n", write()));
    &DOCUMENT
}

/// What is read and what is written are described apart: a field that may be left out of the one is
/// always in the other.
pub(crate) struct Schemas {
    pub(crate) read: SchemaGenerator,
    pub(crate) written: SchemaGenerator,
}

/// What is sent to have a request explained.
pub(crate) struct Explaining;

fn write() -> Value {
    let mut schemas = Schemas::new();
    let mut paths = Map::new();
    for route in &ROUTES {
        let method = route.method().to_ascii_lowercase();
        paths.insert(route.path.to_owned(), json!({ method: schemas.operation(route) }));
    }
    paths.insert(forward_auth::PATH.to_owned(), forward_auth::operations());
    // Those of a batch are checks.
    let check = question(&CHECK, &mut schemas.read);
    let mut named = schemas.named();
    named.insert(Question::schema_name().into_owned(), check);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tollbar",
            "summary": "May a request pass? Rate limits over HTTP",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "http://127.0.0.1:8080" }],
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "schemas": named,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token of --token-file; without that flag none is asked for",
                },
                "proxyToken": forward_auth::token(),
            },
        },
    })
}

impl Explaining {
    pub(crate) const EXAMPLE: &str = EXPLAIN.example;

    pub(crate) fn schema(generator: &mut SchemaGenerator) -> Schema {
        Schema::try_from(question(&EXPLAIN, generator)).unwrap_or_default()
    }
}

/// The fields of a question that the form takes.
fn question(form: &Form, generator: &mut SchemaGenerator) -> Value {
    let mut schema = Question::json_schema(generator).to_value();
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.retain(|field, _| form.fields.contains(&field.as_str()));
    }
    schema["title"] = form.name.into();
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("description");
    }
    if !form.required.is_empty() {
        schema["required"] = json!(form.required);
    }
    schema
}

impl Schemas {
    pub(crate) fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|it| {
                it.definitions_path = "/components/schemas".into();
                it.meta_schema = None;
            })
        };
        Self {
            read: settings().for_deserialize().into_generator(),
            written: settings().for_serialize().into_generator(),
        }
    }

    /// Those that were met, by their names.
    pub(crate) fn named(&mut self) -> Map<String, Value> {
        let mut named = self.read.take_definitions(true);
        named.extend(self.written.take_definitions(true));
        named
    }

    fn operation(&mut self, route: &Route) -> Value {
        let mut operation = json!({
            "operationId": format!("{:?}", route.what),
            "summary": route.summary,
            "responses": self.responses(route),
        });
        // Two paths, one meaning.
        if route.path == "/readyz" {
            operation["operationId"] = "Readiness".into();
        }
        if route.is_open {
            operation["security"] = json!([]);
        }
        match &route.sent {
            Sent::Nothing => {}
            Sent::Id => operation["parameters"] = json!([id()]),
            Sent::Query => operation["parameters"] = json!(query()),
            Sent::Question(form) => {
                let schema = question(form, &mut self.read);
                operation["requestBody"] = body(&schema, form.example);
            }
            Sent::Body(schema, example) => {
                operation["requestBody"] = body(schema(&mut self.read).as_value(), example);
            }
        }
        operation
    }

    fn responses(&mut self, route: &Route) -> Value {
        let answer = (route.answer)(&mut self.written).to_value();
        let error = self.written.subschema_for::<Error<'_>>().to_value();
        let problem = self.written.subschema_for::<Problem<'_>>().to_value();
        let mut responses = Map::new();
        let kinds = route.kinds.iter();
        let content: Map<String, Value> =
            kinds.map(|kind| ((*kind).to_owned(), json!({ "schema": answer }))).collect();
        let ok = json!({ "description": "It is answered", "content": content });
        responses.insert("200".to_owned(), ok);
        let head = json!({ "description": described(431) });
        responses.insert("431".to_owned(), head);
        let mut refuse = |status: u16, schema: &Value| {
            let said = json!({
                "description": described(status),
                "content": {
                    "application/json": { "schema": schema },
                    "application/problem+json": { "schema": problem },
                },
            });
            responses.insert(status.to_string(), said);
        };
        for status in common_errors(route).chain(route.errors.iter().copied()) {
            refuse(status, &error);
        }
        for status in route.verdicts {
            refuse(*status, &answer);
        }
        if !route.verdicts.is_empty() {
            // A receipt that is too long tells of its verdict, a body that cannot be used does not.
            refuse(400, &json!({ "anyOf": [error, answer] }));
        }
        Value::Object(responses)
    }
}

/// What any such path may answer.
fn common_errors(route: &Route) -> impl Iterator<Item = u16> {
    let of_bodies = route.has_body().then_some([400, 408, 413]);
    let of_queries = matches!(route.sent, Sent::Query).then_some(400);
    let of_tokens = (!route.is_open).then_some(401);
    of_bodies.into_iter().flatten().chain(of_queries).chain(of_tokens).chain([405])
}

fn described(status: u16) -> &'static str {
    match status {
        400 => "It cannot be used; nothing was charged",
        401 => "The token is missing or wrong",
        404 => "There is no such thing",
        405 => "The path takes another method",
        408 => "The body did not come in time",
        409 => "It was used before, for something else, or its time is up",
        413 => "The body is too large",
        422 => "Never: it costs more than a limit can hold; nothing was charged",
        429 => "Not now; nothing was charged",
        431 => "Path, query and headers are more than 16 KiB",
        500 => "The rules have to be changed; nothing was charged",
        _ => "The store cannot answer; trying again is safe",
    }
}

/// A body of JSON, as the document has it.
pub(crate) fn body(schema: &Value, example: &str) -> Value {
    let example: Value = serde_json::from_str(example).unwrap_or_default();
    json!({
        "required": true,
        "content": { "application/json": { "schema": schema, "example": example } },
    })
}

fn id() -> Value {
    json!({
        "name": "id",
        "in": "path",
        "required": true,
        "description": "The `decisionId` of the denial",
        "schema": { "type": "string", "pattern": "^[0-9a-f]{32}$" },
    })
}

fn query() -> Vec<Value> {
    let text = |name: &str, description: &str| {
        json!({
            "name": name,
            "in": "query",
            "required": false,
            "description": description,
            "schema": { "type": "string" },
        })
    };
    vec![
        text("method", "The method whose limits are meant; `GET` where it is left out"),
        text("path", "The path whose limits are meant; `/` where it is left out"),
        json!({
            "name": "attributes",
            "in": "query",
            "required": true,
            "description": "Who is meant: at least one attribute, each a parameter of its own",
            "style": "form",
            "explode": true,
            "schema": {
                "type": "object",
                "additionalProperties": { "type": "string" },
                "minProperties": 1,
                "maxProperties": 64,
            },
            "example": { "user": "42" },
        }),
    ]
}
