//! What every store admits when its clock readings are old: no more than its limits, and no less.
//!
//! Callers read the clock, are interrupted, and charge later; servers are asked by machines whose
//! clocks differ. Here true time moves on by itself, and every request has a reading of its own, up to
//! 50 ms behind. An admission is then a span, from its reading to the true time at which it was
//! applied, and [`bounds`](crate::bounds) judges the log of each counter over every interval.
//!
//! | file | requests |
//! |---|---|
//! | this one | alone and in batches |
//! | `in_flight` | permits and leases |
//! | `settling` | reservations that are settled at less than they reserved |
//! | `changing` | rules that change, and boosts |
//! | `stepping` | a clock that is set back and runs on from there |
//!
//! Traces are random and shrink when one fails. All traces of a case share a store, each with keys of
//! its own, because making a store across a network takes longer than a trace.

mod answer_log;
mod changing_rules;
mod clock_steps;
mod in_flight;
mod settlement;

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tollbar::{Charge, Outcome, Policy, Role, Timestamp, WarmUp};

use super::Case;
use crate::adversary::TraceState;
use crate::answer::Answer;
use crate::oracle::OracleEntry;
use crate::spec::{Kind, PolicySpec};
use crate::strategy::{self, Move, cases};
use crate::subject::{Factory, Subject};
use crate::suite::stale_time::answer_log::{AnswerLog, Moment};

pub(super) const CASES: &[Case] =
    &[("stale_readings_keep_every_bound", |factory| run_all(factory, TRACES))];

/// A named part, which plays so many traces of each algorithm.
type Part = (&'static str, fn(&Factory<'_>, u32));

const PARTS: [Part; 8] = [
    ("requests_admit_neither_more_nor_less", requests_alone),
    ("batches_admit_neither_more_nor_less", batches),
    ("no_more_are_in_flight_than_the_limit", in_flight::permits_and_leases),
    ("reservations_spend_no_more_than_the_limit", settlement::stale_reservations),
    ("settlements_give_back_no_more_than_their_staleness", settlement::stale_settlements),
    ("changed_rules_forgive_no_more_than_documented", changing_rules::changed_rules),
    ("boosts_that_come_and_go_mint_nothing", changing_rules::boosts),
    ("a_clock_that_is_set_back_mints_nothing", clock_steps::set_back),
];

/// Plays `trace_count` traces of every algorithm in every part, or what `PROPTEST_CASES` says.
///
/// # Panics
/// If the store is wrong, with the shortest trace that shows it.
pub(super) fn run_all(factory: &Factory<'_>, trace_count: u32) {
    for (name, part) in PARTS {
        println!("suite: stale readings: {name}");
        part(factory, trace_count);
    }
}

/// How old a reading can be.
const STALENESS_US_MAX: u64 = 50_000;

/// Traces for each algorithm. Few, because stores across a network play them too.
const TRACES: u32 = 6;

/// Then another store is made. A small one would forget counters that are not fresh.
const TRACES_PER_STORE: u64 = 50;

const START_US: u64 = 1_700_000_000_000_000;

/// So many keys, and each request is for one of them.
const KEYS: usize = 2;

/// Algorithms with a bound over intervals.
const KINDS: [Kind; 9] = [
    Kind::TokenBucket,
    Kind::LeakyBucket,
    Kind::LeakyQueue,
    Kind::FixedWindow,
    Kind::StaggeredWindow,
    Kind::CalendarWindow,
    Kind::SlidingWindow,
    Kind::SlidingWindowStrict,
    Kind::SlidingWindowLog,
];

/// How a request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestMode {
    Single,
    AllOrNone,
    Independent,
    Many,
}

/// A request, or several in a batch.
#[derive(Debug, Clone)]
struct StaleRequest {
    /// The first one moves true time.
    moves: Vec<Move>,
    staleness_us: u64,
    mode: RequestMode,
}

/// A store with keys of its own for one trace, and true time.
struct Simulation<'s> {
    subject: &'s dyn Subject,
    trace: u64,
    keys: [Vec<u8>; KEYS],
    trace_state: TraceState,
}

impl<'s> Simulation<'s> {
    fn new(subject: &'s dyn Subject, trace: u64, start: Timestamp) -> Self {
        let keys = std::array::from_fn(|key| format!("{trace}:{key}").into_bytes());
        Self { subject, trace, keys, trace_state: TraceState::at(start) }
    }

    /// The present, with a reading of the clock that old.
    fn moment(&self, staleness_us: u64) -> Moment {
        let applied_us = self.trace_state.now.as_micros();
        Moment { read_us: applied_us - staleness_us, applied_us }
    }
}

/// Plays random traces, each of which begins at its own time and with keys of its own, until one fails.
fn run<T: Debug>(
    factory: &Factory<'_>,
    trace_count: u32,
    name: &str,
    traces: impl Strategy<Value = T>,
    play: impl Fn(Simulation<'_>, T) -> Result<(), String>,
) {
    let subject = RefCell::new(factory(Timestamp::from_micros(START_US)));
    let trace = Cell::new(0_u64);
    let mut runner = TestRunner::new(cases(trace_count));
    let played = runner.run(&(start(), traces), |(start, drawn)| {
        trace.set(trace.get() + 1);
        if trace.get().is_multiple_of(TRACES_PER_STORE) {
            subject.replace(factory(Timestamp::from_micros(START_US)));
        }
        let subject = subject.borrow();
        play(Simulation::new(&**subject, trace.get(), start), drawn).map_err(TestCaseError::fail)
    });
    played.unwrap_or_else(|error| panic!("{name}: {error}"));
}

fn start() -> impl Strategy<Value = Timestamp> {
    (START_US..START_US + 100_000_000).prop_map(Timestamp::from_micros)
}

fn staleness_us() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => Just(0),
        1 => 1_u64..4,
        3 => 0..=STALENESS_US_MAX,
        1 => Just(STALENESS_US_MAX),
    ]
}

/// Small numbers, in windows to which 50 ms matter.
fn policy_of(kind: Kind) -> impl Strategy<Value = Policy> {
    let window_us = prop_oneof![20_000_u64..300_000, 500_000_u64..3_000_000];
    (1_u64..8, window_us, 1_u64..8, 1_u32..7, climb()).prop_map(
        move |(limit, window_us, burst, parts, climb)| {
            let burst = kind.is_bucket().then_some(burst);
            let spec = PolicySpec { burst, ..PolicySpec::new(kind, limit, window_us) };
            let policy = spec.with_parts(parts).build().expect("small numbers are a policy");
            // Not every policy can climb.
            climb.and_then(|climb| policy.clone().with_warm_up(climb).ok()).unwrap_or(policy)
        },
    )
}

fn climb() -> impl Strategy<Value = Option<WarmUp>> {
    let climb = (1_u64..4, 10_000_u64..2_000_000, 1_u32..4).prop_map(|(start, over_us, steps)| {
        WarmUp { start, over: Duration::from_micros(over_us), steps }
    });
    prop_oneof![3 => Just(None), 1 => climb.prop_map(Some)]
}

fn requests(mode: impl Strategy<Value = RequestMode>) -> impl Strategy<Value = Vec<StaleRequest>> {
    let request = (strategy::trace(1..4), staleness_us(), mode)
        .prop_map(|(moves, staleness_us, mode)| StaleRequest { moves, staleness_us, mode });
    vec(request, 1..60)
}

fn requests_alone(factory: &Factory<'_>, trace_count: u32) {
    for kind in KINDS {
        let traces = (policy_of(kind), requests(Just(RequestMode::Single)));
        run(factory, trace_count, kind.name(), traces, |simulation, (policy, requests)| {
            play(simulation, &[policy], &requests)
        });
    }
}

fn batches(factory: &Factory<'_>, trace_count: u32) {
    let mode = prop::sample::select(vec![
        RequestMode::Single,
        RequestMode::AllOrNone,
        RequestMode::Independent,
        RequestMode::Many,
    ]);
    for (at, kind) in KINDS.into_iter().enumerate() {
        // Each algorithm beside two others. No two policies here share a counter.
        let beside = [1, 4].map(|step| policy_of(KINDS[(at + step) % KINDS.len()]));
        let traces = (policy_of(kind), beside, requests(mode.clone()));
        run(
            factory,
            trace_count,
            kind.name(),
            traces,
            |simulation, (policy, [second, third], requests)| {
                play(simulation, &[policy, second, third], &requests)
            },
        );
    }
}

fn play(
    mut simulation: Simulation<'_>,
    policies: &[Policy],
    requests: &[StaleRequest],
) -> Result<(), String> {
    let keys = simulation.keys.clone();
    let mut answer_log = AnswerLog::default();
    for request in requests {
        let first = policy_of_move(&request.moves[0], policies);
        simulation.trace_state.now =
            simulation.trace_state.advanced(request.moves[0].advance, first);
        let moment = simulation.moment(request.staleness_us);
        let asked = entries(request, &simulation.trace_state, &keys, policies);
        let answers = simulation.send(request.mode, moment.reading(), &asked);
        let is_charged = request.mode != RequestMode::AllOrNone
            || answers.iter().all(|answer| answer.outcome == Outcome::Allow);
        for (asked, answer) in asked.iter().zip(&answers) {
            answer_log.record(asked, moment, answer, is_charged);
        }
        simulation.trace_state.last = answers.first().copied();
    }
    answer_log.judge()
}

fn policy_of_move<'p>(each: &Move, policies: &'p [Policy]) -> &'p Policy {
    &policies[each.policy % policies.len()]
}

/// What an act asks for. Many keys at once are asked for under the first policy, at cost 1.
fn entries<'a>(
    request: &StaleRequest,
    trace_state: &TraceState,
    keys: &'a [Vec<u8>; KEYS],
    policies: &'a [Policy],
) -> Vec<OracleEntry<'a>> {
    let mut asked: Vec<OracleEntry<'a>> = Vec::new();
    for each in &request.moves {
        let key = &keys[each.key % KEYS];
        let (policy, cost) = if request.mode == RequestMode::Many {
            (policy_of_move(&request.moves[0], policies), 1)
        } else {
            let policy = policy_of_move(each, policies);
            (policy, trace_state.cost(each.price, policy))
        };
        let is_same =
            |other: &OracleEntry<'_>| other.key == key && std::ptr::eq(other.policy, policy);
        match request.mode {
            RequestMode::Single if !asked.is_empty() => break,
            // What a second entry on one counter is denied for may be the first, which is not
            // charged either.
            RequestMode::AllOrNone if asked.iter().any(is_same) => {}
            _ => asked.push(OracleEntry {
                key,
                policy,
                cost,
                role: Role::Enforce,
                alternative: None,
            }),
        }
    }
    asked
}

impl Simulation<'_> {
    fn send(&self, mode: RequestMode, now: Timestamp, asked: &[OracleEntry<'_>]) -> Vec<Answer> {
        let OracleEntry { key, policy, cost, .. } = asked[0];
        match mode {
            RequestMode::Single => vec![self.subject.check(now, key, policy, cost)],
            RequestMode::AllOrNone => self.subject.check_all(now, Charge::AllOrNone, asked),
            RequestMode::Independent => self.subject.check_all(now, Charge::Independent, asked),
            RequestMode::Many => {
                let keys: Vec<&[u8]> = asked.iter().map(|asked| asked.key).collect();
                self.subject.check_many(now, &keys, policy)
            }
        }
    }
}
