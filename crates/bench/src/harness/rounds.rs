//! Rounds: every subject once, close together, in an order that rotates.

use std::collections::BTreeMap;

use super::{MeasureRequest, WorkerError};
use crate::report::TrialName;

/// Subjects that are compared: one workload, one number of threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contest {
    /// What all of them do.
    pub workload: String,
    /// With how many threads.
    pub threads: usize,
    /// Who.
    pub subjects: Vec<String>,
}

/// Nanoseconds per check, a figure per round; a trial that failed in any round has none.
pub type Figures = BTreeMap<TrialName, Vec<f64>>;

/// Measures every contest `rounds` times. `measure` asks whichever worker holds the subject.
///
/// A subject that fails once is left out from then on, and `failed` is told.
pub fn run_rounds(
    contests: &[Contest],
    rounds: usize,
    duration_ms: u64,
    mut measure: impl FnMut(&MeasureRequest) -> Result<f64, WorkerError>,
    mut failed: impl FnMut(&TrialName, WorkerError),
) -> Figures {
    let mut figures = Figures::new();
    let mut failures: Vec<TrialName> = Vec::new();
    for round in 0..rounds {
        for contest in contests {
            for turn in 0..contest.subjects.len() {
                // Who was first in the last round is last in this one, so that whatever a
                // predecessor leaves behind in the caches falls on everybody in turn.
                let subject = &contest.subjects[(turn + round) % contest.subjects.len()];
                let name = TrialName::new(subject, &contest.workload, contest.threads);
                if failures.contains(&name) {
                    continue;
                }
                let request = MeasureRequest {
                    subject: subject.clone(),
                    workload: contest.workload.clone(),
                    threads: contest.threads,
                    duration_ms,
                    round,
                };
                match measure(&request) {
                    Ok(ns) => figures.entry(name).or_default().push(ns),
                    Err(error) => {
                        failed(&name, error);
                        figures.remove(&name);
                        failures.push(name);
                    }
                }
            }
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contest(subjects: &[&str]) -> Contest {
        let subjects = subjects.iter().map(ToString::to_string).collect();
        Contest { workload: "hot".to_owned(), threads: 1, subjects }
    }

    #[test]
    fn each_round_measures_everybody_once_in_rotating_order() {
        let mut order = Vec::new();
        let figures = run_rounds(
            &[contest(&["a", "b", "c"])],
            3,
            1,
            |request| {
                order.push(request.subject.clone());
                Ok(request.round as f64)
            },
            |name, error| panic!("{name:?}: {error}"),
        );
        assert_eq!(order.concat(), "abcbcacab");
        assert_eq!(figures.len(), 3);
        assert!(figures.values().all(|rounds| *rounds == [0.0, 1.0, 2.0]));
    }

    #[test]
    fn who_fails_once_has_no_figures_at_all() {
        let mut told = Vec::new();
        let figures = run_rounds(
            &[contest(&["good", "bad"])],
            3,
            1,
            |request| match (request.subject.as_str(), request.round) {
                ("bad", 1) => Err(WorkerError::Ended { worker: "bad".to_owned(), source: None }),
                _ => Ok(1.0),
            },
            |name, _| told.push(name.subject.clone()),
        );
        assert_eq!(told, ["bad"]);
        assert_eq!(figures.keys().map(|name| name.subject.as_str()).collect::<Vec<_>>(), ["good"]);
    }
}
