//! The future of a response, and what is added to the response of a request that passes.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;

use crate::TollbarBody;
use crate::headers::PreparedHeaders;
use crate::hold_guard::HoldGuard;

type BoxedResponseFuture<R, E> =
    Pin<Box<dyn Future<Output = Result<Response<TollbarBody<R>>, E>> + Send>>;

pin_project! {
    /// A response on its way: from the service behind, from ours, or not decided yet.
    pub struct ResponseFuture<F, R, E> {
        #[pin]
        state: ResponseState<F, R, E>,
    }
}

pin_project! {
    #[project = ResponseStateProjected]
    enum ResponseState<F, R, E> {
        /// The service behind works on it.
        Passing { #[pin] future: F, stamp: Option<ResponseStamp> },
        /// It was turned away.
        Answered { response: Option<Box<Response<Bytes>>> },
        /// The store has not answered, or the request waits.
        Asking { future: BoxedResponseFuture<R, E> },
    }
}

/// What is put on the response of a request that passes: headers, and the guard of what it holds.
#[derive(Default)]
pub(crate) struct ResponseStamp {
    pub(crate) headers: PreparedHeaders,
    pub(crate) guard: Option<Box<HoldGuard>>,
}

impl<F, R, E> ResponseFuture<F, R, E> {
    /// Inlined, so that the service's future is not moved once more.
    #[inline(always)]
    pub(crate) fn passing(future: F, stamp: ResponseStamp) -> Self {
        Self { state: ResponseState::Passing { future, stamp: Some(stamp) } }
    }

    pub(crate) fn answered(response: Box<Response<Bytes>>) -> Self {
        Self { state: ResponseState::Answered { response: Some(response) } }
    }

    pub(crate) fn asking(
        future: impl Future<Output = Result<Response<TollbarBody<R>>, E>> + Send + 'static,
    ) -> Self {
        Self { state: ResponseState::Asking { future: Box::pin(future) } }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body<Data = Bytes>,
{
    type Output = Result<Response<TollbarBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            ResponseStateProjected::Passing { future, stamp } => {
                let response = ready!(future.poll(context));
                // Whatever it holds is settled here where the service has failed.
                let stamp = stamp.take().unwrap_or_default();
                Poll::Ready(response.map(|response| stamp.apply(response)))
            }
            ResponseStateProjected::Answered { response } => {
                let response = response.take().expect("polled after it was ready");
                Poll::Ready(Ok(response.map(TollbarBody::own)))
            }
            ResponseStateProjected::Asking { future } => future.as_mut().poll(context),
        }
    }
}

impl ResponseStamp {
    /// Puts the headers into a response, and what is held into its body.
    pub(crate) fn apply<R>(self, mut response: Response<R>) -> Response<TollbarBody<R>>
    where
        R: Body<Data = Bytes>,
    {
        let Self { headers, mut guard } = self;
        if let Some(guard) = &mut guard {
            guard.responded(&mut response);
        }
        headers.make_room(response.headers_mut());
        headers.insert_into(response.headers_mut());
        response.map(|body| TollbarBody::service(body, guard))
    }
}

impl<F, R, E> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture(..)")
    }
}
