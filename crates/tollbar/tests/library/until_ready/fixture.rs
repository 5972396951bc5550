//! A fixture for waiters: an executor of one thread, a clock and a timer that stand still.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tollbar::{
    Clock, Decision, Limiter, LimiterBuilder, ManualClock, ManualTimer, Policies, Timestamp,
    WaitError,
};

pub(crate) const START_US: u64 = 1_700_000_000_000_000;

pub(crate) type Answer = Result<Decision, WaitError>;
type Waiting = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Counts how often it was woken.
#[derive(Debug, Default)]
pub(crate) struct WakeCounter {
    is_due: AtomicBool,
    pub(crate) count: AtomicUsize,
}

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.is_due.store(true, Ordering::SeqCst);
    }
}

struct Task {
    future: Option<Waiting>,
    woken: Arc<WakeCounter>,
}

/// Who went, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Departure {
    pub(crate) task: usize,
    pub(crate) after_us: u64,
}

pub(crate) struct Fixture {
    pub(crate) clock: ManualClock,
    pub(crate) timer: ManualTimer,
    pub(crate) limiter: Limiter,
    tasks: Vec<Task>,
    pub(crate) departures: Vec<Departure>,
    pub(crate) refused: Vec<(usize, WaitError)>,
}

impl Fixture {
    pub(crate) fn new(policies: impl Into<Policies>) -> Self {
        Self::with(policies, |builder| builder)
    }

    pub(crate) fn with(
        policies: impl Into<Policies>,
        change: impl FnOnce(LimiterBuilder) -> LimiterBuilder,
    ) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(START_US));
        let timer = ManualTimer::new(clock.clone());
        let builder = Limiter::builder(policies).max_keys(100).clock(clock.clone());
        let limiter = change(builder.timer(timer.clone())).build().unwrap();
        let (tasks, departures, refused) = (Vec::new(), Vec::new(), Vec::new());
        Self { clock, timer, limiter, tasks, departures, refused }
    }

    /// Somebody comes for `key`; its number.
    pub(crate) fn come(&mut self, key: &'static str, cost: u64) -> usize {
        let limiter = self.limiter.clone();
        self.spawn(async move { limiter.wait_n(key, cost).await })
    }

    /// A task that waits for anything; its number.
    pub(crate) fn spawn(&mut self, future: impl Future<Output = Answer> + Send + 'static) -> usize {
        let future = Box::pin(future);
        let woken = Arc::new(WakeCounter::default());
        woken.is_due.store(true, Ordering::SeqCst);
        self.tasks.push(Task { future: Some(future), woken });
        self.run();
        self.tasks.len() - 1
    }

    pub(crate) fn come_times(&mut self, key: &'static str, count: usize) -> Vec<usize> {
        (0..count).map(|_| self.come(key, 1)).collect()
    }

    /// A waiter gives up.
    pub(crate) fn cancel(&mut self, task: usize) {
        self.tasks[task].future = None;
        self.run();
    }

    /// Polls whoever was woken, until nobody is.
    pub(crate) fn run(&mut self) {
        while let Some(task) = self.tasks.iter().position(|task| {
            task.future.is_some() && task.woken.is_due.swap(false, Ordering::SeqCst)
        }) {
            self.poll(task);
        }
    }

    fn poll(&mut self, task: usize) {
        let waker = Waker::from(Arc::clone(&self.tasks[task].woken));
        let future = self.tasks[task].future.as_mut().expect("it has not ended");
        if let Poll::Ready(answer) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            self.tasks[task].future = None;
            match answer {
                Ok(_) => self.departures.push(Departure { task, after_us: self.after_us() }),
                Err(error) => self.refused.push((task, error)),
            }
        }
    }

    pub(crate) fn after_us(&self) -> u64 {
        self.clock.now().as_micros() - START_US
    }

    /// Moves time on by at most `step_us`, and no further than to where somebody is to be woken.
    pub(crate) fn advance_us(&mut self, step_us: u64) {
        let now_us = self.clock.now().as_micros();
        let due_us = self.timer.next_due().map_or(u64::MAX, Timestamp::as_micros);
        let step_us = step_us.min(due_us.saturating_sub(now_us));
        self.timer.advance(Duration::from_micros(step_us));
        self.run();
    }

    /// Until nobody sleeps.
    pub(crate) fn finish(&mut self) {
        while self.timer.next_due().is_some() {
            self.advance_us(u64::MAX);
        }
    }

    /// Who has neither gone nor given up.
    pub(crate) fn waiting(&self) -> Vec<usize> {
        (0..self.tasks.len()).filter(|task| self.tasks[*task].future.is_some()).collect()
    }

    pub(crate) fn woken(&self, task: usize) -> usize {
        self.tasks[task].woken.count.load(Ordering::SeqCst)
    }

    /// Nobody waits, and nothing is kept of those who did.
    #[track_caller]
    pub(crate) fn assert_empty(&self) {
        let stats = self.limiter.waiting();
        assert_eq!((stats.waiters, stats.keys, self.timer.sleepers()), (0, 0, 0));
    }

    /// Who went and when, as pairs.
    pub(crate) fn went(&self) -> Vec<(usize, u64)> {
        self.departures.iter().map(|departure| (departure.task, departure.after_us)).collect()
    }
}
