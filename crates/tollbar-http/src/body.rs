//! The body of a response: the service's, or our own. Holds what the request holds until it ends.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::hold_guard::Held;

pin_project! {
    /// A response's body.
    ///
    /// Permits are returned, and reservations settled, when it has ended or is dropped.
    pub struct TollbarBody<B> {
        #[pin]
        kind: Kind<B>,
        held: Option<Box<Held>>,
    }
}

pin_project! {
    #[project = KindProjected]
    enum Kind<B> {
        Service { #[pin] body: B },
        Own { bytes: Bytes },
    }
}

impl<B: Body<Data = Bytes>> TollbarBody<B> {
    pub(crate) fn service(body: B, held: Option<Box<Held>>) -> Self {
        let is_end_stream = body.is_end_stream();
        let mut body = Self { kind: Kind::Service { body }, held };
        // A server that is told so does not ask for the end.
        if is_end_stream {
            end(&mut body.held);
        }
        body
    }

    pub(crate) fn own(bytes: Bytes) -> Self {
        Self { kind: Kind::Own { bytes }, held: None }
    }
}

/// All of it was sent.
fn end(held: &mut Option<Box<Held>>) {
    if let Some(mut held) = held.take() {
        held.completed();
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
            KindProjected::Service { body } => body,
            KindProjected::Own { bytes } if bytes.is_empty() => return Poll::Ready(None),
            KindProjected::Own { bytes } => {
                return Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes)))));
            }
        };
        let frame = ready!(body.as_mut().poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let (Some(held), Some(data)) = (this.held.as_mut(), frame.data_ref()) {
                    held.sent(data.len() as u64);
                }
                if body.is_end_stream() {
                    end(this.held);
                }
            }
            // It broke off: what was held is settled as it is.
            Some(Err(_)) => drop(this.held.take()),
            None => end(this.held),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Service { body } => body.is_end_stream(),
            Kind::Own { bytes } => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Service { body } => body.size_hint(),
            Kind::Own { bytes } => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

impl<B> fmt::Debug for TollbarBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TollbarBody(..)")
    }
}
