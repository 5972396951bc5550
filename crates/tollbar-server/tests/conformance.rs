//! One table of requests and answers, gone through over every wire: what the library decides is what
//! everybody is told. A new wire is a file in `conformance/` and a line here.

mod common;

#[path = "conformance/cases.rs"]
mod cases;
#[path = "conformance/envoy.rs"]
mod envoy;
#[path = "conformance/grpc.rs"]
mod grpc;
#[path = "conformance/http.rs"]
mod http;
#[path = "conformance/library.rs"]
mod library;
#[path = "conformance/resp.rs"]
mod resp;
#[path = "conformance/rules.rs"]
mod rules;
#[path = "conformance/step.rs"]
mod step;

use cases::CASES;
use step::{Expect, Step};

/// What a wire has told.
#[derive(Debug)]
struct Told {
    outcome: Expect,
    rule: Said<String>,
    limit: Said<u64>,
    remaining: Said<u64>,
}

/// One thing that a wire has told.
#[derive(Debug)]
enum Said<T> {
    /// It has no words for that, so it is not compared.
    #[allow(dead_code, reason = "for wires that tell less than HTTP")]
    Nothing,
    /// This, or that there is none.
    This(Option<T>),
}

impl<T: PartialEq> Said<T> {
    fn agrees(&self, expected: Option<&T>) -> bool {
        match self {
            Self::Nothing => true,
            Self::This(said) => said.as_ref() == expected,
        }
    }
}

/// Asks all of the table, in order, and reports all that differs.
fn go_through(mut ask: impl FnMut(&Step) -> Told) {
    let mut differences = Vec::new();
    for case in CASES {
        for (at, step) in case.steps.iter().enumerate() {
            let (told, expected) = (ask(step), &step.expected);
            let is_same = told.outcome == expected.outcome
                && told.rule.agrees(expected.rule.map(str::to_owned).as_ref())
                && told.limit.agrees(expected.limit.as_ref())
                && told.remaining.agrees(expected.remaining.as_ref());
            if !is_same {
                let name = case.name;
                differences.push(format!("{name}, step {at}: {expected:?} was told {told:?}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn the_table_is_long_enough_to_mean_something() {
    assert!(CASES.len() >= 40, "{}", CASES.len());
    let steps = || CASES.iter().flat_map(|it| it.steps);
    for outcome in [Expect::Allow, Expect::Deny, Expect::Never, Expect::Lacks] {
        assert!(steps().any(|it| it.expected.outcome == outcome), "{outcome:?}");
    }
}
