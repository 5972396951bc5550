//! The document of the admin API, `OpenAPI` 3.1, written from the table of paths and the types that are
//! read and written. `cargo xtask openapi` keeps a copy of it in `docs/reference`.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::problem;
use super::query::Parameter;
use super::route::{Answered, DRY_RUN, ROUTES, Route};
use crate::api::{Schemas, described_body};

/// The one error that has no body.
const HEAD_TOO_LARGE: u16 = 431;

/// The document, as it is served.
pub(crate) fn document() -> &'static str {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| format!("{:#}\n", write()));
    &DOCUMENT
}

fn write() -> Value {
    let mut schemas = Schemas::new();
    let mut paths: Map<String, Value> = Map::new();
    for route in &ROUTES {
        let method = route.method.to_ascii_lowercase();
        let operations = paths.entry(route.path).or_insert_with(|| json!({}));
        operations[method] = operation(route, &mut schemas);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tollbar admin",
            "summary": "Limits that people change while requests are checked",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "http://127.0.0.1:8082" }],
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "responses": problems(&mut schemas),
            "schemas": schemas.named(),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "`tollbar token create`; its scopes say what it may do: `x-tollbar-scopes`",
                },
            },
        },
    })
}

fn operation(route: &Route, schemas: &mut Schemas) -> Value {
    let mut operation = json!({
        "operationId": format!("{:?}", route.what),
        "summary": route.summary,
        "responses": responses(route, schemas),
    });
    match route.need {
        Some(need) => operation["x-tollbar-scopes"] = json!(need.scopes()),
        None => operation["security"] = json!([]),
    }
    let parameters = parameters(route);
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    if let Some((schema, example)) = route.body {
        let schema = schema(&mut schemas.read).to_value();
        operation["requestBody"] = described_body(&schema, example);
    }
    operation
}

fn parameters(route: &Route) -> Vec<Value> {
    let id = route.id_name().map(|name| {
        json!({
            "name": name,
            "in": "path",
            "required": true,
            "schema": { "type": "string", "minLength": 1 },
        })
    });
    let if_match = route.if_match.then(|| {
        json!({
            "name": "If-Match",
            "in": "header",
            "required": true,
            "description": "The ETag of the version that is changed, or `*`",
            "schema": { "type": "string", "pattern": "^(\\*|\"[0-9]{1,19}\")$" },
            "example": "\"1\"",
        })
    });
    let dry_run = route.dry_run.then_some(Parameter::DryRun);
    let query = route.query.iter().copied().chain(dry_run).map(|it| {
        json!({
            "name": it.name(),
            "in": "query",
            "required": it.is_required(),
            "description": it.description(),
            "schema": it.schema(),
        })
    });
    id.into_iter().chain(if_match).chain(query).collect()
}

fn responses(route: &Route, schemas: &mut Schemas) -> Value {
    let mut responses = Map::new();
    let json_of = |schema: Value| json!({ "application/json": { "schema": schema } });
    let mut well = |status: &str, description: &str, content: Option<Value>| {
        let mut said = json!({ "description": description });
        if let Some(content) = content {
            said["content"] = content;
        }
        responses.insert(status.to_owned(), said);
    };
    match route.answer {
        Answered::Ok(schema) => {
            let mut schema = schema(&mut schemas.written).to_value();
            if route.dry_run {
                let dry_run = DRY_RUN(&mut schemas.written).to_value();
                schema = json!({ "anyOf": [schema, dry_run] });
            }
            well("200", "It is answered, or done", Some(json_of(schema)));
        }
        Answered::Created(schema) => {
            let schema = schema(&mut schemas.written).to_value();
            well("201", "It is made", Some(json_of(schema)));
        }
        Answered::Nothing => well("204", "It is done", None),
        Answered::Text(kinds) => {
            let text = || json!({ "schema": { "type": "string" } });
            let content: Map<String, Value> =
                kinds.iter().map(|kind| ((*kind).to_owned(), text())).collect();
            well("200", "It is answered", Some(Value::Object(content)));
        }
    }
    if route.dry_run && !matches!(route.answer, Answered::Ok(_)) {
        let dry_run = DRY_RUN(&mut schemas.written).to_value();
        well("200", "With `dryRun`: what would be different", Some(json_of(dry_run)));
    }
    for status in errors(route) {
        let named = format!("#/components/responses/{status}");
        responses.insert(status.to_string(), json!({ "$ref": named }));
    }
    Value::Object(responses)
}

/// What every error says, once for all paths.
fn problems(schemas: &mut Schemas) -> Value {
    let problem = schemas.written.subschema_for::<problem::Told<'_>>().to_value();
    let said = |status: u16| {
        let mut said = json!({ "description": described(status) });
        // That one comes before anybody reads the head.
        if status != HEAD_TOO_LARGE {
            said["content"] = json!({ "application/problem+json": { "schema": problem } });
        }
        (status.to_string(), said)
    };
    let statuses: BTreeSet<u16> = ROUTES.iter().flat_map(errors).collect();
    Value::Object(statuses.into_iter().map(said).collect())
}

/// What goes wrong there, and anywhere.
fn errors(route: &Route) -> impl Iterator<Item = u16> {
    let of_queries =
        (!route.query.is_empty() || route.dry_run || route.need.is_some()).then_some(400);
    let of_bodies = route.body.is_some().then_some([400, 408, 413, 422]);
    let of_tokens = route.need.is_some().then_some([401, 403, 429, 503]);
    let of_versions = route.if_match.then_some([412, 428]);
    let some = of_bodies.into_iter().flatten().chain(of_tokens.into_iter().flatten());
    let some = some.chain(of_versions.into_iter().flatten()).chain(of_queries);
    // A path that ends in an id is not found where the id is no text.
    some.chain(route.errors.iter().copied()).chain([405, HEAD_TOO_LARGE])
}

fn described(status: u16) -> &'static str {
    match status {
        400 => "It cannot be read",
        401 => "The token is missing, not known, expired or revoked",
        403 => "The token may not do that, or it is done elsewhere",
        404 => "There is no such thing",
        405 => "The path takes another method",
        408 => "The body did not come in time",
        409 => "There is one already",
        412 => "Somebody else has changed it since",
        413 => "The body is too large",
        422 => "It can be read, and cannot be meant: the fields are named",
        428 => "Which version is changed is not said: send `If-Match`",
        HEAD_TOO_LARGE => "Path, query and headers are more than 16 KiB",
        429 => "Too many wrong tokens came from this address",
        _ => "The database or the store does not answer; trying again is safe",
    }
}
