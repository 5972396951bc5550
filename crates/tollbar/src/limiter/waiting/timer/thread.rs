//! A thread that ends sleeps: a timer for any runtime, or none.
//!
//! There is one for the whole process, started by the first sleep.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use super::{Sleep, Sleeps, Timer};
use crate::{Clock, SystemClock};

#[derive(Debug, Clone, Copy)]
pub(in crate::limiter::waiting) struct ThreadTimer;

/// The sleeps of the process, and whether they have a thread.
static SHARED: LazyLock<(Arc<Sleeps<SystemClock>>, bool)> = LazyLock::new(|| {
    let sleeps = Arc::new(Sleeps::new(SystemClock::new()));
    let own = Arc::clone(&sleeps);
    let thread = thread::Builder::new().name("tollbar-timer".to_owned());
    let is_running = thread.spawn(move || own.run()).is_ok();
    (sleeps, is_running)
});

impl Sleeps<SystemClock> {
    fn run(&self) {
        let mut wakers = self.wakers();
        loop {
            let now_us = self.clock.now().as_micros();
            let next_us = wakers.first_key_value().map(|((due_us, _), _)| *due_us);
            wakers = match next_us {
                None => self.has_earlier.wait(wakers).unwrap_or_else(PoisonError::into_inner),
                Some(due_us) if due_us > now_us => {
                    let wait = Duration::from_micros(due_us - now_us);
                    let waited = self.has_earlier.wait_timeout(wakers, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    let ended = Self::take_ended(&mut wakers, now_us);
                    drop(wakers);
                    for waker in ended.into_values() {
                        // A waker that panics must not stop the time of all others.
                        #[expect(
                            clippy::let_underscore_must_use,
                            reason = "a waker that panics must not end the timer; the panic was reported by the hook"
                        )]
                        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
                    }
                    self.wakers()
                }
            };
        }
    }
}

impl Timer for ThreadTimer {
    fn sleep(&self, duration: Duration) -> Sleep {
        let (sleeps, is_running) = &*SHARED;
        if *is_running {
            return sleeps.begin(duration);
        }
        // The system gives us no thread. Slow and hot is better than never.
        let due = sleeps.clock.now().after(duration);
        Box::pin(poll_fn(move |context| {
            if sleeps.clock.now() >= due {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        }))
    }
}
