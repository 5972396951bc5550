//! The least that a layer with our headers costs: five values that were made before are put into every
//! response, and nothing is decided. What is beyond it is the limiter.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::Router;
use axum::http::{HeaderName, HeaderValue, Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

/// Names and values as ours has them.
static HEADERS: [(HeaderName, HeaderValue); 5] = [
    (HeaderName::from_static("x-ratelimit-limit"), HeaderValue::from_static("1000000000")),
    (HeaderName::from_static("x-ratelimit-remaining"), HeaderValue::from_static("999999999")),
    (HeaderName::from_static("x-ratelimit-reset"), HeaderValue::from_static("1794822474")),
    (
        HeaderName::from_static("ratelimit-policy"),
        HeaderValue::from_static("\"per_client\";q=1000000000;w=1"),
    ),
    (
        HeaderName::from_static("ratelimit"),
        HeaderValue::from_static("\"per_client\";r=999999999;t=1"),
    ),
];

pub(super) fn app() -> Router {
    super::app().layer(tower_layer::layer_fn(StampService))
}

#[derive(Clone)]
struct StampService<S>(S);

pin_project! {
    /// A response that is stamped when it is there.
    struct StampFuture<F> {
        #[pin]
        future: F,
    }
}

impl<S, Q, R> Service<Request<Q>> for StampService<S>
where
    S: Service<Request<Q>, Response = Response<R>>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = StampFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        StampFuture { future: self.0.call(request) }
    }
}

impl<F, R, E> Future for StampFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<R>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = ready!(self.project().future.poll(context))?;
        let headers = response.headers_mut();
        headers.reserve(HEADERS.len() + 1);
        for (name, value) in &HEADERS {
            headers.insert(name, value.clone());
        }
        Poll::Ready(Ok(response))
    }
}
