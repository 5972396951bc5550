//! The table, asked of the library.

use std::sync::Arc;

use tollbar::Outcome;
use tollbar::store::block_on;
use tollbar_rules::{AsyncEngine, CheckOutcome, DenialCode, Engine, Request, RuleFile};
use tollbar_testkit::failing_store::FailingStore;

use super::step::{Expect, Step};
use super::{Answer, COUNTED, Field, WITHOUT_STORE, go_through};

#[test]
fn the_library_answers_as_the_table_says() {
    let rules = RuleFile::parse("conformance.yaml", &(COUNTED.rules)()).unwrap().rules;
    let engine = Engine::new(rules);
    go_through(&COUNTED, |step| ask(&engine, step));
}

#[test]
fn the_library_answers_as_the_table_says_without_its_store() {
    let rules = RuleFile::parse("conformance.yaml", &(WITHOUT_STORE.rules)()).unwrap().rules;
    let store = Arc::new(FailingStore::unavailable());
    let engine = AsyncEngine::new(rules, store).unwrap();
    go_through(&WITHOUT_STORE, |step| ask(&engine, step));
}

fn ask(engine: &AsyncEngine, step: &Step) -> Answer {
    let request = Request::new(step.method, step.path).unwrap();
    let request = request.with_attributes(step.attributes).unwrap().with_cost(step.cost);
    let verdict = block_on(engine.check(&request));
    let summary = verdict.summary();
    let outcome = match (summary.check, summary.outcome) {
        (CheckOutcome::Rejected(DenialCode::MissingAttribute), _) => Expect::Lacks,
        (CheckOutcome::Rejected(DenialCode::TooManyLimits), _) => Expect::TooMany,
        (CheckOutcome::Rejected(code), _) => panic!("{step:?} gave {code:?}"),
        (CheckOutcome::NoRule, _) => Expect::Allow,
        (CheckOutcome::Decided(_) | CheckOutcome::Degraded(..), outcome) => match outcome {
            Outcome::Allow => Expect::Allow,
            Outcome::Deny { .. } => Expect::Deny,
            Outcome::Never => Expect::Never,
            Outcome::Busy => Expect::Busy,
        },
    };
    Answer {
        outcome,
        rule: Field::Is(summary.rule.map(|rule| rule.name.to_string())),
        limit: Field::Is(summary.limit),
        remaining: Field::Is(summary.remaining),
        has_reset: Field::Is(Some(summary.reset_at.is_some())),
        is_degraded: Field::Is(Some(summary.check.is_degraded())),
    }
}
