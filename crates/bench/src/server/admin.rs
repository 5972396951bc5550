//! `admin`: rules that are changed while requests are checked.
//!
//! How soon ten thousand rules of a database are enforced, what a change a second does to those who ask
//! meanwhile, and how long a page of a long list takes. The daemon and whoever asks share all cores.

mod client;
mod database;

use std::collections::BTreeMap;
use std::io;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollbar_bench::machine::Machine;
use tollbar_bench::report::{Bound, Report, Row, Target, TrialName};
use tollbar_bench::sample::{ratio, summarise};
use tollbar_bench::timer::{Stopwatch, pause};

use self::client::Client;
use self::database::Database;
use super::load::Load;
use super::peers;
use super::process::{ServerProcess, free_port};
use super::request_template::RequestTemplate;
use crate::runner;

const MANY_RULES: u64 = 10_000;
const SOME_RULES: u64 = 1_000;
const EXEMPTIONS: u64 = 100_000;

/// Slow enough that nobody waits for anybody, whatever else the machine does.
const CALM_PER_S: u64 = 10_000;
const KEY_COUNT: u64 = 10_000;

/// For a daemon to enforce what its database says.
const LOAD_TIME_MAX: Duration = Duration::from_mins(1);

const LOAD: &str = "load_ms";
const QUIET: &str = "p99_us";
const CHANGING: &str = "p99_us_with_a_change_a_second";
const CHANGE: &str = "change_ms";
const PAGE: &str = "page_ms";
const PAGE_MAX: &str = "slowest_page_ms";

/// Rounds, and how long each measurement is.
type AdminSchedule = (usize, Duration);
const FULL: AdminSchedule = (15, Duration::from_secs(3));
const QUICK: AdminSchedule = (5, Duration::from_secs(2));

/// Figures by how many rows there are, and what.
type AdminResults = BTreeMap<(u64, &'static str), Vec<f64>>;

pub(crate) fn main(args: &[&str]) -> ExitCode {
    runner::run(args, [FULL, QUICK], |schedule| measure(schedule).map(|results| report(&results)))
}

/// A daemon over a database.
struct Daemon {
    _server: ServerProcess,
    resp: u16,
    admin: Client,
}

impl Daemon {
    fn start(database: &Database) -> io::Result<Self> {
        let (resp, admin) = (free_port()?, free_port()?);
        let mut command = Command::new(peers::program()?);
        command.arg("serve").arg("--database").arg(database.file());
        command.arg("--rules").arg(database.rules_file());
        command.args(["--resp", &format!("127.0.0.1:{resp}"), "--listen", "off", "--grpc", "off"]);
        command.args(["--admin", &format!("127.0.0.1:{admin}")]);
        let server = ServerProcess::start_unpinned(&mut command, resp)?;
        // It listens there last.
        let watch = Stopwatch::start();
        let admin = loop {
            match Client::connect(admin, database.token()) {
                Err(_) if watch.elapsed() < LOAD_TIME_MAX => pause(Duration::from_millis(1)),
                connected => break connected?,
            }
        };
        Ok(Self { _server: server, resp, admin })
    }

    /// Returns when the rule of that number is enforced.
    fn enforces(&self, rule: u64) -> io::Result<()> {
        let watch = Stopwatch::start();
        while !client::is_limited_by(self.resp, rule)? {
            if watch.elapsed() > LOAD_TIME_MAX {
                return Err(io::Error::other(format!("rule {rule} is not enforced")));
            }
        }
        Ok(())
    }
}

fn measure((rounds, duration): AdminSchedule) -> io::Result<AdminResults> {
    let mut results = AdminResults::new();
    for rules in [SOME_RULES, MANY_RULES] {
        eprintln!("{rules} rules");
        let database = Database::with_rules(rules)?;
        for _ in 0..rounds {
            let watch = Stopwatch::start();
            Daemon::start(&database)?.enforces(rules)?;
            let load_ms = watch.elapsed().as_secs_f64() * 1e3;
            results.entry((rules, LOAD)).or_default().push(load_ms);
        }
        let mut daemon = Daemon::start(&database)?;
        daemon.enforces(rules)?;
        for round in 0..rounds {
            eprintln!("round {round}");
            // Now one first and now the other, so that neither always finds the machine warmer.
            for is_changing in [round % 2 == 0, round % 2 == 1] {
                let watched = watch_checks(&mut daemon, &database, is_changing, duration)?;
                let metric = if is_changing { CHANGING } else { QUIET };
                results.entry((rules, metric)).or_default().push(watched.p99_us);
                if is_changing {
                    results.entry((rules, CHANGE)).or_default().extend(watched.changes_ms);
                }
            }
        }
    }
    eprintln!("{EXEMPTIONS} exemptions");
    let database = Database::with_exemptions(EXEMPTIONS)?;
    let mut daemon = Daemon::start(&database)?;
    for rows in [100, 1_000] {
        let pages_ms = pages_ms(&mut daemon.admin, rows)?;
        if let Some(summary) = summarise(&pages_ms) {
            results.entry((rows, PAGE)).or_default().push(summary.value);
            results.entry((rows, PAGE_MAX)).or_default().push(summary.high);
        }
    }
    Ok(results)
}

/// What was seen while requests were checked.
struct CheckLatencies {
    /// How long all but one of a hundred answers took at most.
    p99_us: f64,
    /// How long each change took to be answered for.
    changes_ms: Vec<f64>,
}

fn watch_checks(
    daemon: &mut Daemon,
    database: &Database,
    is_changing: bool,
    duration: Duration,
) -> io::Result<CheckLatencies> {
    let template = RequestTemplate::by_rules();
    let is_over = AtomicBool::new(false);
    let Daemon { resp, admin, .. } = daemon;
    let (mut latencies_us, changes_ms) = std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let mut changes_ms = Vec::new();
            let watch = Stopwatch::start();
            while is_changing && !is_over.load(Ordering::Relaxed) {
                let count = changes_ms.len() as u64;
                if watch.elapsed() >= Duration::from_secs(count) {
                    let change = Stopwatch::start();
                    admin.change(database.rule(), 1_000_000 + count % 2)?;
                    changes_ms.push(change.elapsed().as_secs_f64() * 1e3);
                }
                pause(Duration::from_millis(5));
            }
            Ok::<_, io::Error>(changes_ms)
        });
        let load_result = Load::connect(*resp, &template)
            .and_then(Load::resting)
            .and_then(|mut load| load.open(CALM_PER_S, KEY_COUNT, duration));
        is_over.store(true, Ordering::Relaxed);
        let changes_ms =
            changes.join().map_err(|_| io::Error::other("the changes have ended"))??;
        let load_result = load_result?;
        let changes = changes_ms.len();
        if is_changing && (changes as u64) < duration.as_secs() {
            return Err(io::Error::other(format!("only {changes} changes were made")));
        }
        Ok((load_result, changes_ms))
    })?;
    latencies_us.sort_by(f64::total_cmp);
    let p99_us = latencies_us.get(latencies_us.len() * 99 / 100).copied();
    let p99_us = p99_us.ok_or_else(|| io::Error::other("nothing was answered"))?;
    Ok(CheckLatencies { p99_us, changes_ms })
}

/// How long each page took, from the first to the last.
fn pages_ms(admin: &mut Client, rows: u64) -> io::Result<Vec<f64>> {
    let mut pages_ms = Vec::new();
    let mut seen = 0;
    let mut cursor: Option<String> = None;
    loop {
        let watch = Stopwatch::start();
        let page = admin.exemptions(rows, cursor.as_deref())?;
        pages_ms.push(watch.elapsed().as_secs_f64() * 1e3);
        seen += page.rows;
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    if seen != EXEMPTIONS {
        return Err(io::Error::other(format!("{seen} of {EXEMPTIONS} exemptions were listed")));
    }
    Ok(pages_ms)
}

fn report(results: &AdminResults) -> Report {
    let name = |count: u64, metric: &str| match metric {
        PAGE | PAGE_MAX => format!("{EXEMPTIONS}_exemptions_pages_of_{count}"),
        _ => format!("{count}_rules"),
    };
    let row = |(&(count, metric), figures): (&(u64, &'static str), &Vec<f64>)| {
        let trial = TrialName::new("tollbar", &name(count, metric), 1);
        Row::new(&trial, metric, summarise(figures))
    };
    let median = |count, metric| {
        results
            .get(&(count, metric))
            .and_then(|figures| summarise(figures))
            .map(|summary| summary.value)
    };
    let against_quiet = |rules| {
        let both = results.get(&(rules, CHANGING)).zip(results.get(&(rules, QUIET)));
        let value =
            both.and_then(|(changing, quiet)| ratio(changing, quiet)).map(|summary| summary.value);
        let name = format!("p99 of checks with a change a second : without, {rules} rules");
        Target::new(name, "ratio", value, Bound::AtMost, 1.2)
    };
    let load = median(MANY_RULES, LOAD);
    let page = median(1_000, PAGE_MAX);
    Report {
        benchmark: "admin",
        machine: Machine::detect(),
        rows: results.iter().map(row).collect(),
        targets: vec![
            Target::new(
                format!("{MANY_RULES} rules, from start to enforced"),
                "ms",
                load,
                Bound::AtMost,
                1e3,
            ),
            against_quiet(SOME_RULES),
            against_quiet(MANY_RULES),
            Target::new(
                format!("slowest page of 1000 of {EXEMPTIONS} exemptions"),
                "ms",
                page,
                Bound::AtMost,
                20.0,
            ),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_there_without_figures_and_missed() {
        let report = report(&AdminResults::new());
        assert_eq!(report.targets.len(), 4);
        assert!(report.targets.iter().all(|target| !target.met && target.value.is_none()));
    }
}
