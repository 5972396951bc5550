//! A task that goes on after a panic. Without the task that connects, no connection would ever come back.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::backoff;

/// Runs what `begin` returns on `runtime`, and begins again after each panic, which the panic hook of the process
/// reports. Ends when the future does, or when it is aborted.
pub fn spawn_restarting<F>(
    runtime: &Handle,
    mut begin: impl FnMut() -> F + Send + 'static,
) -> AbortHandle
where
    F: Future<Output = ()> + Send + 'static,
{
    #[expect(clippy::disallowed_methods, reason = "a task that panics begins again")]
    let task = runtime.spawn(async move {
        let mut panics = 0;
        while !survives(begin()).await {
            panics += 1;
            tokio::time::sleep(backoff::delay(panics)).await;
        }
    });
    task.abort_handle()
}

/// Runs `future` to its end. Returns false if it panicked.
async fn survives(future: impl Future<Output = ()>) -> bool {
    let mut future = pin!(future);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        polled.map_or(Poll::Ready(false), |poll| poll.map(|()| true))
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_begins_again_and_one_that_ends_does_not() {
        let (begun, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
        let (count, end) = (Arc::clone(&begun), Arc::clone(&ended));
        let task = spawn_restarting(&Handle::current(), move || {
            let (turn, end) = (count.fetch_add(1, Ordering::Relaxed), Arc::clone(&end));
            async move {
                tokio::task::yield_now().await;
                assert!(turn == 3, "a fault on purpose");
                end.notify_one();
            }
        });
        ended.notified().await;
        while !task.is_finished() {
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.load(Ordering::Relaxed), 4);
    }
}
