//! `core --flood`: millions of distinct keys against a store that may hold a million.
//!
//! Before the flood two thousand keys are throttled. Half of them keep asking while it lasts, half
//! are silent; at the end an oracle that forgets nothing says which of their requests should have
//! been denied. Time is moved by hand, so a run depends on nothing but its options and the store's
//! secret hash. An LRU of as many keys shows what the usual way out would have done.

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use lru::LruCache;
use tollbar::{ManualClock, MemoryStore, Policy, Rate, Store, Timestamp};
use tollbar_bench::machine::{Machine, resident_bytes};
use tollbar_bench::report::{Bound, Report, Row, Target, TrialName};
use tollbar_bench::timer::Stopwatch;

use super::save;

/// What the flood is like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FloodFlags {
    pub(crate) key_count: u64,
    /// What each key of the flood pays.
    pub(crate) cost: u64,
}

/// How many keys the store, and the LRU, may hold.
const KEY_COUNT_MAX: usize = 1_000_000;

/// Ten at once, then ten an hour: nobody earns a token back while the flood lasts, which at a
/// microsecond per key is 50 seconds.
const BURST: u64 = 10;
const INTERVAL: Duration = Duration::from_mins(6);
const INTERVAL_US: u64 = INTERVAL.as_micros() as u64;
const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const STEP_US: u64 = 1;

/// Keys 0 to 999 are busy, 1,000 to 1,999 silent, and the flood comes from above.
const BUSY_COUNT: u64 = 1_000;
const SILENT_COUNT: u64 = 1_000;
const FLOOD_FIRST: u64 = 1_000_000;

/// Keys of the flood between two requests of busy ones: each busy key asks once in 500,000, so an
/// LRU of a million keeps it too, and the comparison is fair.
const BUSY_EVERY: u64 = 500;

/// Memory may grow to the cap and a twentieth.
const GROWTH_MAX: f64 = 1.05;

pub(crate) fn main(flags: FloodFlags, json: Option<&Path>) -> ExitCode {
    let started = Stopwatch::start();
    let ours = flood_store(flags);
    eprintln!("store: {:.1} s", started.elapsed().as_secs_f64());
    let started = Stopwatch::start();
    let lru = flood_lru(flags);
    eprintln!("lru: {:.1} s", started.elapsed().as_secs_f64());

    let workload = format!("flood_{}_cost_{}", flags.key_count, flags.cost);
    let report = Report {
        benchmark: "core",
        machine: Machine::detect(),
        rows: rows(&workload, &ours, &lru),
        targets: targets(&ours),
    };
    print!("{}\n{}", report.other_table(), report.target_table());
    let saved = save(&report, json);
    if report.targets.iter().all(|target| target.met) { saved } else { ExitCode::FAILURE }
}

/// What happened to the throttled keys.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct ForgivenKeys {
    busy_keys: u64,
    silent_keys: u64,
    /// Requests that were denied and should not have been, throttled keys and flood together.
    falsely_denied: u64,
}

/// What happened to our store.
#[derive(Debug)]
struct StoreOutcome {
    forgiven_keys: ForgivenKeys,
    resident_before: Option<u64>,
    resident_after: Option<u64>,
    store_bytes: u64,
    forced_evictions: u64,
}

fn flood_store(flags: FloodFlags) -> StoreOutcome {
    let clock = ManualClock::at(START);
    let policy = Policy::token_bucket(Rate::new(1, INTERVAL))
        .and_then(|policy| policy.with_burst(BURST))
        .expect("ten an hour is a policy");
    let resident_before = resident_bytes();
    let store = MemoryStore::builder().max_keys(KEY_COUNT_MAX).clock(clock.clone()).build();
    let mut key = String::new();
    let forgiven_keys = flood(flags, |request| {
        clock.set(Timestamp::from_micros(request.now_us));
        key.clear();
        // Writing to a string cannot fail.
        let _ = write!(key, "user:{:010}", request.key);
        let decision = store.check(key.as_bytes(), &policy, request.cost).wait();
        decision.expect("a store in memory answers").is_allowed()
    });
    let resident_after = resident_bytes();
    let stats = store.stats();
    StoreOutcome {
        forgiven_keys,
        resident_before,
        resident_after,
        store_bytes: stats.bytes as u64,
        forced_evictions: stats.forced_evictions,
    }
}

fn flood_lru(flags: FloodFlags) -> ForgivenKeys {
    let capacity = NonZeroUsize::new(KEY_COUNT_MAX).expect("a million is not zero");
    let mut arrivals_us: LruCache<u64, u64> = LruCache::new(capacity);
    flood(flags, |request| take(arrivals_us.get_or_insert_mut(request.key, || 0), request))
}

/// A request of the scenario.
#[derive(Debug, Clone, Copy)]
struct FloodRequest {
    key: u64,
    now_us: u64,
    cost: u64,
}

/// Plays the scenario: `is_allowed` is the limiter under test.
fn flood(flags: FloodFlags, is_allowed: impl FnMut(FloodRequest) -> bool) -> ForgivenKeys {
    let mut judge = Judge::new(is_allowed);
    let mut now_us = START.as_micros();
    for key in 0..BUSY_COUNT + SILENT_COUNT {
        judge.ask_throttled(FloodRequest { key, now_us, cost: BURST });
    }
    for turn in 0..flags.key_count {
        now_us += STEP_US;
        judge.ask_new(FloodRequest { key: FLOOD_FIRST + turn, now_us, cost: flags.cost });
        if turn % BUSY_EVERY == 0 {
            let key = turn / BUSY_EVERY % BUSY_COUNT;
            judge.ask_throttled(FloodRequest { key, now_us, cost: 1 });
        }
    }
    for key in 0..BUSY_COUNT + SILENT_COUNT {
        judge.ask_throttled(FloodRequest { key, now_us, cost: 1 });
    }
    judge.verdict()
}

/// Compares a limiter with one that forgets nothing.
struct Judge<L> {
    is_allowed: L,
    /// The arrival time of each throttled key.
    arrivals_us: Vec<u64>,
    is_forgiven: Vec<bool>,
    falsely_denied: u64,
}

impl<L: FnMut(FloodRequest) -> bool> Judge<L> {
    fn new(is_allowed: L) -> Self {
        let key_count = (BUSY_COUNT + SILENT_COUNT) as usize;
        Self {
            is_allowed,
            arrivals_us: vec![0; key_count],
            is_forgiven: vec![false; key_count],
            falsely_denied: 0,
        }
    }

    /// A request of one of the throttled keys.
    fn ask_throttled(&mut self, request: FloodRequest) {
        let key = request.key as usize;
        let due = take(&mut self.arrivals_us[key], request);
        let allowed = (self.is_allowed)(request);
        self.falsely_denied += u64::from(due && !allowed);
        self.is_forgiven[key] |= allowed && !due;
    }

    /// The one request of a key that nobody has seen: the oracle would allow it.
    fn ask_new(&mut self, request: FloodRequest) {
        self.falsely_denied += u64::from(!(self.is_allowed)(request));
    }

    fn verdict(&self) -> ForgivenKeys {
        let (busy, silent) = self.is_forgiven.split_at(BUSY_COUNT as usize);
        let count = |keys: &[bool]| keys.iter().filter(|is_forgiven| **is_forgiven).count() as u64;
        ForgivenKeys {
            busy_keys: count(busy),
            silent_keys: count(silent),
            falsely_denied: self.falsely_denied,
        }
    }
}

/// The bucket in three lines: `arrival_us` is when what is owed will be paid.
fn take(arrival_us: &mut u64, request: FloodRequest) -> bool {
    let next_us = (*arrival_us).max(request.now_us) + request.cost * INTERVAL_US;
    let allowed = next_us - request.now_us <= BURST * INTERVAL_US;
    if allowed {
        *arrival_us = next_us;
    }
    allowed
}

fn rows(workload: &str, ours: &StoreOutcome, lru: &ForgivenKeys) -> Vec<Row> {
    let mut rows = Vec::new();
    for (subject, forgiven_keys) in [("tollbar_store", &ours.forgiven_keys), ("lru", lru)] {
        let name = TrialName::new(subject, workload, 1);
        let figures = [
            ("busy_throttled_keys_forgiven", forgiven_keys.busy_keys),
            ("silent_throttled_keys_forgiven", forgiven_keys.silent_keys),
            ("requests_falsely_denied", forgiven_keys.falsely_denied),
        ];
        rows.extend(figures.map(|(metric, count)| Row::once(&name, metric, count as f64)));
    }
    let name = TrialName::new("tollbar_store", workload, 1);
    let figures = [
        ("forced_evictions", Some(ours.forced_evictions)),
        ("store_bytes", Some(ours.store_bytes)),
        ("resident_bytes_before", ours.resident_before),
        ("resident_bytes_after", ours.resident_after),
    ];
    rows.extend(figures.map(|(metric, count)| match count {
        Some(count) => Row::once(&name, metric, count as f64),
        None => Row::new(&name, metric, None),
    }));
    rows
}

fn targets(ours: &StoreOutcome) -> Vec<Target> {
    let growth = ours
        .resident_before
        .zip(ours.resident_after)
        .map(|(before, after)| after.saturating_sub(before) as f64 / ours.store_bytes as f64);
    vec![
        Target::new(
            "flood: memory grown, of the cap".to_owned(),
            "ratio",
            growth,
            Bound::AtMost,
            GROWTH_MAX,
        ),
        Target::new(
            "flood: busy throttled keys forgiven".to_owned(),
            "keys",
            Some(ours.forgiven_keys.busy_keys as f64),
            Bound::AtMost,
            0.0,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const SMALL: FloodFlags = FloodFlags { key_count: 600_000, cost: 1 };

    #[test]
    fn a_limiter_that_forgets_nothing_forgives_nobody() {
        let mut arrivals_us: HashMap<u64, u64> = HashMap::new();
        let forgiven_keys =
            flood(SMALL, |request| take(arrivals_us.entry(request.key).or_default(), request));
        assert_eq!(forgiven_keys, ForgivenKeys::default());
    }

    #[test]
    fn a_limiter_that_remembers_nothing_forgives_everybody() {
        let forgiven_keys = flood(SMALL, |request| take(&mut 0, request));
        let expected = ForgivenKeys { busy_keys: 1_000, silent_keys: 1_000, falsely_denied: 0 };
        assert_eq!(forgiven_keys, expected);
    }

    #[test]
    fn an_lru_forgives_the_silent() {
        // Above its million keys and the two thousand.
        let flags = FloodFlags { key_count: 1_100_000, cost: 1 };
        let expected = ForgivenKeys { busy_keys: 0, silent_keys: 1_000, falsely_denied: 0 };
        assert_eq!(flood_lru(flags), expected);
    }

    #[test]
    fn outgrown_memory_or_a_forgiven_busy_key_misses_its_target() {
        let ours = StoreOutcome {
            forgiven_keys: ForgivenKeys { busy_keys: 1, ..ForgivenKeys::default() },
            resident_before: Some(1_000),
            resident_after: Some(2_060),
            store_bytes: 1_000,
            forced_evictions: 5,
        };
        assert!(targets(&ours).iter().all(|target| !target.met));
        let ours = StoreOutcome {
            forgiven_keys: ForgivenKeys { silent_keys: 9, ..ForgivenKeys::default() },
            resident_after: Some(2_050),
            ..ours
        };
        assert!(targets(&ours).iter().all(|target| target.met));
    }
}
