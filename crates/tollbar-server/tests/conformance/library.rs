//! The table, asked of the library.

use tollbar::Outcome;
use tollbar_rules::{Engine, Reason, Request, RuleFile};

use crate::rules::RULES;
use crate::step::{Expect, Step};
use crate::{Said, Told, go_through};

#[test]
fn the_library_answers_as_the_table_says() {
    let engine = Engine::new(RuleFile::parse("conformance.yaml", RULES).unwrap().rules);
    go_through(|step| ask(&engine, step));
}

fn ask(engine: &Engine, step: &Step) -> Told {
    let request = Request::new(step.method, step.path).unwrap();
    let request = request.with_attributes(step.attributes).unwrap().with_cost(step.cost);
    let verdict = engine.check(&request);
    let outcome = match (verdict.reason(), verdict.outcome()) {
        (Reason::MissingAttribute { .. }, _) => Expect::Lacks,
        (_, Outcome::Allow) => Expect::Allow,
        (_, Outcome::Deny { .. }) => Expect::Deny,
        (_, Outcome::Never) => Expect::Never,
        (_, other) => panic!("{step:?} gave {other:?}"),
    };
    let decision = verdict.binding().map(|it| it.decision());
    Told {
        outcome,
        rule: Said::This(verdict.rule().map(|it| it.name.to_string())),
        limit: Said::This(decision.map(|it| it.limit())),
        remaining: Said::This(decision.map(|it| it.remaining())),
    }
}
