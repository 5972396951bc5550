//! The time that a check has: one deadline for all it asks. And how many may have some at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::error::RedisStoreError;

/// As good as never, where a deadline is beyond what a clock shows.
const FAR: Duration = Duration::from_hours(24 * 365);

/// How much time there is, who keeps it, and for how many.
#[derive(Debug)]
pub(crate) struct Timer {
    /// Deadlines are kept by this runtime, whichever thread waits for them.
    runtime: Handle,
    deadline: Duration,
    in_flight: AtomicUsize,
    in_flight_max: usize,
}

/// A question, and perhaps others that follow from its answer, until a moment.
#[derive(Debug)]
pub(crate) struct Exchange<'t> {
    timer: &'t Timer,
    until: Instant,
}

impl Timer {
    pub(crate) fn new(runtime: Handle, deadline: Duration, in_flight_max: usize) -> Self {
        Self { runtime, deadline, in_flight: AtomicUsize::new(0), in_flight_max }
    }

    /// Where there are too many already, an error at once.
    pub(crate) fn begin(&self) -> Result<Exchange<'_>, RedisStoreError> {
        let now = Instant::now();
        let until = now.checked_add(self.deadline).unwrap_or(now + FAR);
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        // Whatever becomes of it, it is counted until it is dropped.
        let exchange = Exchange { timer: self, until };
        if before >= self.in_flight_max {
            return Err(RedisStoreError::Overloaded { in_flight_max: self.in_flight_max });
        }
        Ok(exchange)
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        self.timer.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Exchange<'_> {
    /// What `asked` comes to, if it does in time.
    pub(crate) async fn in_time<T>(
        &self,
        asked: impl Future<Output = Result<T, RedisStoreError>>,
    ) -> Result<T, RedisStoreError> {
        let timed = {
            // The timer belongs to the runtime; the thread that waits need not.
            let _guard = self.timer.runtime.enter();
            tokio::time::timeout_at(self.until, asked)
        };
        let deadline = self.timer.deadline;
        timed.await.unwrap_or(Err(RedisStoreError::DeadlineMissed { deadline }))
    }

    /// Waits a moment before something is tried again.
    pub(crate) async fn pause(&self, pause: Duration) -> Result<(), RedisStoreError> {
        let pause = {
            let _guard = self.timer.runtime.enter();
            tokio::time::sleep(pause)
        };
        self.in_time(async {
            pause.await;
            Ok(())
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pause_is_waited_for_until_the_deadline() {
        let paused = async |deadline: Duration, pause: Duration| {
            let timer = Timer::new(Handle::current(), deadline, 1);
            timer.begin().unwrap().pause(pause).await
        };
        let (moment, minute) = (Duration::from_millis(1), Duration::from_mins(1));
        assert!(paused(minute, moment).await.is_ok());
        let missed = paused(moment, minute).await;
        assert!(matches!(missed, Err(RedisStoreError::DeadlineMissed { .. })), "{missed:?}");
    }
}
