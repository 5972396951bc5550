//! Answers of the tower layer, the gateway and forward-auth: a status, headers, and the JSON of a denial.

use std::fmt::Debug;

use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Body;
use serde_json::Value;

use super::step::{Expect, Step};
use super::{Answer, Field};

/// Reads a response of the layer or the gateway. Keeps the body of a request that passed: while it has not
/// ended, the request is in flight.
pub(super) async fn answer<B: Body<Error: Debug>>(
    step: &Step,
    response: Response<B>,
    bodies: &mut Vec<B>,
) -> Answer {
    let (head, body) = response.into_parts();
    let denial: Option<Value> = if head.status.is_success() {
        bodies.push(body);
        None
    } else {
        Some(serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap())
    };
    let header = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap());
    let answer = answer_of_any_status(step, header, denial.as_ref());
    let expected = match answer.outcome {
        Expect::Allow => 200,
        Expect::Lacks => 400,
        Expect::Never => 422,
        Expect::Deny | Expect::Busy => 429,
        Expect::TooMany => 500,
    };
    assert_eq!(head.status, expected, "{step:?} gave {answer:?}");
    answer
}

/// Reads a response whose status the caller compares.
pub(super) fn answer_of_any_status<'h>(
    step: &Step,
    header: impl Fn(&str) -> Option<&'h str>,
    denial: Option<&Value>,
) -> Answer {
    let has_wait = header("retry-after").is_some();
    let error = denial.map(|denial| denial["error"].as_str().unwrap());
    let outcome = match error {
        None => Expect::Allow,
        Some("missing_attribute") => Expect::Lacks,
        Some("too_many_limits") => Expect::TooMany,
        Some("cost_exceeds_limit") => Expect::Never,
        Some("rate_limit_exceeded") if has_wait => Expect::Deny,
        Some("rate_limit_exceeded") => Expect::Busy,
        Some(error) => panic!("{step:?} gave {error}"),
    };
    assert_eq!(has_wait, outcome == Expect::Deny, "{step:?} gave {error:?}");
    let number = |name: &str| header(name).map(|value| value.parse().unwrap());
    Answer {
        outcome,
        // The headers do not name the rule.
        rule: denial.map_or(Field::Unsupported, |denial| {
            Field::Is(denial["rule"].as_str().map(str::to_owned))
        }),
        limit: Field::Is(number("x-ratelimit-limit")),
        remaining: Field::Is(number("x-ratelimit-remaining")),
        has_reset: Field::Is(Some(header("x-ratelimit-reset").is_some())),
        is_degraded: Field::Is(Some(header("x-ratelimit-degraded").is_some())),
    }
}
