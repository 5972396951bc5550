//! Notices a connection on which nothing moves, at next to no cost for those that are busy.
//!
//! A timer goes off once a period; what has moved meanwhile is a flag. So silence of one period is
//! always forgiven, silence of two never is, and a byte costs no reading of a clock.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::task::coop::has_budget_remaining;
use tokio::time::{Instant, Sleep};

#[derive(Debug)]
pub(super) struct IdleTimer {
    period: Duration,
    timer: Pin<Box<Sleep>>,
    /// Whom the timer wakes.
    task: Option<Waker>,
    has_moved: bool,
}

impl IdleTimer {
    pub(super) fn new(period: Duration) -> Self {
        let timer = Box::pin(tokio::time::sleep(period));
        Self { period, timer, task: None, has_moved: false }
    }

    /// Notes that bytes have moved.
    pub(super) fn reset(&mut self) {
        self.has_moved = true;
    }

    /// Ready when nothing has moved for too long. Asked only by who waits.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_known = self.task.as_ref().is_some_and(|task| task.will_wake(cx.waker()));
        if is_known && !self.timer.is_elapsed() {
            return Poll::Pending;
        }
        loop {
            // Of a task that has used up its turn no waker is taken: it is told to come again at once.
            let is_heard = has_budget_remaining();
            if self.timer.as_mut().poll(cx).is_pending() {
                self.task = is_heard.then(|| cx.waker().clone());
                return Poll::Pending;
            }
            if !std::mem::take(&mut self.has_moved) {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(Instant::now() + self.period);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use tokio::time::{advance, timeout};

    use super::*;

    const PERIOD: Duration = Duration::from_mins(1);

    #[tokio::test(start_paused = true)]
    async fn one_period_of_silence_is_forgiven_and_two_are_not() {
        let mut idle = IdleTimer::new(PERIOD);
        let mut poll = async |after: Duration, moves: bool| {
            advance(after).await;
            if moves {
                idle.reset();
            }
            poll_fn(|cx| Poll::Ready(idle.poll(cx).is_ready())).await
        };
        let tick = Duration::from_millis(1);
        let [almost, nearly] = [1, 2].map(|ticks| PERIOD.saturating_sub(tick * ticks));
        assert!(!poll(almost, true).await);
        assert!(!poll(tick * 2, false).await, "it has moved a moment ago");
        assert!(!poll(nearly, false).await);
        assert!(poll(tick * 2, false).await, "and now it has not, for a period and more");
    }

    /// The timer is not told whom to wake by a task that has used up its turn, nor by another task.
    #[tokio::test(start_paused = true)]
    async fn whoever_waits_is_woken() {
        let mut idle = IdleTimer::new(PERIOD);
        poll_fn(|cx| {
            while has_budget_remaining() {
                let _ = pin!(tokio::task::consume_budget()).poll(cx);
            }
            assert!(idle.poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        let begun = Instant::now();
        assert!(timeout(PERIOD * 2, poll_fn(|cx| idle.poll(cx))).await.is_ok());
        assert_eq!(begun.elapsed(), PERIOD);

        let mut idle = IdleTimer::new(PERIOD);
        assert!(idle.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let begun = Instant::now();
        assert!(timeout(PERIOD * 2, poll_fn(|cx| idle.poll(cx))).await.is_ok());
        assert_eq!(begun.elapsed(), PERIOD);
    }

    #[tokio::test(start_paused = true)]
    async fn who_never_says_a_word_is_noticed_after_a_period() {
        let mut idle = IdleTimer::new(PERIOD);
        let begun = Instant::now();
        poll_fn(|cx| idle.poll(cx)).await;
        assert_eq!(begun.elapsed(), PERIOD);
    }
}
