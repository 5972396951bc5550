//! `rules`: requests against rules, from a handful to ten thousand, beside limitador's library.
//!
//! Building the request is part of every check, as it is part of every request. A subject always
//! asks for the same resource, so that the number of counters is the same however many rules there
//! are, and what differs is the rules alone.

mod limitador;
mod tollbar;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tollbar_bench::harness::{
    CHUNK, Checks, Contest, Figures, MeasureRequest, WorkerError, run_rounds, time_checks,
};
use tollbar_bench::keys::{Order, sequence};
use tollbar_bench::machine::Machine;
use tollbar_bench::report::{Bound, Report, Row, Target, TrialName};
use tollbar_bench::sample::{ratio, summarise};

use crate::args::{self, Args};
use crate::runner;

/// Who asks.
const SUBJECT_COUNT: u64 = 100_000;

/// Checks in a sequence: each subject some ten times.
const ACCESSES: usize = 1_024 * CHUNK;

/// How many rules, and how many of them match a request.
#[derive(Debug, Clone, Copy)]
struct RuleWorkload {
    name: &'static str,
    rule_count: usize,
    matching: usize,
    /// Whether the peer is measured too.
    has_peer: bool,
}

const WORKLOADS: &[RuleWorkload] = &[
    RuleWorkload { name: "rules_1_match_1", rule_count: 1, matching: 1, has_peer: true },
    RuleWorkload { name: "rules_10_match_1", rule_count: 10, matching: 1, has_peer: true },
    RuleWorkload { name: "rules_100_match_1", rule_count: 100, matching: 1, has_peer: true },
    RuleWorkload { name: "rules_10_match_2", rule_count: 10, matching: 2, has_peer: false },
    RuleWorkload { name: "rules_1k_match_2", rule_count: 1_000, matching: 2, has_peer: false },
    RuleWorkload { name: "rules_10k_match_2", rule_count: 10_000, matching: 2, has_peer: false },
];

const NS_PER_CHECK_MAX: f64 = 1_000.0;
const GROWTH_MAX: f64 = 1.5;

struct RulesSchedule {
    rounds: usize,
    duration_ms: u64,
}

const FULL: RulesSchedule = RulesSchedule { rounds: 7, duration_ms: 400 };
const QUICK: RulesSchedule = RulesSchedule { rounds: 3, duration_ms: 100 };

/// A subject under a workload, ready to be measured.
struct PreparedTrial {
    subject: &'static str,
    workload: &'static str,
    checks: Box<Checks>,
}

pub(crate) fn main(args: &[&str]) -> ExitCode {
    match parse(Args::new(args)) {
        Ok((schedule, json)) => measure(&schedule, json),
        Err(reason) => args::refuse(&reason),
    }
}

fn parse(mut args: Args<'_>) -> Result<(RulesSchedule, Option<&Path>), String> {
    let json = args.value("--json")?.map(Path::new);
    let schedule = if args.flag("--quick") { QUICK } else { FULL };
    args.finish()?;
    Ok((schedule, json))
}

fn measure(schedule: &RulesSchedule, json: Option<&Path>) -> ExitCode {
    let keys = sequence(Order::Uniform, SUBJECT_COUNT, ACCESSES);
    let ready = ready();
    let contests: Vec<Contest> = WORKLOADS
        .iter()
        .map(|workload| {
            let these = ready.iter().filter(|trial| trial.workload == workload.name);
            let subjects = these.map(|trial| trial.subject.to_owned()).collect();
            Contest { workload: workload.name.to_owned(), threads: 1, subjects }
        })
        .collect();
    let run = |request: &MeasureRequest| -> Result<f64, WorkerError> {
        let trial = ready
            .iter()
            .find(|trial| trial.subject == request.subject && trial.workload == request.workload)
            .expect("only what is ready takes part");
        let duration = Duration::from_millis(request.duration_ms);
        let timed = time_checks(&*trial.checks, &keys, request.threads, request.round, duration);
        if timed.allowed == timed.checks {
            Ok(timed.ns_per_check)
        } else {
            let reason = format!("{} of {} checks were allowed", timed.allowed, timed.checks);
            Err(WorkerError::Refused { worker: request.subject.clone(), reason })
        }
    };
    let failed = |name: &TrialName, error: WorkerError| {
        eprintln!("{} {}: absent: {error}", name.subject, name.workload);
    };
    let figures = run_rounds(&contests, schedule.rounds, schedule.duration_ms, run, failed);
    let report = Report {
        benchmark: "rules",
        machine: Machine::detect(),
        rows: rows(&figures),
        targets: targets(&figures),
    };
    let columns: Vec<&str> = WORKLOADS.iter().map(|workload| workload.name).collect();
    let head = "ns per check, building the request included";
    runner::print(&format!("{}\n", report.time_table(head, &columns)), &report, json)
}

fn ready() -> Vec<PreparedTrial> {
    let mut ready = Vec::new();
    for workload in WORKLOADS {
        let name = workload.name;
        let checks = tollbar::build(workload);
        ready.push(PreparedTrial { subject: "tollbar", workload: name, checks });
        if let (true, Some(checks)) = (workload.has_peer, limitador::build(workload)) {
            ready.push(PreparedTrial { subject: "limitador", workload: name, checks });
        }
    }
    ready
}

/// The resource that a subject asks for: `user:0000123456` is number 123,456.
fn resource_of(key: &str, rule_count: usize) -> usize {
    key[5..].bytes().fold(0, |number, byte| number * 10 + usize::from(byte - b'0')) % rule_count
}

/// `/v1/r7/42`, as it would come from the wire: in the cache, and not from a list of all paths.
fn write_path(path: &mut String, resource: usize) {
    path.clear();
    path.push_str("/v1/r");
    let mut divisor = 10_usize.pow(resource.checked_ilog10().unwrap_or(0));
    while divisor > 0 {
        path.push(char::from(b'0' + (resource / divisor % 10) as u8));
        divisor /= 10;
    }
    path.push_str("/42");
}

fn rows(figures: &Figures) -> Vec<Row> {
    let mut rows = Vec::new();
    for workload in WORKLOADS {
        let subjects: &[&str] =
            if workload.has_peer { &["tollbar", "limitador"] } else { &["tollbar"] };
        for subject in subjects {
            let name = TrialName::new(subject, workload.name, 1);
            let summary = figures.get(&name).and_then(|rounds| summarise(rounds));
            rows.push(Row::new(&name, "ns_per_check", summary));
        }
        let [ours, theirs] = ["tollbar", "limitador"]
            .map(|subject| figures.get(&TrialName::new(subject, workload.name, 1)));
        if let (Some(ours), Some(theirs)) = (ours, theirs) {
            let name = TrialName::new("tollbar", workload.name, 1);
            rows.push(Row::new(&name, "speedup_over_limitador", ratio(theirs, ours)));
        }
    }
    rows
}

fn targets(figures: &Figures) -> Vec<Target> {
    let ours = |workload: &str| figures.get(&TrialName::new("tollbar", workload, 1));
    let thousand = ours("rules_1k_match_2").and_then(|rounds| summarise(rounds));
    let growth = ours("rules_10k_match_2")
        .zip(ours("rules_10_match_2"))
        .and_then(|(many, few)| ratio(many, few));
    vec![
        Target::new(
            "1,000 rules of which 2 match, 100,000 subjects".to_owned(),
            "ns",
            thousand.map(|summary| summary.value),
            Bound::AtMost,
            NS_PER_CHECK_MAX,
        ),
        Target::new(
            "10,000 rules : 10 rules".to_owned(),
            "ratio",
            growth.map(|summary| summary.value),
            Bound::AtMost,
            GROWTH_MAX,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_always_asks_for_the_same_resource() {
        assert_eq!(resource_of("user:0000123456", 1_000), 456);
        assert_eq!(resource_of("user:0000000007", 10_000), 7);
        let mut path = String::new();
        for (resource, expected) in [(0, "/v1/r0/42"), (7, "/v1/r7/42"), (1_020, "/v1/r1020/42")] {
            write_path(&mut path, resource);
            assert_eq!(path, expected);
        }
    }

    #[test]
    fn targets_are_there_without_figures_and_missed() {
        let missed = targets(&Figures::new());
        assert_eq!(missed.len(), 2);
        assert!(missed.iter().all(|target| !target.met && target.value.is_none()));
    }

    #[test]
    fn every_subject_allows_what_it_is_asked() {
        let keys = sequence(Order::Uniform, 100, 64);
        for trial in ready() {
            assert_eq!((trial.checks)(&keys), 64, "{} {}", trial.subject, trial.workload);
        }
    }
}
