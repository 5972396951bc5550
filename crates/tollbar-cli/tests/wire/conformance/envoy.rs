//! The table, asked of the real daemon by Envoy's protocol: a request is a descriptor, its attributes are
//! entries. Its status has one word for all denials, and the body for Envoy's client says more.

use tollbar_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollbar_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollbar_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

use super::step::{Expect, Step};
use super::{Answer, COUNTED, Field, Table, WITHOUT_STORE, go_through};
use crate::common::Scratch;

#[test]
fn envoy_s_protocol_answers_as_the_tables_say() {
    for table in [&COUNTED, &WITHOUT_STORE] {
        answers_as(table);
    }
}

fn answers_as(table: &Table) {
    let scratch = Scratch::new("conformance-envoy");
    let daemon = table.serve(&scratch, &["--envoy-charge", "all-or-none"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let uri = format!("http://{}", daemon.address("grpc"));
    let endpoint = tonic::transport::Endpoint::from_shared(uri).unwrap();
    let mut client = RateLimitServiceClient::new(runtime.block_on(endpoint.connect()).unwrap());
    go_through(table, |step| {
        if step.path == "/jobs" {
            // Envoy never says when a request is over, so limits on what is in flight do not apply to it.
            let response = runtime.block_on(client.should_rate_limit(request(step))).unwrap();
            assert_eq!(response.get_ref().overall_code(), Code::Ok);
            return Answer::only(step.expected.outcome);
        }
        let response = runtime.block_on(client.should_rate_limit(request(step))).unwrap();
        let response = response.into_inner();
        let status = &response.statuses[0];
        assert_eq!(response.overall_code, status.code);
        let outcome = if status.code == Code::Ok as i32 {
            Expect::Allow
        } else {
            outcome_of(&response.raw_body, step.expected.outcome)
        };
        let limit = status.current_limit.as_ref();
        Answer {
            outcome,
            // The name comes with a limit, and without one there is none.
            rule: limit.map_or(Field::Unsupported, |limit| Field::Is(Some(limit.name.clone()))),
            // A limit without a reset is left out: Envoy would write headers from it.
            limit: match (limit, step.expected.has_reset()) {
                (None, false) => Field::Unsupported,
                _ => Field::Is(limit.map(|limit| limit.requests_per_unit.into())),
            },
            remaining: match (limit, step.expected.has_reset()) {
                (None, false) => Field::Unsupported,
                _ => Field::Is(limit.map(|_| status.limit_remaining.into())),
            },
            has_reset: Field::Is(Some(status.duration_until_reset.is_some())),
            is_degraded: Field::Unsupported,
        }
    });
    drop(client);
    drop(runtime);
    assert_eq!(daemon.stop(), 0);
}

/// The outcome that a body tells Envoy's client. It has one word for limits that are used up and for permits.
fn outcome_of(body: &[u8], expected: Expect) -> Expect {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap();
    match body["error"].as_str() {
        Some("missing_attribute") => Expect::Lacks,
        Some("too_many_limits") => Expect::TooMany,
        Some("cost_exceeds_limit") => Expect::Never,
        Some("rate_limit_exceeded") if expected == Expect::Busy => Expect::Busy,
        Some("rate_limit_exceeded") => Expect::Deny,
        _ => panic!("{body}"),
    }
}

fn request(step: &Step) -> RateLimitRequest {
    let entry = |(key, value): (&str, &str)| Entry { key: key.to_owned(), value: value.to_owned() };
    // As Envoy's own actions name them.
    let named = |(name, value): &(&'static str, &'static str)| match *name {
        "ip" => ("remote_address", *value),
        name => (name, *value),
    };
    let own = [(":method", step.method), (":path", step.path)];
    let entries = own.into_iter().chain(step.attributes.iter().map(named)).map(entry);
    let descriptor = RateLimitDescriptor {
        entries: entries.collect(),
        hits_addend: Some(step.cost),
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: "conformance".to_owned(),
        descriptors: vec![descriptor],
        hits_addend: 0,
    }
}
