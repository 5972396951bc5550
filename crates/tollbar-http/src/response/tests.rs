//! Responses as clients read them.

use proptest::prelude::*;
use serde_json::Value;
use tollbar_rules::Request;

use super::*;
use crate::testing::{check, engine, engine_without_store};

fn denied(yaml: &str, costs: &[u64]) -> Verdict {
    let (engine, _) = engine(yaml);
    let (last, before) = costs.split_last().unwrap();
    for cost in before {
        let _ = check(&engine, *cost);
    }
    let verdict = check(&engine, *last);
    assert!(!verdict.is_allowed());
    verdict
}

fn response(verdict: &Verdict, format: Format) -> Response<Bytes> {
    Denial::new(verdict, verdict.retry_after()).response(format)
}

fn body(response: &Response<Bytes>) -> Value {
    serde_json::from_slice(response.body()).unwrap()
}

#[test]
fn too_many_requests_are_told_when_to_come_back() {
    let verdict = denied("rules: [{ name: a, limit: 2/100s, algorithm: fixed_window }]", &[2, 1]);
    let response = response(&verdict, Format::Json);
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "100");
    assert_eq!(response.headers()["content-type"], "application/json");
    let expected = json!({
        "error": "rate_limit_exceeded", "message": "Too many requests", "rule": "a",
    });
    assert_eq!(body(&response), expected);
}

#[test]
fn problems_are_of_the_registered_types_and_name_what_was_violated() {
    let yaml = "rules: [{ name: a, limit: [9/s, 2/min] }, { name: b, limit: 3/min }]";
    let verdict = denied(yaml, &[2, 2]);
    let response = response(&verdict, Format::Problem);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let body = body(&response);
    assert_eq!(body["type"], QUOTA_EXCEEDED);
    assert_eq!(body["status"], 429);
    assert_eq!(body["violated-policies"], json!(["a#2", "b"]));

    let engine = engine_without_store("rules: [{ name: a, limit: 2/min, on_store_failure: deny }]");
    let response = super::tests::response(&check(&engine, 1), Format::Problem);
    assert_eq!(super::tests::body(&response)["type"], REDUCED_CAPACITY);
    assert_eq!(response.headers()["retry-after"], "1");
}

#[test]
fn a_cost_that_never_fits_is_422_without_a_retry() {
    let verdict = denied("rules: [{ name: a, limit: 2/min }]", &[3]);
    for format in [Format::Json, Format::Problem] {
        let response = response(&verdict, format);
        assert_eq!(response.status(), 422);
        assert!(!response.headers().contains_key("retry-after"));
    }
    assert_eq!(body(&response(&verdict, Format::Json))["error"], "cost_exceeds_limit");
    assert_eq!(response(&verdict, Format::Grpc).headers()["grpc-status"], "3");
}

#[test]
fn a_request_that_lacks_what_its_rule_counts_by_is_400() {
    let (engine, _) = engine("rules: [{ name: a, limit: 2/min, per: [user], missing: deny }]");
    let verdict = engine.check(&Request::new("GET", "/").unwrap());
    let response = response(&verdict, Format::Json);
    assert_eq!(response.status(), 400);
    assert_eq!(body(&response)["error"], "missing_attribute");
    assert_eq!(body(&response)["rule"], "a");
}

#[test]
fn grpc_clients_get_a_status() {
    let verdict = denied("rules: [{ name: a, limit: 2/min }]", &[2, 1]);
    let response = response(&verdict, Format::Grpc);
    assert_eq!((response.status().as_u16(), response.body().len()), (200, 0));
    assert_eq!(response.headers()["grpc-status"], "8");
    assert!(response.headers().contains_key("grpc-status-details-bin"));
}

#[test]
fn a_path_that_is_too_long_is_414() {
    let path = format!("/{}", "a".repeat(10_000));
    let error = Request::new("GET", &path).unwrap_err();
    assert_eq!(refusal(&error.into(), Format::Json).status(), 414);
    let deep = "/a".repeat(300);
    let response = refusal(&Request::new("GET", &deep).unwrap_err().into(), Format::Problem);
    assert_eq!(response.status(), 400);
    assert_eq!(body(&response)["type"], "about:blank");
}

#[test]
fn the_form_is_what_the_client_accepts() {
    let table = [
        ("accept", "*/*", Format::Json),
        ("accept", "application/problem+json", Format::Problem),
        ("accept", "text/html, Application/Problem+JSON;q=0.5", Format::Problem),
        ("accept", "application/problem+json; q=0.000", Format::Json),
        ("accept", "application/problem+jsonx", Format::Json),
        ("content-type", "application/grpc", Format::Grpc),
    ];
    for (name, value, format) in table {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_static(value));
        assert_eq!(Format::wanted(&headers), format, "{name}: {value}");
    }
}

proptest! {
    #[test]
    fn any_bytes_in_headers_have_a_form(accept: Vec<u8>, content_type: Vec<u8>) {
        let mut headers = HeaderMap::new();
        for (name, bytes) in [(header::ACCEPT, accept), (header::CONTENT_TYPE, content_type)] {
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                headers.insert(name, value);
            }
        }
        let _ = Format::wanted(&headers);
    }
}
