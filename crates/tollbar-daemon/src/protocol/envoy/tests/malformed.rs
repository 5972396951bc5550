//! Calls that cannot be decided: each is denied, because Envoy lets pass what is answered with an error.

use super::*;
use crate::protocol::envoy::charge_plan::{ChargePlan, DescriptorStep, call_problem};

/// Why a call cannot be decided, as the log has it.
fn why(request: &RateLimitRequest) -> String {
    let of_step = |(at, step): (usize, DescriptorStep)| match step {
        DescriptorStep::Reject(why) => Some(format!("descriptors[{at}]: {why}")),
        _ => None,
    };
    call_problem(request).unwrap_or_else(|| {
        let steps = ChargePlan::of_rules(request).steps;
        steps.into_iter().enumerate().find_map(of_step).unwrap()
    })
}

#[test]
fn every_malformed_call_is_denied_counted_and_says_why() {
    let many = |count| vec![[("k", "v")]; count];
    let descriptors = many(65);
    let descriptors: Vec<&[(&str, &str)]> =
        descriptors.iter().map(|descriptor| &descriptor[..]).collect();
    let entries = vec![("k", "v"); 65];
    for (request, message) in [
        (
            call("", &[&[("k", "v")]]),
            "the domain is empty: set `domain` in Envoy's rate limit filter",
        ),
        (call("d", &[]), "there is no descriptor: send at least one"),
        (call("d", &descriptors), "65 descriptors are too many: send at most 64"),
        (call("d", &[&[("k", "v")], &[]]), "descriptors[1]: it has no entries: send at least one"),
        (
            call("d", &[&[("k", "v"), ("", "v")]]),
            "descriptors[0]: it has an entry without a key: name all of them",
        ),
        (call("d", &[&entries]), "descriptors[0]: 65 entries are too many: send at most 64"),
    ] {
        let file = "{ domain: d, descriptors: [{ key: k }] }";
        for service in [TestService::from_file(file), TestService::from_rules("rules: []")] {
            let response = service.ask(&request).unwrap();
            assert_eq!(name(response.overall_code), "OVER", "{message}");
            assert_eq!(response.statuses.len(), request.descriptors.len());
            assert!(response.raw_body.starts_with(br#"{"error":"invalid_request","message":"#));
            assert_eq!(service.count("rejected"), 1, "{message}");
        }
        assert_eq!(why(&request), message);
    }
    let descriptors = many(64);
    let descriptors: Vec<&[(&str, &str)]> =
        descriptors.iter().map(|descriptor| &descriptor[..]).collect();
    assert!(TestService::from_rules("rules: []").ask(&call("d", &descriptors)).is_ok());
}

/// What the fuzzer `rls` does for longer.
#[test]
fn calls_with_any_bytes_changed_have_an_answer() {
    use prost::Message;

    use super::super::fuzz::EnvoyFuzzer;

    let limits = "
domain: d
descriptors:
  - { key: a, value: b*, share_threshold: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: c, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 4294967295, name: n } }
  - { key: e, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 0, replaces: [{ name: n }] } }
";
    let calls = EnvoyFuzzer::new(limits).unwrap();
    let mut whole = call("d", &[&[("a", "bc")], &[("c", "1")], &[("e", "1"), ("f", "2")]]);
    whole.descriptors[1].limit = Some(RateLimitOverride { requests_per_unit: 1, unit: 4 });
    let whole = giving_back(whole, 3).encode_to_vec();
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..random.usize(0..4) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        bytes.truncate(random.usize(bytes.len() / 2..=bytes.len()));
        let result = futures_util::FutureExt::now_or_never(calls.answer(&bytes));
        assert_eq!(result, Some(true), "{bytes:?}");
    }
}
