//! Work that goes on when its client hangs up.
//!
//! Where usage is counted, what the store has charged must be counted: the same request, sent again by its id, pays
//! nothing and counts nothing. A check over a network has a moment in which the store has charged and the daemon does
//! not know it yet, so a check that was begun is finished.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt as _;
use opentelemetry::context::FutureExt as _;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::tasks::spawn_short;

/// How long abandoned work may go on. A store answers or fails within its own deadline, far sooner.
const TIME_MAX: Duration = Duration::from_secs(10);

/// A future that finishes in the background if it is dropped before its end.
pub(crate) struct Finish<F: Future<Output: Send> + Send + Unpin + 'static>(Option<F>);

impl<F: Future<Output: Send> + Send + Unpin + 'static> Finish<F> {
    pub(crate) fn new(work: F) -> Self {
        Self(Some(work))
    }
}

impl<F: Future<Output: Send> + Send + Unpin + 'static> Future for Finish<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Some(work) = &mut self.0 else {
            return Poll::Pending;
        };
        let output = ready!(Pin::new(work).poll(cx));
        self.0 = None;
        Poll::Ready(output)
    }
}

impl<F: Future<Output: Send> + Send + Unpin + 'static> Drop for Finish<F> {
    fn drop(&mut self) {
        // Without a runtime the process is ending.
        if let (Some(work), Ok(_)) = (self.0.take(), Handle::try_current()) {
            let work = timeout(TIME_MAX, work).with_current_context();
            spawn_short("a check whose client hung up", work.map(drop));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_that_is_dropped_goes_on_and_work_that_is_done_does_not() {
        let (answer, answered) = oneshot::channel::<()>();
        let (finished, is_finished) = oneshot::channel();
        let work = Box::pin(async move {
            answered.await.unwrap();
            finished.send(()).unwrap();
        });
        let mut waiting = Finish::new(work);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        drop(waiting);
        answer.send(()).unwrap();
        is_finished.await.expect("it went on");

        let mut done = Finish::new(Box::pin(async { 7 }));
        assert_eq!((&mut done).await, 7);
        assert!(done.0.is_none(), "nothing is left to finish");
    }
}
