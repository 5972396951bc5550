//! The time that a check has: one deadline for all it asks.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::error::RedisStoreError;

/// As good as never, where a deadline is beyond what a clock shows.
const FAR: Duration = Duration::from_hours(24 * 365);

/// How much time there is, and who keeps it.
#[derive(Debug, Clone)]
pub(crate) struct Timer {
    /// Deadlines are kept by this runtime, whichever thread waits for them.
    pub(crate) runtime: Handle,
    pub(crate) deadline: Duration,
}

/// A question, and perhaps others that follow from its answer, until a moment.
#[derive(Debug, Clone)]
pub(crate) struct Exchange<'t> {
    timer: &'t Timer,
    until: Instant,
}

impl Timer {
    pub(crate) fn begin(&self) -> Exchange<'_> {
        let now = Instant::now();
        let until = now.checked_add(self.deadline).unwrap_or(now + FAR);
        Exchange { timer: self, until }
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
