//! Requests that wait to be sent, and callers that wait for their answers. Their number is bounded.
//!
//! What is sent, and by whom, is the [session](super::session)'s business. A caller that went away
//! leaves its place when its turn comes, or when somebody needs it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tonic::codegen::tokio_stream::Stream;

use super::CheckError;
use super::error::Fault;
use crate::v1::{CheckManyRequest, CheckRequest, CheckResponse};

type CheckResult = Result<CheckResponse, CheckError>;

/// The requests and callers that wait for one client.
#[derive(Debug)]
pub(super) struct RequestQueue {
    state: Mutex<QueueState>,
    places: Arc<Semaphore>,
    max_waiting: usize,
    /// Told when the last client is gone.
    closed: Notify,
    observer: FaultObserver,
}

/// Reports what callers may not notice: that checks are not sent.
#[derive(Clone, Default)]
pub(super) struct FaultObserver(pub(super) Option<Arc<OnFault>>);

pub(super) type OnFault = dyn Fn(&CheckError) + Send + Sync;

#[derive(Debug)]
struct QueueState {
    queued: VecDeque<QueuedRequest>,
    /// Which session may send. An older one, which may linger, finds that it is not meant.
    session: u64,
    /// Whether the daemon has taken that session's stream. Before that, nothing is sent: what is only
    /// queued has surely not been charged.
    is_open: bool,
    next_id: u64,
    /// Who sends, where there was nothing to be sent.
    writer: Option<Waker>,
    /// Why nothing can be sent now.
    down: Option<Fault>,
    /// Whether callers were turned away because too many wait, and half of the places are not free again.
    is_overloaded: bool,
    is_closed: bool,
}

#[derive(Debug)]
struct QueuedRequest {
    request: CheckRequest,
    caller: Caller,
}

/// The caller of a request, and the place it takes.
#[derive(Debug)]
struct Caller {
    answer: oneshot::Sender<CheckResult>,
    _place: OwnedSemaphorePermit,
}

/// The callers whose requests one session has sent, in order.
#[derive(Debug, Default)]
pub(super) struct InFlight(Mutex<VecDeque<(u64, Caller)>>);

/// What one session sends: everything that is queued, as fast as it is taken.
#[derive(Debug)]
pub(super) struct Outbound {
    queue: Arc<RequestQueue>,
    session: u64,
    in_flight: Arc<InFlight>,
}

impl RequestQueue {
    pub(super) fn new(max_waiting: usize, observer: FaultObserver) -> Self {
        let state = QueueState {
            queued: VecDeque::new(),
            session: 0,
            is_open: false,
            next_id: 1,
            writer: None,
            down: None,
            is_overloaded: false,
            is_closed: false,
        };
        let places = Arc::new(Semaphore::new(max_waiting));
        Self { state: Mutex::new(state), places, max_waiting, closed: Notify::new(), observer }
    }

    /// Takes a place, and asks for the request to be sent.
    pub(super) fn join(
        &self,
        request: CheckRequest,
    ) -> Result<oneshot::Receiver<CheckResult>, CheckError> {
        let mut state = lock(&self.state);
        if let Some(fault) = &state.down {
            return Err(fault.to_error());
        }
        let take = || Arc::clone(&self.places).try_acquire_owned().ok();
        let place = take().or_else(|| {
            // Some may have gone away in the meantime.
            state.queued.retain(|queued| !queued.caller.answer.is_closed());
            take()
        });
        let Some(place) = place else {
            let error = CheckError::Overloaded { max_waiting: self.max_waiting };
            let is_news = !std::mem::replace(&mut state.is_overloaded, true);
            drop(state);
            if is_news {
                self.observer.report(&error);
            }
            return Err(error);
        };
        if state.is_overloaded && self.places.available_permits() >= self.max_waiting / 2 {
            state.is_overloaded = false;
        }
        let (answer, receiver) = oneshot::channel();
        state.queued.push_back(QueuedRequest { request, caller: Caller { answer, _place: place } });
        let writer = state.writer.take();
        drop(state);
        if let Some(writer) = writer {
            writer.wake();
        }
        Ok(receiver)
    }

    /// A new session; an older one ends what it sends.
    pub(super) fn begin(self: &Arc<Self>) -> (Outbound, Arc<InFlight>) {
        let in_flight = Arc::new(InFlight::default());
        let session = self.change(|state| {
            state.session += 1;
            state.is_open = false;
            state.down = None;
            state.session
        });
        (
            Outbound { queue: Arc::clone(self), session, in_flight: Arc::clone(&in_flight) },
            in_flight,
        )
    }

    /// The session's stream was taken: what is queued may be sent.
    pub(super) fn open(&self) {
        self.change(|state| state.is_open = true);
    }

    /// Nothing can be sent: tells those who wait to be, and all that come until the next session.
    pub(super) fn fail(&self, fault: &Fault) {
        let queued = {
            let mut state = lock(&self.state);
            state.down = Some(fault.clone());
            std::mem::take(&mut state.queued)
        };
        for QueuedRequest { caller, .. } in queued {
            #[expect(clippy::let_underscore_must_use, reason = "the caller gave up waiting")]
            let _ = caller.answer.send(Err(fault.to_error()));
        }
    }

    /// Reports why nothing can be sent.
    pub(super) fn report(&self, fault: &Fault) {
        self.observer.report(&fault.to_error());
    }

    /// No more callers come.
    pub(super) fn close(&self) {
        self.change(|state| state.is_closed = true);
        self.closed.notify_one();
    }

    /// Changes what whoever sends may have to know.
    fn change<T>(&self, change: impl FnOnce(&mut QueueState) -> T) -> T {
        let (changed, writer) = {
            let mut state = lock(&self.state);
            (change(&mut state), state.writer.take())
        };
        if let Some(writer) = writer {
            writer.wake();
        }
        changed
    }

    /// Ends when no more callers come.
    pub(super) async fn closed(&self) {
        self.closed.notified().await;
    }
}

impl FaultObserver {
    fn report(&self, error: &CheckError) {
        tracing::warn!(%error, "checks are not sent to the daemon");
        if let Some(on_fault) = &self.0 {
            on_fault(error);
        }
    }
}

impl std::fmt::Debug for FaultObserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FaultObserver(..)")
    }
}

impl QueueState {
    /// Whoever is to be sent next.
    fn next(&mut self) -> Option<QueuedRequest> {
        if self.is_open { self.queued.pop_front() } else { None }
    }
}

impl InFlight {
    /// True where `id` is the next that is to be answered, and it was. Who has gone away is not told.
    pub(super) fn answer(&self, id: u64, answer: CheckResult) -> bool {
        let first = {
            let mut in_flight = lock(&self.0);
            in_flight.pop_front_if(|(first, _)| *first == id)
        };
        match first {
            Some((_, caller)) => {
                #[expect(clippy::let_underscore_must_use, reason = "the caller gave up waiting")]
                let _ = caller.answer.send(answer);
                true
            }
            None => false,
        }
    }

    /// No more answers come.
    pub(super) fn lose(&self, reason: &str) {
        let in_flight = std::mem::take(&mut *lock(&self.0));
        for (_, caller) in in_flight {
            #[expect(clippy::let_underscore_must_use, reason = "the caller gave up waiting")]
            let _ = caller.answer.send(Err(CheckError::Lost { reason: reason.to_owned() }));
        }
    }

    /// The id whose answer is the next to come.
    pub(super) fn next(&self) -> Option<u64> {
        lock(&self.0).front().map(|(id, _)| *id)
    }
}

impl Stream for Outbound {
    type Item = CheckManyRequest;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<CheckManyRequest>> {
        let mut state = lock(&self.queue.state);
        if state.session != self.session {
            return Poll::Ready(None);
        }
        while let Some(QueuedRequest { request, caller }) = state.next() {
            if caller.answer.is_closed() {
                continue;
            }
            let id = state.next_id;
            state.next_id += 1;
            lock(&self.in_flight.0).push_back((id, caller));
            return Poll::Ready(Some(CheckManyRequest { id, request: Some(request) }));
        }
        if state.is_closed {
            return Poll::Ready(None);
        }
        state.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Nothing here is left half done, so whoever panicked elsewhere has broken nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
