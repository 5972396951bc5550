//! One table of requests and answers that every protocol is asked: each answers what the library decides.
//! A new protocol is a file in `conformance/` and a line here.

mod cases;
mod envoy;
mod ext_authz;
mod forward_auth;
mod gateway;
mod grpc;
mod http;
mod layer;
mod library;
mod limit_headers;
mod resp;
mod rules;
mod step;

use cases::{CASES, CASES_WITHOUT_STORE};
use step::{Case, Expect, Step};

/// Rules, how the daemon is started with them, and what it must answer.
struct Table {
    rules: fn() -> String,
    args: &'static [&'static str],
    cases: &'static [Case],
}

/// Everything is counted.
const COUNTED: Table = Table { rules: rules::counted, args: &[], cases: CASES };

/// The store is out of reach, for good: nothing listens there.
const WITHOUT_STORE: Table = Table {
    rules: rules::without_store,
    args: &["--store", "redis://127.0.0.1:1", "--store-raw-keys"],
    cases: CASES_WITHOUT_STORE,
};

impl Table {
    /// A daemon for it.
    fn serve(&self, scratch: &crate::common::Scratch, more: &[&str]) -> crate::common::Daemon {
        let rules = scratch.file("rules.yaml", &(self.rules)());
        crate::common::Daemon::start(&[&["--rules", &rules], self.args, more].concat())
    }
}

/// What a protocol has answered.
#[derive(Debug)]
struct Answer {
    outcome: Expect,
    rule: Field<String>,
    limit: Field<u64>,
    remaining: Field<u64>,
    /// Whether there is an instant at which the limit resets.
    has_reset: Field<bool>,
    is_degraded: Field<bool>,
}

impl Answer {
    /// An answer that has an outcome and no fields.
    fn only(outcome: Expect) -> Self {
        Self {
            outcome,
            rule: Field::Unsupported,
            limit: Field::Unsupported,
            remaining: Field::Unsupported,
            has_reset: Field::Unsupported,
            is_degraded: Field::Unsupported,
        }
    }
}

/// One field of an answer.
#[derive(Debug)]
enum Field<T> {
    /// The protocol has no such field, so it is not compared.
    Unsupported,
    /// The field's value; `None` where it is null or absent.
    Is(Option<T>),
}

impl<T: PartialEq> Field<T> {
    fn agrees(&self, expected: Option<&T>) -> bool {
        match self {
            Self::Unsupported => true,
            Self::Is(value) => value.as_ref() == expected,
        }
    }
}

/// Asks every step of a table in order, and reports all differences. The reset of a limit is known where the store's
/// counter was read; permits, those of `jobs`, have none.
fn go_through(table: &Table, mut ask: impl FnMut(&Step) -> Answer) {
    let mut differences = Vec::new();
    for case in table.cases {
        for (at, step) in case.steps.iter().enumerate() {
            let (answer, expected) = (ask(step), &step.expected);
            let is_same = answer.outcome == expected.outcome
                && answer.rule.agrees(expected.rule.map(str::to_owned).as_ref())
                && answer.limit.agrees(expected.limit.as_ref())
                && answer.remaining.agrees(expected.remaining.as_ref())
                && answer.has_reset.agrees(Some(&expected.has_reset()))
                && answer.is_degraded.agrees(Some(&expected.is_degraded));
            if !is_same {
                let name = case.name;
                differences.push(format!("{name}, step {at}: {expected:?} got {answer:?}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn the_tables_have_every_outcome() {
    assert!(CASES.len() >= 40, "{}", CASES.len());
    for cases in [CASES, CASES_WITHOUT_STORE] {
        let steps = cases.iter().flat_map(|case| case.steps);
        let outcomes: Vec<Expect> = steps.map(|step| step.expected.outcome).collect();
        for outcome in Expect::ALL {
            assert!(outcomes.contains(&outcome), "{outcome:?}");
        }
    }
}
