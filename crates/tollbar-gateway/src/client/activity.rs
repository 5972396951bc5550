//! Whether a connection waits for its client, or the client for a response.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};

/// How many responses a client waits for on one connection. A server that is full may close connections that have none.
#[derive(Debug, Default)]
pub struct ConnectionActivity {
    responses: AtomicU32,
}

impl ConnectionActivity {
    /// Returns true from when a request has come whole, or its response has begun, until the response is handed over.
    #[must_use]
    pub fn has_response(&self) -> bool {
        self.responses.load(Ordering::Relaxed) > 0
    }
}

/// A request whose response is counted once the client has sent everything.
#[derive(Debug)]
pub(crate) struct PendingResponse {
    activity: Arc<ConnectionActivity>,
    is_counted: AtomicBool,
}

impl PendingResponse {
    pub(crate) fn new(activity: Arc<ConnectionActivity>) -> Self {
        Self { activity, is_counted: AtomicBool::new(false) }
    }

    /// Notes that the request has come whole, or its response begins.
    pub(crate) fn begin(&self) {
        if !self.is_counted.swap(true, Ordering::Relaxed) {
            self.activity.responses.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        if *self.is_counted.get_mut() {
            self.activity.responses.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A response's body. The response counts until the body has ended or is dropped.
pub(crate) struct ActiveBody<B> {
    pub(crate) body: B,
    pub(crate) _response: Arc<PendingResponse>,
}

impl<B: Body + Unpin> Body for ActiveBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_counts_once_and_until_its_end() {
        let activity = Arc::<ConnectionActivity>::default();
        let response = PendingResponse::new(Arc::clone(&activity));
        assert!(!activity.has_response(), "the body of the request is on its way");
        response.begin();
        response.begin();
        assert!(activity.has_response());
        drop(PendingResponse::new(Arc::clone(&activity)));
        assert!(activity.has_response());
        drop(response);
        assert!(!activity.has_response());
    }
}
