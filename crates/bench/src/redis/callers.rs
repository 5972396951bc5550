//! Those who ask: tasks on one thread, each waiting for its answer before it asks again.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::LocalSet;
use tollbar::{Batch, Entry, Policy, Store};
use tollbar_bench::timer::{Stopwatch, pause, pause_precisely};
use tollbar_redis::RedisStore;

/// As many as redis-benchmark chooses from.
const KEY_COUNT: u64 = 10_000;

/// What they found.
pub(super) struct CallerResults {
    pub(super) decisions_per_s: f64,
    pub(super) decisions: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// The policies of a request: quotas that allow, and are owed long enough for keys to live as clients'
/// do. With a million a second every key would be fresh within a millisecond, and what would be measured
/// is how Redis clears expired keys away: some milliseconds of every hundred in which it answers nobody.
pub(super) fn policies(count: usize) -> Vec<Policy> {
    let bucket = Policy::token_bucket("1/s").and_then(|policy| policy.with_burst(1_000_000));
    let window = Policy::fixed_window("1000000000/h");
    let both = [bucket, window].map(|policy| policy.expect("these are policies"));
    both.into_iter().take(count).collect()
}

pub(super) async fn check(store: &RedisStore, policies: &[Policy], key: &str) -> bool {
    if let [policy] = policies {
        let decision = store.check(key.as_bytes(), policy, 1).await;
        return decision.is_ok_and(|decision| decision.is_allowed());
    }
    let mut entries: Vec<Entry<'_>> =
        policies.iter().map(|policy| Entry::new(key, policy)).collect();
    let answer = store.decide(Batch::all_or_none(&mut entries)).await;
    answer.is_ok()
        && entries
            .iter()
            .all(|entry| entry.decision().is_some_and(|decision| decision.is_allowed()))
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
) -> Option<CallerResults> {
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
                let caller_results = Stopwatch::start();
                if !check(&store, &policies, &key(number)).await {
                    failures.set(failures.get() + 1);
                }
                latencies_us.borrow_mut().push(caller_results.elapsed().as_secs_f64() * 1e6);
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
/// Between its turns the thread sleeps, as a service's does: one that never did would keep both cores of
/// a small machine busy, and what is measured would be how its host takes them away.
pub(super) async fn open_loop<A: Future<Output = bool> + 'static>(
    ask: impl Fn(String) -> A,
    per_s: f64,
    duration: Duration,
) -> Option<CallerResults> {
    let latencies_us = Rc::new(RefCell::new(Vec::<f64>::new()));
    let failures = Rc::new(Cell::new(0_u64));
    let watch = Stopwatch::start();
    let ticker = Ticker::start(TICK);
    let tasks = LocalSet::new();
    tasks
        .run_until(async {
            let mut number = 0_u64;
            while watch.elapsed() < duration {
                let due = number as f64 / per_s;
                if watch.elapsed().as_secs_f64() < due {
                    ticker.next().await;
                    continue;
                }
                let answer = ask(key(number));
                let (latencies_us, failures) = (latencies_us.clone(), failures.clone());
                tokio::task::spawn_local(async move {
                    if !answer.await {
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

/// How long the open loop sleeps at a time: tokio's own timer knows nothing shorter than a millisecond.
const TICK: Duration = Duration::from_micros(20);

/// A thread that wakes another one again and again.
pub(crate) struct Ticker {
    tick: Arc<Notify>,
    is_over: Arc<AtomicBool>,
}

impl Ticker {
    pub(crate) fn start(every: Duration) -> Self {
        let ticker = Self { tick: Arc::default(), is_over: Arc::default() };
        let (tick, is_over) = (Arc::clone(&ticker.tick), Arc::clone(&ticker.is_over));
        std::thread::spawn(move || {
            let is_precise = pause_precisely().is_ok();
            debug_assert!(is_precise, "Linux sleeps 50 us longer than it is told to by itself");
            while !is_over.load(Ordering::Relaxed) {
                pause(every);
                tick.notify_one();
            }
        });
        ticker
    }

    pub(crate) async fn next(&self) {
        self.tick.notified().await;
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn summed_up(latencies_us: &mut [f64], elapsed: Duration, failures: u64) -> Option<CallerResults> {
    if failures > 0 {
        eprintln!("{failures} of {} checks were not allowed", latencies_us.len());
        return None;
    }
    latencies_us.sort_by(f64::total_cmp);
    let at = |percent: usize| latencies_us.get(latencies_us.len() * percent / 100).copied();
    let decisions = latencies_us.len() as f64;
    let decisions_per_s = decisions / elapsed.as_secs_f64();
    Some(CallerResults { decisions_per_s, decisions, p50_us: at(50)?, p99_us: at(99)? })
}
