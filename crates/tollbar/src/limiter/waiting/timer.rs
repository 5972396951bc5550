//! What sleeps until a turn comes.

mod manual;
mod thread;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub use manual::ManualTimer;
pub(super) use thread::ThreadTimer;

use crate::Clock;

/// A sleep that has begun.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Sleeps without holding up a thread.
///
/// Any function from a duration to a future is a timer, so a runtime's own will do:
///
/// ```
/// # mod tokio { pub mod time { pub async fn sleep(_: std::time::Duration) {} } }
/// use tollbar::{Limiter, Policy};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter =
///     Limiter::builder(Policy::leaky_queue("10/s", 100)?).timer(tokio::time::sleep).build()?;
/// # Ok(())
/// # }
/// ```
///
/// It may be late, as every timer is. A waiter that it wakes early by the clock of the store goes to
/// sleep again.
pub trait Timer: Send + Sync + 'static {
    /// A future that is ready `duration` from now. The time runs from this call, not from the first
    /// poll.
    fn sleep(&self, duration: Duration) -> Sleep;
}

impl<T, F> Timer for T
where
    T: Fn(Duration) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(self(duration))
    }
}

/// Sleeps by a clock, and the wakers of those that have not ended.
#[derive(Debug)]
struct Sleeps<C> {
    clock: C,
    /// By when they are due, and by which sleep.
    wakers: Mutex<BTreeMap<SleepKey, Waker>>,
    number_last: AtomicU64,
    /// There is a sleep that ends before all others.
    has_earlier: Condvar,
}

/// When a sleep ends, and a number that no other sleep has.
type SleepKey = (u64, u64);

impl<C: Clock> Sleeps<C> {
    fn new(clock: C) -> Self {
        let wakers = Mutex::default();
        Self { clock, wakers, number_last: AtomicU64::new(0), has_earlier: Condvar::new() }
    }

    fn begin(self: &Arc<Self>, duration: Duration) -> Sleep {
        let due_us = self.clock.now().after(duration).as_micros();
        let number = self.number_last.fetch_add(1, Ordering::Relaxed);
        Box::pin(ClockSleep { sleeps: Arc::clone(self), due: (due_us, number) })
    }

    fn wakers(&self) -> MutexGuard<'_, BTreeMap<SleepKey, Waker>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the wakers of the sleeps that have ended by `now_us`.
    fn take_ended(
        wakers: &mut BTreeMap<SleepKey, Waker>,
        now_us: u64,
    ) -> BTreeMap<SleepKey, Waker> {
        let later = wakers.split_off(&(now_us + 1, 0));
        std::mem::replace(wakers, later)
    }
}

struct ClockSleep<C: Clock> {
    sleeps: Arc<Sleeps<C>>,
    due: SleepKey,
}

impl<C: Clock> Future for ClockSleep<C> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut wakers = self.sleeps.wakers();
        // Under the lock, so that the clock is not moved between the look and the registration.
        if self.sleeps.clock.now().as_micros() >= self.due.0 {
            return Poll::Ready(());
        }
        let replaced = wakers.insert(self.due, context.waker().clone());
        let is_first = wakers.first_key_value().is_some_and(|(due, _)| *due == self.due);
        drop(wakers);
        if is_first && replaced.is_none() {
            self.sleeps.has_earlier.notify_one();
        }
        Poll::Pending
    }
}

impl<C: Clock> Drop for ClockSleep<C> {
    fn drop(&mut self) {
        let removed = self.sleeps.wakers().remove(&self.due);
        // After the lock is released: it may own the last reference to a task that sleeps here.
        drop(removed);
    }
}
