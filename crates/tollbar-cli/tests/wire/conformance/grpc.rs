//! The table, asked of the real daemon over gRPC: one by one, and over a stream.

use tollbar_proto::client::Client;
use tollbar_proto::v1::{CheckRequest, CheckResponse, Outcome, Reason};

use super::step::{Expect, Step};
use super::{Answer, COUNTED, Field, Table, WITHOUT_STORE, go_through};
use crate::common::Scratch;

fn with_daemon(name: &str, table: &Table, go: impl FnOnce(&tokio::runtime::Runtime, &Client)) {
    let scratch = Scratch::new(name);
    let daemon = table.serve(&scratch, &[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(async {
        let uri = format!("http://{}", daemon.address("grpc"));
        Client::builder(uri).deadline(std::time::Duration::from_secs(20)).connect().unwrap()
    });
    go(&runtime, &client);
    drop(client);
    drop(runtime);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn grpc_answers_as_the_tables_say() {
    for table in [&COUNTED, &WITHOUT_STORE] {
        with_daemon("conformance-grpc", table, |runtime, client| {
            go_through(table, |step| {
                let response = runtime.block_on(client.calls().check(request(step)));
                answer(step, &response.unwrap().into_inner())
            });
        });
    }
}

#[test]
fn a_stream_answers_as_the_table_says() {
    with_daemon("conformance-grpc-stream", &COUNTED, |runtime, client| {
        go_through(&COUNTED, |step| {
            answer(step, &runtime.block_on(client.check(request(step))).unwrap())
        });
    });
}

fn request(step: &Step) -> CheckRequest {
    let attributes =
        step.attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    CheckRequest {
        method: step.method.to_owned(),
        path: step.path.to_owned(),
        attributes: attributes.collect(),
        cost: Some(step.cost),
        ..CheckRequest::default()
    }
}

fn answer(step: &Step, answer: &CheckResponse) -> Answer {
    let outcome = match (answer.outcome(), answer.reason()) {
        (Outcome::Busy, Reason::MissingAttribute) => Expect::Lacks,
        (Outcome::Busy, Reason::TooManyLimits) => Expect::TooMany,
        (Outcome::Busy, Reason::Limits) => Expect::Busy,
        (Outcome::Allow, _) => Expect::Allow,
        (Outcome::Deny, _) => Expect::Deny,
        (Outcome::Never, _) => Expect::Never,
        _ => panic!("{step:?} gave {answer:?}"),
    };
    assert_eq!(answer.allowed, outcome == Expect::Allow, "{step:?} gave {answer:?}");
    assert_eq!(answer.retry_after.is_some(), outcome == Expect::Deny, "{step:?} gave {answer:?}");
    Answer {
        outcome,
        rule: Field::Is(Some(answer.rule.clone()).filter(|rule| !rule.is_empty())),
        limit: Field::Is(answer.limit),
        remaining: Field::Is(answer.remaining),
        has_reset: Field::Is(Some(answer.reset_at.is_some())),
        is_degraded: Field::Is(Some(answer.degraded)),
    }
}
