//! The document of the interface for checks, written from the table of paths and from the types that are
//! read and written. `cargo xtask openapi` keeps a copy of it in `docs/reference`.

use std::sync::LazyLock;

use aide::generate::{GenContext, in_context};
use aide::openapi::{OpenApi, Operation, PathItem, ReferenceOr};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::refusal::{ErrorBody, ProblemBody};
use super::request::{CheckRequest, RequestForm};
use super::route::{CHECK, EXPLAIN, ROUTES, RequestInput, Route};
use crate::openapi::{
    self, Interface, add_parameter, parse, request_schema, respond, response, set_json_body,
    set_open,
};
use crate::protocol::forward_auth::openapi as forward_auth;

const INTERFACE: Interface = Interface {
    title: "Tollbar",
    summary: "May a request pass? Rate limits over HTTP",
    server: "http://127.0.0.1:8080",
};

/// What is sent to have a request explained.
pub struct ExplainRequest;

/// Returns the document, as it is served.
pub fn document() -> &'static str {
    static DOCUMENT: LazyLock<String> = LazyLock::new(write);
    &DOCUMENT
}

fn write() -> String {
    openapi::begin();
    let mut api = OpenApi::default();
    let paths = &mut api.paths.get_or_insert_default().paths;
    in_context(|context| {
        for route in ROUTES {
            let (operation, mut item) = (operation(route, context), PathItem::default());
            let method = if route.has_body() { &mut item.post } else { &mut item.get };
            *method = Some(operation);
            paths.insert(route.path.to_owned(), ReferenceOr::Item(item));
        }
        // Those of a batch are checks.
        let check = request_schema(context, |generator| form_schema(&CHECK, generator));
        let named = context.schema.definitions_mut();
        named.insert(CheckRequest::schema_name().into_owned(), check.to_value());
    });
    let proxies: PathItem = parse(forward_auth::operations());
    paths.insert(forward_auth::PATH.to_owned(), ReferenceOr::Item(proxies));
    let schemes = json!({
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "The token of --token-file; without that flag none is asked for",
        },
        "proxyToken": forward_auth::token(),
    });
    openapi::finish(&mut api, INTERFACE, schemes)
}

impl ExplainRequest {
    pub const EXAMPLE: &str = EXPLAIN.example;

    pub fn schema(generator: &mut SchemaGenerator) -> Schema {
        form_schema(&EXPLAIN, generator)
    }
}

/// The fields of a question that the form takes.
fn form_schema(form: &RequestForm, generator: &mut SchemaGenerator) -> Schema {
    let mut schema = CheckRequest::json_schema(generator);
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|field, _| form.fields.contains(&field.as_str()));
    }
    schema.insert("title".to_owned(), form.name.into());
    schema.remove("description");
    if !form.required.is_empty() {
        schema.insert("required".to_owned(), json!(form.required));
    }
    schema
}

fn operation(route: &Route, context: &mut GenContext) -> Operation {
    // Two paths, one meaning.
    let is_readiness = route.path == "/readyz";
    let id = if is_readiness { "Readiness".to_owned() } else { format!("{:?}", route.operation) };
    let mut operation = Operation {
        operation_id: Some(id),
        summary: Some(route.summary.to_owned()),
        ..Operation::default()
    };
    if route.is_open {
        set_open(&mut operation);
    }
    match &route.input {
        RequestInput::Nothing => {}
        RequestInput::Id => add_parameter(&mut operation, id_parameter()),
        RequestInput::Query => {
            for parameter in query() {
                add_parameter(&mut operation, parameter);
            }
        }
        RequestInput::Check(form) => {
            let schema = request_schema(context, |generator| form_schema(form, generator));
            set_json_body(&mut operation, &schema, form.example);
        }
        RequestInput::Body(schema, example) => {
            let schema = request_schema(context, schema);
            set_json_body(&mut operation, &schema, example);
        }
    }
    describe_responses(route, context, &mut operation);
    operation
}

fn describe_responses(route: &Route, context: &mut GenContext, operation: &mut Operation) {
    let answer = (route.answer)(&mut context.schema);
    let error = context.schema.subschema_for::<ErrorBody<'_>>();
    let problem = context.schema.subschema_for::<ProblemBody<'_>>();
    let bodies = route.kinds.iter().map(|kind| (*kind, answer.clone()));
    respond(operation, 200, ReferenceOr::Item(response("It is answered", bodies)));
    respond(operation, 431, ReferenceOr::Item(response(described(431), None)));
    let mut refuse = |status: u16, schema: &Schema| {
        let bodies =
            [("application/json", schema.clone()), ("application/problem+json", problem.clone())];
        respond(operation, status, ReferenceOr::Item(response(described(status), bodies)));
    };
    for status in common_errors(route).chain(route.errors.iter().copied()) {
        refuse(status, &error);
    }
    for status in route.verdicts {
        refuse(*status, &answer);
    }
    if !route.verdicts.is_empty() {
        // A receipt that is too long tells of its verdict, a body that cannot be used does not. A cost that never passes
        // tells of its verdict, a subject that is several counters does not. A denial tells of its verdict, too many
        // wrong tokens do not.
        for status in [400, 422, 429] {
            refuse(status, &json_schema!({ "anyOf": [error, answer] }));
        }
    }
}

/// What any such path may answer.
fn common_errors(route: &Route) -> impl Iterator<Item = u16> {
    let of_bodies = route.has_body().then_some([400, 408, 413]);
    let of_queries = matches!(route.input, RequestInput::Query).then_some(400);
    let of_tokens = (!route.is_open).then_some([401, 429]).into_iter().flatten();
    let of_content_types = route.is_sensitive().then_some(415);
    let of_bodies = of_bodies.into_iter().flatten();
    of_bodies.chain(of_queries).chain(of_tokens).chain(of_content_types).chain([403, 405])
}

fn described(status: u16) -> &'static str {
    match status {
        400 => "It cannot be used; nothing was charged",
        401 => "The token is missing or wrong",
        403 => "`Host` names another machine, or a web page of another site has sent it",
        404 => "There is no such thing",
        405 => "The path takes another method",
        408 => "The body did not come in time",
        409 => "It was used before, for something else, or its time is up",
        413 => "The body is too large",
        415 => "The body is not said to be JSON",
        422 => {
            "Never: it costs more than a limit can hold. Or it does not say which counter is meant. Nothing was charged"
        }
        429 => "Not now; nothing was charged. Or too many wrong tokens came from this address",
        431 => "Path, query and headers are more than 16 KiB",
        500 => "The rules have to be changed; nothing was charged",
        _ => "The store cannot answer; trying again is safe",
    }
}

fn id_parameter() -> Value {
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
