//! Wakes only the task that waits for an upstream connection now.
//!
//! hyper remembers the last task that polled a connection and wakes it when the next request is handed over. By then
//! another task has the connection, and the first one would be polled for nothing.

use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use futures_util::task::AtomicWaker;
use tokio::task::coop::has_budget_remaining;

pub(crate) struct WakerRelay {
    task: Arc<TaskWaker>,
    /// The same, as it is handed out.
    waker: Waker,
}

#[derive(Default)]
struct TaskWaker(AtomicWaker);

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
    }
}

impl WakerRelay {
    pub(crate) fn new() -> Self {
        let task = Arc::<TaskWaker>::default();
        let waker = Waker::from(Arc::clone(&task));
        Self { task, waker }
    }

    /// For whoever is to be woken by way of it: the task of `cx`, from now on.
    pub(crate) fn to(&self, cx: &Context<'_>) -> Context<'_> {
        self.task.0.register(cx.waker());
        Context::from_waker(&self.waker)
    }

    /// Nobody waits.
    pub(crate) fn to_nobody(&self) {
        drop(self.task.0.take());
    }
}

/// For what the connection alone can bring, and has brought when it was driven: nobody has to be woken for it.
/// But a task that has used up its turn is told that there is nothing yet, and to come again.
pub(crate) fn asleep<'c>(cx: &Context<'c>) -> Context<'c> {
    Context::from_waker(if has_budget_remaining() { Waker::noop() } else { cx.waker() })
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    use super::*;

    #[derive(Default)]
    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_waits_now_is_woken_and_nobody_else() {
        let counts: [Arc<WakeCount>; 2] = Default::default();
        let wakers = counts.clone().map(Waker::from);
        let [first, second] = wakers.each_ref().map(Context::from_waker);
        let woken = || counts.each_ref().map(|count| count.0.load(Ordering::Relaxed));
        let relay = WakerRelay::new();
        // What the first has left behind wakes the second.
        let left = relay.to(&first).waker().clone();
        let _ = relay.to(&second);
        left.wake_by_ref();
        assert_eq!(woken(), [0, 1]);
        let _ = relay.to(&second);
        relay.to_nobody();
        left.wake();
        assert_eq!(woken(), [0, 1]);
    }

    #[tokio::test]
    async fn whoever_has_used_up_its_turn_comes_again() {
        poll_fn(|cx| {
            assert!(!asleep(cx).waker().will_wake(cx.waker()));
            while has_budget_remaining() {
                let _ = pin!(tokio::task::consume_budget()).poll(cx);
            }
            assert!(asleep(cx).waker().will_wake(cx.waker()));
            Poll::Ready(())
        })
        .await;
    }
}
