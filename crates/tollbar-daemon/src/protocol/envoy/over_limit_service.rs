//! Answers calls whose message cannot be read. tonic answers them with an error, and Envoy lets pass what is
//! answered with an error unless it is told otherwise: whoever can make a message too long, by headers of a
//! request for example, would be under no limit. So they are denied.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use prost::Message;
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;
use tonic::{Code, Status};

use super::{Envoy, response};
use crate::daemon::Daemon;

/// The one method of the service.
pub(crate) const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The service, whose calls are denied if they cannot be read.
#[derive(Debug, Clone)]
pub(crate) struct OverLimitService {
    inner: RateLimitServiceServer<Envoy>,
    daemon: Arc<Daemon>,
}

impl OverLimitService {
    pub(super) fn new(inner: RateLimitServiceServer<Envoy>, daemon: Arc<Daemon>) -> Self {
        Self { inner, daemon }
    }
}

impl NamedService for OverLimitService {
    const NAME: &'static str = <RateLimitServiceServer<Envoy> as NamedService>::NAME;
}

impl Service<Request<Body>> for OverLimitService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = OverLimitFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<Body>>::poll_ready(&mut self.inner, cx)
    }

    fn call(&mut self, request: Request<Body>) -> OverLimitFuture {
        let daemon = (request.uri().path() == METHOD).then(|| Arc::clone(&self.daemon));
        OverLimitFuture { answer: self.inner.call(request), daemon }
    }
}

/// The answer of the service, or a denial where it could not read the call.
pub(crate) struct OverLimitFuture {
    answer: BoxFuture<Response<Body>, Infallible>,
    /// `None` for what is no method of the service.
    daemon: Option<Arc<Daemon>>,
}

impl Future for OverLimitFuture {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = ready!(self.answer.as_mut().poll(cx))?;
        let status = Status::from_header_map(response.headers());
        Poll::Ready(Ok(match (&self.daemon, status) {
            (Some(daemon), Some(status)) if is_rejection(&status) => {
                daemon.reject(&format!("the call cannot be read: {}", status.message()));
                over_limit()
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
fn over_limit() -> Response<Body> {
    let message = response::rejection(0);
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(5 + length);
    // Not compressed.
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    frame.put_slice(&message.encode_to_vec());
    let ok = (HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"));
    let trailers = HeaderMap::from_iter([ok]);
    let body = Full::<Bytes>::new(frame.freeze());
    let body = body.with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}
