//! `http`: what a layer adds to a request to an axum service, beside `tower_governor`.
//!
//! Requests are handed to the service in this process, without sockets: what the kernel and hyper
//! cost is the same for everybody, and a hundred times what is to be seen. Building the request and
//! dropping the response are part of every figure; what a layer adds is the difference to the
//! service without one, in the same round. All of it is processor time of the thread that asks: the clock on
//! the wall also counts what other machines on the same host take.

mod floor;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request as HttpRequest;
use axum::routing::get;
use tollbar_bench::harness::{
    CHUNK, Checks, Contest, Figures, MeasureRequest, WorkerError, run_rounds, time_checks,
};
use tollbar_bench::keys::{Order, sequence};
use tollbar_bench::machine::Machine;
use tollbar_bench::report::{Bound, Report, Row, Target, TrialName};
use tollbar_bench::sample::{ratio, summarise};
use tollbar_http::{HeaderStyle, TollbarLayer};
use tollbar_rules::{Engine, RuleFile};
use tower_service::Service;

use crate::args::{self, Args};
use crate::runner;

/// Requests in a sequence.
const ACCESSES: usize = 256 * CHUNK;

/// How many clients ask.
const WORKLOADS: &[(&str, u64)] = &[("clients_1", 1), ("clients_100k", 100_000)];

/// The service by itself; what it costs is taken off all others.
const BARE: &str = "axum";

const OURS: &str = "tollbar";
const THEIRS: &str = "tower_governor";

/// Ours with `X-RateLimit-*` alone: three headers, where the peer sends two of them.
const OURS_ALIKE: &str = "tollbar, x alone";

/// A layer that sends our headers and decides nothing.
const FLOOR: &str = "our headers alone";

/// All who take part. Those with `quiet` send no headers.
const SUBJECTS: &[&str] =
    &[BARE, FLOOR, OURS, OURS_ALIKE, "tollbar, quiet", THEIRS, "tower_governor, quiet"];

/// So much that everything passes, as with the peer.
const RULES: &str = "rules: [{ name: per_client, limit: 1000000000/s, burst: 1000000000 }]";

const ADDED_NS_MAX: f64 = 1_000.0;

struct HttpSchedule {
    rounds: usize,
    duration_ms: u64,
}

const FULL: HttpSchedule = HttpSchedule { rounds: 9, duration_ms: 400 };
const QUICK: HttpSchedule = HttpSchedule { rounds: 5, duration_ms: 100 };

pub(crate) fn main(args: &[&str]) -> ExitCode {
    let mut args = Args::new(args);
    match args.parsed("--requests").and_then(|count| Ok((count, parse(args)?))) {
        Ok((Some(count), (_, _, only))) => run_for_a_profiler(only, count),
        Ok((None, (schedule, json, only))) => measure(&schedule, json, only),
        Err(reason) => args::refuse(&reason),
    }
}

/// Sends so many requests through one subject and measures nothing: the difference between two
/// counts under `valgrind --tool=callgrind` is what a request takes in instructions, which is the
/// same on a machine that has other things to do.
fn run_for_a_profiler(subject: &str, count: usize) -> ExitCode {
    let Some(checks) = SUBJECTS.contains(&subject).then(|| build(subject)).flatten() else {
        return args::refuse(&format!("`--only {subject}` is none of {SUBJECTS:?}"));
    };
    let keys = sequence(Order::Uniform, 1, CHUNK);
    let allowed: u64 = (0..count.div_ceil(CHUNK)).map(|_| checks(&keys)).sum();
    println!("{allowed} requests were answered 200");
    ExitCode::SUCCESS
}

type HttpFlags<'a> = (HttpSchedule, Option<&'a Path>, &'a str);

fn parse(mut args: Args<'_>) -> Result<HttpFlags<'_>, String> {
    let json = args.value("--json")?.map(Path::new);
    let only = args.value("--only")?.unwrap_or_default();
    let schedule = if args.flag("--quick") { QUICK } else { FULL };
    args.finish()?;
    Ok((schedule, json, only))
}

/// The service that all layers are in front of.
fn app() -> Router {
    Router::new().route("/v1/things", get(async || "hello"))
}

/// The service behind our layer: one rule per client, with the headers it is told to send.
fn tollbar_app(style: HeaderStyle) -> Router {
    let file = RuleFile::parse("bench.yaml", RULES).expect("this rule is sound");
    let layer = TollbarLayer::builder(Engine::new(file.rules)).headers(style).build();
    app().layer(layer)
}

/// The service behind `tower_governor`, by the peer's address, with and without its headers.
#[cfg(feature = "tower_governor")]
fn tower_governor_app(has_headers: bool) -> Option<Router> {
    use tower_governor::GovernorLayer;
    use tower_governor::governor::GovernorConfigBuilder;

    let mut builder = GovernorConfigBuilder::default();
    builder.per_nanosecond(1).burst_size(1_000_000_000);
    Some(if has_headers {
        let config = builder.use_headers().finish()?;
        app().layer(GovernorLayer::new(config))
    } else {
        app().layer(GovernorLayer::new(builder.finish()?))
    })
}

#[cfg(not(feature = "tower_governor"))]
fn tower_governor_app(_: bool) -> Option<Router> {
    None
}

/// Sends a request for each key, all of which have to be answered with 200.
fn asking(app: Router) -> Box<Checks> {
    // As `axum::serve` does it: without this, axum puts the layers together for every request anew.
    let app = app.with_state::<()>(());
    // A router is not `Sync`; each chunk has a clone of its own, as each connection would.
    let app = std::sync::Mutex::new(app);
    Box::new(move |keys| {
        let mut app = app.lock().expect("no check panics").clone();
        keys.iter().map(|key| u64::from(ask(&mut app, key))).sum()
    })
}

fn ask(app: &mut Router, key: &str) -> bool {
    let mut request = HttpRequest::new(Body::empty());
    *request.uri_mut() = axum::http::Uri::from_static("/v1/things");
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from((address_of(key), 40_000))));
    let mut response = pin!(app.call(request));
    match response.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(response)) => response.status() == 200,
        Poll::Pending => false,
    }
}

/// Each client at an address of its own: `user:0000000007` is 10.0.0.7.
fn address_of(key: &str) -> Ipv4Addr {
    let number = key[5..].bytes().fold(0, |number, byte| number * 10 + u32::from(byte - b'0'));
    Ipv4Addr::from(0x0a00_0000 | number & 0x00ff_ffff)
}

fn build(subject: &str) -> Option<Box<Checks>> {
    match subject {
        "axum" => Some(asking(app())),
        FLOOR => Some(asking(floor::app())),
        "tollbar" => Some(asking(tollbar_app(HeaderStyle::default()))),
        "tollbar, x alone" => Some(asking(tollbar_app(HeaderStyle::default().without_ietf()))),
        "tollbar, quiet" => Some(asking(tollbar_app(HeaderStyle::none()))),
        "tower_governor" => tower_governor_app(true).map(asking),
        _ => tower_governor_app(false).map(asking),
    }
}

fn measure(schedule: &HttpSchedule, json: Option<&Path>, only: &str) -> ExitCode {
    let mut ready = Vec::new();
    let mut contests = Vec::new();
    for (workload, client_count) in WORKLOADS {
        let keys = sequence(Order::Uniform, *client_count, ACCESSES);
        let mut subjects = Vec::new();
        for subject in SUBJECTS.iter().filter(|subject| subject.contains(only)) {
            if let Some(checks) = build(subject) {
                subjects.push((*subject).to_owned());
                ready.push((*subject, *workload, checks));
            }
        }
        contests.push((Contest { workload: (*workload).to_owned(), threads: 1, subjects }, keys));
    }
    let run = |request: &MeasureRequest| -> Result<f64, WorkerError> {
        let (_, _, checks) = ready
            .iter()
            .find(|(subject, workload, _)| {
                *subject == request.subject && *workload == request.workload
            })
            .expect("only what is ready takes part");
        let (_, keys) = contests
            .iter()
            .find(|(contest, _)| contest.workload == request.workload)
            .expect("each workload has its keys");
        let duration = Duration::from_millis(request.duration_ms);
        let timed = time_checks(&**checks, keys, request.threads, request.round, duration);
        if timed.allowed == timed.checks {
            Ok(timed.cpu_ns_per_check)
        } else {
            let reason = format!("{} of {} were answered 200", timed.allowed, timed.checks);
            Err(WorkerError::Refused { worker: request.subject.clone(), reason })
        }
    };
    let failed = |name: &TrialName, error: WorkerError| {
        eprintln!("{} {}: absent: {error}", name.subject, name.workload);
    };
    let only_contests: Vec<Contest> = contests.iter().map(|(contest, _)| contest.clone()).collect();
    let figures = run_rounds(&only_contests, schedule.rounds, schedule.duration_ms, run, failed);
    let report = Report {
        benchmark: "http",
        machine: Machine::detect(),
        rows: rows(&figures),
        targets: targets(&figures),
    };
    let columns: Vec<&str> = WORKLOADS.iter().map(|(name, _)| *name).collect();
    let head = "ns of processor time per request, the service included";
    runner::print(&format!("{}\n", report.time_table(head, &columns)), &report, json)
}

/// What a subject adds to the service by itself, round by round.
fn added(figures: &Figures, subject: &str, workload: &str) -> Option<Vec<f64>> {
    let of = |subject: &str| figures.get(&TrialName::new(subject, workload, 1));
    let (with, without) = (of(subject)?, of(BARE)?);
    Some(with.iter().zip(without).map(|(with, without)| with - without).collect())
}

fn rows(figures: &Figures) -> Vec<Row> {
    let mut rows = Vec::new();
    for (workload, _) in WORKLOADS {
        for subject in SUBJECTS {
            let name = TrialName::new(subject, workload, 1);
            let summary = figures.get(&name).and_then(|rounds| summarise(rounds));
            rows.push(Row::new(&name, "ns_per_check", summary));
            if *subject != BARE {
                let added = added(figures, subject, workload);
                rows.push(Row::new(&name, "added_ns", added.and_then(|rounds| summarise(&rounds))));
            }
        }
    }
    rows
}

fn targets(figures: &Figures) -> Vec<Target> {
    let mut targets = Vec::new();
    for (workload, _) in WORKLOADS {
        let ours = added(figures, OURS, workload);
        let absolute =
            ours.as_ref().and_then(|rounds| summarise(rounds)).map(|summary| summary.value);
        targets.push(Target::new(
            format!("added to a request, {workload}"),
            "ns",
            absolute,
            Bound::AtMost,
            ADDED_NS_MAX,
        ));
        let theirs = added(figures, THEIRS, workload);
        for (name, ours) in [("", ours), (", x alone", added(figures, OURS_ALIKE, workload))] {
            let pairs = ours.zip(theirs.clone());
            let relative = pairs.and_then(|(ours, theirs)| ratio(&ours, &theirs));
            targets.push(Target::new(
                format!("added{name} : added by tower_governor, {workload}"),
                "ratio",
                relative.map(|summary| summary.value),
                Bound::AtMost,
                1.0,
            ));
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_answers_what_it_is_asked() {
        let keys = sequence(Order::Uniform, 100, 64);
        for subject in SUBJECTS {
            if let Some(checks) = build(subject) {
                assert_eq!(checks(&keys), 64, "{subject}");
            }
        }
    }

    #[test]
    fn each_client_has_an_address() {
        assert_eq!(address_of("user:0000000007"), Ipv4Addr::new(10, 0, 0, 7));
        assert_eq!(address_of("user:0000065536"), Ipv4Addr::new(10, 1, 0, 0));
    }

    #[test]
    fn targets_are_there_without_figures_and_missed() {
        let missed = targets(&Figures::new());
        assert_eq!(missed.len(), 6);
        assert!(missed.iter().all(|target| !target.met && target.value.is_none()));
    }
}
