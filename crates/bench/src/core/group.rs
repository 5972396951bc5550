//! One group: the workers are started and filled, then take turns.

use std::error::Error;

use tollbar_bench::harness::{Contest, Worker, run_rounds};

use super::workloads::{Family, Group, is_wanted};
use super::{CoreResults, CoreSchedule, WORKER};

/// Measures what `only` asks for of `group` and adds it to `results`. Whoever cannot be measured is
/// told about on standard error and left out.
pub(crate) fn run(
    group: &Group,
    thread_counts: &[usize],
    schedule: CoreSchedule,
    only: &str,
    results: &mut CoreResults,
) {
    let wanted: Vec<&Family> = group
        .families
        .iter()
        .filter(|family| {
            let mut names = family.subjects.iter().flat_map(|subject| {
                group.table.workloads.iter().flat_map(move |workload| {
                    thread_counts.iter().map(move |threads| (subject, workload.name, *threads))
                })
            });
            names.any(|(subject, workload, threads)| is_wanted(only, subject, workload, threads))
        })
        .copied()
        .collect();
    if wanted.is_empty() {
        return;
    }
    let mut group_workers = GroupWorkers::default();
    eprintln!("{}: filling {} tables", group.table.name, wanted.len());
    // As many at a time as there are cores: nothing is timed yet.
    for families in wanted.chunks(thread_counts.len()) {
        group_workers.start(families, group, results);
    }

    let contests = contests(group, &group_workers, thread_counts, only);
    eprintln!("{}: measuring {} rounds", group.table.name, schedule.rounds);
    let figures = run_rounds(
        &contests,
        schedule.rounds,
        schedule.duration_ms,
        |request| group_workers.worker_of(&request.subject).measure(request),
        |name, error| {
            let reason = chain(&error);
            eprintln!("{} {}: absent: {reason}", name.subject, name.workload);
        },
    );
    results.figures.extend(figures);
}

/// The workers of a group.
#[derive(Default)]
struct GroupWorkers {
    workers: Vec<(&'static Family, Worker)>,
}

impl GroupWorkers {
    /// Starts a worker for each of `families` and waits until their tables are filled.
    fn start(&mut self, families: &[&'static Family], group: &Group, results: &mut CoreResults) {
        let started: Vec<_> = families
            .iter()
            .filter(|family| {
                if family.build.is_none() {
                    eprintln!("{}: absent: built without this peer", family.name);
                }
                family.build.is_some()
            })
            .map(|family| {
                let args = ["core", WORKER, family.name, group.table.name];
                (*family, Worker::start(&args))
            })
            .collect();
        for (family, worker) in started {
            let ready = worker.and_then(|mut worker| Ok((worker.greeting()?, worker)));
            match ready {
                Ok((greeting, worker)) => {
                    results.facts.insert((family.name, group.table.name), greeting.facts);
                    self.workers.push((family, worker));
                }
                Err(error) => eprintln!("{}: absent: {}", family.name, chain(&error)),
            }
        }
    }

    fn has(&self, subject: &str) -> bool {
        self.workers.iter().any(|(family, _)| family.subjects.contains(&subject))
    }

    fn worker_of(&mut self, subject: &str) -> &mut Worker {
        let worker = self.workers.iter_mut().find(|(family, _)| family.subjects.contains(&subject));
        &mut worker.expect("only subjects of the fleet are in a contest").1
    }
}

fn contests(
    group: &Group,
    group_workers: &GroupWorkers,
    thread_counts: &[usize],
    only: &str,
) -> Vec<Contest> {
    let mut contests = Vec::new();
    for workload in group.table.workloads {
        for &threads in thread_counts {
            let subjects: Vec<String> = group
                .families
                .iter()
                .flat_map(|family| family.subjects)
                .filter(|subject| is_wanted(only, subject, workload.name, threads))
                .filter(|subject| group_workers.has(subject))
                .map(ToString::to_string)
                .collect();
            contests.push(Contest { workload: workload.name.to_owned(), threads, subjects });
        }
    }
    contests
}

/// An error with its causes on one line.
fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        line = format!("{line}: {cause}");
        source = cause.source();
    }
    line
}
