//! Responses of the admin API over HTTP, as they are sent and as the document describes them.

use aide::OperationOutput;
use aide::generate::GenContext;
use aide::openapi::{Operation, Response, StatusCode as Status};
use axum::body::Body;
use axum::response::IntoResponse;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, LOCATION,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, StatusCode};
use schemars::{JsonSchema, Schema, json_schema};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::operations::precondition::etag;
use crate::operations::proposal::DryRun;
use crate::operations::rule_json::RuleJson;
use crate::operations::rules::ChangeResult;
use tollbar_daemon::openapi::response;
use tollbar_daemon::problem::Problem;
use tollbar_daemon::protocol::http::{BoundsResponse, ExplainResponse};
use tollbar_rules::LimitBounds;

/// A response, with its body.
pub(crate) type HttpResponse = axum::response::Response;

/// Defines a response: what it is made of, how it is sent, and for the document each status that it may have
/// with its meaning and the schemas of its body.
macro_rules! response_type {
    ($(#[$doc:meta])* $name:ident $(<$T:ident>)? ($inner:ty) => $send:expr,
     $($status:literal $meaning:literal $content:expr),+) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name $(<$T>)? (pub(crate) $inner);

        impl$(<$T: Serialize>)? IntoResponse for $name $(<$T>)? {
            fn into_response(self) -> HttpResponse {
                let send: fn($inner) -> HttpResponse = $send;
                send(self.0)
            }
        }

        impl$(<$T: JsonSchema>)? OperationOutput for $name $(<$T>)? {
            type Inner = Self;

            fn inferred_responses(
                context: &mut GenContext,
                _: &mut Operation,
            ) -> Vec<(Option<Status>, Response)> {
                vec![$((Some(Status::Code($status)), response($meaning, $content(context)))),+]
            }
        }
    };
}

response_type! {
    /// 200 and JSON.
    Json<T>(T) => |body| json(StatusCode::OK, &body), 200 "It is answered, or done" json_body::<T>
}
response_type! {
    /// 201 and JSON.
    Created<T>(T) => |body| json(StatusCode::CREATED, &body), 201 "It is made" json_body::<T>
}
response_type! {
    /// 204.
    NoContent(()) => |()| no_content(), 204 "It is done" no_body
}
response_type! {
    /// A rule that was made, or what making it would do.
    CreatedRule(ChangeResult) => |change| rule(StatusCode::CREATED, change),
    200 "With `dryRun`: what would be different" json_body::<DryRun>,
    201 "It is made" json_body::<RuleJson>
}
response_type! {
    /// A rule that was changed, or what the change would do.
    ChangedRule(ChangeResult) => |change| rule(StatusCode::OK, change),
    200 "It is answered, or done" rule_or_dry_run
}
response_type! {
    /// A rule that was deleted, or what that would do.
    DeletedRule(Option<Box<DryRun>>) => |dry_run| match dry_run {
        None => no_content(),
        Some(dry_run) => json(StatusCode::OK, &dry_run),
    },
    200 "With `dryRun`: what would be different" json_body::<DryRun>,
    204 "It is done" no_body
}
response_type! {
    /// A rule that was found.
    RuleResponse(Box<RuleJson>) => |found| rule(StatusCode::OK, ChangeResult::Done(found)),
    200 "It is answered, or done" json_body::<RuleJson>
}
response_type! {
    /// All of what was used, as a stream.
    UsageExport(HttpResponse) => |response| response,
    200 "It is answered" |_| text_bodies(&["text/csv", "application/jsonl"])
}
response_type! {
    /// What every rule makes of a request.
    Explanation(tollbar_daemon::protocol::http::ApiResponse) => |response| response.map(Body::from),
    200 "It is answered, or done" json_body::<ExplainResponse<'static>>
}
response_type! {
    /// What each limit of a rule admits.
    Bounds(Vec<LimitBounds>) => |bounds| json(StatusCode::OK, &BoundsResponse::new(&bounds)),
    200 "It is answered, or done" json_body::<BoundsResponse<'static>>
}
response_type! {
    /// A document that is part of the program.
    Document(&'static str) => |text| respond_with_body("application/json", text.into()),
    200 "It is answered, or done" json_body::<Map<String, Value>>
}
response_type! {
    /// A page that is part of the program.
    Page(&'static str) => |text| respond_with_body("text/html; charset=utf-8", text.into()),
    200 "It is answered" |_| text_bodies(&["text/html"])
}

/// Returns the response with the methods that a path takes, if the router found that it does not take this one.
pub(crate) fn with_allowed_methods(method: &Method, response: HttpResponse) -> HttpResponse {
    if response.status() != StatusCode::METHOD_NOT_ALLOWED {
        return response;
    }
    let allow =
        response.headers().get(ALLOW).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_taken =
        |method: &&str| *method == "OPTIONS" || allow.split(',').any(|allowed| allowed == *method);
    let methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"];
    let allow = methods.into_iter().filter(is_taken).collect::<Vec<_>>().join(", ");
    if method == Method::OPTIONS {
        return with_header(no_content(), ALLOW, &allow);
    }
    Problem::wrong_method(allow).into_response()
}

/// Answers for a rule that was made or changed, with its version as `ETag`; or for a dry run.
fn rule(status: StatusCode, outcome: ChangeResult) -> HttpResponse {
    match outcome {
        ChangeResult::DryRun(dry_run) => json(StatusCode::OK, &dry_run),
        ChangeResult::Done(rule) => {
            let mut response = json(status, &rule);
            // A rule of the file has no version.
            if let Some(version) = rule.version {
                response = with_header(response, ETAG, &etag(version));
            }
            if status != StatusCode::CREATED {
                return response;
            }
            with_header(response, LOCATION, &format!("/v1/rate-limit/rules/{}", rule.id()))
        }
    }
}

fn json(status: StatusCode, body: &impl Serialize) -> HttpResponse {
    // Fails only for maps whose keys are no texts, and there are none.
    let mut bytes = serde_json::to_vec(body).unwrap_or_default();
    bytes.push(b'\n');
    let mut response = respond_with_body("application/json", bytes.into());
    *response.status_mut() = status;
    response
}

fn no_content() -> HttpResponse {
    let mut response = respond_with_body("", Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().remove(CONTENT_TYPE);
    response
}

/// Answers 200 with a body of a media type.
pub(crate) fn respond_with_body(kind: &'static str, body: Body) -> HttpResponse {
    let mut response = HttpResponse::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    // What a token may see is nobody else's business, and a cache would not ask for it.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

pub(crate) fn with_header(
    mut response: HttpResponse,
    name: HeaderName,
    value: &str,
) -> HttpResponse {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
    response
}

type Content = Vec<(&'static str, Schema)>;

fn no_body(_: &mut GenContext) -> Content {
    Vec::new()
}

fn json_body<T: JsonSchema>(context: &mut GenContext) -> Content {
    vec![("application/json", context.schema.subschema_for::<T>())]
}

fn rule_or_dry_run(context: &mut GenContext) -> Content {
    let (rule, dry_run) =
        (context.schema.subschema_for::<RuleJson>(), context.schema.subschema_for::<DryRun>());
    vec![("application/json", json_schema!({ "anyOf": [rule, dry_run] }))]
}

fn text_bodies(kinds: &[&'static str]) -> Content {
    kinds.iter().map(|kind| (*kind, json_schema!({ "type": "string" }))).collect()
}
