//! A worker process: one family, one table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use tollbar_bench::harness::{
    LoopTimes, MeasureRequest, MeasureResult, WorkerGreeting, serve, time_checks,
};
use tollbar_bench::keys::{key, sequence};
use tollbar_bench::machine::resident_bytes;

use super::subject::{Expectation, FamilyTable, Trial};
use super::workloads;

/// Share of checks that may come out otherwise than the trial says: a window may end meanwhile.
const UNEXPECTED_SHARE_MAX: f64 = 0.001;

/// Builds and fills the table, then measures what it is asked to.
pub(crate) fn main(family: &str, table: &str) -> ExitCode {
    let Some((family, table)) = workloads::find(family, table) else {
        eprintln!("no worker for {family} on table {table}");
        return ExitCode::FAILURE;
    };
    let Some(builder) = family.build else {
        eprintln!("{} was left out of this build", family.name);
        return ExitCode::FAILURE;
    };
    // Before the memory is looked at, because it is not the subject's.
    let sequences: BTreeMap<&str, Vec<String>> = table
        .workloads
        .iter()
        .map(|workload| {
            let keys = sequence(workload.order, table.key_count, table.access_count);
            (workload.name, keys)
        })
        .collect();
    let before = resident_bytes();
    let built = builder(table);
    fill(&built, table.key_count);
    let mut facts = (built.facts)();
    // Below a million keys, what a process takes anyway outweighs them.
    if table.key_count >= 1_000_000
        && let (Some(before), Some(after)) = (before, resident_bytes())
    {
        let grown = after.saturating_sub(before);
        facts.push(("bytes_per_key".to_owned(), grown as f64 / table.key_count as f64));
    }
    let answer = |request: &MeasureRequest| {
        let keys = sequences
            .get(request.workload.as_str())
            .ok_or_else(|| format!("no workload `{}` here", request.workload))?;
        measure(&built, keys, request)
    };
    match serve(&WorkerGreeting { facts }, answer) {
        Ok(()) => ExitCode::SUCCESS,
        // The other side has gone: nobody is left to tell.
        Err(_) => ExitCode::FAILURE,
    }
}

/// Checks every key of the table once.
fn fill(built: &FamilyTable, key_count: u64) {
    const GROUP: u64 = 1_024;
    // Rewritten in place, so that the strings a subject keeps lie together in the heap.
    let mut keys: Vec<String> = (0..GROUP.min(key_count)).map(key).collect();
    for first in (0..key_count).step_by(GROUP as usize) {
        let count = GROUP.min(key_count - first);
        for (key, id) in keys.iter_mut().zip(first..first + count) {
            key.clear();
            // Writing to a string cannot fail.
            let _ = write!(key, "user:{id:010}");
        }
        (built.fill)(&keys[..count as usize]);
    }
}

fn measure(built: &FamilyTable, keys: &[String], request: &MeasureRequest) -> MeasureResult {
    let trial = built
        .trial(&request.subject, &request.workload)
        .ok_or_else(|| format!("no subject `{}` here", request.subject))?;
    let duration = Duration::from_millis(request.duration_ms);
    let timed = time_checks(&*trial.checks, keys, request.threads, request.round, duration);
    judge(trial, timed)
}

/// A figure for allowed checks is worth nothing if they were denied, and the other way round.
fn judge(trial: &Trial, timed: LoopTimes) -> MeasureResult {
    let unexpected = match trial.expected {
        Expectation::Allow => timed.checks - timed.allowed,
        Expectation::Deny => timed.allowed,
    };
    if unexpected as f64 > timed.checks as f64 * UNEXPECTED_SHARE_MAX {
        let LoopTimes { checks, allowed, .. } = timed;
        return Err(format!(
            "{allowed} of {checks} were allowed where {:?} is due",
            trial.expected
        ));
    }
    Ok(timed.ns_per_check)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::Mutex;

    use super::*;
    use crate::core::workloads::{GROUPS, Group};

    #[test]
    fn filling_checks_every_key_once_in_order() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let built = FamilyTable {
            trials: Vec::new(),
            fill: Arc::new(move |keys| {
                log.lock().expect("no panic").extend_from_slice(keys);
                0
            }),
            facts: Box::new(Vec::new),
        };
        fill(&built, 2_500);
        let expected: Vec<String> = (0..2_500).map(key).collect();
        assert_eq!(*seen.lock().expect("no panic"), expected);
    }

    /// The plan lists who is measured before anybody is built; here both are compared, and every
    /// trial is run, on all tables small enough for a test.
    #[test]
    fn small_tables_measure_what_the_plan_says_and_decide_as_expected() {
        for Group { table, families } in
            GROUPS.iter().filter(|group| group.table.key_count <= 1_000)
        {
            for family in *families {
                let Some(builder) = family.build else {
                    continue;
                };
                let built = builder(table);
                fill(&built, table.key_count);
                for (subject, workload) in family
                    .subjects
                    .iter()
                    .flat_map(|subject| table.workloads.iter().map(move |w| (*subject, w)))
                {
                    let keys = sequence(workload.order, table.key_count, 1_024);
                    let request = MeasureRequest {
                        subject: subject.to_owned(),
                        workload: workload.name.to_owned(),
                        threads: 2,
                        duration_ms: 2,
                        round: 0,
                    };
                    let ns = measure(&built, &keys, &request);
                    assert!(ns.is_ok_and(|ns| ns > 0.0), "{subject} {}", workload.name);
                }
            }
        }
    }

    #[test]
    fn outcomes_other_than_expected_spoil_the_figure() {
        let trial = |expected| Trial {
            subject: "tollbar",
            workload: None,
            checks: Arc::new(|keys: &[String]| keys.len() as u64),
            expected,
        };
        let timed =
            LoopTimes { ns_per_check: 5.0, cpu_ns_per_check: 5.0, checks: 10_000, allowed: 9_995 };
        assert_eq!(judge(&trial(Expectation::Allow), timed), Ok(5.0));
        assert!(judge(&trial(Expectation::Deny), timed).is_err());
        let timed = LoopTimes { allowed: 9_000, ..timed };
        assert!(judge(&trial(Expectation::Allow), timed).is_err());
    }
}
