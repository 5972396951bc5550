//! The body of a response: the service's, or our own. Holds what the request holds until it ends.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::hold_guard::HoldGuard;

pin_project! {
    /// A response's body.
    ///
    /// Permits are returned, and reservations settled, when it has ended or is dropped.
    pub struct TollbarBody<B> {
        #[pin]
        kind: BodyKind<B>,
        guard: Option<Box<HoldGuard>>,
    }
}

pin_project! {
    #[project = BodyKindProjected]
    enum BodyKind<B> {
        Service { #[pin] body: B },
        Own { bytes: Bytes },
    }
}

impl<B: Body<Data = Bytes>> TollbarBody<B> {
    pub(crate) fn service(body: B, guard: Option<Box<HoldGuard>>) -> Self {
        let is_end_stream = body.is_end_stream();
        let mut body = Self { kind: BodyKind::Service { body }, guard };
        // A server that is told so does not ask for the end.
        if is_end_stream {
            end(&mut body.guard);
        }
        body
    }

    pub(crate) fn own(bytes: Bytes) -> Self {
        Self { kind: BodyKind::Own { bytes }, guard: None }
    }
}

/// All of it was sent.
fn end(guard: &mut Option<Box<HoldGuard>>) {
    if let Some(mut guard) = guard.take() {
        guard.completed();
    }
}

impl<B: Body<Data = Bytes>> Body for TollbarBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let mut body = match this.kind.project() {
            BodyKindProjected::Service { body } => body,
            BodyKindProjected::Own { bytes } if bytes.is_empty() => return Poll::Ready(None),
            BodyKindProjected::Own { bytes } => {
                return Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes)))));
            }
        };
        let frame = ready!(body.as_mut().poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let (Some(guard), Some(data)) = (this.guard.as_mut(), frame.data_ref()) {
                    guard.sent(data.len() as u64);
                }
                if body.is_end_stream() {
                    end(this.guard);
                }
            }
            // It broke off: what was held is settled as it is.
            Some(Err(_)) => drop(this.guard.take()),
            None => end(this.guard),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Service { body } => body.is_end_stream(),
            BodyKind::Own { bytes } => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Service { body } => body.size_hint(),
            BodyKind::Own { bytes } => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

impl<B> fmt::Debug for TollbarBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TollbarBody(..)")
    }
}
