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
use tracing::debug;

use crate::body::{LineBody, Progress, RequestBody, UpstreamBody};
use crate::breaker::Breaker;
use crate::failure::Failure;
use crate::forwarded::Teller;
use crate::line::{Line, Unanswered};
use crate::outgoing::{Outgoing, Terms};
use crate::pool::{Pool, Way};
use crate::problem::Problem;
use crate::tunnel::Tunnel;
use crate::{Visitor, hop};

/// What all connections of clients share.
pub(crate) struct Upstream {
    pub(crate) pool: Arc<Pool>,
    pub(crate) breaker: Arc<Breaker>,
    pub(crate) terms: Terms,
    pub(crate) client_ip: ClientIp,
}

/// The service for one connection of a client.
#[derive(Clone)]
pub(crate) struct Exchange(Arc<Client>);

struct Client {
    upstream: Arc<Upstream>,
    teller: Teller,
    /// Where a tunnel waits for its connection to be handed over. At most one: HTTP/1.1 changes the
    /// protocol of a whole connection.
    slot: Mutex<Option<Tunnel>>,
}

type Answer = Response<UpstreamBody>;

impl Service<Request<Incoming>> for Exchange {
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        let client = Arc::clone(&self.0);
        let upgraded = hyper::upgrade::on(&mut request);
        let outgoing = match Outgoing::new(request, &client.teller, &client.upstream.terms) {
            Ok(outgoing) => outgoing,
            Err(problem) => return Box::pin(ready(Ok(told(problem)))),
        };
        Box::pin(async move {
            let answer = client.ask(outgoing, upgraded).await;
            Ok(answer.unwrap_or_else(|failure| {
                debug!(upstream = %client.upstream.terms.url, %failure, "no answer");
                told(failure.problem())
            }))
        })
    }
}

fn told(problem: Problem) -> Answer {
    problem.response().map(UpstreamBody::Whole)
}

impl Exchange {
    pub(crate) fn new(upstream: Arc<Upstream>, visitor: Visitor) -> Self {
        let teller = Teller::new(visitor, upstream.client_ip.trusts(visitor.peer));
        Self(Arc::new(Client { upstream, teller, slot: Mutex::default() }))
    }

    /// The tunnel that waits, if there is one.
    pub(crate) fn tunnel(&self) -> MutexGuard<'_, Option<Tunnel>> {
        self.0.tunnel()
    }
}

impl Client {
    fn tunnel(&self) -> MutexGuard<'_, Option<Tunnel>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, outgoing: Box<Outgoing>, client: OnUpgrade) -> Result<Answer, Failure> {
        let Upstream { pool, breaker, .. } = &*self.upstream;
        let pass = breaker.pass().map_err(Failure::LeftAlone)?;
        let place = pool.place().await?;
        let upgrade = outgoing.upgrade.clone();
        let answer = match pool.way(upgrade.is_some()).await {
            // In a box, so that requests over lines do not carry its room around.
            Ok(Way::Shared(sender)) => Box::pin(self.ask_shared(sender, outgoing, place)).await,
            Ok(Way::Line(line)) => {
                self.ask_line(line, outgoing, place, upgrade.map(|it| (it, client))).await
            }
            Err(failure) => Err(failure),
        };
        match &answer {
            Ok(_) => pass.answered(),
            Err(failure) if failure.is_outage() => pass.failed(),
            Err(_) => {}
        }
        answer
    }

    async fn ask_line(
        &self,
        mut line: Box<Line>,
        outgoing: Box<Outgoing>,
        place: OwnedSemaphorePermit,
        upgrade: Option<(HeaderValue, OnUpgrade)>,
    ) -> Result<Answer, Failure> {
        let pool = &self.upstream.pool;
        let (progress, time_max) = (outgoing.progress(), pool.first_byte_time_max());
        let mut answer = line.send(|| outgoing.over_line(), progress.clone(), time_max).await;
        if let Err(Unanswered::Unsent(request, _)) = answer {
            // A line, since this request is made for one; and a new one, so that this is done once.
            line = match Box::pin(pool.fresh(true)).await? {
                Way::Line(line) => line,
                Way::Shared(_) => return Err(Failure::Busy),
            };
            answer = line.send(|| *request, progress.clone(), time_max).await;
        }
        let answer = answer.map_err(|error| match error {
            Unanswered::Unsent(_, error) | Unanswered::Failed(Failure::Broken(error)) => {
                Failure::broken(error, progress.as_deref())
            }
            Unanswered::Failed(failure) => failure,
        })?;
        let (mut head, body) = answer.into_parts();
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            let (asked, client) = upgrade.ok_or(Failure::Unasked)?;
            let changed = hop::upgrade(Version::HTTP_11, &head.headers);
            if !changed.is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(asked.as_bytes())) {
                return Err(Failure::Unasked);
            }
            hop::remove(&mut head.headers);
            head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            head.headers.insert(UPGRADE, asked);
            let tunnel = Tunnel { client, line, place, held: None };
            *self.tunnel() = Some(tunnel);
            return Ok(Response::from_parts(head, UpstreamBody::Upgraded));
        }
        let mut body = Box::new(LineBody::new(body, line, Arc::clone(pool), place));
        body.end_if_empty().await;
        Ok(cleaned(head, UpstreamBody::Line(body)))
    }

    async fn ask_shared(
        &self,
        mut sender: SendRequest<RequestBody>,
        outgoing: Box<Outgoing>,
        place: OwnedSemaphorePermit,
    ) -> Result<Answer, Failure> {
        let Upstream { pool, terms, .. } = &*self.upstream;
        let Some(request) = outgoing.over_shared(&terms.url) else {
            return Ok(told(Problem::new(
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
    progress: Option<Arc<Progress>>,
    time_max: Duration,
) -> Result<F::Output, Failure> {
    let mut answer = std::pin::pin!(answer);
    loop {
        match tokio::time::timeout(time_max, answer.as_mut()).await {
            Ok(answer) => return Ok(answer),
            Err(_) => {
                if !progress.as_ref().map_or(Ok(false), |it| it.has_moved())? {
                    return Err(Failure::NoAnswer);
                }
            }
        }
    }
}

/// An answer as the client gets it.
fn cleaned(mut head: http::response::Parts, body: UpstreamBody) -> Answer {
    // Whatever the upstream speaks, the client is answered in what it speaks itself.
    head.version = Version::HTTP_11;
    if !hop::remove(&mut head.headers) {
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
        type Asked = (&'static Client, Box<Outgoing>, OnUpgrade);
        let waiting = bytes(|(client, outgoing, upgraded): Asked| client.ask(outgoing, upgraded));
        assert!(waiting <= 960, "{waiting} bytes");
    }
}
