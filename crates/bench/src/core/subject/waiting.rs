//! A thousand requests that wait for their turn at one limiter, each a task of its own.
//!
//! All on one runtime of one thread, which the threads that measure take turns to drive: leaky-bucket
//! keeps a sleep for as long as it lives, and waits for ever once the runtime of that has ended.

#![expect(clippy::disallowed_methods, reason = "a benchmark that panics is seen")]

use std::future::Future;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tollbar::{Limiter, LimiterBuilder, Policy, Rate};

use super::{Expectation, FamilyTable, Trial};
use crate::core::workloads::Table;

/// Workloads by name, and in how many milliseconds as many turns come as wait in a call. leaky-bucket
/// hands its tokens out once a millisecond at most, so it is given as many at once.
pub(crate) const WORKLOADS: [(&str, u64); 2] =
    [("until_ready_1024_per_ms", 1), ("until_ready_1024_per_10ms", 10)];

const TURNS: u32 = 1_024;

/// More than wait at any time.
const LENGTH: u64 = 100_000;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_current_thread().enable_time().build().expect("a runtime can be made")
});

/// By the library's own timer, and by the runtime's.
pub(crate) fn build_tollbar(_: &Table) -> FamilyTable {
    let trials = WORKLOADS.into_iter().flat_map(|(workload, window_ms)| {
        let own = tollbar(window_ms, |builder| builder);
        let tokio = tollbar(window_ms, |builder| builder.timer(tokio::time::sleep));
        [trial("tollbar", workload, own, wait), trial("tollbar_tokio_timer", workload, tokio, wait)]
    });
    FamilyTable::separate(trials.collect())
}

#[cfg(feature = "leaky-bucket")]
pub(crate) fn build_leaky_bucket(_: &Table) -> FamilyTable {
    use leaky_bucket::RateLimiter;

    async fn acquire(limiter: Arc<RateLimiter>) -> bool {
        limiter.acquire_one().await;
        true
    }
    let trials = WORKLOADS.into_iter().map(|(workload, window_ms)| {
        let turns = TURNS as usize;
        let limiter = RateLimiter::builder()
            .max(turns)
            .initial(0)
            .refill(turns)
            .interval(Duration::from_millis(window_ms))
            .build();
        trial("leaky_bucket", workload, limiter, acquire)
    });
    FamilyTable::separate(trials.collect())
}

fn tollbar(window_ms: u64, change: impl Fn(LimiterBuilder) -> LimiterBuilder) -> Limiter {
    let rate = Rate::new(TURNS.into(), Duration::from_millis(window_ms));
    let policy = Policy::leaky_queue(rate, LENGTH).expect("the rates are within bounds");
    change(Limiter::builder(policy)).build().expect("a store of its own needs no name")
}

async fn wait(limiter: Arc<Limiter>) -> bool {
    limiter.wait("key").await.is_ok()
}

/// As many tasks at once as there are keys to a call; which they are does not matter.
fn trial<L, F>(
    subject: &'static str,
    workload: &'static str,
    limiter: L,
    wait: impl Fn(Arc<L>) -> F + Send + Sync + Copy + 'static,
) -> Trial
where
    L: Send + Sync + 'static,
    F: Future<Output = bool> + Send + 'static,
{
    let limiter = Arc::new(limiter);
    Trial::under(subject, workload, Expectation::Allow, move |keys| {
        RUNTIME.block_on(async {
            let spawn = |_| tokio::spawn(wait(Arc::clone(&limiter)));
            let tasks: Vec<_> = keys.iter().map(spawn).collect();
            let mut went = 0;
            for task in tasks {
                went += u64::from(task.await.is_ok_and(|went| went));
            }
            went
        })
    })
}
