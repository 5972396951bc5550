//! What is aimed for in process, and what became of it.

use tollbar_bench::report::{Bound, Target, TrialName};
use tollbar_bench::sample::{ratio, summarise};

use super::CoreResults;

/// How many times faster than the better of governor's two stores, by subject and workload.
const VS_GOVERNOR: &[(&str, &str, f64)] = &[
    ("tollbar", "hot", 1.3),
    ("tollbar", "keys_1k", 1.3),
    ("tollbar", "uniform_1m", 2.0),
    ("tollbar", "zipf_1m", 2.0),
    ("tollbar", "uniform_10m", 3.0),
    ("tollbar_check_many_16", "uniform_1m", 8.0),
    ("tollbar_check_many_16", "zipf_1m", 8.0),
    ("tollbar_check_many_16", "uniform_10m", 8.0),
];

/// How many times the floor's time, on each of the keyed workloads.
const VS_FLOOR_MAX: f64 = 1.3;
const VS_FLOOR: &[&str] = &["hot", "keys_1k", "uniform_1m", "zipf_1m", "uniform_10m"];

/// How many times a token bucket's time, a log of up to 100 stamps.
const VS_TOKEN_BUCKET_MAX: f64 = 3.0;
const VS_TOKEN_BUCKET: &[(&str, &str)] = &[
    ("sliding_window_log_100_allow", "token_bucket_allow"),
    ("sliding_window_log_100_deny", "token_bucket_deny"),
];

/// How many times the time of a semaphore that knows no keys, uncontended.
const VS_SEMAPHORE_MAX: f64 = 1.5;
/// How many times as fast as leaky-bucket, where a thousand wait at once: no slower.
const VS_LEAKY_BUCKET_MIN: f64 = 1.0;
const VS_LEAKY_BUCKET: &str = "until_ready_1024_per_ms";

const BYTES_PER_KEY_MAX: f64 = 32.0;
const FORCED_EVICTIONS_PERCENT_MAX: f64 = 0.5;

/// The names under which the tollbar worker tells these two.
pub(crate) const STORE_BYTES_PER_KEY: &str = "store_bytes_per_key";
pub(crate) const FORCED_EVICTIONS_PERCENT: &str = "forced_evictions_percent";

/// Every target. Those that lack a figure are there too, missed, if the run was `complete`; after
/// a run of selected trials they are left out.
pub(crate) fn evaluate(results: &CoreResults, complete: bool) -> Vec<Target> {
    let mut targets = Vec::new();
    for (subject, workload, target) in VS_GOVERNOR {
        for threads in [1, 2] {
            let value = vs_governor(results, subject, workload, threads);
            let prefix = match *subject {
                "tollbar" => "",
                "tollbar_check_many_16" => "check_many_16 ",
                other => unreachable!("{other} has no targets"),
            };
            let name = format!("{prefix}{workload}_{threads}t vs governor");
            targets.push(Target::new(name, "ratio", value, Bound::AtLeast, *target));
        }
    }
    for workload in VS_FLOOR {
        for threads in [1, 2] {
            let value = times_as_long(results, "floor", workload, threads);
            let name = format!("{workload}_{threads}t vs floor");
            targets.push(Target::new(name, "ratio", value, Bound::AtMost, VS_FLOOR_MAX));
        }
    }
    for (workload, bucket) in VS_TOKEN_BUCKET {
        for threads in [1, 2] {
            let value = rounds(results, "tollbar", workload, threads)
                .zip(rounds(results, "tollbar", bucket, threads))
                .and_then(|(log, bucket)| ratio(log, bucket))
                .map(|summary| summary.value);
            let name = format!("{workload}_{threads}t vs token bucket");
            targets.push(Target::new(name, "ratio", value, Bound::AtMost, VS_TOKEN_BUCKET_MAX));
        }
    }
    targets.push(Target::new(
        "in_flight_hot_1t vs tokio's semaphore".to_owned(),
        "ratio",
        times_as_long(results, "tokio_semaphore", "in_flight_hot", 1),
        Bound::AtMost,
        VS_SEMAPHORE_MAX,
    ));
    for threads in [1, 2] {
        let value = rounds(results, "leaky_bucket", VS_LEAKY_BUCKET, threads)
            .zip(rounds(results, "tollbar", VS_LEAKY_BUCKET, threads))
            .and_then(|(theirs, ours)| ratio(theirs, ours))
            .map(|summary| summary.value);
        let name = format!("{VS_LEAKY_BUCKET}_{threads}t vs leaky-bucket");
        targets.push(Target::new(name, "ratio", value, Bound::AtLeast, VS_LEAKY_BUCKET_MIN));
    }
    let fact = |metric: &str| {
        let facts = results.facts.get(&("tollbar", "10m"))?;
        facts.iter().find(|(name, _)| name == metric).map(|(_, value)| *value)
    };
    targets.push(Target::new(
        "bytes per key at 10m live keys".to_owned(),
        "bytes",
        fact(STORE_BYTES_PER_KEY),
        Bound::AtMost,
        BYTES_PER_KEY_MAX,
    ));
    targets.push(Target::new(
        "forced evictions at 10m live keys".to_owned(),
        "percent",
        fact(FORCED_EVICTIONS_PERCENT),
        Bound::AtMost,
        FORCED_EVICTIONS_PERCENT_MAX,
    ));
    targets.retain(|target| complete || target.value.is_some());
    targets
}

fn rounds<'a>(
    results: &'a CoreResults,
    subject: &str,
    workload: &str,
    threads: usize,
) -> Option<&'a [f64]> {
    results.figures.get(&TrialName::new(subject, workload, threads)).map(Vec::as_slice)
}

/// How many times the time of `other` Tollbar takes.
fn times_as_long(
    results: &CoreResults,
    other: &str,
    workload: &str,
    threads: usize,
) -> Option<f64> {
    let ours = rounds(results, "tollbar", workload, threads)?;
    ratio(ours, rounds(results, other, workload, threads)?).map(|summary| summary.value)
}

/// How many times faster `subject` is than the faster of governor's stores.
fn vs_governor(
    results: &CoreResults,
    subject: &str,
    workload: &str,
    threads: usize,
) -> Option<f64> {
    let ours = rounds(results, subject, workload, threads)?;
    let (_, theirs) = ["governor_dashmap", "governor_hashmap"]
        .into_iter()
        .filter_map(|store| rounds(results, store, workload, threads))
        .filter_map(|ns| Some((summarise(ns)?.value, ns)))
        .min_by(|(a_ns, _), (b_ns, _)| a_ns.total_cmp(b_ns))?;
    ratio(theirs, ours).map(|summary| summary.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(figures: &[(&str, &str, usize, f64)]) -> CoreResults {
        let mut results = CoreResults::default();
        for (subject, workload, threads, ns) in figures {
            results.figures.insert(TrialName::new(subject, workload, *threads), vec![*ns; 3]);
        }
        results
    }

    fn target(results: &CoreResults, name: &str) -> Target {
        let mut targets = evaluate(results, true);
        targets.retain(|target| target.name == name);
        assert_eq!(targets.len(), 1, "{name}");
        targets.remove(0)
    }

    #[test]
    fn governor_is_its_better_store() {
        let results = results(&[
            ("tollbar", "uniform_1m", 1, 200.0),
            ("governor_dashmap", "uniform_1m", 1, 500.0),
            ("governor_hashmap", "uniform_1m", 1, 440.0),
        ]);
        let target = target(&results, "uniform_1m_1t vs governor");
        assert_eq!((target.value, target.target, target.met), (Some(2.2), 2.0, true));
    }

    #[test]
    fn the_floor_is_what_we_are_a_multiple_of() {
        let results = results(&[("tollbar", "hot", 1, 56.0), ("floor", "hot", 1, 40.0)]);
        let target = target(&results, "hot_1t vs floor");
        assert_eq!((target.value, target.met), (Some(1.4), false));
    }

    #[test]
    fn every_target_has_a_row_even_if_nothing_was_measured() {
        let targets = evaluate(&CoreResults::default(), true);
        // Governor, the floor, logs, waiting, permits, memory.
        assert_eq!(targets.len(), 8 * 2 + 5 * 2 + 2 * 2 + 2 + 1 + 2);
        assert!(targets.iter().all(|target| target.value.is_none() && !target.met));
        assert!(evaluate(&CoreResults::default(), false).is_empty());
    }

    #[test]
    fn memory_and_evictions_come_from_the_store_itself() {
        let mut results = CoreResults::default();
        let facts = vec![
            (STORE_BYTES_PER_KEY.to_owned(), 32.0),
            (FORCED_EVICTIONS_PERCENT.to_owned(), 0.6),
        ];
        results.facts.insert(("tollbar", "10m"), facts);
        assert!(target(&results, "bytes per key at 10m live keys").met);
        assert!(!target(&results, "forced evictions at 10m live keys").met);
    }
}
