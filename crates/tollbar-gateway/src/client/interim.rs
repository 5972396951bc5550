//! Interim responses, such as 103 Early Hints, on their way from the upstream to a client over HTTP/1.1.
//!
//! hyper's server sends one response for each request, so these are written to the client's stream past it: when it has
//! flushed everything it has, and before it is given the final response.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};
use tokio::io::AsyncWrite;

use crate::hop_by_hop;

/// How many are relayed for one request. Clients do without the others.
const COUNT_MAX: usize = 8;

/// How many bytes all of them may have.
const BYTES_MAX: usize = 16 * 1024;

/// The interim responses to the request that a connection is at. HTTP/1.1 has one at a time.
#[derive(Debug, Default)]
pub(crate) struct InterimResponses {
    /// False until the request has had one, and if there is nothing to write: most requests take no lock.
    has_any: AtomicBool,
    has_unwritten: AtomicBool,
    state: Mutex<InterimState>,
}

#[derive(Debug, Default)]
struct InterimState {
    /// How many the request has had, and their bytes.
    count: usize,
    bytes: usize,
    unwritten: Vec<u8>,
    /// Waits until they are written.
    waker: Option<Waker>,
}

impl InterimResponses {
    /// Notes that the next request has come. All responses to the last one are written.
    pub(crate) fn begin_request(&self) {
        if self.has_any.swap(false, Ordering::Relaxed) {
            let mut state = self.lock();
            (state.count, state.bytes) = (0, 0);
        }
    }

    /// Adds a response, unless the request has had too many. `100 Continue` is not relayed: the gateway says it itself when
    /// the upstream takes the body.
    pub(crate) fn push(&self, status: StatusCode, headers: &HeaderMap) {
        if status == StatusCode::CONTINUE || !status.is_informational() {
            return;
        }
        let mut headers = headers.clone();
        if !hop_by_hop::remove(&mut headers) {
            return;
        }
        // It has no body, whatever it says.
        headers.remove(CONTENT_LENGTH);
        let reason = status.canonical_reason().unwrap_or_default();
        let mut text = format!("HTTP/1.1 {} {reason}\r\n", status.as_u16()).into_bytes();
        hop_by_hop::write_lines(&headers, &mut text);
        text.extend_from_slice(b"\r\n");
        let mut state = self.lock();
        if state.count == COUNT_MAX || state.bytes + text.len() > BYTES_MAX {
            return;
        }
        state.count += 1;
        state.bytes += text.len();
        state.unwritten.append(&mut text);
        self.has_any.store(true, Ordering::Relaxed);
        self.has_unwritten.store(true, Ordering::Relaxed);
    }

    /// Writes what was added.
    pub(crate) fn poll_write(
        &self,
        mut io: Pin<&mut impl AsyncWrite>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.has_unwritten.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let mut state = self.lock();
        while !state.unwritten.is_empty() {
            let count = ready!(io.as_mut().poll_write(cx, &state.unwritten))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            state.unwritten.drain(..count);
        }
        self.has_unwritten.store(false, Ordering::Relaxed);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        Poll::Ready(Ok(()))
    }

    /// Waits until everything that was added is written, so that the final response follows it.
    pub(crate) fn poll_written(&self, cx: &Context<'_>) -> Poll<()> {
        if !self.has_unwritten.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        self.lock().waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, InterimState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    fn written(interim: &InterimResponses) -> String {
        let mut io = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(interim.poll_write(pin!(&mut io), &mut cx).is_ready());
        assert!(interim.poll_written(&cx).is_ready());
        String::from_utf8(io).unwrap()
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let line =
            |(name, value): &(&'static str, &str)| (name.parse().unwrap(), value.parse().unwrap());
        lines.iter().map(line).collect()
    }

    #[test]
    fn what_frames_a_message_or_is_about_its_connection_is_not_relayed() {
        let interim = InterimResponses::default();
        let lines = [
            ("link", "</a.css>"),
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("connection", "x-private"),
            ("x-private", "1"),
        ];
        interim.push(StatusCode::EARLY_HINTS, &headers(&lines));
        interim.push(StatusCode::CONTINUE, &headers(&[]));
        interim.push(StatusCode::OK, &headers(&[]));
        assert_eq!(written(&interim), "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n");
        assert_eq!(written(&interim), "");
    }

    #[test]
    fn a_request_has_so_many_and_the_next_one_has_as_many_again() {
        let interim = InterimResponses::default();
        for _ in 0..2 {
            for _ in 0..100 {
                interim.push(StatusCode::PROCESSING, &headers(&[]));
            }
            assert_eq!(written(&interim).matches("102").count(), COUNT_MAX);
            interim.push(StatusCode::PROCESSING, &headers(&[]));
            assert_eq!(written(&interim), "", "what was written counts as well");
            interim.begin_request();
        }
        let long = "x".repeat(BYTES_MAX / 2);
        for _ in 0..3 {
            interim.push(StatusCode::EARLY_HINTS, &headers(&[("link", &long)]));
        }
        assert_eq!(written(&interim).matches("103").count(), 1);
    }
}
