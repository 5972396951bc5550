//! A timer that goes by a clock which stands still until it is moved.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{Sleep, Timer};
use crate::{Clock, ManualClock, Timestamp};

/// For tests: sleeps by a [`ManualClock`], and wakes whoever is due when it is moved. Clones share
/// the same sleeps.
///
/// ```
/// use std::time::Duration;
/// use tollbar::{Limiter, ManualClock, ManualTimer, Policy, Timestamp};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = ManualClock::at(Timestamp::from_micros(1_000_000));
/// let timer = ManualTimer::new(clock.clone());
/// let limiter = Limiter::builder(Policy::leaky_queue("10/s", 5)?)
///     .clock(clock)
///     .timer(timer.clone())
///     .build()?;
/// // .. a task awaits limiter.wait("key") ..
/// timer.advance(Duration::from_millis(100));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ManualTimer {
    clock: ManualClock,
    sleeping: Arc<Mutex<Sleeping>>,
}

/// Who is to be woken, by when and by which sleep.
#[derive(Debug, Default)]
struct Sleeping {
    wakers: BTreeMap<(u64, u64), Waker>,
    number_last: u64,
}

impl ManualTimer {
    /// A timer that goes by `clock`.
    #[must_use]
    pub fn new(clock: ManualClock) -> Self {
        Self { clock, sleeping: Arc::default() }
    }

    /// Moves the clock on by `step` and wakes whoever is due.
    pub fn advance(&self, step: Duration) {
        self.clock.advance(step);
        self.wake_due();
    }

    /// When the next sleep is over, if anybody sleeps.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        let sleeping = self.sleeping();
        sleeping.wakers.first_key_value().map(|((due_us, _), _)| Timestamp::from_micros(*due_us))
    }

    /// How many sleep.
    #[must_use]
    pub fn sleepers(&self) -> usize {
        self.sleeping().wakers.len()
    }

    fn wake_due(&self) {
        let now_us = self.clock.now().as_micros();
        let mut sleeping = self.sleeping();
        let later = sleeping.wakers.split_off(&(now_us + 1, 0));
        let due = std::mem::replace(&mut sleeping.wakers, later);
        drop(sleeping);
        for waker in due.into_values() {
            waker.wake();
        }
    }

    fn sleeping(&self) -> MutexGuard<'_, Sleeping> {
        self.sleeping.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Timer for ManualTimer {
    fn sleep(&self, duration: Duration) -> Sleep {
        let mut sleeping = self.sleeping();
        sleeping.number_last += 1;
        let due_us = self.clock.now().after(duration).as_micros();
        Box::pin(ManualSleep { timer: self.clone(), due: (due_us, sleeping.number_last) })
    }
}

struct ManualSleep {
    timer: ManualTimer,
    due: (u64, u64),
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut sleeping = self.timer.sleeping();
        // Under the lock, so that the clock is not moved between the look and the registration.
        if self.timer.clock.now().as_micros() >= self.due.0 {
            return Poll::Ready(());
        }
        let replaced = sleeping.wakers.insert(self.due, context.waker().clone());
        drop(sleeping);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        let removed = self.timer.sleeping().wakers.remove(&self.due);
        drop(removed);
    }
}
