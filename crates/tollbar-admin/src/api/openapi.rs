//! The document of the admin API, written by its router. `cargo xtask openapi` keeps a copy of it in
//! `docs/reference`.

use std::sync::LazyLock;

use aide::generate::in_context;
use aide::openapi::{OpenApi, Operation, PathItem, ReferenceOr};
use serde_json::json;

use crate::api::routes::routes;
use tollbar_daemon::openapi::{self, Interface, add_parameter, refuse, response};
use tollbar_daemon::problem;

/// The paths of the API with their operations, and the document as it is served.
pub(crate) static API: LazyLock<(OpenApi, String)> = LazyLock::new(write);

const INTERFACE: Interface = Interface {
    title: "Tollbar admin",
    summary: "Limits that people change while requests are checked",
    server: "http://127.0.0.1:8082",
};

/// Every error there is, once for all paths.
const ERRORS: [(u16, &str); 14] = [
    (400, "It cannot be read"),
    (401, "The token is missing, not known, expired or revoked"),
    (403, "The token may not do that, or it is done elsewhere"),
    (404, "There is no such thing"),
    (405, "The path takes another method"),
    (408, "The body did not come in time"),
    (409, "There is one already, or a row of the database is no rule"),
    (412, "Somebody else has changed it since"),
    (413, "The body is too large"),
    (422, "It can be read, and cannot be meant: the fields are named"),
    (428, "Which version is changed is not said: send `If-Match`"),
    (429, "Too many wrong tokens came from this address, or the tenant writes too often"),
    (HEAD_TOO_LARGE, "Path, query and headers are more than 16 KiB"),
    (503, "The database or the store does not answer; trying again is safe"),
];

/// The one error that has no body: it comes before anybody reads the head.
const HEAD_TOO_LARGE: u16 = 431;

/// Returns the document, as it is served.
pub fn document() -> &'static str {
    &API.1
}

fn write() -> (OpenApi, String) {
    openapi::begin();
    let mut api = OpenApi::default();
    #[expect(clippy::let_underscore_must_use, reason = "the document is wanted, not the routes")]
    let _ = routes().finish_api_with(&mut api, |mut whole| {
        let api = whole.inner_mut();
        let paths = api.paths.iter_mut().flat_map(|paths| &mut paths.paths);
        for (path, item) in paths {
            let name = path.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
            for operation in item.as_item_mut().into_iter().flat_map(operations) {
                refuse(operation, &[405, HEAD_TOO_LARGE]);
                if let Some((name, _)) = name {
                    let id = json!({
                        "name": name,
                        "in": "path",
                        "required": true,
                        "schema": { "type": "string", "minLength": 1 },
                    });
                    add_parameter(operation, id);
                    // Where people look for it first.
                    operation.parameters.rotate_right(1);
                }
            }
        }
        let components = api.components.get_or_insert_default();
        let problem =
            in_context(|context| context.schema.subschema_for::<problem::ProblemJson<'_>>());
        for (status, description) in ERRORS {
            let content = ("application/problem+json", problem.clone());
            let content = Some(content).filter(|_| status != HEAD_TOO_LARGE);
            let response = ReferenceOr::Item(response(description, content));
            components.responses.insert(status.to_string(), response);
        }
        whole
    });
    let schemes = json!({
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "`tollbar token create`; its scopes say what it may do: `x-tollbar-scopes`",
        },
    });
    let document = openapi::finish(&mut api, INTERFACE, schemes);
    (api, document)
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, post, put, delete, .. } = item;
    [get, post, put, delete].into_iter().flatten()
}
