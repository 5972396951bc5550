//! Any bytes are a call of Envoy's protocol or none, and every call has an answer. No panic.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tollbar_daemon::protocol::envoy::fuzz::EnvoyFuzzer;

/// Limits of all kinds, in a domain that fuzzers find soon.
const LIMITS: &str = "
domain: d
descriptors:
  - { key: a, rate_limit: { unit: second, requests_per_unit: 3 } }
  - { key: a, value: b*, share_threshold: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: b, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 0 } }
  - { key: c, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 4294967295, name: n } }
  - { key: e, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 1, replaces: [{ name: n }] } }
  - { key: f, rate_limit: { unlimited: true }, descriptors: [{ key: a, rate_limit: { unit: day } }] }
";

static CALLS: LazyLock<EnvoyFuzzer> = LazyLock::new(|| EnvoyFuzzer::new(LIMITS).expect("they are in order"));

fuzz_target!(|bytes: &[u8]| {
    let mut answer = std::pin::pin!(CALLS.answer(bytes));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    // Memory answers at once.
    match answer.as_mut().poll(&mut context) {
        std::task::Poll::Ready(is_complete) => assert!(is_complete),
        std::task::Poll::Pending => panic!("memory answers at once"),
    }
});
