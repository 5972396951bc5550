//! Notices a connection on which nothing moves, at next to no cost for those that are busy.
//!
//! A timer goes off once a period; what has moved meanwhile is a flag. So silence of one period is
//! always forgiven, silence of two never is, and a byte costs no reading of a clock.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

#[derive(Debug)]
pub(super) struct Idle {
    period: Duration,
    timer: Pin<Box<Sleep>>,
    has_moved: bool,
}

impl Idle {
    pub(super) fn new(period: Duration) -> Self {
        Self { period, timer: Box::pin(tokio::time::sleep(period)), has_moved: false }
    }

    /// Something has moved.
    pub(super) fn moved(&mut self) {
        self.has_moved = true;
    }

    /// Ready when nothing has moved for too long. Asked only by who waits.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            if !std::mem::take(&mut self.has_moved) {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(Instant::now() + self.period);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::advance;

    use super::*;

    const PERIOD: Duration = Duration::from_mins(1);

    #[tokio::test(start_paused = true)]
    async fn one_period_of_silence_is_forgiven_and_two_are_not() {
        let mut idle = Idle::new(PERIOD);
        let mut poll = async |after: Duration, moves: bool| {
            advance(after).await;
            if moves {
                idle.moved();
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

    #[tokio::test(start_paused = true)]
    async fn who_never_says_a_word_is_noticed_after_a_period() {
        let mut idle = Idle::new(PERIOD);
        let begun = Instant::now();
        poll_fn(|cx| idle.poll(cx)).await;
        assert_eq!(begun.elapsed(), PERIOD);
    }
}
