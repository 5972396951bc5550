//! The table, asked of the real daemon as Envoy's filter `ext_authz` asks over gRPC. Attributes and costs are headers
//! that Envoy sets.

use tollbar_proto::envoy::service::auth::v3::CheckResponse;
use tollbar_proto::envoy::service::auth::v3::check_response::HttpResponse;

use super::forward_auth::{client_address, headers, serve};
use super::step::{Expect, Step};
use super::{Answer, COUNTED, WITHOUT_STORE, go_through, limit_headers};
use crate::common::Scratch;
use crate::ext_authz::{ExtAuthzClient, headers_of, held, status_of};

#[test]
fn ext_authz_answers_as_the_tables_say() {
    for table in [&COUNTED, &WITHOUT_STORE] {
        let scratch = Scratch::new("conformance-ext-authz");
        let daemon = serve(table, &scratch, &[]);
        let mut client = ExtAuthzClient::connect(&daemon);
        go_through(table, |step| {
            let request = held(client_address(step), step.method, step.path, headers(step));
            answer(step, client.check(request))
        });
        drop(client);
        assert_eq!(daemon.stop(), 0);
    }
}

fn answer(step: &Step, response: CheckResponse) -> Answer {
    let status = status_of(&response);
    let body = match response.http_response.as_ref().unwrap() {
        HttpResponse::DeniedResponse(denied) => Some(denied.body.clone()),
        HttpResponse::OkResponse(_) | HttpResponse::ErrorResponse(_) => None,
    };
    if step.path == "/jobs" {
        // Envoy does not say when a request is over, so such rules are refused.
        assert_eq!(status, 400, "{body:?}");
        assert!(body.unwrap().contains("limits what is in flight"));
        return Answer::only(step.expected.outcome);
    }
    let lines = headers_of(response);
    let header = |name: &str| lines.get(name).map(String::as_str);
    let denial = body.map(|body| serde_json::from_str(&body).unwrap());
    let answer = limit_headers::answer_of_any_status(step, header, denial.as_ref());
    let expected = match answer.outcome {
        Expect::Allow => 200,
        Expect::Never => 422,
        _ => 429,
    };
    assert_eq!(status, expected, "{step:?} gave {answer:?}");
    answer
}
