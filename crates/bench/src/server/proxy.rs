//! `proxy`: the daemon as a reverse proxy beside nginx, in front of the same upstream.
//!
//! Both limit by the client's address, keep their connections to the upstream and write no log. The
//! upstream is a program that answers anything with the same few bytes; what it uses is not counted.
//!
//! Processor time is measured twice: as fast as each can go, and at the same pace. The faster one keeps whoever
//! is at its other ends busy, and a kernel that wakes a sleeper for every answer works for the slower one.

#![expect(clippy::disallowed_methods, reason = "a benchmark that panics is seen")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::process::{Command, ExitCode};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tollbar_bench::machine::Machine;
use tollbar_bench::report::{Bound, Report, Row, Target, TrialName};
use tollbar_bench::sample::{ratio, summarise};

use super::load::{KeyChoice, Load};
use super::peers;
use super::process::{ServerProcess, free_port};
use super::request_template::RequestTemplate;
use crate::{args, runner};

/// The upstream, as a subcommand of this program: `PORT`.
pub(crate) const SERVE_FIXED: &str = "serve-fixed";

const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 12\r\n\r\nhello, world";

const OURS: &str = "tollbar, proxy";
const NGINX: &str = "nginx, proxy_pass and limit_req";
const RATE: &str = "requests_per_s";
const CPU: &str = "cpu_s_per_1m_requests";
const CPU_AT_PACE: &str = "cpu_s_per_1m_requests_at_10k";
const P50: &str = "p50_us";
const P99: &str = "p99_us";

/// Slow enough for both, whatever else the machine does.
const CALM_PER_S: u64 = 2_000;

/// The same load for both, which neither has trouble with.
const PACE_PER_S: u64 = 10_000;

/// Rounds, and how long each measurement is.
type ProxySchedule = (usize, Duration);
const FULL: ProxySchedule = (7, Duration::from_secs(2));
const QUICK: ProxySchedule = (3, Duration::from_secs(1));

type ProxyResults = BTreeMap<(&'static str, &'static str), Vec<f64>>;

pub(crate) fn main(args: &[&str]) -> ExitCode {
    runner::run(args, [FULL, QUICK], |schedule| measure(schedule).map(|results| report(&results)))
}

fn measure((rounds, duration): ProxySchedule) -> io::Result<ProxyResults> {
    let upstream = free_port()?;
    let mut command = Command::new(std::env::current_exe()?);
    let _upstream =
        ServerProcess::start(command.arg(SERVE_FIXED).arg(upstream.to_string()), upstream)?;
    let mut subjects = vec![(OURS, tollbar(upstream)?)];
    match nginx(upstream) {
        Ok(nginx) => subjects.push((NGINX, nginx)),
        Err(error) => eprintln!("nginx is absent: {error}"),
    }
    let template = RequestTemplate::get("/");
    let mut results = ProxyResults::new();
    for round in 0..rounds {
        eprintln!("round {round}");
        for (name, (server, port)) in &subjects {
            let mut add = |metric, figure| {
                results.entry((*name, metric)).or_default().push(figure);
            };
            let mut load = Load::connect(*port, &template)?;
            // Connections to the upstream are made now, and not measured.
            load.closed(1, KeyChoice::Random(1), duration / 10)?;
            let before = server.cpu_s();
            let load_result = load.closed(1, KeyChoice::Random(1), duration)?;
            add(RATE, load_result.answers / load_result.elapsed_s);
            if let (Some(before), Some(after)) = (before, server.cpu_s()) {
                add(CPU, (after - before) * 1e6 / load_result.answers);
            }
            let before = server.cpu_s();
            let answers = load.open(PACE_PER_S, 1, duration)?.len();
            if let (Some(before), Some(after)) = (before, server.cpu_s()) {
                add(CPU_AT_PACE, (after - before) * 1e6 / answers as f64);
            }
            let mut latencies_us = load.open(CALM_PER_S, 1, duration)?;
            latencies_us.sort_by(f64::total_cmp);
            for (metric, percent) in [(P50, 50), (P99, 99)] {
                if let Some(figure) = latencies_us.get(latencies_us.len() * percent / 100) {
                    add(metric, *figure);
                }
            }
        }
    }
    Ok(results)
}

fn report(results: &ProxyResults) -> Report {
    let trial = |name, metric| {
        let workload = match metric {
            P50 | P99 => "open_loop_2k",
            CPU_AT_PACE => "open_loop_10k",
            _ => "50_connections",
        };
        TrialName::new(name, workload, 1)
    };
    let metrics = [RATE, CPU, CPU_AT_PACE, P50, P99];
    let rows = [OURS, NGINX].into_iter().flat_map(|name| metrics.map(|metric| (name, metric)));
    let rows = rows.map(|(name, metric)| {
        let figures = results.get(&(name, metric)).and_then(|figures| summarise(figures));
        Row::new(&trial(name, metric), metric, figures)
    });
    let target = |metric, how: &str| {
        let cpu = |name| results.get(&(name, metric));
        let value = cpu(OURS).zip(cpu(NGINX)).and_then(|(ours, theirs)| ratio(ours, theirs));
        let name = format!("CPU of {OURS} : {NGINX}, {how}");
        Target::new(name, "ratio", value.map(|summary| summary.value), Bound::AtMost, 1.5)
    };
    Report {
        benchmark: "proxy",
        machine: Machine::detect(),
        rows: rows.collect(),
        targets: vec![target(CPU_AT_PACE, "at the same pace"), target(CPU, "as fast as each can")],
    }
}

fn tollbar(upstream: u16) -> io::Result<(ServerProcess, u16)> {
    let port = free_port()?;
    let mut command = Command::new(peers::program()?);
    command.args(["serve", "--limit", "1000000/s", "--listen", "off", "--grpc", "off"]);
    command.args(["--resp", "off", "--upstream", &format!("http://127.0.0.1:{upstream}")]);
    command.args(["--proxy", &format!("127.0.0.1:{port}")]);
    Ok((ServerProcess::start(&mut command, port)?, port))
}

fn nginx(upstream: u16) -> io::Result<(ServerProcess, u16)> {
    let port = free_port()?;
    let folder = peers::target()?.join("bench-nginx-proxy");
    fs::create_dir_all(&folder)?;
    let here = folder.display();
    let config = format!(
        "daemon off; worker_processes 1; master_process off; pid {here}/pid; error_log {here}/error.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off; keepalive_requests 1000000000;\n  \
         client_body_temp_path {here}/a; proxy_temp_path {here}/b; fastcgi_temp_path {here}/c;\n  \
         uwsgi_temp_path {here}/d; scgi_temp_path {here}/e;\n  \
         limit_req_zone $binary_remote_addr zone=z:10m rate=1000000r/s;\n  \
         upstream u {{ server 127.0.0.1:{upstream}; keepalive 256; keepalive_requests 1000000000; }}\n  \
         server {{ listen 127.0.0.1:{port}; location / {{ limit_req zone=z burst=1000000 nodelay;\n    \
         proxy_pass http://u; proxy_http_version 1.1; proxy_set_header Connection \"\";\n    \
         proxy_set_header Host $host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n    \
         proxy_set_header X-Forwarded-Proto $scheme; proxy_set_header X-Forwarded-Host $host; }} }}\n}}\n"
    );
    let file = folder.join("nginx.conf");
    fs::write(&file, config)?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(&folder).arg("-c").arg(&file);
    Ok((ServerProcess::start(&mut command, port)?, port))
}

/// Answers whatever comes, request by request, until it is ended.
pub(crate) fn serve_fixed(args: &[&str]) -> ExitCode {
    let Some(port) = args.first().and_then(|arg| arg.parse::<u16>().ok()) else {
        return args::refuse("serve-fixed needs a port");
    };
    let served =
        tokio::runtime::Builder::new_current_thread().enable_all().build().and_then(|runtime| {
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
                loop {
                    let (stream, _) = listener.accept().await?;
                    stream.set_nodelay(true)?;
                    tokio::spawn(answer(stream));
                }
            })
        });
    let result: io::Result<()> = served;
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Heads come whole here, since they are short and written at once.
async fn answer(mut stream: tokio::net::TcpStream) {
    let mut buffer = [0; 8 * 1024];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        let heads = buffer[..count].windows(4).filter(|four| four == b"\r\n\r\n").count();
        for _ in 0..heads {
            if stream.write_all(ANSWER).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_figures_the_target_is_missed_and_all_rows_are_there() {
        let report = report(&ProxyResults::new());
        assert_eq!(report.rows.len(), 10);
        assert!(report.targets.iter().all(|target| !target.met && target.value.is_none()));
    }
}
