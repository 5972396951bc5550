//! What any store must pass: every vector, the tables worked out by hand, and a set of
//! behaviours.
//!
//! ```no_run
//! # use tollbar_testkit::{subject::Subject, suite};
//! # fn subject(_: tollbar::Timestamp) -> Box<dyn Subject> { unimplemented!() }
//! suite::run_all(&|now| subject(now));
//! ```

mod behaviour;
mod misfortune;

use tollbar::{Charge, Policy, Timestamp};

use crate::answer::Answer;
use crate::by_hand;
use crate::settlements;
use crate::spec::{Kind, PolicySpec};
use crate::subject::Factory;
use crate::vector::{self, Vector};

/// A named thing every store does.
pub type Case = (&'static str, fn(&Factory<'_>));

/// The vector files, by name.
pub const VECTOR_FILES: [&str; 11] = [
    "token_bucket",
    "leaky_bucket",
    "fixed_window",
    "staggered_window",
    "calendar_window",
    "sliding_window_counter",
    "sliding_window_strict",
    "sliding_window_log",
    "batches",
    "rule_change",
    "warm_up",
];

/// The behaviours, by name.
#[must_use]
pub fn behaviours() -> Vec<Case> {
    [behaviour::CASES, misfortune::CASES].concat()
}

/// Everything.
///
/// # Panics
/// If the store is wrong, with its name, the case and both answers.
pub fn run_all(factory: &Factory<'_>) {
    for file in VECTOR_FILES {
        for vector in vector::load(file) {
            run_vector(factory, &vector);
        }
    }
    for vector in settlements::load() {
        settlements::run(factory, &vector);
    }
    for (name, case) in behaviours().iter().chain(by_hand::CASES) {
        // Panics inside say what differed; this says where to look.
        println!("suite: {name}");
        case(factory);
    }
}

/// One vector, from an empty store.
///
/// # Panics
/// If an answer differs, with the store's name, the vector, the step and both answers.
pub fn run_vector(factory: &Factory<'_>, vector: &Vector) {
    let policies: Vec<Policy> = vector
        .policies
        .iter()
        .map(|spec| spec.build().expect("a vector's policies are accepted"))
        .collect();
    let start_us = vector.steps.first().map_or(0, |step| step.at_us);
    let subject = factory(Timestamp::from_micros(start_us));
    for (number, step) in vector.steps.iter().enumerate() {
        let questions = step.questions(&policies);
        let now = Timestamp::from_micros(step.at_us);
        let got = match (step.charge, &questions[..]) {
            (Charge::Independent, [only]) => {
                vec![subject.check(now, only.key, only.policy, only.cost)]
            }
            (charge, batch) => subject.check_all(now, charge, batch),
        };
        let expected: Vec<Answer> = step.expect.iter().map(Into::into).collect();
        assert!(
            got == expected,
            "store `{}`, vector `{}`, step {number}: {step:?}\ngot:      {got:?}\nexpected: {expected:?}",
            subject.name(),
            vector.name,
        );
    }
}

/// One policy of each algorithm: four tokens a minute, or a day where a day is the least.
fn four_a_minute() -> [Policy; 8] {
    Kind::ALL.map(|kind| {
        PolicySpec::new(kind, 4, 60_000_000).build().expect("four a minute is a policy")
    })
}

/// A time at which a minute begins.
fn minute_start() -> Timestamp {
    Timestamp::from_micros(1_699_999_980_000_000)
}
