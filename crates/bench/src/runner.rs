//! Runs a benchmark with a full and a quick schedule: its flags, its tables, its file of figures.

use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;

use tollbar_bench::report::Report;

use crate::args::{self, Args};

/// Measures by the full schedule, or with `--quick` the other, and prints what came of it; with
/// `--json FILE` it is written there as well.
pub(crate) fn run<E, F: Display>(
    args: &[&str],
    [full, quick]: [E; 2],
    measure: impl FnOnce(E) -> Result<Report, F>,
) -> ExitCode {
    let mut args = Args::new(args);
    let schedule = if args.flag("--quick") { quick } else { full };
    let json = match args.value("--json").and_then(|json| args.finish().map(|()| json)) {
        Ok(json) => json.map(Path::new),
        Err(reason) => return args::refuse(&reason),
    };
    match measure(schedule) {
        Ok(report) => print("", &report, json),
        Err(error) => {
            eprintln!("no figures: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints `head` and the tables that every report has; with a file, the figures go there as well.
pub(crate) fn print(head: &str, report: &Report, json: Option<&Path>) -> ExitCode {
    print!("{head}{}\n{}", report.other_table(), report.target_table());
    match json.map(|file| report.write_json(file)) {
        Some(Err(error)) => {
            eprintln!("cannot write the figures: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
