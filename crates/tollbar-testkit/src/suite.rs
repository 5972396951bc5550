//! What any store must pass: every vector, the tables worked out by hand, and a set of
//! behaviours.
//!
//! ```no_run
//! # use tollbar_testkit::{subject::Subject, suite};
//! # fn subject(_: tollbar::Timestamp) -> Box<dyn Subject> { unimplemented!() }
//! suite::run_all(&|now| subject(now));
//! ```

mod alternatives;
mod behaviour;
pub mod by_hand;
mod edge_cases;
mod features;
mod loans;
mod stale_time;
mod stepping_clock;
mod toggled_rules;

use tollbar::{Charge, Outcome, Policy, Timestamp};

use crate::answer::Answer;
use crate::spec::{Kind, PolicySpec};
use crate::subject::Factory;
use crate::vector::settlements;
use crate::vector::{self, Vector};

/// A named thing every store does.
pub type Case = (&'static str, fn(&Factory<'_>));

/// The vector files, by name.
pub const VECTOR_FILES: [&str; 16] = [
    "token_bucket",
    "leaky_bucket",
    "leaky_queue",
    "fixed_window",
    "staggered_window",
    "calendar_window",
    "sliding_window_counter",
    "sliding_window_strict",
    "sliding_window_log",
    "concurrency",
    "leased_concurrency",
    "batches",
    ALTERNATIVES_FILE,
    "rule_change",
    "warm_up",
    "warm_up_lists",
];

/// The vector file of alternatives, whose keys must lie together.
pub const ALTERNATIVES_FILE: &str = "alternatives";

/// The behaviours, by name.
#[must_use]
pub fn behaviours() -> Vec<Case> {
    [&behaviours_of_scattered_keys()[..], alternatives::CASES].concat()
}

/// The behaviours of a store whose keys lie in several places: without alternatives, which must lie together.
#[must_use]
pub fn behaviours_of_scattered_keys() -> Vec<Case> {
    [
        behaviour::CASES,
        features::CASES,
        loans::CASES,
        edge_cases::CASES,
        stale_time::CASES,
        stepping_clock::CASES,
        toggled_rules::CASES,
    ]
    .concat()
}

/// Everything.
///
/// # Panics
/// If the store is wrong, with its name, the case and both answers.
pub fn run_all(factory: &Factory<'_>) {
    for file in VECTOR_FILES {
        let vectors = vector::load(file);
        assert!(!vectors.is_empty(), "{file} has no vectors");
        for vector in &vectors {
            run_vector(factory, vector);
        }
    }
    let vectors = settlements::load();
    assert!(!vectors.is_empty(), "there are no settlements");
    for vector in &vectors {
        settlements::run(factory, vector);
    }
    for (name, case) in behaviours().iter().chain(by_hand::CASES) {
        // Panics inside say what differed; this says where to look.
        println!("suite: {name}");
        case(factory);
    }
}

/// Old clock readings alone, with `trace_count` random traces for each algorithm and way to ask.
///
/// # Panics
/// If the store is wrong, with the shortest trace that shows it.
pub fn run_stale_time(factory: &Factory<'_>, trace_count: u32) {
    stale_time::run_all(factory, trace_count);
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
    let mut leases = Vec::new();
    for (number, step) in vector.steps.iter().enumerate() {
        let questions = step.questions(&policies);
        let now = Timestamp::from_micros(step.at_us);
        let at = format!("store `{}`, vector `{}`, step {number}", subject.name(), vector.name);
        for release in &step.release {
            let (key, policy) = (release.key.as_bytes(), &policies[release.policy]);
            let stamp = release.lease.map_or(0, |lease| leases[lease]);
            let returned = subject.release_lease(now, key, policy, stamp, release.count);
            assert!(returned == release.expect, "{at}: {returned} came back of {release:?}");
        }
        for renew in &step.renew {
            let (key, policy) = (renew.key.as_bytes(), &policies[renew.policy]);
            let ends_at = subject.renew(now, key, policy, leases[renew.lease]);
            let ends_at_us = ends_at.map(Timestamp::as_micros);
            assert!(ends_at_us == renew.expect, "{at}: {renew:?} is held until {ends_at_us:?}");
        }
        let got = match (step.charge, &questions[..]) {
            (Charge::Independent, [only]) => {
                vec![subject.check(now, only.key, only.policy, only.cost)]
            }
            (Charge::Independent, batch) => subject.check_all(now, step.charge, batch),
            (Charge::AllOrNone, batch) => {
                let charged = subject.check_marked(now, batch, None, None);
                let charged = charged.expect("what has no id cannot be sent twice");
                leases.extend(step.granted(&policies, &charged));
                charged.iter().map(|charged| charged.answer).collect()
            }
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

/// One policy of each algorithm: four tokens a minute, or a day where a day is the least, or four
/// in flight.
fn four_a_minute() -> [Policy; 11] {
    Kind::ALL.map(|kind| {
        PolicySpec::new(kind, 4, 60_000_000).build().expect("four a minute is a policy")
    })
}

/// Not now, and for a while or for who knows how long.
fn is_denial(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Deny { retry_after_us: 1.. } | Outcome::Busy)
}

/// A time at which a minute begins.
fn minute_start() -> Timestamp {
    Timestamp::from_micros(1_699_999_980_000_000)
}
