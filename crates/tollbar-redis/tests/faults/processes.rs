//! Four processes, each with a store of its own, ask for the same keys as fast as they can: over one Redis and over
//! a cluster. Whatever they got together is judged over every interval, from below and from above.
//!
//! Each process logs when it sent a question and when it had the answer, by the wall clock of the machine, which
//! all of them and the server share; the server's `TIME` is read in between.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use crate::support::Patient;
use tokio::task::{LocalSet, yield_now};
use tollbar::{Policy, PolicyError, Store};
use tollbar_redis::{FleetSecret, KeyNames, RedisStore, RedisStoreBuilder};
use tollbar_testkit::client_log::{ClientClock, ClientLog};
use tollbar_testkit::redis::cluster::RedisCluster;
use tollbar_testkit::redis::process::RedisProcess;

/// What a process is told: `server` or `cluster`, and the addresses.
const STORE: &str = "TOLLBAR_TEST_STORE";
/// Whether denials are told again without asking the server.
const GATES: &str = "TOLLBAR_TEST_GATES";
/// For how long to ask, in milliseconds.
const DURATION: &str = "TOLLBAR_TEST_DURATION";

const PROCESSES: usize = 4;
/// For each limit, in each process.
const TASKS: usize = 2;
/// A task logs a denial at most so often: the deny cache answers a million times a second.
const DENIAL_EVERY_US: u64 = 200;
/// What a process prints before the log of each limit.
const NEXT_LOG: &str = "the log of the next limit:";

/// The limits, by their keys, which are in different slots of a cluster.
fn limits() -> Vec<(&'static str, Policy)> {
    let bucket = |rate: &str, burst| Policy::token_bucket(rate)?.with_burst(burst);
    let limits: [(_, Result<Policy, PolicyError>); 7] = [
        ("slow bucket", bucket("20/s", 10)),
        ("fast bucket", bucket("1000/s", 50)),
        ("leaky bucket", Policy::leaky_bucket("1000/s").and_then(|policy| policy.with_burst(50))),
        ("fixed window", Policy::fixed_window("50/100ms")),
        ("sliding counter", Policy::sliding_window("50/100ms")),
        ("strict window", Policy::sliding_window_strict("50/100ms", 10)),
        ("log", Policy::sliding_window_log("50/100ms")),
    ];
    limits.map(|(key, policy)| (key, policy.unwrap())).into()
}

fn builder() -> Option<RedisStoreBuilder> {
    let told = std::env::var(STORE).ok()?;
    let (kind, urls) = told.split_once(' ')?;
    let urls: Vec<&str> = urls.split(' ').collect();
    let subjects = KeyNames::Hashed(FleetSecret::new([7; 32]));
    let builder = match kind {
        "cluster" => RedisStore::cluster_builder(&urls, subjects),
        _ => RedisStore::builder(urls[0], subjects),
    };
    let has_gates = std::env::var(GATES).is_ok_and(|value| value == "on");
    let gated = if has_gates { builder.max_in_flight_per_key(1) } else { builder.deny_cache(0) };
    Some(gated.patient())
}

/// Not a test, but a process of those below: asks as fast as it can, and prints what it got.
#[test]
fn member_of_four() {
    let Some(builder) = builder() else { return };
    let duration_ms: u64 = std::env::var(DURATION).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = Rc::new(runtime.block_on(builder.connect()).unwrap());
    // All begin when all are there.
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let clock = ClientClock::start();
    let end_us = clock.now_us() + duration_ms * 1_000;
    let logs: Vec<_> = limits().iter().map(|_| Rc::new(RefCell::default())).collect();
    let local = LocalSet::new();
    let mut tasks = Vec::new();
    for ((key, policy), log) in limits().into_iter().zip(&logs) {
        for _ in 0..TASKS {
            let (store, policy, log) = (store.clone(), policy.clone(), log.clone());
            let task = async move { ask(&store, key, &policy, clock, end_us, &log).await };
            tasks.push(local.spawn_local(task));
        }
    }
    runtime.block_on(local);
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    for log in logs {
        println!("{NEXT_LOG}\n{}", log.borrow());
    }
}

async fn ask(
    store: &RedisStore,
    key: &str,
    policy: &Policy,
    clock: ClientClock,
    end_us: u64,
    log: &RefCell<ClientLog>,
) {
    let mut next_denial_us = 0;
    loop {
        let sent_us = clock.now_us();
        let decision = store.check(key.as_bytes(), policy, 1).await.unwrap();
        let received_us = clock.now_us();
        if decision.is_allowed() {
            log.borrow_mut().record(sent_us, received_us, 1, 0);
        } else if sent_us >= next_denial_us {
            log.borrow_mut().record(sent_us, received_us, 0, 1);
            next_denial_us = sent_us + DENIAL_EVERY_US;
        }
        if received_us > end_us {
            return;
        }
        // An answer of the deny cache waits for nothing, and others want to ask too.
        yield_now().await;
    }
}

/// Panics unless all that four processes get over `store` is within the bounds of each limit.
fn judge(store: &str, duration: Duration) {
    for gates in ["on", "off"] {
        let mut members: Vec<Child> = (0..PROCESSES)
            .map(|_| {
                Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "processes::member_of_four", "--nocapture"])
                    .env(STORE, store)
                    .env(GATES, gates)
                    .env(DURATION, duration.as_millis().to_string())
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        let mut outputs: Vec<_> = members
            .iter_mut()
            .map(|member| BufReader::new(member.stdout.take().unwrap()))
            .collect();
        for output in &mut outputs {
            let mut line = String::new();
            while line != "ready\n" {
                line.clear();
                assert_ne!(output.read_line(&mut line).unwrap(), 0, "a process has ended");
            }
        }
        for member in &mut members {
            member.stdin.take().unwrap().write_all(b"begin\n").unwrap();
        }
        let mut logs = vec![ClientLog::default(); limits().len()];
        for (mut output, mut member) in outputs.into_iter().zip(members) {
            let mut text = String::new();
            output.read_to_string(&mut text).unwrap();
            assert!(member.wait().unwrap().success(), "{text}");
            let parts: Vec<&str> = text.split(NEXT_LOG).skip(1).collect();
            assert_eq!(parts.len(), logs.len());
            for (log, part) in logs.iter_mut().zip(parts) {
                log.merge(part.parse().unwrap());
            }
        }
        for ((key, policy), log) in limits().iter().zip(logs) {
            let summary = log.judge(policy, key.as_bytes());
            println!("{key}, gates {gates}: {summary:?}");
            summary.unwrap_or_else(|error| panic!("{key}, gates {gates}: {error}"));
        }
    }
}

fn over_one_redis(duration: Duration) {
    let server = RedisProcess::start();
    judge(&format!("server {}", server.url()), duration);
}

fn over_a_cluster(duration: Duration) {
    let cluster = RedisCluster::start();
    judge(&format!("cluster {}", cluster.urls().join(" ")), duration);
}

#[test]
fn four_processes_over_one_redis_stay_within_every_bound() {
    over_one_redis(Duration::from_millis(1_500));
}

#[test]
fn four_processes_over_a_cluster_stay_within_every_bound() {
    over_a_cluster(Duration::from_millis(1_500));
}

#[test]
#[ignore = "long: half a minute over one Redis, and half a minute over a cluster"]
fn four_processes_stay_within_every_bound_for_longer() {
    over_one_redis(Duration::from_secs(15));
    over_a_cluster(Duration::from_secs(15));
}
