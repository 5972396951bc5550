//! Ten thousand tasks on a real runtime and a real clock, with both kinds of timer.

#![expect(clippy::disallowed_methods, reason = "a test that panics is seen")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollbar::{Clock, Limiter, Policy, SystemClock, WaitError};

const TASKS: usize = 10_000;
const KEYS: usize = 8;
const INTERVAL_US: u64 = 500;

/// A clock that everybody can read.
#[derive(Debug, Clone)]
struct SharedClock(Arc<SystemClock>);

impl Clock for SharedClock {
    fn now(&self) -> tollbar::Timestamp {
        self.0.now()
    }
}

/// What became of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Went,
    TimedOut,
    Denied,
}

/// Waits, gives up after a while of its own, or is cancelled from outside. When it left, if it did.
async fn one(limiter: Limiter, clock: SharedClock, task: usize) -> (Fate, u64) {
    let key = (task % KEYS).to_string();
    let patience = Duration::from_micros(rand::random_range(1..400_000));
    match tokio::time::timeout(patience, limiter.wait(&key)).await {
        Ok(Ok(_)) => (Fate::Went, clock.now().as_micros()),
        Ok(Err(WaitError::Denied(_))) => (Fate::Denied, 0),
        Ok(Err(error)) => panic!("{error}"),
        Err(_) => (Fate::TimedOut, 0),
    }
}

fn soak(limiter: &Limiter, clock: &SharedClock) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()
        .unwrap();
    let fates = Mutex::new(BTreeMap::<Fate, usize>::new());
    let started_us = clock.now().as_micros();
    let mut left_us = vec![Vec::new(); KEYS];
    runtime.block_on(async {
        let mut tasks = Vec::with_capacity(TASKS);
        for task in 0..TASKS {
            tasks.push(tokio::spawn(one(limiter.clone(), clock.clone(), task)));
            if task % 100 == 0 {
                tokio::task::yield_now().await;
            }
        }
        for task in (0..TASKS).step_by(7) {
            tasks[task].abort();
        }
        for (number, task) in tasks.into_iter().enumerate() {
            // One that was aborted in time has left nothing.
            let Ok((fate, after_us)) = task.await else { continue };
            *fates.lock().unwrap().entry(fate).or_default() += 1;
            if fate == Fate::Went {
                left_us[number % KEYS].push(after_us);
            }
        }
    });
    let ended_us = clock.now().as_micros();
    println!("{:?} in {} ms", fates.lock().unwrap(), (ended_us - started_us) / 1_000);
    for left_us in &mut left_us {
        left_us.sort_unstable();
        // However late some were: no more than there were turns until then.
        for (turn, at_us) in left_us.iter().enumerate() {
            let turns = (at_us - started_us) / INTERVAL_US;
            assert!(turn as u64 <= turns, "{turn} of {turns} turns");
        }
        // Those who gave up have made room: hardly a turn was lost while somebody waited.
        assert!(left_us.len() > 200, "only {} went", left_us.len());
    }
    let stats = limiter.waiting();
    assert_eq!((stats.waiters, stats.keys), (0, 0), "{stats:?}");
    assert!(stats.bytes < 100_000, "{stats:?}");
}

fn rounds(builder: tollbar::LimiterBuilder, clock: &SharedClock) {
    let limiter = builder.build().unwrap();
    for _ in 0..5 {
        soak(&limiter, clock);
    }
}

fn limiter(clock: &SharedClock) -> tollbar::LimiterBuilder {
    let policy = Policy::leaky_queue("1/500us", 1_000).unwrap();
    Limiter::builder(policy).max_keys(1_000).clock(clock.clone())
}

#[test]
#[ignore = "long: ten thousand tasks in real time"]
fn ten_thousand_tasks_wait_give_up_and_time_out_by_the_thread() {
    let clock = SharedClock(Arc::new(SystemClock::new()));
    rounds(limiter(&clock), &clock);
}

#[test]
#[ignore = "long: ten thousand tasks in real time"]
fn ten_thousand_tasks_wait_give_up_and_time_out_by_the_runtime() {
    let clock = SharedClock(Arc::new(SystemClock::new()));
    rounds(limiter(&clock).timer(tokio::time::sleep), &clock);
}
