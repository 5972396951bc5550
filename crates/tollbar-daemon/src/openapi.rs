//! The one writer of `OpenAPI` 3.1 documents, by `aide`. The admin API's router describes itself with it;
//! the interface for checks, whose requests are dispatched by hand, describes its table of paths.

use std::mem;

use aide::generate::{GenContext, in_context};
use aide::openapi::{
    Components, MediaType, OpenApi, Operation, ReferenceOr, RequestBody, Response, SchemaObject,
    StatusCode,
};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Describes a type with a generator.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// What a document says about the whole interface.
#[derive(Debug, Clone, Copy)]
pub struct Interface {
    pub title: &'static str,
    pub summary: &'static str,
    /// An address that the interface has by default.
    pub server: &'static str,
}

/// Prepares this thread's context for a document. The context describes types as they are written; see
/// [`request_schema`] for those that are read.
pub fn begin() {
    in_context(|context| context.schema = settings().for_serialize().into_generator());
}

/// Completes `api`, which has its paths, with schemas and with what holds for all paths; returns it as text.
pub fn finish(api: &mut OpenApi, interface: Interface, security_schemes: Value) -> String {
    api.info = parse(json!({
        "title": interface.title,
        "summary": interface.summary,
        "version": env!("CARGO_PKG_VERSION"),
        "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
    }));
    api.servers = parse(json!([{ "url": interface.server }]));
    api.security = parse(json!([{ "token": [] }]));
    let components = api.components.get_or_insert_default();
    components.security_schemes = parse(security_schemes);
    take_schemas(components);
    let document = serde_json::to_value(api).expect("keys of a document are texts");
    format!("{document:#}\n")
}

fn take_schemas(components: &mut Components) {
    let schemas = in_context(|context| context.schema.take_definitions(true));
    let named = schemas.into_iter().map(|(name, schema)| (name, schema_object(&parse(schema))));
    components.schemas.extend(named);
}

/// Returns the schema of a type as clients send it. A field that a request may leave out is always in a
/// response, so the two are described apart; their names are shared.
pub fn request_schema(
    context: &mut GenContext,
    describe: impl FnOnce(&mut SchemaGenerator) -> Schema,
) -> Schema {
    let mut generator = settings().for_deserialize().into_generator();
    *generator.definitions_mut() = mem::take(context.schema.definitions_mut());
    let schema = describe(&mut generator);
    *context.schema.definitions_mut() = mem::take(generator.definitions_mut());
    schema
}

/// Returns a type's schema, or a reference to it.
pub fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

fn settings() -> SchemaSettings {
    SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    })
}

/// Adds a response to an operation.
pub fn respond(operation: &mut Operation, status: u16, response: ReferenceOr<Response>) {
    let responses = &mut operation.responses.get_or_insert_default().responses;
    responses.insert(StatusCode::Code(status), response);
}

/// Returns a response with a body of one of these media types.
pub fn response<'k>(
    description: &str,
    content: impl IntoIterator<Item = (&'k str, Schema)>,
) -> Response {
    let content = content.into_iter().map(|(kind, schema)| {
        let schema = Some(schema_object(&schema));
        (kind.to_owned(), MediaType { schema, ..MediaType::default() })
    });
    Response {
        description: description.to_owned(),
        content: content.collect(),
        ..Response::default()
    }
}

/// Sets the JSON body that an operation takes.
pub fn set_json_body(operation: &mut Operation, schema: &Schema, example: &str) {
    let example: Value = serde_json::from_str(example).expect("examples are JSON");
    let body: RequestBody = parse(json!({
        "required": true,
        "content": { "application/json": { "schema": schema, "example": example } },
    }));
    operation.request_body = Some(ReferenceOr::Item(body));
}

/// Adds a parameter to an operation.
pub fn add_parameter(operation: &mut Operation, parameter: Value) {
    operation.parameters.push(ReferenceOr::Item(parse(parameter)));
}

/// Marks an operation that needs no token.
pub fn set_open(operation: &mut Operation) {
    // `aide` leaves an empty list of requirements out, which would mean those of the document.
    operation.extensions.insert("security".to_owned(), json!([]));
}

/// Reads a part of a document that is written in this program.
pub(crate) fn parse<T: DeserializeOwned>(part: Value) -> T {
    serde_json::from_value(part).expect("parts of documents are part of the program")
}

fn schema_object(schema: &Schema) -> SchemaObject {
    SchemaObject { json_schema: schema.clone(), external_docs: None, example: None }
}

/// Adds the errors that the document describes under these statuses to an operation.
pub fn refuse(operation: &mut Operation, statuses: &[u16]) {
    for status in statuses {
        let named = format!("#/components/responses/{status}");
        respond(operation, *status, ReferenceOr::ref_(&named));
    }
}
