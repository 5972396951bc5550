//! A store's answer: there already, or on its way.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use super::StoreError;

/// An answer that is there, or the future of one.
pub enum Reply<'a, T> {
    /// Answered at once.
    Ready(Result<T, StoreError>),
    /// To be awaited.
    Pending(Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>),
}

impl<T> Reply<'_, T> {
    /// The answer, for callers without a runtime: blocks this thread until a pending one is there.
    ///
    /// A store that answers at once never blocks. Do not call it for a store whose futures need
    /// the runtime that this very thread drives.
    #[inline(always)]
    pub fn wait(self) -> Result<T, StoreError> {
        match self {
            Self::Ready(answer) => answer,
            Self::Pending(future) => block_on(future),
        }
    }
}

impl<'a, T: Send + Unpin + 'a> IntoFuture for Reply<'a, T> {
    type Output = Result<T, StoreError>;
    type IntoFuture = ReplyFuture<'a, T>;

    fn into_future(self) -> Self::IntoFuture {
        ReplyFuture(match self {
            Self::Ready(answer) => ReplyState::Ready(Some(answer)),
            Self::Pending(future) => ReplyState::Pending(future),
        })
    }
}

impl<T: fmt::Debug> fmt::Debug for Reply<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(answer) => f.debug_tuple("Ready").field(answer).finish(),
            Self::Pending(_) => f.write_str("Pending(..)"),
        }
    }
}

/// A [`Reply`] as a future. Allocates nothing where the answer is there.
pub struct ReplyFuture<'a, T>(ReplyState<'a, T>);

enum ReplyState<'a, T> {
    Ready(Option<Result<T, StoreError>>),
    Pending(Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>),
}

impl<T: Unpin> Future for ReplyFuture<'_, T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            ReplyState::Ready(answer) => {
                Poll::Ready(answer.take().expect("polled after it was ready"))
            }
            ReplyState::Pending(future) => future.as_mut().poll(context),
        }
    }
}

impl<T> fmt::Debug for ReplyFuture<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplyFuture(..)")
    }
}

/// What a future comes to that a store in this process answers: it is there at the first look.
pub(crate) fn answer_now<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => block_on(future),
    }
}

/// Wakes the thread that waits.
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// What a future comes to, for callers without a runtime: blocks this thread until it is there, as
/// [`Reply::wait`] does.
#[cold]
#[inline(never)]
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        // A wake between the poll and the park leaves a token, so the park returns at once.
        match future.as_mut().poll(&mut context) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::park(),
        }
    }
}
