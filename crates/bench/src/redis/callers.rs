//! Those who ask: tasks on one thread, each waiting for its answer before it asks again.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;
use tollbar::{Batch, Entry, Policy, Store};
use tollbar_bench::timer::Stopwatch;
use tollbar_redis::RedisStore;

/// As many as redis-benchmark chooses from.
const KEY_COUNT: u64 = 10_000;

/// What they found.
pub(super) struct Asked {
    pub(super) decisions_per_s: f64,
    pub(super) decisions: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// The policies of a request: quotas that allow.
pub(super) fn policies(count: usize) -> Vec<Policy> {
    let bucket = Policy::token_bucket("1000000/s").and_then(|it| it.with_burst(1_000_000_000));
    let window = Policy::fixed_window("1000000000/h");
    let both = [bucket, window].map(|policy| policy.expect("these are policies"));
    both.into_iter().take(count).collect()
}

async fn check(store: &RedisStore, policies: &[Policy], key: &str) -> bool {
    if let [policy] = policies {
        let decision = store.check(key.as_bytes(), policy, 1).await;
        return decision.is_ok_and(|decision| decision.is_allowed());
    }
    let mut entries: Vec<Entry<'_>> =
        policies.iter().map(|policy| Entry::new(key, policy)).collect();
    let answer = store.check_all(Batch::all_or_none(&mut entries)).await;
    answer.is_ok() && entries.iter().all(|entry| entry.decision().is_some_and(|it| it.is_allowed()))
}

fn key(number: u64) -> String {
    // Spread over all keys, in no order.
    format!("user:{:08}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEY_COUNT)
}

/// `callers` of them for some time; `None` if an answer was not to allow.
pub(super) async fn closed_loop(
    store: Rc<RedisStore>,
    policies: Rc<[Policy]>,
    callers: u64,
    duration: Duration,
) -> Option<Asked> {
    let latencies_us = Rc::new(RefCell::new(Vec::<f64>::new()));
    let failures = Rc::new(Cell::new(0_u64));
    let watch = Stopwatch::start();
    let tasks = LocalSet::new();
    for caller in 0..callers {
        let (store, policies) = (store.clone(), policies.clone());
        let (latencies_us, failures) = (latencies_us.clone(), failures.clone());
        tasks.spawn_local(async move {
            let mut number = caller << 32;
            while watch.elapsed() < duration {
                let asked = Stopwatch::start();
                if !check(&store, &policies, &key(number)).await {
                    failures.set(failures.get() + 1);
                }
                latencies_us.borrow_mut().push(asked.elapsed().as_secs_f64() * 1e6);
                number += 1;
            }
        });
    }
    tasks.await;
    let elapsed = watch.elapsed();
    summed_up(&mut latencies_us.borrow_mut(), elapsed, failures.get())
}

/// So many a second, whether or not those before them are answered; a latency counts from when the
/// check was to be sent.
///
/// On a [runtime](patient_runtime) that looks for answers whenever this yields.
pub(super) async fn open_loop(
    store: Rc<RedisStore>,
    policies: Rc<[Policy]>,
    per_s: f64,
    duration: Duration,
) -> Option<Asked> {
    let latencies_us = Rc::new(RefCell::new(Vec::<f64>::new()));
    let failures = Rc::new(Cell::new(0_u64));
    let watch = Stopwatch::start();
    let tasks = LocalSet::new();
    tasks
        .run_until(async {
            let mut number = 0_u64;
            while watch.elapsed() < duration {
                let due = number as f64 / per_s;
                if watch.elapsed().as_secs_f64() < due {
                    tokio::task::yield_now().await;
                    continue;
                }
                let (store, policies) = (store.clone(), policies.clone());
                let (latencies_us, failures) = (latencies_us.clone(), failures.clone());
                tokio::task::spawn_local(async move {
                    if !check(&store, &policies, &key(number)).await {
                        failures.set(failures.get() + 1);
                    }
                    let latency_s = watch.elapsed().as_secs_f64() - due;
                    latencies_us.borrow_mut().push(latency_s * 1e6);
                });
                number += 1;
            }
        })
        .await;
    tasks.await;
    let elapsed = watch.elapsed();
    summed_up(&mut latencies_us.borrow_mut(), elapsed, failures.get())
}

/// A runtime for the open loop, which always has something to do: others look for answers once in 61
/// turns then, and what they measure is that.
pub(super) fn patient_runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().event_interval(1).build()
}

fn summed_up(latencies_us: &mut [f64], elapsed: Duration, failures: u64) -> Option<Asked> {
    if failures > 0 {
        eprintln!("{failures} of {} checks were not allowed", latencies_us.len());
        return None;
    }
    latencies_us.sort_by(f64::total_cmp);
    let at = |percent: usize| latencies_us.get(latencies_us.len() * percent / 100).copied();
    let decisions = latencies_us.len() as f64;
    let decisions_per_s = decisions / elapsed.as_secs_f64();
    Some(Asked { decisions_per_s, decisions, p50_us: at(50)?, p99_us: at(99)? })
}
