//! The figures as rows of the report, and the report as tables.

use tollbar_bench::report::{Report, Row, TrialName};
use tollbar_bench::sample::{ratio, summarise};

use super::CoreResults;
use super::workloads::{GROUPS, is_wanted};

/// The columns of each table for people.
const SECTIONS: &[(&str, &[&str])] = &[
    ("ns per check and thread, keyed", &["hot", "keys_1k", "uniform_1m", "zipf_1m", "uniform_10m"]),
    ("ns per check and thread, one limiter without keys", &["unkeyed_allow", "unkeyed_deny"]),
    ("ns per permit and thread, taken and given back", &["in_flight_hot", "in_flight_1k"]),
    (
        "ns per request and thread, 1,024 that wait at once",
        &["until_ready_1024_per_ms", "until_ready_1024_per_10ms"],
    ),
];

/// The tables for people.
pub(crate) fn tables(report: &Report) -> String {
    let mut tables: Vec<String> =
        SECTIONS.iter().map(|(title, workloads)| report.time_table(title, workloads)).collect();
    let in_sections: Vec<&str> =
        SECTIONS.iter().flat_map(|(_, workloads)| workloads.iter().copied()).collect();
    tables.push(report.time_list("ns per check and thread, 1,000 keys", &in_sections));
    tables.push(report.other_table());
    tables.push(report.target_table());
    tables.retain(|table| !table.is_empty());
    tables.join("\n")
}

/// Every row, in the order of the plan.
pub(crate) fn all(results: &CoreResults, thread_counts: &[usize], only: &str) -> Vec<Row> {
    let mut rows = time_rows(results, thread_counts, only);
    rows.extend(fact_rows(results));
    rows.extend(ratio_rows(results));
    rows
}

/// A row for every trial that was asked for, absent ones included.
fn time_rows(results: &CoreResults, thread_counts: &[usize], only: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for group in GROUPS {
        for subject in group.families.iter().flat_map(|family| family.subjects) {
            for workload in group.table.workloads {
                for &threads in thread_counts {
                    if !is_wanted(only, subject, workload.name, threads) {
                        continue;
                    }
                    let name = TrialName::new(subject, workload.name, threads);
                    let summary = results.figures.get(&name).and_then(|rounds| summarise(rounds));
                    rows.push(Row::new(&name, "ns_per_check", summary));
                }
            }
        }
    }
    rows
}

/// What the workers said of themselves, under the first subject and workload of their table.
fn fact_rows(results: &CoreResults) -> Vec<Row> {
    let mut rows = Vec::new();
    for group in GROUPS {
        for family in group.families {
            let facts = results.facts.get(&(family.name, group.table.name));
            for (metric, value) in facts.into_iter().flatten() {
                let name = TrialName::new(family.subjects[0], group.table.workloads[0].name, 1);
                rows.push(Row::once(&name, metric, *value));
            }
        }
    }
    rows
}

/// Comparisons that are told and not aimed for: with the peer that, like us, works out what
/// remains, and of batches with the floor's.
const COMPARISONS: &[(&str, &str, &str)] = &[
    ("tollbar", "governor_dashmap_state_information", "speedup_over_governor_state_information"),
    (
        "tollbar_check_many_16",
        "governor_dashmap_state_information",
        "speedup_over_governor_state_information",
    ),
    ("tollbar_check_many_16", "floor_batched_256", "speedup_over_floor_batched_256"),
];

fn ratio_rows(results: &CoreResults) -> Vec<Row> {
    let mut rows = Vec::new();
    for (ours, theirs, metric) in COMPARISONS {
        for (name, ours_ns) in results.figures.iter().filter(|(name, _)| name.subject == *ours) {
            let theirs = TrialName::new(theirs, &name.workload, name.threads);
            if let Some(theirs_ns) = results.figures.get(&theirs) {
                rows.push(Row::new(name, metric, ratio(theirs_ns, ours_ns)));
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_without_figures_is_a_row_without_a_value() {
        let mut results = CoreResults::default();
        results.figures.insert(TrialName::new("tollbar", "hot", 1), vec![30.0, 31.0, 29.0]);
        let rows = all(&results, &[1], "/hot_1t");
        let tollbar = rows.iter().find(|row| row.subject == "tollbar").expect("it was measured");
        assert_eq!((tollbar.value, tollbar.rounds), (Some(30.0), 3));
        let peer = rows.iter().find(|row| row.subject == "throttlecrab").expect("it was asked for");
        assert_eq!((peer.value, peer.rounds), (None, 0));
    }

    #[test]
    fn the_comparison_with_state_information_is_told() {
        let mut results = CoreResults::default();
        let theirs = "governor_dashmap_state_information";
        results.figures.insert(TrialName::new("tollbar", "hot", 2), vec![30.0]);
        results.figures.insert(TrialName::new(theirs, "hot", 2), vec![75.0]);
        let rows = all(&results, &[2], "");
        let told = rows.iter().find(|row| row.metric.starts_with("speedup")).expect("it is told");
        assert_eq!((told.workload.as_str(), told.threads, told.value), ("hot", 2, Some(2.5)));
    }
}
