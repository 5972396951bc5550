//! The limits that are judged: as rules of the daemon, as numbers of `CL.THROTTLE`, and as policies of the judge.

use tollbar::{Policy, PolicyError};

/// A limit, and how a request meets it.
pub(crate) struct Limit {
    /// Its rule and the path that the rule matches.
    pub(crate) name: &'static str,
    /// What the rule says beside that.
    yaml: &'static str,
    pub(crate) policy: Policy,
    /// The numbers of `CL.THROTTLE`, which has no rule: one less than the burst, and the rate per second.
    pub(crate) throttle: Option<(u64, u64)>,
}

fn limit(name: &'static str, yaml: &'static str, policy: Result<Policy, PolicyError>) -> Limit {
    Limit { name, yaml, policy: policy.unwrap(), throttle: None }
}

fn bucket(rate: &str, burst: u64) -> Result<Policy, PolicyError> {
    Policy::token_bucket(rate)?.with_burst(burst)
}

/// Token buckets at three rates.
pub(crate) fn buckets() -> Vec<Limit> {
    vec![
        limit("bucket-100", "limit: 100/s, burst: 10", bucket("100/s", 10)),
        limit("bucket-1000", "limit: 1000/s, burst: 50", bucket("1000/s", 50)),
        limit("bucket-10000", "limit: 10000/s, burst: 100", bucket("10000/s", 100)),
    ]
}

/// The same buckets by `CL.THROTTLE`, and one that only pipelines can exhaust.
pub(crate) fn throttled_buckets() -> Vec<Limit> {
    let throttled = |name, count: u64, burst: u64| Limit {
        throttle: Some((burst - 1, count)),
        ..limit(name, "unlimited: true", bucket(&format!("{count}/s"), burst))
    };
    vec![
        throttled("cl-100", 100, 10),
        throttled("cl-1000", 1_000, 50),
        throttled("cl-10000", 10_000, 100),
        throttled("cl-100000", 100_000, 200),
    ]
}

/// One of each other algorithm. Their windows are short, so that many of them pass in a run.
pub(crate) fn others() -> Vec<Limit> {
    let leaky = Policy::leaky_bucket("1000/s").and_then(|policy| policy.with_burst(50));
    vec![
        limit("leaky", "limit: 1000/s, burst: 50, algorithm: leaky_bucket", leaky),
        limit(
            "fixed",
            "limit: 50/100ms, algorithm: fixed_window",
            Policy::fixed_window("50/100ms"),
        ),
        limit("sliding", "limit: 50/100ms", Policy::sliding_window("50/100ms")),
        limit(
            "strict",
            "limit: 50/100ms, algorithm: sliding_window_strict",
            Policy::sliding_window_strict("50/100ms", 10),
        ),
        limit(
            "log",
            "limit: 50/100ms, algorithm: sliding_window_log",
            Policy::sliding_window_log("50/100ms"),
        ),
    ]
}

/// A burst that a reload makes smaller, and the smaller one. Both are the same rule, so they count together.
pub(crate) fn large_and_small_burst() -> [Limit; 2] {
    [
        limit("toggled", "limit: 20/s, burst: 100", bucket("20/s", 100)),
        limit("toggled", "limit: 20/s, burst: 10", bucket("20/s", 10)),
    ]
}

/// The file of rules for these limits.
pub(crate) fn rules(limits: &[Limit]) -> String {
    let rule = |limit: &Limit| {
        let (name, yaml) = (limit.name, limit.yaml);
        format!("  - {{ name: {name}, match: {{ path: /{name} }}, {yaml} }}\n")
    };
    format!("rules:\n{}", limits.iter().map(rule).collect::<String>())
}
