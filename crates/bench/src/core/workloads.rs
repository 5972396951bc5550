//! What is measured: tables, workloads, and who takes part.

use std::num::NonZeroU32;
use std::time::Duration;

use tollbar_bench::keys::Order;

use super::subject::{self, FamilyTable};

/// A table that subjects fill before anything is timed.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) key_count: u64,
    /// Length of a sequence of keys; a multiple of the timed loop's chunk.
    pub(crate) access_count: usize,
    pub(crate) quota: Quota,
    pub(crate) workloads: &'static [Workload],
}

/// A way of going through a table.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) order: Order,
}

/// Large enough to allow every check of a run, and slow enough that a key checked once still owes
/// something at its end. (For a store that forgets what is fresh, a fast quota would turn every
/// check into an insertion.) Both as one number: burst x interval stays below 1.1e15 us, the largest
/// debt that a bucket may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quota {
    pub(crate) interval: Duration,
    pub(crate) burst: NonZeroU32,
}

impl Quota {
    const fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, burst: NonZeroU32::new(burst).expect("a burst is at least one") }
    }
}

/// Subjects that share one table, and so one process.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) name: &'static str,
    /// The first is the one that a figure of the whole table (its memory) goes to.
    pub(crate) subjects: &'static [&'static str],
    /// `None` where the peer is switched off.
    pub(crate) build: Option<fn(&Table) -> FamilyTable>,
}

/// Families that are compared on one table.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) table: &'static Table,
    pub(crate) families: &'static [&'static Family],
}

/// Tollbar and the floor are made for at least this many keys, which is the library's default.
pub(crate) const KEY_COUNT_MAX_LEAST: u64 = 1_000_000;

const MILLION: u64 = 1_000_000;
/// 235 MB of strings: with the table more than the largest caches hold.
const LONG: usize = 4 << 20;

const fn uniform(name: &'static str) -> Workload {
    Workload { name, order: Order::Uniform }
}

static HOT: Table = Table {
    name: "hot",
    key_count: 1,
    access_count: 1 << 10,
    // A hot key is checked a billion times and never rests, so it may earn tokens fast.
    quota: Quota::new(Duration::from_millis(1), 4_000_000_000),
    workloads: &[uniform("hot")],
};

static KEYS_1K: Table = Table {
    name: "1k",
    key_count: 1_000,
    access_count: 1 << 16,
    quota: Quota::new(Duration::from_secs(25), 40_000_000),
    workloads: &[uniform("keys_1k")],
};

static KEYS_1M: Table = Table {
    name: "1m",
    key_count: MILLION,
    access_count: LONG,
    quota: Quota::new(Duration::from_secs(25), 40_000_000),
    workloads: &[uniform("uniform_1m"), Workload { name: "zipf_1m", order: Order::Zipf }],
};

static KEYS_10M: Table = Table {
    name: "10m",
    key_count: 10 * MILLION,
    access_count: LONG,
    quota: Quota::new(Duration::from_secs(270), 4_000_000),
    workloads: &[uniform("uniform_10m")],
};

static UNKEYED: Table = Table {
    name: "unkeyed",
    key_count: 1,
    access_count: 1 << 10,
    quota: HOT.quota,
    workloads: &[uniform("unkeyed_allow"), uniform("unkeyed_deny")],
};

static ALGORITHMS: Table = Table {
    name: "algorithms",
    key_count: 1_000,
    access_count: 1 << 16,
    quota: KEYS_1K.quota,
    workloads: &[
        uniform("token_bucket_allow"),
        uniform("token_bucket_deny"),
        uniform("leaky_bucket_allow"),
        uniform("leaky_bucket_deny"),
        uniform("leaky_queue_allow"),
        uniform("leaky_queue_deny"),
        uniform("fixed_window_allow"),
        uniform("fixed_window_deny"),
        uniform("staggered_window_allow"),
        uniform("staggered_window_deny"),
        uniform("calendar_month_allow"),
        uniform("calendar_month_deny"),
        uniform("sliding_window_allow"),
        uniform("sliding_window_deny"),
        uniform("sliding_window_strict_allow"),
        uniform("sliding_window_strict_deny"),
        uniform("sliding_window_log_100_allow"),
        uniform("sliding_window_log_100_deny"),
        uniform("warm_up_allow"),
        uniform("warm_up_deny"),
        uniform("all_or_none_2_allow"),
        uniform("all_or_none_2_deny"),
        uniform("reserve_and_commit"),
        uniform("check_once"),
        uniform("lease_and_release"),
        uniform("peek"),
    ],
};

static IN_FLIGHT: Table = Table {
    name: "in_flight",
    key_count: 1,
    access_count: 1 << 10,
    quota: HOT.quota,
    workloads: &[uniform("in_flight_hot")],
};

static IN_FLIGHT_1K: Table = Table {
    name: "in_flight_1k",
    key_count: 1_000,
    access_count: 1 << 16,
    quota: HOT.quota,
    workloads: &[uniform("in_flight_1k")],
};

/// Requests that wait: the time per check is that of one of a thousand who wait at once.
static WAITING: Table = Table {
    name: "waiting",
    key_count: 1,
    access_count: 1 << 10,
    quota: HOT.quota,
    workloads: &[
        uniform(subject::waiting::WORKLOADS[0].0),
        uniform(subject::waiting::WORKLOADS[1].0),
    ],
};

static TOLLBAR: Family = Family {
    name: "tollbar",
    subjects: &["tollbar", "tollbar_store", "tollbar_check_many_16"],
    build: Some(subject::tollbar::build),
};

static FLOOR: Family = Family {
    name: "floor",
    subjects: &["floor", "floor_batched_256"],
    build: Some(subject::floor::build),
};

/// The builder behind a feature, or none.
macro_rules! peer {
    ($feature:literal, $build:expr) => {{
        #[cfg(feature = $feature)]
        let build: Option<fn(&Table) -> FamilyTable> = Some($build);
        #[cfg(not(feature = $feature))]
        let build: Option<fn(&Table) -> FamilyTable> = None;
        build
    }};
}

static GOVERNOR_DASHMAP: Family = Family {
    name: "governor_dashmap",
    subjects: &["governor_dashmap"],
    build: peer!("governor", subject::governor::build_dashmap),
};

static GOVERNOR_HASHMAP: Family = Family {
    name: "governor_hashmap",
    subjects: &["governor_hashmap"],
    build: peer!("governor", subject::governor::build_hashmap),
};

static GOVERNOR_STATE: Family = Family {
    name: "governor_dashmap_state_information",
    subjects: &["governor_dashmap_state_information"],
    build: peer!("governor", subject::governor::build_state_information),
};

static THROTTLECRAB: Family = Family {
    name: "throttlecrab",
    subjects: &["throttlecrab"],
    build: peer!("throttlecrab", subject::throttlecrab::build),
};

static LIMITADOR: Family = Family {
    name: "limitador",
    subjects: &["limitador"],
    build: peer!("limitador", subject::limitador::build),
};

static GOVERNOR_DIRECT: Family = Family {
    name: "governor_direct",
    subjects: &["governor_direct"],
    build: peer!("governor", subject::governor::build_direct),
};

static RATELIMIT: Family = Family {
    name: "ratelimit",
    subjects: &["ratelimit"],
    build: peer!("ratelimit", subject::ratelimit::build),
};

static LEAKY_BUCKET: Family = Family {
    name: "leaky_bucket",
    subjects: &["leaky_bucket"],
    build: peer!("leaky-bucket", subject::leaky_bucket::build),
};

static TOLLBAR_WAITING: Family = Family {
    name: "tollbar_waiting",
    subjects: &["tollbar", "tollbar_tokio_timer"],
    build: Some(subject::waiting::build_tollbar),
};

static LEAKY_BUCKET_WAITING: Family = Family {
    name: "leaky_bucket_waiting",
    subjects: &["leaky_bucket"],
    build: peer!("leaky-bucket", subject::waiting::build_leaky_bucket),
};

static ALGORITHM: Family =
    Family { name: "algorithms", subjects: &["tollbar"], build: Some(subject::algorithms::build) };

static PERMITS: Family =
    Family { name: "in_flight", subjects: &["tollbar"], build: Some(subject::in_flight::build) };

static TOKIO: Family = Family {
    name: "tokio_semaphore",
    subjects: &["tokio_semaphore"],
    build: peer!("tokio", subject::in_flight::build_tokio),
};

const KEYED: &[&Family] = &[
    &TOLLBAR,
    &FLOOR,
    &GOVERNOR_DASHMAP,
    &GOVERNOR_HASHMAP,
    &GOVERNOR_STATE,
    &THROTTLECRAB,
    &LIMITADOR,
];

/// Without limitador, which takes a kilobyte and 5 microseconds per key.
const KEYED_10M: &[&Family] =
    &[&TOLLBAR, &FLOOR, &GOVERNOR_DASHMAP, &GOVERNOR_HASHMAP, &GOVERNOR_STATE, &THROTTLECRAB];

/// Everything, in the order in which it is measured.
pub(crate) const GROUPS: &[Group] = &[
    Group { table: &HOT, families: KEYED },
    Group { table: &KEYS_1K, families: KEYED },
    Group { table: &KEYS_1M, families: KEYED },
    Group { table: &KEYS_10M, families: KEYED_10M },
    Group { table: &UNKEYED, families: &[&GOVERNOR_DIRECT, &RATELIMIT, &LEAKY_BUCKET] },
    Group { table: &ALGORITHMS, families: &[&ALGORITHM] },
    Group { table: &IN_FLIGHT, families: &[&PERMITS, &TOKIO] },
    Group { table: &IN_FLIGHT_1K, families: &[&PERMITS] },
    Group { table: &WAITING, families: &[&TOLLBAR_WAITING, &LEAKY_BUCKET_WAITING] },
];

/// The family and the table of these names, for a worker.
pub(crate) fn find(family: &str, table: &str) -> Option<(&'static Family, &'static Table)> {
    let group = GROUPS.iter().find(|group| group.table.name == table)?;
    let family = group.families.iter().find(|candidate| candidate.name == family)?;
    Some((family, group.table))
}

/// Whether `--only` asks for this trial; an empty `only` asks for everything.
pub(crate) fn is_wanted(only: &str, subject: &str, workload: &str, threads: usize) -> bool {
    format!("{subject}/{workload}_{threads}t").contains(only)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tollbar_bench::harness::CHUNK;

    use super::*;

    #[test]
    fn sequences_are_made_of_whole_chunks() {
        for group in GROUPS {
            assert!(group.table.access_count.is_multiple_of(CHUNK), "{}", group.table.name);
        }
    }

    #[test]
    fn quotas_are_debts_that_a_bucket_may_have() {
        for Group { table, .. } in GROUPS {
            let full_us = table.quota.interval.as_micros() * u128::from(table.quota.burst.get());
            assert!(full_us <= 1_100_000_000_000_000, "{}: {full_us}", table.name);
        }
    }

    #[test]
    fn each_subject_and_workload_is_measured_in_one_place() {
        let mut seen = BTreeSet::new();
        for group in GROUPS {
            for subject in group.families.iter().flat_map(|family| family.subjects) {
                for workload in group.table.workloads {
                    assert!(seen.insert((subject, workload.name)), "{subject} {}", workload.name);
                }
            }
        }
    }

    #[test]
    fn only_looks_into_the_whole_name() {
        assert!(is_wanted("", "tollbar", "hot", 1));
        assert!(is_wanted("hot_2t", "tollbar", "hot", 2));
        assert!(is_wanted("tollbar/hot", "tollbar", "hot", 2));
        assert!(!is_wanted("hot_2t", "tollbar", "hot", 1));
    }
}
