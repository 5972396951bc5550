//! `core`: checks in process, beside other limiters and a floor.
//!
//! For each table size, every family of subjects gets a process with its table filled; then they
//! take turns, round by round. What it refuses to do is to compare figures of different groups:
//! ratios are only ever taken within a round.

mod flood;
mod group;
mod rows;
mod subject;
mod targets;
mod worker;
mod workloads;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use tollbar_bench::harness::Figures;
use tollbar_bench::machine::Machine;
use tollbar_bench::report::Report;
use tollbar_bench::timer::Stopwatch;

use crate::args::{self, Args};

/// The hidden first argument of a worker process.
const WORKER: &str = "worker";

/// How often and how long.
#[derive(Debug, Clone, Copy)]
struct CoreSchedule {
    rounds: usize,
    duration_ms: u64,
}

const FULL: CoreSchedule = CoreSchedule { rounds: 7, duration_ms: 250 };
const QUICK: CoreSchedule = CoreSchedule { rounds: 3, duration_ms: 60 };

/// What a run found.
#[derive(Debug, Default)]
struct CoreResults {
    figures: Figures,
    /// By family and table: what the workers said of themselves, metric and value.
    facts: BTreeMap<(&'static str, &'static str), Vec<(String, f64)>>,
}

pub(crate) fn main(args: &[&str]) -> ExitCode {
    if let [WORKER, family, table] = args {
        return worker::main(family, table);
    }
    match parse(Args::new(args)) {
        Ok(CoreCommand::Measure { schedule, only, json }) => measure(schedule, only, json),
        Ok(CoreCommand::Flood { flags, json }) => flood::main(flags, json),
        Err(reason) => args::refuse(&reason),
    }
}

#[derive(Debug)]
enum CoreCommand<'a> {
    Measure { schedule: CoreSchedule, only: &'a str, json: Option<&'a Path> },
    Flood { flags: flood::FloodFlags, json: Option<&'a Path> },
}

fn parse(mut args: Args<'_>) -> Result<CoreCommand<'_>, String> {
    let json = args.value("--json")?.map(Path::new);
    let command = if args.flag("--flood") {
        let flags = flood::FloodFlags {
            key_count: args.parsed("--keys")?.unwrap_or(50_000_000),
            cost: args.parsed("--cost")?.unwrap_or(1),
        };
        CoreCommand::Flood { flags, json }
    } else {
        let schedule = if args.flag("--quick") { QUICK } else { FULL };
        CoreCommand::Measure { schedule, only: args.value("--only")?.unwrap_or_default(), json }
    };
    args.finish()?;
    Ok(command)
}

fn measure(schedule: CoreSchedule, only: &str, json: Option<&Path>) -> ExitCode {
    let started = Stopwatch::start();
    let thread_counts = thread_counts();
    let mut results = CoreResults::default();
    for group in workloads::GROUPS {
        group::run(group, &thread_counts, schedule, only, &mut results);
    }
    let report = Report {
        benchmark: "core",
        machine: Machine::detect(),
        rows: rows::all(&results, &thread_counts, only),
        targets: targets::evaluate(&results, only.is_empty()),
    };
    print!("{}", rows::tables(&report));
    eprintln!("{:.0} s in all", started.elapsed().as_secs_f64());
    save(&report, json)
}

/// One thread and two, as far as there are cores: two threads on one core measure the scheduler.
fn thread_counts() -> Vec<usize> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    [1, 2].into_iter().filter(|threads| *threads <= cores).collect()
}

/// Writes the JSON, if a file was named.
fn save(report: &Report, json: Option<&Path>) -> ExitCode {
    let Some(file) = json else {
        return ExitCode::SUCCESS;
    };
    match report.write_json(file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write {}: {error}", file.display());
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_says_what_to_do() {
        let args = ["--quick", "--only", "hot", "--json", "x.json"];
        let Ok(CoreCommand::Measure { schedule, only, json }) = parse(Args::new(&args)) else {
            panic!("a measurement was asked for");
        };
        assert_eq!((schedule.rounds, only, json), (QUICK.rounds, "hot", Some(Path::new("x.json"))));

        let Ok(CoreCommand::Flood { flags, .. }) = parse(Args::new(&["--flood", "--keys", "9"]))
        else {
            panic!("a flood was asked for");
        };
        assert_eq!((flags.key_count, flags.cost), (9, 1));
        assert!(parse(Args::new(&["--keys", "9"])).is_err());
    }
}
