//! The flags about requests that wait in queues inside the daemon: those of `--proxy` and of forward-auth.

use clap::Args;
use tollbar_http::QueueWaiters;

use crate::count_flag::count;
use crate::duration_flag::DurationFlag;

/// The flags about requests that wait in queues.
#[derive(Debug, Clone, Copy, Args)]
pub struct WaitFlags {
    /// The longest that a request to --proxy or /v1/forward-auth waits for its turn in a queue, whatever its rule says.
    /// One that would wait longer is denied
    #[arg(long, env = "TOLLBAR_MAX_WAIT", value_name = "TIME", default_value = "10s")]
    max_wait: DurationFlag,

    /// How many such requests wait at once under one rule for one tenant. More are denied
    #[arg(long, env = "TOLLBAR_MAX_WAITERS", value_name = "COUNT", default_value_t = 256,
          value_parser = count::<u32>(0..=u32::MAX.into()))]
    max_waiters: u32,
}

impl WaitFlags {
    /// Returns the bounds that the flags set.
    #[must_use]
    pub fn queue_waiters(self) -> QueueWaiters {
        QueueWaiters::new(self.max_wait.0, self.max_waiters as usize)
    }
}
