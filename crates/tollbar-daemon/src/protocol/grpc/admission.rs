//! Admits calls before any message is read: they must be gRPC, have a token where one is required, and end in
//! time.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap};
use hyper::service::Service;
use hyper::{Method, Request, Response, StatusCode};
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::service::Routes;
use tracing::warn;

use crate::auth_failures::WrongToken;
use crate::daemon::Daemon;
use crate::finish::Finish;
use crate::metrics::Outcome;
use crate::net::Peer;
use crate::problem::Problem;
use crate::protocol::forward_auth::EXT_AUTHZ_METHOD;

/// Open to whoever has no token.
const HEALTH: &str = "/grpc.health.v1.Health/";

const NO_TOKEN: &str = "the token is missing or wrong: send the metadata `authorization` with `Bearer ` and the \
                        token";

/// In the extensions of a call of `ext_authz`: its peer, and how long that waits for an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) peer: Peer,
    pub(crate) time: Duration,
}

/// Admits or refuses each call, in front of all services.
#[derive(Clone)]
pub(super) struct AdmissionService {
    daemon: Arc<Daemon>,
    /// The methods that Envoy calls, and what counts their calls.
    of_envoy: [(&'static str, Arc<Daemon>); 2],
    /// Calls of Envoy without the token.
    unauthenticated: Arc<AtomicU64>,
    routes: Routes,
    /// For an answer to begin: what takes time is a message that does not come.
    call_time_max: Duration,
    peer: Peer,
}

impl AdmissionService {
    pub(super) fn new(
        daemon: Arc<Daemon>,
        of_envoy: [(&'static str, Arc<Daemon>); 2],
        routes: Routes,
    ) -> Self {
        let unauthenticated = Arc::default();
        let (call_time_max, peer) = (Duration::MAX, Peer::Unix);
        Self { daemon, of_envoy, unauthenticated, routes, call_time_max, peer }
    }

    /// Returns the service for a connection of `peer`, whose calls have this much time.
    pub(super) fn for_connection(&self, peer: Peer, call_time_max: Duration) -> Self {
        Self { call_time_max, peer, ..self.clone() }
    }

    fn authorize(&self, path: &str, metadata: &HeaderMap) -> Result<(), WrongToken> {
        if path.starts_with(HEALTH) {
            return Ok(());
        }
        let shown = metadata.get(AUTHORIZATION).map(hyper::header::HeaderValue::as_bytes);
        let token = shown.and_then(|value| value.strip_prefix(b"Bearer "));
        self.daemon.authorize(token, self.peer)
    }

    /// Counts a call of Envoy without the token, because Envoy may let its request pass. The log has the first, the
    /// second, the fourth and so on.
    fn report_unauthenticated(&self, path: &str) {
        let Some((_, daemon)) = self.of_envoy.iter().find(|(method, _)| *method == path) else {
            return;
        };
        daemon.count(Outcome::Rejected);
        let calls = self.unauthenticated.fetch_add(1, Ordering::Relaxed) + 1;
        if calls.is_power_of_two() {
            warn!(
                calls,
                "a call of Envoy's has no token of --token-file and is not answered: Envoy lets the request pass \
                 unless `failure_mode_deny` is set, or if `failure_mode_allow` is set for ext_authz"
            );
        }
    }
}

impl Service<Request<Incoming>> for AdmissionService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Call;

    fn call(&self, mut request: Request<Incoming>) -> Call {
        if !is_grpc(&request) {
            return Call::Refused(Some(no_grpc()));
        }
        if let Err(wrong) = self.authorize(request.uri().path(), request.headers()) {
            self.report_unauthenticated(request.uri().path());
            return Call::refused(Status::unauthenticated(match wrong.retry_after_s {
                Some(seconds) => Problem::too_many_failures(seconds).detail,
                None => NO_TOKEN.into(),
            }));
        }
        let time = match timeout(request.headers(), self.call_time_max) {
            Ok(time) => time,
            Err(status) => return Call::refused(status),
        };
        // Only there, because extensions are an allocation.
        if request.uri().path() == EXT_AUTHZ_METHOD {
            request.extensions_mut().insert(Caller { peer: self.peer, time });
        }
        // A call of `ext_authz` may wait in a queue, whose places are for clients that are still there.
        let is_finished = self.daemon.finishes_checks() && request.uri().path() != EXT_AUTHZ_METHOD;
        let traces = self.daemon.traces.as_ref();
        let context = traces.and_then(|traces| traces.context_of(request.headers())).map(Box::new);
        let answer = self.routes.clone().call(request);
        let answer = if is_finished {
            Answer::Finished(Finish::new(answer))
        } else {
            Answer::Dropped(answer)
        };
        Call::Running { answer, time, timer: None, context }
    }
}

/// A call on its way to its answer.
#[expect(clippy::large_enum_variant, reason = "nearly all are asked, and a box would cost each")]
pub(super) enum Call {
    Refused(Option<Response<Body>>),
    Running {
        answer: Answer,
        time: Duration,
        /// Made only where there is something to wait for: most calls are answered at once.
        timer: Option<Pin<Box<Sleep>>>,
        /// The trace it is part of, where that is known and wanted.
        context: Option<Box<opentelemetry::Context>>,
    },
}

type RouteFuture = <Routes as tonic::codegen::Service<Request<Incoming>>>::Future;

/// An answer that is made, and what becomes of it if the client hangs up.
pub(super) enum Answer {
    Dropped(RouteFuture),
    Finished(Finish<RouteFuture>),
}

impl Future for Answer {
    type Output = <RouteFuture as Future>::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Dropped(answer) => Pin::new(answer).poll(cx),
            Self::Finished(answer) => Pin::new(answer).poll(cx),
        }
    }
}

impl Call {
    fn refused(status: Status) -> Self {
        Self::Refused(Some(status.into_http()))
    }
}

impl Future for Call {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            // Polled again after its end, which nobody does, it would have nothing to say.
            Self::Refused(response) => Poll::Ready(Ok(response.take().unwrap_or_default())),
            Self::Running { answer, time, timer, context } => {
                let _attached = context.as_deref().map(|context| context.clone().attach());
                if let Poll::Ready(response) = Pin::new(answer).poll(cx) {
                    return Poll::Ready(response);
                }
                let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(*time)));
                ready!(timer.as_mut().poll(cx));
                let message = "there was no answer in time: send the message at once";
                Poll::Ready(Ok(Status::deadline_exceeded(message).into_http()))
            }
        }
    }
}

fn is_grpc(request: &Request<Incoming>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE).map(hyper::header::HeaderValue::as_bytes);
    request.method() == Method::POST
        && kind.is_some_and(|kind| kind.starts_with(b"application/grpc"))
}

/// What the protocol asks for where somebody speaks another.
fn no_grpc() -> Response<Body> {
    let message = "this port speaks gRPC: send POST with `content-type: application/grpc`\n";
    let mut response = Response::new(Body::new(http_body_util::Full::from(message)));
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
}

/// As long as the caller waits, and no longer than anybody may.
fn timeout(metadata: &HeaderMap, time_max: Duration) -> Result<Duration, Status> {
    let Some(value) = metadata.get("grpc-timeout") else {
        return Ok(time_max);
    };
    let wrong = || {
        Status::invalid_argument(
            "`grpc-timeout` cannot be read: send up to 8 digits and a unit of H, M, S, m, u or n",
        )
    };
    let (digits, unit) = value
        .to_str()
        .ok()
        .and_then(|text| text.split_at_checked(text.len().checked_sub(1)?))
        .ok_or_else(wrong)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    let time = match unit {
        "H" => Duration::from_hours(count),
        "M" => Duration::from_mins(count),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return Err(wrong()),
    };
    Ok(time.min(time_max))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    const CALL_TIME_MAX: Duration = Duration::from_secs(10);

    fn timeout_of(text: &str) -> Option<Duration> {
        let metadata = HeaderMap::from_iter([(
            hyper::header::HeaderName::from_static("grpc-timeout"),
            HeaderValue::from_str(text).unwrap(),
        )]);
        timeout(&metadata, CALL_TIME_MAX).ok()
    }

    #[test]
    fn callers_wait_as_long_as_they_say_and_ten_seconds_at_most() {
        assert_eq!(timeout(&HeaderMap::new(), CALL_TIME_MAX).ok(), Some(CALL_TIME_MAX));
        for (text, expected) in [
            ("1S", Some(Duration::from_secs(1))),
            ("00000002S", Some(Duration::from_secs(2))),
            ("250m", Some(Duration::from_millis(250))),
            ("7u", Some(Duration::from_micros(7))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("0m", Some(Duration::ZERO)),
            ("1M", Some(CALL_TIME_MAX)),
            ("99999999H", Some(CALL_TIME_MAX)),
            ("", None),
            ("S", None),
            ("1", None),
            ("1s", None),
            ("+1S", None),
            ("-1S", None),
            ("1.5S", None),
            ("123456789n", None),
        ] {
            assert_eq!(timeout_of(text), expected, "{text}");
        }
    }
}
