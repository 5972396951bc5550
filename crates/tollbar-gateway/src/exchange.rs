//! The service behind the rules: a request goes to the upstream, its answer comes back.
//!
//! Nothing is sent twice. A request goes to another connection only if the one that was kept for it
//! had ended and not a byte was sent.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::upgrade::OnUpgrade;
use tokio::sync::OwnedSemaphorePermit;
use tollbar_http::ClientIp;
use tower_service::Service;
use tracing::{debug, info, warn};

use crate::ConnectionInfo;
use crate::client::interim::InterimResponses;
use crate::forwarded::ForwardedHeaders;
use crate::hop_by_hop;
use crate::problem::Problem;
use crate::request::{RequestSettings, UpstreamRequest};
use crate::tunnel::Tunnel;
use crate::upstream::body::{BodyProgress, Http1Body, RequestBody, UpstreamBody};
use crate::upstream::breaker::{Breaker, BreakerPermit};
use crate::upstream::connection::{Http1Connection, SendError};
use crate::upstream::failure::Failure;
use crate::upstream::pool::{Pool, PooledConnection};

/// What all connections of clients share.
pub(crate) struct Upstream {
    pub(crate) pool: Arc<Pool>,
    pub(crate) breaker: Arc<Breaker>,
    pub(crate) terms: RequestSettings,
    pub(crate) client_ip: ClientIp,
}

impl Upstream {
    /// Connects once, and logs a failure as that of a request. The connection is kept for the first request.
    pub(crate) async fn probe(&self) {
        let Ok(pass) = self.breaker.pass() else { return };
        match self.pool.connect(false).await {
            Ok(PooledConnection::Http1(connection)) => self.pool.keep(connection).await,
            Ok(PooledConnection::Http2(_)) => {}
            Err(failure) => self.note(pass, Some(&failure)),
        }
    }

    /// Tells the breaker what became of a request. Logs the first failure of an outage, and the first answer after it.
    fn note(&self, pass: BreakerPermit, failure: Option<&Failure>) {
        let upstream = &self.terms.url;
        match failure {
            None => {
                if pass.answered() {
                    info!(%upstream, "the upstream answers again");
                }
            }
            Some(failure) => {
                // What a client brings about says nothing about the upstream.
                if failure.is_outage() && pass.failed() {
                    warn!(%upstream, "the upstream fails: {failure}; the log says when it answers again");
                }
            }
        }
    }
}

/// The service for one connection of a client.
#[derive(Clone)]
pub(crate) struct Exchange(Arc<ExchangeState>);

struct ExchangeState {
    upstream: Arc<Upstream>,
    forwarded_headers: ForwardedHeaders,
    interim: Arc<InterimResponses>,
    /// Where a tunnel waits for its connection to be handed over. At most one: HTTP/1.1 changes the
    /// protocol of a whole connection.
    slot: Mutex<Option<Tunnel>>,
}

type UpstreamResponse = Response<UpstreamBody>;

impl Service<Request<Incoming>> for Exchange {
    type Response = UpstreamResponse;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<UpstreamResponse, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        let client = Arc::clone(&self.0);
        let upgraded = hyper::upgrade::on(&mut request);
        // A client of HTTP/1.0 knows no interim responses, and hyper has no way to send them over HTTP/2.
        let interim = (request.version() == Version::HTTP_11).then(|| Arc::clone(&client.interim));
        let (forwarded_headers, terms) = (&client.forwarded_headers, &client.upstream.terms);
        let to_send = match UpstreamRequest::new(request, forwarded_headers, terms, interim) {
            Ok(to_send) => to_send,
            Err(problem) => return Box::pin(ready(Ok(problem_response(problem)))),
        };
        Box::pin(async move {
            let answer = client.ask(to_send, upgraded).await;
            Ok(answer.unwrap_or_else(|failure| {
                debug!(upstream = %client.upstream.terms.url, %failure, "no answer");
                problem_response(failure.problem())
            }))
        })
    }
}

fn problem_response(problem: Problem) -> UpstreamResponse {
    problem.response().map(UpstreamBody::Whole)
}

impl Exchange {
    pub(crate) fn new(
        upstream: Arc<Upstream>,
        connection_info: ConnectionInfo,
        interim: Arc<InterimResponses>,
    ) -> Self {
        let is_trusted =
            connection_info.may_be_proxy && upstream.client_ip.trusts(connection_info.peer);
        let forwarded_headers = ForwardedHeaders::new(connection_info, is_trusted);
        let slot = Mutex::default();
        Self(Arc::new(ExchangeState { upstream, forwarded_headers, interim, slot }))
    }

    /// The tunnel that waits, if there is one.
    pub(crate) fn tunnel(&self) -> MutexGuard<'_, Option<Tunnel>> {
        self.0.tunnel()
    }
}

impl ExchangeState {
    fn tunnel(&self) -> MutexGuard<'_, Option<Tunnel>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(
        &self,
        to_send: Box<UpstreamRequest>,
        client: OnUpgrade,
    ) -> Result<UpstreamResponse, Failure> {
        let Upstream { pool, breaker, .. } = &*self.upstream;
        let pass = breaker.pass().map_err(Failure::LeftAlone)?;
        let place = pool.place().await?;
        let upgrade = to_send.upgrade.clone();
        let answer = match pool.acquire(upgrade.is_some()).await {
            // In a box, so that requests over HTTP/1.1 do not carry its size around.
            Ok(PooledConnection::Http2(sender)) => {
                Box::pin(self.send_http2(sender, to_send, place)).await
            }
            Ok(PooledConnection::Http1(connection)) => {
                self.send_http1(
                    connection,
                    to_send,
                    place,
                    upgrade.map(|protocol| (protocol, client)),
                )
                .await
            }
            Err(failure) => Err(failure),
        };
        self.upstream.note(pass, answer.as_ref().err());
        answer
    }

    async fn send_http1(
        &self,
        mut connection: Box<Http1Connection>,
        to_send: Box<UpstreamRequest>,
        place: OwnedSemaphorePermit,
        upgrade: Option<(HeaderValue, OnUpgrade)>,
    ) -> Result<UpstreamResponse, Failure> {
        let pool = &self.upstream.pool;
        let (progress, time_max) = (to_send.progress(), pool.first_byte_time_max());
        let mut answer = connection.send(|| to_send.for_http1(), progress.clone(), time_max).await;
        if let Err(SendError::Unsent(request, _)) = answer {
            // HTTP/1.1, because the request is written for it. A new connection, so that this happens once.
            connection = match Box::pin(pool.connect(true)).await? {
                PooledConnection::Http1(connection) => connection,
                PooledConnection::Http2(_) => return Err(Failure::Busy),
            };
            answer = connection.send(|| *request, progress.clone(), time_max).await;
        }
        let answer = answer.map_err(|error| match error {
            SendError::Unsent(_, error) | SendError::Failed(Failure::Broken(error)) => {
                Failure::broken(error, progress.as_deref())
            }
            SendError::Failed(failure) => failure,
        })?;
        let (mut head, body) = answer.into_parts();
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            let (asked, client) = upgrade.ok_or(Failure::Unasked)?;
            let changed = hop_by_hop::upgrade(Version::HTTP_11, &head.headers);
            if !changed
                .is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(asked.as_bytes()))
            {
                return Err(Failure::Unasked);
            }
            hop_by_hop::remove(&mut head.headers);
            head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            head.headers.insert(UPGRADE, asked);
            let tunnel = Tunnel { client, connection, place, held: None };
            *self.tunnel() = Some(tunnel);
            return Ok(Response::from_parts(head, UpstreamBody::Upgraded));
        }
        let mut body = Box::new(Http1Body::new(body, connection, Arc::clone(pool), place));
        body.end_if_empty().await;
        Ok(cleaned(head, UpstreamBody::Http1(body)))
    }

    async fn send_http2(
        &self,
        mut sender: SendRequest<RequestBody>,
        to_send: Box<UpstreamRequest>,
        place: OwnedSemaphorePermit,
    ) -> Result<UpstreamResponse, Failure> {
        let Upstream { pool, terms, .. } = &*self.upstream;
        let Some(request) = to_send.for_http2(&terms.url) else {
            return Ok(problem_response(Problem::new(
                StatusCode::BAD_REQUEST,
                "the host of the request is none",
            )));
        };
        let progress = request.body().progress();
        let answer = sender.send_request(request);
        let answer = in_time(answer, progress.clone(), pool.first_byte_time_max()).await?;
        let broken = |error| Failure::broken(error, progress.as_deref());
        let (head, body) = answer.map_err(broken)?.into_parts();
        let body = UpstreamBody::shared(body, pool.idle_time_max(), place);
        Ok(cleaned(head, body))
    }
}

/// Waits for `answer`, as long as the body of the request moves or the time since then is not over.
async fn in_time<F: Future>(
    answer: F,
    progress: Option<Arc<BodyProgress>>,
    time_max: Duration,
) -> Result<F::Output, Failure> {
    let mut answer = std::pin::pin!(answer);
    loop {
        match tokio::time::timeout(time_max, answer.as_mut()).await {
            Ok(answer) => return Ok(answer),
            Err(_) => {
                if !progress.as_ref().map_or(Ok(false), |progress| progress.has_moved())? {
                    return Err(Failure::NoAnswer);
                }
            }
        }
    }
}

/// An answer as the client gets it.
fn cleaned(mut head: http::response::Parts, body: UpstreamBody) -> UpstreamResponse {
    // Whatever the upstream speaks, the client is answered in what it speaks itself.
    head.version = Version::HTTP_11;
    if !hop_by_hop::remove(&mut head.headers) {
        head.headers.remove(CONNECTION);
    }
    Response::from_parts(head, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<A, F: Future>(_: impl FnOnce(A) -> F) -> usize {
        size_of::<F>()
    }

    /// Every request has one on the heap: allocators keep what is small at hand.
    #[test]
    fn what_waits_for_an_answer_is_small() {
        type AskArguments = (&'static ExchangeState, Box<UpstreamRequest>, OnUpgrade);
        let waiting =
            bytes(|(client, to_send, upgraded): AskArguments| client.ask(to_send, upgraded));
        assert!(waiting <= 960, "{waiting} bytes");
    }
}
