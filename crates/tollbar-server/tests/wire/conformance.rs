//! One table of requests and answers, gone through over every wire: what the library decides is what
//! everybody is told. A new wire is a file in `conformance/` and a line here.

mod cases;
mod envoy;
mod grpc;
mod http;
mod layer;
mod library;
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

/// What a wire has told.
#[derive(Debug)]
struct Told {
    outcome: Expect,
    rule: Said<String>,
    limit: Said<u64>,
    remaining: Said<u64>,
    /// Whether there is an instant at which the limit resets.
    has_reset: Said<bool>,
    is_degraded: Said<bool>,
}

impl Told {
    /// Nothing but what it comes to.
    fn only(outcome: Expect) -> Self {
        Self {
            outcome,
            rule: Said::Nothing,
            limit: Said::Nothing,
            remaining: Said::Nothing,
            has_reset: Said::Nothing,
            is_degraded: Said::Nothing,
        }
    }
}

/// One thing that a wire has told.
#[derive(Debug)]
enum Said<T> {
    /// It has no words for that, so it is not compared.
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

/// Asks all of a table, in order, and reports all that differs. When a limit resets is known where it is
/// known what remains of it: where a counter was read.
fn go_through(table: &Table, mut ask: impl FnMut(&Step) -> Told) {
    let mut differences = Vec::new();
    for case in table.cases {
        for (at, step) in case.steps.iter().enumerate() {
            let (told, expected) = (ask(step), &step.expected);
            let is_same = told.outcome == expected.outcome
                && told.rule.agrees(expected.rule.map(str::to_owned).as_ref())
                && told.limit.agrees(expected.limit.as_ref())
                && told.remaining.agrees(expected.remaining.as_ref())
                && told.has_reset.agrees(Some(&expected.remaining.is_some()))
                && told.is_degraded.agrees(Some(&expected.is_degraded));
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
    let has = |cases: &[Case], outcome: Expect| {
        let mut steps = cases.iter().flat_map(|it| it.steps);
        assert!(steps.any(|it| it.expected.outcome == outcome), "{outcome:?}");
    };
    for outcome in
        [Expect::Allow, Expect::Deny, Expect::Never, Expect::Lacks, Expect::Busy, Expect::TooMany]
    {
        has(CASES, outcome);
    }
    for outcome in [Expect::Allow, Expect::Deny, Expect::Never, Expect::Lacks] {
        has(CASES_WITHOUT_STORE, outcome);
    }
}
