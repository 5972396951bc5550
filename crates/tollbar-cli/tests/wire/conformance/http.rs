//! The table, asked of the real daemon over HTTP.

use serde_json::{Value, json};

use super::step::{Expect, Step};
use super::{Answer, COUNTED, Field, WITHOUT_STORE, go_through};
use crate::common::{Daemon, Scratch, status};

#[test]
fn http_answers_as_the_tables_say() {
    for table in [&COUNTED, &WITHOUT_STORE] {
        let scratch = Scratch::new("conformance-http");
        let daemon = table.serve(&scratch, &[]);
        go_through(table, |step| ask(&daemon, step));
        assert_eq!(daemon.stop(), 0);
    }
}

fn ask(daemon: &Daemon, step: &Step) -> Answer {
    let attributes: serde_json::Map<String, Value> =
        step.attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
    let body = json!({
        "method": step.method, "path": step.path, "attributes": attributes, "cost": step.cost,
    });
    let response = daemon.post("/v1/check", &body.to_string());
    let (_, answer) = response.split_once("\r\n\r\n").unwrap();
    let answer: Value = serde_json::from_str(answer).unwrap();
    let outcome = match (status(&response), answer["reason"].as_str()) {
        (400, Some("missing_attribute")) => Expect::Lacks,
        (500, Some("too_many_limits")) => Expect::TooMany,
        (200, _) => Expect::Allow,
        (429, _) if answer["retryAfterMs"].is_null() => Expect::Busy,
        (429, _) => Expect::Deny,
        (422, _) => Expect::Never,
        _ => panic!("{step:?} gave {response}"),
    };
    assert_eq!(answer["allowed"], outcome == Expect::Allow, "{step:?} gave {response}");
    let has_wait = answer["retryAfterMs"].as_u64().is_some_and(|wait_ms| wait_ms > 0);
    assert_eq!(has_wait, outcome == Expect::Deny, "{step:?} gave {response}");
    Answer {
        outcome,
        rule: Field::Is(answer["rule"].as_str().map(str::to_owned)),
        limit: Field::Is(answer["limit"].as_u64()),
        remaining: Field::Is(answer["remaining"].as_u64()),
        has_reset: Field::Is(Some(answer["resetAt"].is_string())),
        is_degraded: Field::Is(answer["degraded"].as_bool()),
    }
}
