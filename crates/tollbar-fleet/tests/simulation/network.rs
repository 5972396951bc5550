//! The way from a node to the store, and the node's clock, in simulated time: paused tokio.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tollbar::{Batch, Loan, LoanRequest, Policy, Reply, Store, StoreError};
use tollbar_fleet::BootClock;
use tollbar_testkit::xorshift::Xorshift;

tokio::task_local! {
    /// When the store executed the batch of the request that this task is about.
    pub(crate) static EXECUTED_US: Cell<u64>;
}

thread_local! {
    static STARTED_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Where simulated time begins: in the middle of a window.
const BEGINNING_US: u64 = 1_700_000_000_250_000;

/// Begins a simulation on this thread.
pub(crate) fn begin() {
    STARTED_AT.set(Some(Instant::now()));
}

/// The time that all judge by.
pub(crate) fn true_now_us() -> u64 {
    let started_at = STARTED_AT.get().expect("a simulation has begun");
    BEGINNING_US + started_at.elapsed().as_micros() as u64
}

/// How bad the way is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weather {
    /// The longest time that a message takes one way.
    pub(crate) delay_us_max: u64,
    /// How many of a thousand messages are lost.
    pub(crate) loss_permille: u64,
    /// The store is given up on after this.
    pub(crate) deadline: Duration,
}

/// A node's own clock: it began at another time, and runs a little faster or slower.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DriftingClock {
    pub(crate) offset_us: u64,
    pub(crate) drift_ppm: i64,
}

impl BootClock for DriftingClock {
    fn now_us(&self) -> u64 {
        let passed_us = (true_now_us() - BEGINNING_US).cast_signed();
        self.offset_us + (passed_us + passed_us * self.drift_ppm / 1_000_000).cast_unsigned()
    }
}

/// When a node that is stopped goes on.
#[derive(Debug, Default)]
pub(crate) struct Freezer(AtomicU64);

impl Freezer {
    pub(crate) fn freeze(&self, duration_us: u64) {
        self.0.store(true_now_us() + duration_us, Ordering::Relaxed);
    }

    /// Returns when the node runs.
    pub(crate) async fn wait(&self) {
        loop {
            let left_us = self.0.load(Ordering::Relaxed).saturating_sub(true_now_us());
            if left_us == 0 {
                return;
            }
            sleep(Duration::from_micros(left_us)).await;
        }
    }
}

/// A node's connection to the store.
pub(crate) struct Link {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) weather: Weather,
    pub(crate) freezer: Arc<Freezer>,
    pub(crate) random: Mutex<Xorshift>,
    pub(crate) calls: AtomicU64,
}

impl Link {
    /// Sends a request, has the store execute it, and brings the reply; either may be lost.
    async fn exchange<T: Send>(
        &self,
        execute: impl FnOnce() -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let deadline = true_now_us() + self.weather.deadline.as_micros() as u64;
        let lost = || StoreError::Timeout { source: Arc::new(fmt::Error) };
        if !self.travel().await {
            self.give_up(deadline).await;
            return Err(lost());
        }
        let answer = execute();
        let executed_us = true_now_us();
        let arrived = self.travel().await && true_now_us() <= deadline;
        if !arrived {
            self.give_up(deadline).await;
            return Err(lost());
        }
        EXECUTED_US.try_with(|cell| cell.set(executed_us)).ok();
        self.freezer.wait().await;
        answer
    }

    /// Returns false if the message is lost.
    async fn travel(&self) -> bool {
        let (delay_us, is_lost) = {
            let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
            let Weather { delay_us_max, loss_permille, .. } = self.weather;
            (random.below(delay_us_max + 1), random.below(1_000) < loss_permille)
        };
        sleep(Duration::from_micros(delay_us)).await;
        !is_lost
    }

    async fn give_up(&self, deadline_us: u64) {
        sleep(Duration::from_micros(deadline_us.saturating_sub(true_now_us()))).await;
        self.freezer.wait().await;
    }
}

impl Store for Link {
    fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        Reply::Pending(Box::pin(self.exchange(|| self.store.decide(batch).wait())))
    }

    fn lend<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        request: LoanRequest,
    ) -> Reply<'a, Loan> {
        Reply::Pending(Box::pin(
            self.exchange(move || self.store.lend(key, policy, request).wait()),
        ))
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("weather", &self.weather).finish_non_exhaustive()
    }
}
