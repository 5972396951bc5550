//! `server`: the daemon over its wires, beside servers that do the like.
//!
//! The server has one core, whoever asks has the other: 50 connections, 10,000 random keys, quotas
//! that allow. What counts is the processor time that a server uses for a request, and ratios of it
//! within a round. Every answer is looked at.

pub(crate) mod admin;
pub(crate) mod envoy;
pub(crate) mod floor;
mod grpc;
mod h2;
mod load;
mod peers;
mod process;
pub(crate) mod proxy;
mod request_template;

use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use tollbar_bench::machine::Machine;
use tollbar_bench::report::{Bound, Report, Row, Target, TrialName};
use tollbar_bench::sample::{ratio, summarise};

use crate::runner;
use load::{KeyChoice, Load};
use peers::Peer;
use request_template::RequestTemplate;

const PIPELINES: [usize; 3] = [1, 16, 64];
const KEY_COUNT: u64 = 10_000;
const MANY_KEYS: u64 = 10_000_000;
const MANY_KEYS_PIPELINE: usize = 16;
const CALM_PER_S: u64 = 175_000;

const OURS: &str = "tollbar, CL.THROTTLE";
const REDIS_CELL: &str = "redis-cell";
const OUR_HTTP: &str = "tollbar, HTTP";
const THROTTLECRAB_HTTP: &str = "throttlecrab-server, HTTP";
const NGINX: &str = "nginx, limit_req";
const HYPER: &str = "hyper, that decides nothing";

const RATE: &str = "requests_per_s";
const CPU: &str = "cpu_s_per_1m_requests";

/// The least that a limiter can do in Lua.
const GCRA: &str = "\
local time = redis.call('TIME') local now = time[1] * 1000000 + time[2] \
local paid_at = tonumber(redis.call('GET', KEYS[1]) or 0) \
if paid_at < now then paid_at = now end \
local next = paid_at + tonumber(ARGV[1]) \
if next - now > tonumber(ARGV[2]) then return {0, paid_at - now} end \
redis.call('SET', KEYS[1], string.format('%.0f', next), 'PX', math.ceil((next - now) / 1000)) \
return {1, next - now}";

#[derive(Clone, Copy)]
struct ServerSchedule {
    rounds: usize,
    duration: Duration,
    /// For ten million keys.
    many_keys: Duration,
}

const FULL: ServerSchedule = ServerSchedule {
    rounds: 5,
    duration: Duration::from_millis(1_500),
    many_keys: Duration::from_mins(1),
};
const QUICK: ServerSchedule = ServerSchedule {
    rounds: 2,
    duration: Duration::from_millis(500),
    many_keys: Duration::from_secs(30),
};

/// One server over one protocol.
struct ServerSubject {
    name: &'static str,
    template: RequestTemplate,
    port: u16,
    /// Which of the servers.
    peer: usize,
    pipelines: &'static [usize],
}

/// What a server is called, how it starts, and what is measured of it.
type PeerEntry = (&'static str, fn() -> io::Result<Peer>, fn(&Peer) -> Vec<ServerSubject>);

const PEERS: [PeerEntry; 4] = [
    ("redis-server with redis-cell", start_redis, of_redis),
    ("throttlecrab-server", peers::throttlecrab, of_throttlecrab),
    ("nginx", peers::nginx, of_nginx),
    ("hyper", floor::start, of_hyper),
];

/// Figures of all rounds, by who, at which depth, and what.
type ServerResults = BTreeMap<(&'static str, usize, &'static str), Vec<f64>>;

/// What ten million keys came to.
#[derive(Debug, Default, Clone, Copy)]
struct ManyKeysResult {
    per_s: Option<f64>,
    cpu_s_per_1m: Option<f64>,
    rss_mb: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

pub(crate) fn main(args: &[&str]) -> ExitCode {
    runner::run(args, [FULL, QUICK], measure)
}

fn measure(schedule: ServerSchedule) -> io::Result<Report> {
    // Ours must be there; whoever else is not is absent.
    let mut servers = vec![peers::tollbar(1_000_000)?];
    let mut subjects = ours(&servers[0]);
    for (name, start, subjects_of) in PEERS {
        match start() {
            Ok(peer) => {
                let at = servers.len();
                let its_own = subjects_of(&peer);
                subjects.extend(
                    its_own.into_iter().map(|subject| ServerSubject { peer: at, ..subject }),
                );
                servers.push(peer);
            }
            Err(error) => eprintln!("{name} is absent: {error}"),
        }
    }
    let envoy = envoy::EnvoyContest::start();
    let mut results = ServerResults::new();
    for round in 0..schedule.rounds {
        eprintln!("round {round}");
        match &envoy {
            Ok(contest) => contest.round(schedule.duration, &mut results)?,
            Err(error) => eprintln!("Envoy's protocol: {error}"),
        }
        for subject in &subjects {
            for pipeline in subject.pipelines {
                let server = &servers[subject.peer].server;
                let before = server.cpu_s();
                let load_result =
                    Load::connect(subject.port, &subject.template).and_then(|mut load| {
                        load.closed(*pipeline, KeyChoice::Random(KEY_COUNT), schedule.duration)
                    });
                let load_result = match load_result {
                    Ok(load_result) => load_result,
                    Err(error) => {
                        eprintln!("{}: {error}", subject.name);
                        continue;
                    }
                };
                let mut add = |metric, figure| {
                    results.entry((subject.name, *pipeline, metric)).or_default().push(figure);
                };
                add(RATE, load_result.answers / load_result.elapsed_s);
                if let (Some(before), Some(after)) = (before, server.cpu_s()) {
                    add(CPU, (after - before) * 1e6 / load_result.answers);
                }
            }
        }
    }
    drop((servers, envoy));
    let many_keys = many_keys(schedule).unwrap_or_else(|error| {
        eprintln!("ten million keys: {error}");
        ManyKeysResult::default()
    });
    Ok(Report {
        benchmark: "server",
        machine: Machine::detect(),
        rows: rows(&results, many_keys),
        targets: targets(&results, many_keys),
    })
}

fn subject(
    name: &'static str,
    template: RequestTemplate,
    port: u16,
    pipelines: &'static [usize],
) -> ServerSubject {
    ServerSubject { name, template, port, peer: 0, pipelines }
}

fn throttle(command: &str, good: &'static str) -> RequestTemplate {
    RequestTemplate::resp(&format!("{command} KEY 1000000 1000000 1"), good)
}

fn our_check() -> RequestTemplate {
    RequestTemplate::post("/v1/check", r#"{"attributes":{"user":"KEY"}}"#)
}

fn ours(peer: &Peer) -> Vec<ServerSubject> {
    vec![
        subject(OURS, throttle("CL.THROTTLE", "*5\r\n:0"), peer.resp, &PIPELINES),
        subject("tollbar, TB.CHECK", RequestTemplate::by_rules(), peer.resp, &PIPELINES),
        subject("tollbar, PING", RequestTemplate::resp("PING", "+PONG"), peer.resp, &PIPELINES),
        subject(OUR_HTTP, our_check(), peer.http, &[1]),
    ]
}

fn start_redis() -> io::Result<Peer> {
    let module = peers::redis_cell();
    if let Err(error) = &module {
        eprintln!("redis-cell is absent: {error}");
    }
    peers::redis(module.ok().as_deref())
}

fn of_redis(peer: &Peer) -> Vec<ServerSubject> {
    let mut subjects = vec![
        subject(REDIS_CELL, throttle("CL.THROTTLE", "*5\r\n:0"), peer.resp, &PIPELINES),
        subject("redis, PING", RequestTemplate::resp("PING", "+PONG"), peer.resp, &PIPELINES),
        subject("redis, INCR", RequestTemplate::resp("INCR KEY", ":"), peer.resp, &PIPELINES),
    ];
    if let Some(sha) = load_script(peer.resp) {
        let template =
            RequestTemplate::resp(&format!("EVALSHA {sha} 1 KEY 1 1000000000"), "*2\r\n:1");
        subjects.push(subject("redis, GCRA in Lua", template, peer.resp, &PIPELINES));
    }
    subjects
}

/// The name of the script on the server.
fn load_script(port: u16) -> Option<String> {
    let client = redis::Client::open(("127.0.0.1", port)).ok()?;
    let mut connection = client.get_connection().ok()?;
    redis::cmd("SCRIPT").arg("LOAD").arg(GCRA).query(&mut connection).ok()
}

fn of_throttlecrab(peer: &Peer) -> Vec<ServerSubject> {
    let body = r#"{"key":"KEY","max_burst":1000000,"count_per_period":1000000,"period":1}"#;
    vec![
        subject("throttlecrab-server", throttle("THROTTLE", "*5\r\n:1"), peer.resp, &PIPELINES),
        subject(THROTTLECRAB_HTTP, RequestTemplate::post("/throttle", body), peer.http, &[1]),
    ]
}

fn of_nginx(peer: &Peer) -> Vec<ServerSubject> {
    vec![subject(NGINX, RequestTemplate::get("/?key=KEY"), peer.http, &[1])]
}

fn of_hyper(peer: &Peer) -> Vec<ServerSubject> {
    vec![subject(HYPER, our_check(), peer.http, &[1])]
}

/// Ten million keys, each once as fast as it goes; then any of them, calmly.
fn many_keys(schedule: ServerSchedule) -> io::Result<ManyKeysResult> {
    eprintln!("ten million keys");
    let peer = peers::tollbar(MANY_KEYS)?;
    // A key owes for an hour, so that all ten million are there at once.
    let template = RequestTemplate::resp("CL.THROTTLE KEY 99 1 3600", "*5\r\n:0");
    let mut load = Load::connect(peer.resp, &template)?;
    let before = peer.server.cpu_s();
    let keys = KeyChoice::EachOnce(MANY_KEYS);
    let load_result = load.closed(MANY_KEYS_PIPELINE, keys, schedule.many_keys)?;
    let cpu_s = peer.server.cpu_s().zip(before).map(|(after, before)| after - before);
    if load_result.answers < MANY_KEYS as f64 {
        eprintln!("only {} of ten million keys were asked for in time", load_result.answers);
    }
    let mut latencies_us = load.open(CALM_PER_S, MANY_KEYS, schedule.duration * 2)?;
    latencies_us.sort_by(f64::total_cmp);
    let percentile = |percent: usize| latencies_us.get(latencies_us.len() * percent / 100).copied();
    Ok(ManyKeysResult {
        per_s: Some(load_result.answers / load_result.elapsed_s),
        cpu_s_per_1m: cpu_s.map(|cpu_s| cpu_s * 1e6 / load_result.answers),
        rss_mb: peer.server.rss_mb(),
        p50_us: percentile(50),
        p99_us: percentile(99),
    })
}

fn rows(results: &ServerResults, many_keys: ManyKeysResult) -> Vec<Row> {
    let row = |(&(subject, depth, metric), figures): (&(&'static str, usize, _), &Vec<f64>)| {
        let trial = TrialName::new(subject, &format!("pipeline_{depth}"), 1);
        Row::new(&trial, metric, summarise(figures))
    };
    let mut rows: Vec<Row> = results.iter().map(row).collect();
    let peers = [REDIS_CELL, "throttlecrab-server", THROTTLECRAB_HTTP, NGINX];
    for absent in peers.into_iter().filter(|peer| !results.keys().any(|(name, ..)| name == peer)) {
        rows.push(Row::new(&TrialName::new(absent, "pipeline_1", 1), CPU, None));
    }
    let fill = TrialName::new(OURS, "ten_million_keys_pipeline_16", 1);
    let calm = TrialName::new(OURS, "ten_million_keys_open_loop_175k", 1);
    let once = [
        (&fill, RATE, many_keys.per_s),
        (&fill, CPU, many_keys.cpu_s_per_1m),
        (&fill, "rss_mb", many_keys.rss_mb),
        (&calm, "p50_us", many_keys.p50_us),
        (&calm, "p99_us", many_keys.p99_us),
    ];
    rows.extend(once.map(|(trial, metric, value)| match value {
        Some(value) => Row::once(trial, metric, value),
        None => Row::new(trial, metric, None),
    }));
    rows
}

fn targets(results: &ServerResults, many_keys: ManyKeysResult) -> Vec<Target> {
    let cpu = |name: &'static str, depth| results.get(&(name, depth, CPU));
    let against = |ours, theirs, depth, target| {
        let value = cpu(ours, depth).zip(cpu(theirs, depth));
        let value =
            value.and_then(|(ours, theirs)| ratio(ours, theirs)).map(|summary| summary.value);
        let name = format!("CPU of {ours} : {theirs}, pipeline {depth}");
        Target::new(name, "ratio", value, Bound::AtMost, target)
    };
    let many = |name: &str, unit, value, bound, target| {
        Target::new(format!("ten million keys: {name}"), unit, value, bound, target)
    };
    vec![
        against(OURS, REDIS_CELL, 1, 0.85),
        against(OURS, REDIS_CELL, 16, 0.33),
        against(OURS, REDIS_CELL, 64, 0.25),
        against(OUR_HTTP, THROTTLECRAB_HTTP, 1, 0.75),
        against(OUR_HTTP, NGINX, 1, 1.3),
        against(envoy::BY_FILES, envoy::EMPTY, 1, 1.15),
        against(envoy::BY_FILES, envoy::EMPTY, 8, 1.15),
        against(grpc::OURS, grpc::EMPTY, 1, 1.15),
        against(grpc::OURS, grpc::EMPTY, 8, 1.15),
        many("checks/s, pipeline 16", "checks/s", many_keys.per_s, Bound::AtLeast, 600_000.0),
        many("p99 at 175,000 checks/s", "us", many_keys.p99_us, Bound::AtMost, 1_000.0),
        many("memory", "MB", many_keys.rss_mb, Bound::AtMost, 600.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_there_without_figures_and_missed() {
        let missed = targets(&ServerResults::new(), ManyKeysResult::default());
        assert_eq!(missed.len(), 12);
        assert!(missed.iter().all(|target| !target.met && target.value.is_none()));
        let rows = rows(&ServerResults::new(), ManyKeysResult::default());
        assert!(rows.iter().all(|row| row.value.is_none()));
    }
}
