//! Panics: every one is logged and counted, whatever it ends.
//!
//! A panic is a mistake of ours. It ends one connection, one turn of a task or one piece of work, and the daemon goes
//! on, so only the log and `tollbar_panics_total` can tell that there was one.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::Cell;
use std::future::poll_fn;
use std::panic::{self, PanicHookInfo};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tracing::error;

/// What a panic has ended, as a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PanicOrigin {
    /// A connection of a listener, by its flag.
    Connection(&'static str),
    /// A long-lived task, by its name.
    Task(&'static str),
    /// Anything else, such as a thread.
    Other,
}

/// Panics since the process started, by their origin.
static COUNTS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

thread_local! {
    /// What runs on this thread now.
    static RUNNING: Cell<PanicOrigin> = const { Cell::new(PanicOrigin::Other) };
}

impl PanicOrigin {
    /// Returns the label in `tollbar_panics_total`.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Connection(_) => "connection",
            Self::Task(_) => "task",
            Self::Other => "other",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Connection(name) | Self::Task(name) => name,
            Self::Other => "",
        }
    }

    fn counter(self) -> &'static AtomicU64 {
        match self {
            Self::Connection(_) => &COUNTS[0],
            Self::Task(_) => &COUNTS[1],
            Self::Other => &COUNTS[2],
        }
    }
}

/// Logs and counts panics from now on, in place of what the standard library prints.
pub fn install_hook() {
    panic::set_hook(Box::new(record));
}

/// Returns how many panics there were, by label.
pub(crate) fn counts() -> [(&'static str, u64); 3] {
    [PanicOrigin::Connection(""), PanicOrigin::Task(""), PanicOrigin::Other]
        .map(|origin| (origin.label(), origin.counter().load(Ordering::Relaxed)))
}

/// Runs `future`. A panic in it is counted for `origin`, and goes on.
pub(crate) async fn with_origin<F: Future>(origin: PanicOrigin, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        let before = RUNNING.replace(origin);
        let _restore = Restore(before);
        future.as_mut().poll(context)
    })
    .await
}

/// Puts the origin back that was there before, also when a panic passes by.
struct Restore(PanicOrigin);

impl Drop for Restore {
    fn drop(&mut self) {
        // The thread may be at its end already, when nothing runs on it any more.
        RUNNING.try_with(|running| running.set(self.0)).unwrap_or_default();
    }
}

/// Logs and counts a panic, with what runs on this thread.
pub(crate) fn record(info: &PanicHookInfo<'_>) {
    let origin = RUNNING.try_with(Cell::get).unwrap_or(PanicOrigin::Other);
    origin.counter().fetch_add(1, Ordering::Relaxed);
    let message = info.payload_as_str().unwrap_or("no message");
    let location = info.location().map(ToString::to_string).unwrap_or_default();
    let thread = thread::current();
    let (thread, origin, name) = (thread.name().unwrap_or_default(), origin.label(), origin.name());
    // Where RUST_BACKTRACE asks for one.
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        error!(origin, name, thread, %location, %backtrace, "panic: {message}");
    } else {
        error!(origin, name, thread, %location, "panic: {message}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_runs_is_known_while_it_is_polled_and_not_afterwards() {
        let running = || RUNNING.get();
        let inner = async {
            tokio::task::yield_now().await;
            with_origin(PanicOrigin::Connection("--grpc"), async { running() }).await
        };
        let seen = with_origin(PanicOrigin::Task("usage"), async {
            let first = running();
            (first, inner.await, running())
        });
        let (task, connection) = (PanicOrigin::Task("usage"), PanicOrigin::Connection("--grpc"));
        assert_eq!(seen.await, (task, connection, task));
        assert_eq!(running(), PanicOrigin::Other);
    }
}
