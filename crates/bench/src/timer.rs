//! The benchmarks' own stopwatch.
//!
//! It does not take a `tollbar::Clock`, because that clock is one of the things measured.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use std::{fs, io};

/// Started when it is made.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch {
    started: Instant,
}

impl Stopwatch {
    /// Starts now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "real elapsed time is what a benchmark measures")]
    pub fn start() -> Self {
        Self { started: Instant::now() }
    }

    /// The time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// What this thread has used of a processor: without the time in which it waited for one, or for the host
/// of a virtual machine.
#[must_use]
pub fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// The wall clock, for peers that are handed the time and read no clock themselves.
#[must_use]
#[inline]
#[expect(clippy::disallowed_methods, reason = "a peer's reading of the clock is part of its cost")]
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// Lets real time pass, at least so much of it.
#[expect(clippy::disallowed_methods, reason = "load that comes at a pace needs real time to pass")]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Has this thread wake from a [`pause`] when it is told to: Linux lets sleepers lie 50 us longer, to wake
/// several at once.
pub fn pause_precisely() -> io::Result<()> {
    // "process/task/thread"
    let thread = fs::read_link("/proc/thread-self")?;
    let thread = thread.file_name().unwrap_or_default();
    fs::write(Path::new("/proc").join(thread).join("timerslack_ns"), "1")
}
