//! A thread that wakes whoever has slept enough: a timer for any runtime, or none.
//!
//! One for the whole process, started by the first sleep. Sleeps are few: in a line only the first
//! waiter has one.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use super::{Sleep, Timer};
use crate::{Clock, SystemClock};

#[derive(Debug, Clone, Copy)]
pub(in crate::waiting) struct ThreadTimer;

#[derive(Debug)]
struct Shared {
    clock: SystemClock,
    sleeping: Mutex<Sleeping>,
    has_earlier: Condvar,
    is_running: bool,
}

/// Who is to be woken, by when and by which sleep.
#[derive(Debug, Default)]
struct Sleeping {
    wakers: BTreeMap<(u64, u64), Waker>,
    number_last: u64,
}

/// The one timer, and its thread.
fn shared() -> &'static Shared {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    SHARED.get_or_init(|| Shared {
        clock: SystemClock::new(),
        sleeping: Mutex::default(),
        has_earlier: Condvar::new(),
        // It waits for what is made here.
        is_running: thread::Builder::new()
            .name("tollbar-timer".to_owned())
            .spawn(|| shared().run())
            .is_ok(),
    })
}

impl Shared {
    fn run(&self) {
        let mut sleeping = self.sleeping();
        loop {
            let now_us = self.clock.now().as_micros();
            let next_us = sleeping.wakers.first_key_value().map(|((due_us, _), _)| *due_us);
            sleeping = match next_us {
                None => {
                    let waited = self.has_earlier.wait(sleeping);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
                Some(due_us) if due_us > now_us => {
                    let wait = Duration::from_micros(due_us - now_us);
                    let waited = self.has_earlier.wait_timeout(sleeping, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    let later = sleeping.wakers.split_off(&(now_us + 1, 0));
                    let due = std::mem::replace(&mut sleeping.wakers, later);
                    drop(sleeping);
                    for waker in due.into_values() {
                        // A waker that panics is not to stop everybody else's time.
                        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
                    }
                    self.sleeping()
                }
            };
        }
    }

    fn sleeping(&self) -> MutexGuard<'_, Sleeping> {
        self.sleeping.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Timer for ThreadTimer {
    fn sleep(&self, duration: Duration) -> Sleep {
        let shared = shared();
        let due_us = shared.clock.now().after(duration).as_micros();
        let mut sleeping = shared.sleeping();
        sleeping.number_last += 1;
        Box::pin(ThreadSleep { due: (due_us, sleeping.number_last) })
    }
}

struct ThreadSleep {
    due: (u64, u64),
}

impl Future for ThreadSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let shared = shared();
        if shared.clock.now().as_micros() >= self.due.0 {
            return Poll::Ready(());
        }
        if !shared.is_running {
            // The system gives us no thread. Slow and hot is better than never.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut sleeping = shared.sleeping();
        let replaced = sleeping.wakers.insert(self.due, context.waker().clone());
        let is_first = sleeping.wakers.first_key_value().is_some_and(|(due, _)| *due == self.due);
        drop(sleeping);
        if is_first && replaced.is_none() {
            shared.has_earlier.notify_one();
        }
        Poll::Pending
    }
}

impl Drop for ThreadSleep {
    fn drop(&mut self) {
        let removed = shared().sleeping().wakers.remove(&self.due);
        drop(removed);
    }
}
