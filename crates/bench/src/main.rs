//! `cargo run --release -p tollbar-bench -- NAME ..`: the benchmarks, one subcommand each.
//!
//! | module | what it has |
//! |---|---|
//! | `core` | checks in process, and the flood of keys |
//! | `redis` | checks in Redis |
//! | `fleet` | hot keys of a fleet that borrows |
//! | `rules` | requests against many rules |
//! | `http` | the tower layer |
//! | `server` | the daemon over its protocols, as a proxy, and under the admin API |
//! | `args`, `runner` | flags; what all subcommands with two schedules share |

#![allow(clippy::let_underscore_must_use, reason = "a benchmark may drop what it does not look at")]

mod args;
mod core;
mod fleet;
mod http;
mod redis;
mod rules;
mod runner;
mod server;

use std::process::ExitCode;

const USAGE: &str = "\
usage: tollbar-bench core [--quick] [--json FILE] [--only SUBSTRING]
       tollbar-bench core --flood [--keys N] [--cost N] [--json FILE]
       tollbar-bench redis [--quick] [--json FILE]
       tollbar-bench fleet [--quick] [--json FILE]
       tollbar-bench rules [--quick] [--json FILE]
       tollbar-bench http [--quick] [--json FILE] [--only SUBSTRING]
       tollbar-bench http --only SUBJECT --requests N
       tollbar-bench server [--quick] [--json FILE]
       tollbar-bench proxy [--quick] [--json FILE]
       tollbar-bench admin [--quick] [--json FILE]

core     checks in process, beside other limiters and a floor
  --quick           fewer and shorter rounds: done within two minutes
  --json FILE       also write the figures as JSON
  --only SUBSTRING  only subjects and workloads whose name, such as
                    `tollbar/uniform_1m_2t`, contains it
  --flood           instead: a flood of distinct keys through a bounded store; exits with 1
                    if memory outgrows its cap or a busy throttled key is forgiven
  --keys N          how many keys the flood has (50000000)
  --cost N          what each of them pays, of a burst of 10 (1)

redis    checks in Redis, beside a minimal script and INCR by redis-benchmark
  --quick           fewer and shorter rounds: done within two minutes
  --json FILE       also write the figures as JSON

fleet    hot keys of 20 nodes that borrow, beside exact checks and optimistic batching
  --quick           one short round: done within two minutes
  --json FILE       also write the figures as JSON

rules    requests against 1 to 10,000 rules, beside limitador
  --quick           fewer and shorter rounds: done within two minutes
  --json FILE       also write the figures as JSON

http     what a layer adds to a request to an axum service, beside tower_governor
  --quick           fewer and shorter rounds: done within half a minute
  --json FILE       also write the figures as JSON
  --only SUBSTRING  only subjects whose name contains it
  --requests N      so many requests to one subject, and no figures: for profilers

server   the daemon over its wires, beside redis-cell, throttlecrab-server and nginx
  --quick           fewer and shorter rounds: done within two minutes
  --json FILE       also write the figures as JSON

proxy    the daemon as a reverse proxy, beside nginx in front of the same upstream
  --quick           fewer and shorter rounds: done within half a minute
  --json FILE       also write the figures as JSON

admin    10,000 rules of a database, changed while requests are checked
  --quick           fewer and shorter rounds: done within a minute
  --json FILE       also write the figures as JSON";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.split_first() {
        Some((&"core", rest)) => core::main(rest),
        Some((&"redis", rest)) => redis::main(rest),
        Some((&"fleet", rest)) => fleet::main(rest),
        Some((&"rules", rest)) => rules::main(rest),
        Some((&"http", rest)) => http::main(rest),
        Some((&"server", rest)) => server::main(rest),
        Some((&"proxy", rest)) => server::proxy::main(rest),
        Some((&"admin", rest)) => server::admin::main(rest),
        Some((&server::proxy::SERVE_FIXED, rest)) => server::proxy::serve_fixed(rest),
        Some((&server::floor::SERVE_HYPER, rest)) => server::floor::serve(rest),
        Some((&server::envoy::SERVE_EMPTY, rest)) => server::envoy::serve_empty(rest),
        Some((&"help" | &"--help" | &"-h", _)) => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        Some((name, _)) => args::refuse(&format!("there is no benchmark `{name}`")),
        None => args::refuse("which benchmark?"),
    }
}
