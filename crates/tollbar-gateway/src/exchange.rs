//! The service behind the rules: a request goes to the upstream, its answer comes back.
//!
//! Nothing is sent twice. A request goes to another connection only if the one that was kept for it
//! had ended and not a byte was sent.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
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

/// Where a tunnel waits for its connection to be handed over. At most one: HTTP/1.1 changes the
/// protocol of a whole connection.
pub(crate) type Slot = Arc<Mutex<Option<Tunnel>>>;

/// The service for one connection of a client.
#[derive(Clone)]
pub(crate) struct Exchange {
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) visitor: Visitor,
    pub(crate) slot: Slot,
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
        let Self { upstream, visitor, slot } = self.clone();
        let client = hyper::upgrade::on(&mut request);
        let is_trusted = upstream.client_ip.trusts(visitor.peer);
        let outgoing = Outgoing::new(request, &visitor, is_trusted, &upstream.terms);
        Box::pin(async move {
            let outgoing = match outgoing {
                Ok(outgoing) => outgoing,
                Err(problem) => return Ok(told(problem)),
            };
            let answer = upstream.ask(outgoing, client, slot).await;
            Ok(answer.unwrap_or_else(|failure| {
                debug!(upstream = %upstream.terms.url, %failure, "no answer");
                told(failure.problem())
            }))
        })
    }
}

fn told(problem: Problem) -> Answer {
    problem.response().map(UpstreamBody::Whole)
}

impl Upstream {
    async fn ask(
        self: &Arc<Self>,
        outgoing: Outgoing,
        client: OnUpgrade,
        slot: Slot,
    ) -> Result<Answer, Failure> {
        let pass = self.breaker.pass().map_err(Failure::LeftAlone)?;
        let place = self.pool.place().await?;
        let upgrade = outgoing.upgrade.clone();
        let answer = match self.pool.way(upgrade.is_some()).await {
            Ok(Way::Shared(sender)) => self.ask_shared(sender, outgoing, place).await,
            Ok(Way::Line(line)) => {
                self.ask_line(*line, outgoing, place, upgrade.map(|it| (it, client, slot))).await
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
        self: &Arc<Self>,
        mut line: Line,
        outgoing: Outgoing,
        place: OwnedSemaphorePermit,
        upgrade: Option<(HeaderValue, OnUpgrade, Slot)>,
    ) -> Result<Answer, Failure> {
        let request = outgoing.over_line();
        let (progress, time_max) = (request.body().progress(), self.pool.first_byte_time_max());
        let mut answer = line.send(request, progress.clone(), time_max).await;
        if let Err(Unanswered::Unsent(request, _)) = answer {
            // A line, since this request is made for one; and a new one, so that this is done once.
            line = match self.pool.fresh(true).await? {
                Way::Line(line) => *line,
                Way::Shared(_) => return Err(Failure::Busy),
            };
            answer = line.send(*request, progress.clone(), time_max).await;
        }
        let answer = answer.map_err(|error| match error {
            Unanswered::Unsent(_, error) | Unanswered::Failed(Failure::Broken(error)) => {
                Failure::broken(error, progress.as_deref())
            }
            Unanswered::Failed(failure) => failure,
        })?;
        let (mut head, body) = answer.into_parts();
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            let (asked, client, slot) = upgrade.ok_or(Failure::Unasked)?;
            let changed = hop::upgrade(Version::HTTP_11, &head.headers);
            if !changed.is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(asked.as_bytes())) {
                return Err(Failure::Unasked);
            }
            hop::remove(&mut head.headers);
            head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            head.headers.insert(UPGRADE, asked);
            let tunnel = Tunnel { client, line, place, held: None };
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(tunnel);
            return Ok(Response::from_parts(head, UpstreamBody::Upgraded));
        }
        let body = LineBody::new(body, line, Arc::clone(&self.pool), place);
        let body = body.ended_if_empty().await;
        Ok(cleaned(head, UpstreamBody::Line(Box::new(body))))
    }

    async fn ask_shared(
        &self,
        mut sender: SendRequest<RequestBody>,
        outgoing: Outgoing,
        place: OwnedSemaphorePermit,
    ) -> Result<Answer, Failure> {
        let Some(request) = outgoing.over_shared(&self.terms.url) else {
            return Ok(told(Problem::new(
                StatusCode::BAD_REQUEST,
                "the host of the request is none",
            )));
        };
        let progress = request.body().progress();
        let answer = sender.send_request(request);
        let answer = in_time(answer, progress.clone(), self.pool.first_byte_time_max()).await?;
        let broken = |error| Failure::broken(error, progress.as_deref());
        let (head, body) = answer.map_err(broken)?.into_parts();
        let body = UpstreamBody::shared(body, self.pool.idle_time_max(), place);
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
