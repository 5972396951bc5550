//! Deadlines: one for everything that a check asks, and a bound on the checks in flight.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::failure::RemoteError;

/// Stands for a deadline that is beyond what a clock shows.
const FAR: Duration = Duration::from_hours(24 * 365);

/// Gives checks their deadlines, and counts how many are in flight.
#[derive(Debug)]
pub struct Deadlines {
    /// Its timers wake the checks, on whichever thread they wait.
    runtime: Handle,
    deadline: Duration,
    in_flight: AtomicUsize,
    in_flight_max: usize,
}

/// One check: a question, perhaps others that follow from its answer, and the deadline of all.
#[derive(Debug)]
pub struct Exchange<'t> {
    deadlines: &'t Deadlines,
    until: Instant,
}

impl Deadlines {
    /// Gives every check `deadline`, kept by `runtime`, and lets `in_flight_max` be under way at once.
    #[must_use]
    pub fn new(runtime: Handle, deadline: Duration, in_flight_max: usize) -> Self {
        Self { runtime, deadline, in_flight: AtomicUsize::new(0), in_flight_max }
    }

    /// The runtime that keeps them.
    #[must_use]
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// How many checks may be under way at once.
    #[must_use]
    pub fn in_flight_max(&self) -> usize {
        self.in_flight_max
    }

    /// How long a check may take.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Begins a check. If too many are in flight already, returns an error at once.
    pub fn begin(&self) -> Result<Exchange<'_>, RemoteError> {
        let now = Instant::now();
        let until = now.checked_add(self.deadline).unwrap_or(now + FAR);
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        // It counts as in flight until it is dropped.
        let exchange = Exchange { deadlines: self, until };
        if before >= self.in_flight_max {
            return Err(RemoteError::Overloaded { in_flight_max: self.in_flight_max });
        }
        Ok(exchange)
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        self.deadlines.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Exchange<'_> {
    /// How much of its time is left.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Returns what `asked` comes to, or an error when the deadline has passed.
    pub async fn in_time<T, E: From<RemoteError>>(
        &self,
        asked: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let deadline = self.deadlines.deadline;
        let answer = self.before(self.until, asked).await;
        answer.unwrap_or_else(|| Err(RemoteError::DeadlineMissed { deadline }.into()))
    }

    /// Returns what `waiting` comes to, or `None` when half of the time that is left has passed. The other half is
    /// for what follows.
    pub async fn in_half_time<T>(&self, waiting: impl Future<Output = T>) -> Option<T> {
        self.before(self.until - self.time_left() / 2, waiting).await
    }

    async fn before<T>(&self, until: Instant, asked: impl Future<Output = T>) -> Option<T> {
        let timed = {
            // The timer belongs to the runtime; the thread that waits need not.
            let _guard = self.deadlines.runtime.enter();
            tokio::time::timeout_at(until, asked)
        };
        timed.await.ok()
    }

    /// Waits a moment before something is tried again.
    pub async fn pause(&self, pause: Duration) -> Result<(), RemoteError> {
        let pause = {
            let _guard = self.deadlines.runtime.enter();
            tokio::time::sleep(pause)
        };
        self.in_time(async {
            pause.await;
            Ok(())
        })
        .await
    }
}

/// What `attempt` comes to, if it does within `deadline`.
pub async fn within<T, E: From<RemoteError>>(
    deadline: Duration,
    attempt: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let attempt = tokio::time::timeout(deadline, attempt);
    attempt.await.unwrap_or_else(|_| Err(RemoteError::DeadlineMissed { deadline }.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pause_is_waited_for_until_the_deadline() {
        let paused = async |deadline: Duration, pause: Duration| {
            let deadlines = Deadlines::new(Handle::current(), deadline, 1);
            deadlines.begin().unwrap().pause(pause).await
        };
        let (moment, minute) = (Duration::from_millis(1), Duration::from_mins(1));
        assert!(paused(minute, moment).await.is_ok());
        let missed = paused(moment, minute).await;
        assert!(matches!(missed, Err(RemoteError::DeadlineMissed { .. })), "{missed:?}");
    }
}
