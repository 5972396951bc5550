//! Denies calls whose message cannot be read. tonic answers them with an error, and Envoy may let pass what is
//! answered with an error: a client that can make a message too long, by headers of a request for example, would be
//! under no limit.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;
use tonic::{Code, Status};

use crate::daemon::Daemon;

/// How calls of a method that cannot be read are denied.
#[derive(Debug, Clone)]
pub(crate) struct DeniedMethod {
    /// The path of the method.
    pub(crate) path: &'static str,
    /// Counts the calls.
    pub(crate) daemon: Arc<Daemon>,
    /// Makes the encoded message that denies.
    pub(crate) denial: fn() -> Vec<u8>,
}

/// A service of Envoy's protocols, whose calls are denied if they cannot be read.
#[derive(Debug, Clone)]
pub(crate) struct DenyingService<S> {
    inner: S,
    method: DeniedMethod,
}

impl<S> DenyingService<S> {
    pub(crate) fn new(inner: S, method: DeniedMethod) -> Self {
        Self { inner, method }
    }
}

impl<S: NamedService> NamedService for DenyingService<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for DenyingService<S>
where
    S: Service<
            Request<Body>,
            Response = Response<Body>,
            Error = Infallible,
            Future = BoxFuture<Response<Body>, Infallible>,
        >,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = DenyingFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> DenyingFuture {
        let method = (request.uri().path() == self.method.path).then(|| self.method.clone());
        DenyingFuture { answer: self.inner.call(request), method }
    }
}

/// The answer of the service, or a denial where it could not read the call.
pub(crate) struct DenyingFuture {
    answer: BoxFuture<Response<Body>, Infallible>,
    /// `None` for what is no method of the service.
    method: Option<DeniedMethod>,
}

impl Future for DenyingFuture {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = ready!(self.answer.as_mut().poll(cx))?;
        let status = Status::from_header_map(response.headers());
        Poll::Ready(Ok(match (&self.method, status) {
            (Some(method), Some(status)) if is_rejection(&status) => {
                let why = format!("the call cannot be read: {}", status.message());
                method.daemon.reject(&why);
                denied(&(method.denial)())
            }
            _ => response,
        }))
    }
}

/// True where the call itself is to blame. An outage of the store stays an error: Envoy's `failure_mode_deny`
/// says what follows.
fn is_rejection(status: &Status) -> bool {
    !matches!(status.code(), Code::Ok | Code::Unavailable | Code::Cancelled)
}

/// The denial as a response of gRPC: one message, and a status that is no error.
fn denied(message: &[u8]) -> Response<Body> {
    let mut frame = BytesMut::with_capacity(5 + message.len());
    // Not compressed.
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    let ok = (HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"));
    let trailers = HeaderMap::from_iter([ok]);
    let body = Full::<Bytes>::new(frame.freeze());
    let body = body.with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}
