//! `redis`: checks in Redis, beside what redis-benchmark gets out of the same server.
//!
//! The server has one core, whoever asks has the other. Subjects take turns within a round, and ratios
//! are taken within it. The floor is a script that does the least a limiter can do, at the same depth:
//! as many calls under way over one connection as there are callers.

pub(crate) mod callers;
mod floor;
pub(crate) mod server;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use tollbar::{Policy, Store};
use tollbar_bench::machine::Machine;
use tollbar_bench::report::{Bound, Report, Row, Target, TrialName};
use tollbar_bench::sample::{ratio, summarise};
use tollbar_bench::timer::Stopwatch;
use tollbar_redis::{FleetSecret, KeyNames, RedisStore, RedisStoreError};

use crate::runner;
use callers::{CallerResults, check, closed_loop, open_loop, policies};
use floor::FloorCommand;
use server::{RedisServer, client_cpu_s};

/// How many ask at once.
const DEPTHS: [usize; 2] = [1, 64];
const DEEP: usize = 64;

const SUBJECTS: [(&str, usize); 2] = [("tollbar, one policy", 1), ("tollbar, two policies", 2)];

/// Of the floor, at the same depth.
const ONE_POLICY_SHARE_MIN: f64 = 0.75;
const TWO_POLICIES_SHARE_MIN: f64 = 0.5;
const P99_US_MAX: f64 = 1_000.0;
const DENIED_COMMANDS_PER_S_MAX: f64 = 50.0;

const RATE: &str = "decisions_per_s";
const SERVER_CPU: &str = "server_cpu_us_per_decision";
const CLIENT_CPU: &str = "client_cpu_us_per_decision";

#[derive(Clone, Copy)]
struct RedisSchedule {
    rounds: usize,
    duration: Duration,
}

const FULL: RedisSchedule = RedisSchedule { rounds: 7, duration: Duration::from_millis(1_500) };
const QUICK: RedisSchedule = RedisSchedule { rounds: 3, duration: Duration::from_millis(400) };

/// Figures of all rounds, by who, at which depth, and what.
type RedisResults = BTreeMap<(&'static str, usize, &'static str), Vec<f64>>;

pub(crate) fn main(args: &[&str]) -> ExitCode {
    runner::run(args, [FULL, QUICK], measure)
}

fn measure(schedule: RedisSchedule) -> Result<Report, Box<dyn std::error::Error>> {
    let mut server = RedisServer::start()?;
    server::pin_client();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = Rc::new(runtime.block_on(connect(&server))?);
    let mut results = RedisResults::new();
    for round in 0..schedule.rounds {
        for depth in DEPTHS {
            eprintln!("round {round}, {depth} at once");
            for floor in FloorCommand::ALL {
                let (calls, before) = (if depth == 1 { 20_000 } else { 200_000 }, server.cpu_s());
                let Some(per_s) = floor.run(&mut server, depth, calls) else { continue };
                let cpu_us = (server.cpu_s() - before) * 1e6 / calls as f64;
                results.entry((floor.name(), depth, RATE)).or_default().push(per_s);
                results.entry((floor.name(), depth, SERVER_CPU)).or_default().push(cpu_us);
            }
            for (name, policy_count) in SUBJECTS {
                let policies = policies(policy_count).into();
                let before = (server.cpu_s(), server.calls_of("evalsha"));
                let client_before = client_cpu_s();
                let caller_results =
                    closed_loop(store.clone(), policies, depth as u64, schedule.duration);
                let Some(caller_results) = runtime.block_on(caller_results) else { continue };
                if let (Some(before), Some(after)) = (client_before, client_cpu_s()) {
                    let cpu_us = (after - before) * 1e6 / caller_results.decisions;
                    results.entry((name, depth, CLIENT_CPU)).or_default().push(cpu_us);
                }
                let after = (server.cpu_s(), server.calls_of("evalsha"));
                let figures = [
                    (RATE, caller_results.decisions_per_s),
                    (SERVER_CPU, (after.0 - before.0) * 1e6 / caller_results.decisions),
                    ("evalsha_per_decision", (after.1 - before.1) / caller_results.decisions),
                    ("p50_us", caller_results.p50_us),
                    ("p99_us", caller_results.p99_us),
                ];
                for (metric, figure) in figures {
                    results.entry((name, depth, metric)).or_default().push(figure);
                }
            }
        }
    }
    let half = median(&results, (FloorCommand::Gcra.name(), DEEP, RATE)).map(|per_s| per_s / 2.0);
    let paced = match half {
        Some(per_s) => runtime.block_on(paced(&store, &mut server, per_s, schedule))?,
        None => PacedResults::default(),
    };
    let denied =
        runtime.block_on(denied_commands_per_s(&store, &mut server, schedule.duration * 2));
    Ok(Report {
        benchmark: "redis",
        machine: Machine::detect(),
        rows: rows(&results, &paced, denied),
        targets: targets(&results, &paced, denied),
    })
}

async fn connect(server: &RedisServer) -> Result<RedisStore, RedisStoreError> {
    let builder = RedisStore::builder(&server.url(), KeyNames::Hashed(FleetSecret::new([7; 32])));
    // A busy machine must not make answers fail that are late.
    builder.timeout(Duration::from_secs(5)).connect().await
}

/// What a check takes at so many a second, and beside it what the minimal script takes over the same
/// client, in every round.
async fn paced(
    store: &Rc<RedisStore>,
    server: &mut RedisServer,
    per_s: f64,
    schedule: RedisSchedule,
) -> Result<PacedResults, redis::RedisError> {
    let connection = server.connection().await?;
    let script = Rc::new(server.load(floor::GCRA)?);
    let policies: Rc<[Policy]> = policies(1).into();
    let mut paced = PacedResults::default();
    for _ in 0..schedule.rounds {
        let ours = |key: String| {
            let (store, policies) = (store.clone(), policies.clone());
            async move { check(&store, &policies, &key).await }
        };
        let floor = |key: String| floor::ask(connection.clone(), script.clone(), key);
        let duration = schedule.duration * 2;
        let (ours, floor) =
            (open_loop(ours, per_s, duration).await, open_loop(floor, per_s, duration).await);
        paced.ours.extend(ours);
        paced.floor.extend(floor);
    }
    Ok(paced)
}

/// What callers found who came at a pace, round by round.
#[derive(Default)]
struct PacedResults {
    ours: Vec<CallerResults>,
    floor: Vec<CallerResults>,
}

/// How many commands a second a client costs that keeps asking in vain; and how often it asked.
async fn denied_commands_per_s(
    store: &RedisStore,
    server: &mut RedisServer,
    duration: Duration,
) -> Option<(f64, f64)> {
    let policy = Policy::token_bucket("10/min").ok()?;
    store.check(b"attacker", &policy, 10).await.ok()?;
    let before = server.calls_of("evalsha");
    let watch = Stopwatch::start();
    let mut caller_results = 0_u64;
    while watch.elapsed() < duration {
        store.check(b"attacker", &policy, 1).await.ok()?;
        caller_results += 1;
    }
    let elapsed_s = watch.elapsed().as_secs_f64();
    let calls = server.calls_of("evalsha") - before;
    Some((calls / elapsed_s, caller_results as f64 / elapsed_s))
}

fn median(results: &RedisResults, name: (&'static str, usize, &'static str)) -> Option<f64> {
    summarise(results.get(&name)?).map(|summary| summary.value)
}

fn rows(results: &RedisResults, paced: &PacedResults, denied: Option<(f64, f64)>) -> Vec<Row> {
    let row = |(&(subject, depth, metric), figures): (&(&'static str, usize, _), &Vec<f64>)| {
        let trial = TrialName::new(subject, &format!("{depth}_at_once"), 1);
        Row::new(&trial, metric, summarise(figures))
    };
    let mut rows: Vec<Row> = results.iter().map(row).collect();
    for (subject, caller_results) in
        [(SUBJECTS[0].0, &paced.ours), (FloorCommand::Gcra.name(), &paced.floor)]
    {
        let trial = TrialName::new(subject, "open_loop_at_half_the_floor", 1);
        let of = |figure: fn(&CallerResults) -> f64| {
            summarise(&caller_results.iter().map(figure).collect::<Vec<f64>>())
        };
        rows.push(Row::new(&trial, RATE, of(|results| results.decisions_per_s)));
        rows.push(Row::new(&trial, "p50_us", of(|results| results.p50_us)));
        rows.push(Row::new(&trial, "p99_us", of(|results| results.p99_us)));
    }
    let denied_trial = TrialName::new(SUBJECTS[0].0, "one_key_denied_under_10_per_min", 1);
    if let Some((commands, checks)) = denied {
        rows.push(Row::once(&denied_trial, "commands_per_s", commands));
        rows.push(Row::once(&denied_trial, RATE, checks));
    }
    // Its Redis storage (0.14) compiles only together with its disk storage, which builds RocksDB with
    // cmake, and brings OpenSSL.
    let limitador = TrialName::new("limitador, Redis storage", "64_at_once", 1);
    rows.push(Row::new(&limitador, RATE, None));
    rows
}

fn targets(
    results: &RedisResults,
    paced: &PacedResults,
    denied: Option<(f64, f64)>,
) -> Vec<Target> {
    let share = |subject: &'static str| {
        let floor = results.get(&(FloorCommand::Gcra.name(), DEEP, RATE))?;
        ratio(results.get(&(subject, DEEP, RATE))?, floor).map(|summary| summary.value)
    };
    let at_least = |name: &str, value, target| {
        Target::new(name.to_owned(), "ratio", value, Bound::AtLeast, target)
    };
    let [(one, _), (two, _)] = SUBJECTS;
    let p99_us: Vec<f64> = paced.ours.iter().map(|results| results.p99_us).collect();
    let evalsha = median(results, (one, DEEP, "evalsha_per_decision"));
    vec![
        at_least("one policy vs minimal script, 64 at once", share(one), ONE_POLICY_SHARE_MIN),
        at_least("two policies vs minimal script, 64 at once", share(two), TWO_POLICIES_SHARE_MIN),
        Target::new("EVALSHA per decision".to_owned(), "calls", evalsha, Bound::AtMost, 1.01),
        Target::new(
            "p99 at half the floor's load".to_owned(),
            "us",
            summarise(&p99_us).map(|summary| summary.value),
            Bound::AtMost,
            P99_US_MAX,
        ),
        Target::new(
            "commands/s of a key that is asked for in vain".to_owned(),
            "commands/s",
            denied.map(|(commands, _)| commands),
            Bound::AtMost,
            DENIED_COMMANDS_PER_S_MAX,
        ),
    ]
}
