//! What a benchmark prints: a table for people, and JSON for machines.
//!
//! A figure that could not be had is `null` in JSON and `absent` in the table, never zero.

mod table;

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::machine::Machine;
use crate::sample::Summary;

/// Everything one run of a benchmark found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The benchmark's name, as `cargo xtask bench` knows it.
    pub benchmark: &'static str,
    /// Where it ran.
    pub machine: Machine,
    /// What was measured.
    pub rows: Vec<Row>,
    /// What was aimed for.
    pub targets: Vec<Target>,
}

/// One figure of one subject under one workload.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Who was measured.
    pub subject: String,
    /// Doing what.
    pub workload: String,
    /// With how many threads at once.
    pub threads: usize,
    /// What the figure is, unit included: `ns_per_check`.
    pub metric: String,
    /// The median over the rounds; `None` if the subject is absent.
    pub value: Option<f64>,
    /// The least of all rounds.
    pub low: Option<f64>,
    /// The greatest of all rounds.
    pub high: Option<f64>,
    /// How many rounds there were.
    pub rounds: usize,
}

impl Row {
    /// A figure over several rounds; absent for `None`.
    #[must_use]
    pub fn new(trial: &TrialName, metric: &str, summary: Option<Summary>) -> Self {
        Self {
            subject: trial.subject.clone(),
            workload: trial.workload.clone(),
            threads: trial.threads,
            metric: metric.to_owned(),
            value: summary.map(|summary| rounded(summary.value)),
            low: summary.map(|summary| rounded(summary.low)),
            high: summary.map(|summary| rounded(summary.high)),
            rounds: summary.map_or(0, |summary| summary.rounds),
        }
    }

    /// A figure that was read once.
    #[must_use]
    pub fn once(trial: &TrialName, metric: &str, value: f64) -> Self {
        Self::new(trial, metric, Some(Summary { value, low: value, high: value, rounds: 1 }))
    }
}

/// Who does what with how many threads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrialName {
    /// Who.
    pub subject: String,
    /// Does what.
    pub workload: String,
    /// With how many threads.
    pub threads: usize,
}

impl TrialName {
    /// Names a trial.
    #[must_use]
    pub fn new(subject: &str, workload: &str, threads: usize) -> Self {
        Self { subject: subject.to_owned(), workload: workload.to_owned(), threads }
    }
}

/// Something aimed for, and whether it was reached.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Target {
    /// What is aimed for.
    pub name: String,
    /// The unit of `value` and `target`.
    pub unit: &'static str,
    /// What was measured; `None` if it could not be.
    pub value: Option<f64>,
    /// The bound.
    pub target: f64,
    /// Whether `value` is on the right side of it. An absent value is on the wrong one.
    pub met: bool,
    /// On which side of the bound is right; for the table only.
    #[serde(skip)]
    pub bound: Bound,
}

/// On which side of a target the good values are. The bound itself is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The more the better.
    AtLeast,
    /// The less the better.
    AtMost,
}

impl Target {
    /// A target and what became of it.
    #[must_use]
    pub fn new(
        name: String,
        unit: &'static str,
        value: Option<f64>,
        bound: Bound,
        target: f64,
    ) -> Self {
        // Judged before rounding: 1.9999 does not meet 2.
        let met = value.is_some_and(|value| match bound {
            Bound::AtLeast => value >= target,
            Bound::AtMost => value <= target,
        });
        Self { name, unit, value: value.map(rounded), target, met, bound }
    }
}

impl Report {
    /// Writes the JSON to `file`.
    pub fn write_json(&self, file: &Path) -> io::Result<()> {
        let mut json = serde_json::to_string_pretty(self)?;
        json.push('\n');
        fs::write(file, json)
    }
}

/// Two decimals are more than the machine's noise leaves to believe.
fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn report() -> Report {
        let machine = Machine {
            cpu: "A Processor".to_owned(),
            cores: 2,
            memory_mib: 1_024,
            kernel: "6.1".to_owned(),
            huge_pages: "madvise".to_owned(),
            rustc: "rustc 1.95.0".to_owned(),
        };
        let summary = Summary { value: 212.004, low: 205.1, high: 230.7, rounds: 5 };
        Report {
            benchmark: "core",
            machine,
            rows: vec![
                Row::new(
                    &TrialName::new("tollbar", "uniform_1m", 1),
                    "ns_per_check",
                    Some(summary),
                ),
                Row::new(&TrialName::new("limitador", "uniform_1m", 1), "ns_per_check", None),
            ],
            targets: vec![Target::new(
                "uniform_1m_1t vs governor".to_owned(),
                "ratio",
                Some(2.3),
                Bound::AtLeast,
                2.0,
            )],
        }
    }

    #[test]
    fn json_has_the_fields_that_readers_rely_on() {
        let json = serde_json::to_value(report()).expect("a report is plain data");
        let expected = serde_json::json!({
            "benchmark": "core",
            "machine": {
                "cpu": "A Processor", "cores": 2, "memory_mib": 1024, "kernel": "6.1",
                "huge_pages": "madvise", "rustc": "rustc 1.95.0"
            },
            "rows": [
                {
                    "subject": "tollbar", "workload": "uniform_1m", "threads": 1,
                    "metric": "ns_per_check", "value": 212.0, "low": 205.1, "high": 230.7, "rounds": 5
                },
                {
                    "subject": "limitador", "workload": "uniform_1m", "threads": 1,
                    "metric": "ns_per_check", "value": null, "low": null, "high": null, "rounds": 0
                },
            ],
            "targets": [
                {
                    "name": "uniform_1m_1t vs governor", "unit": "ratio",
                    "value": 2.3, "target": 2.0, "met": true
                },
            ],
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn a_target_is_met_on_its_bound_and_missed_beyond() {
        let met = |value, bound| Target::new(String::new(), "ratio", value, bound, 1.3).met;
        assert!(met(Some(1.3), Bound::AtLeast) && met(Some(1.3), Bound::AtMost));
        assert!(met(Some(1.31), Bound::AtLeast) && !met(Some(1.31), Bound::AtMost));
        // Rounds to 1.3 when printed, and is missed all the same.
        assert!(!met(Some(1.2999), Bound::AtLeast));
        assert!(!met(None, Bound::AtLeast) && !met(None, Bound::AtMost));
    }
}
