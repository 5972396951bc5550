//! What clients get: a status, headers and JSON, written once into the buffer that is sent.

use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;

/// A response, all of it.
pub type ApiResponse = Response<Bytes>;

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(super) const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Room for the answer to a check of one rule: more grows, less is not worth the saving.
const BODY_BYTES_USUAL: usize = 640;

/// Room for the headers of a check that is allowed: as many as the smallest map has room for, and the
/// next larger one is more than the allocator has at hand. What hyper adds does not go there.
const HEADERS_ALLOWED: usize = 6;

/// The same of one that is denied.
const HEADERS_DENIED: usize = 12;

/// An answer with JSON in it.
pub(super) fn json(status: StatusCode, kind: HeaderValue, value: &impl Serialize) -> ApiResponse {
    // Fails only for maps whose keys are no texts, and there are none.
    body(status, kind, |to| serde_json::to_writer(to, value).unwrap_or_default())
}

/// An answer with JSON in it that is written by `write`.
pub(super) fn body(
    status: StatusCode,
    kind: HeaderValue,
    write: impl FnOnce(&mut Vec<u8>),
) -> ApiResponse {
    let mut bytes = Vec::with_capacity(BODY_BYTES_USUAL);
    write(&mut bytes);
    bytes.push(b'\n');
    let is_allowed = status == StatusCode::OK;
    let mut headers =
        HeaderMap::with_capacity(if is_allowed { HEADERS_ALLOWED } else { HEADERS_DENIED });
    headers.insert(CONTENT_TYPE, kind);
    if !is_allowed {
        // What one client was denied is no answer to another.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    with_headers(status, headers, bytes.into())
}

/// An answer without a body.
pub(super) fn empty(status: StatusCode, headers: HeaderMap) -> ApiResponse {
    with_headers(status, headers, Bytes::new())
}

/// An answer with JSON that is written already.
pub(super) fn static_json(text: &'static str) -> ApiResponse {
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, JSON)]);
    with_headers(StatusCode::OK, headers, Bytes::from_static(text.as_bytes()))
}

/// An answer with text of another kind.
pub(super) fn text(kind: HeaderValue, text: String) -> ApiResponse {
    let no_store = HeaderValue::from_static("no-store");
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, kind), (CACHE_CONTROL, no_store)]);
    with_headers(StatusCode::OK, headers, text.into())
}

fn with_headers(status: StatusCode, headers: HeaderMap, body: Bytes) -> ApiResponse {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    answer
}
