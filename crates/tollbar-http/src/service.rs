//! The service: asks the engine, then the service behind it.
//!
//! Where the store is in memory, both happen at once and nothing is boxed. Where it is not, or the
//! request has to wait, a future does it.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use tollbar_rules::{Admission, Holding, RequestError, Verdict};
use tower_service::Service;

use crate::future::ResponseFuture;
use crate::headers::{Prepared, write_retry_after};
use crate::identity::Pairs;
use crate::layer::{OnDenial, Shared};
use crate::response::refusal;
use crate::settle::Held;
use crate::{Denial, Format, TollbarBody};

/// The shortest wait: timers know no shorter one, and nobody should spin.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// A service behind rules. Made by a [`TollbarLayer`](crate::TollbarLayer).
#[derive(Clone)]
pub struct Tollbar<S> {
    inner: S,
    shared: Arc<Shared>,
}

/// What a request that was let through takes along.
#[derive(Default)]
pub(crate) struct Ticket {
    headers: Prepared,
    held: Option<Box<Held>>,
}

/// What is to be done with a request.
enum Step {
    Pass {
        ticket: Ticket,
        delay: Duration,
    },
    /// Asked again then, it may pass.
    Wait(Duration),
    Answer(Response<Bytes>),
}

impl<S> Tollbar<S> {
    pub(crate) fn new(inner: S, shared: Arc<Shared>) -> Self {
        Self { inner, shared }
    }

    /// The service behind the rules.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }
}

impl<S, Q, R> Service<Request<Q>> for Tollbar<S>
where
    S: Service<Request<Q>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: 'static,
    Q: Send + 'static,
    R: Body<Data = Bytes> + 'static,
{
    type Response = Response<TollbarBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R, S::Error>;

    /// Ready when the service behind is: what is turned away needs none, but what passes does.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (parts, body) = request.into_parts();
        if self.shared.skip.as_ref().is_some_and(|skip| skip(&parts)) {
            let future = self.inner.call(Request::from_parts(parts, body));
            return ResponseFuture::passing(future, Ticket::default());
        }
        let mut step = None;
        if self.shared.engine.answers_at_once() {
            match self.shared.ask(&parts) {
                Step::Pass { ticket, delay: Duration::ZERO } => {
                    let future = self.inner.call(Request::from_parts(parts, body));
                    return ResponseFuture::passing(future, ticket);
                }
                Step::Answer(response) => return ResponseFuture::answered(response),
                later => step = Some(later),
            }
        }
        // The service that is ready is the one that is called; the clone takes its place.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let shared = Arc::clone(&self.shared);
        ResponseFuture::asking(async move {
            let ticket = match shared.ask_patiently(&parts, step).await {
                Ok(ticket) => ticket,
                Err(response) => return Ok(response.map(TollbarBody::own)),
            };
            let mut inner = inner;
            let response = inner.call(Request::from_parts(parts, body)).await?;
            Ok(ticket.stamp(response))
        })
    }
}

impl Ticket {
    /// Puts the headers into a response, and what is held into its body.
    pub(crate) fn stamp<R>(self, mut response: Response<R>) -> Response<TollbarBody<R>>
    where
        R: Body<Data = Bytes>,
    {
        let Self { headers, mut held } = self;
        if let Some(held) = &mut held {
            held.responded(&mut response);
        }
        headers.insert_into(response.headers_mut());
        response.map(|body| TollbarBody::service(body, held))
    }
}

impl Shared {
    /// Asks a store that answers at once.
    fn ask(self: &Arc<Self>, parts: &Parts) -> Step {
        let made = self.identity.make(&parts.extensions, &parts.headers, || self.engine.now());
        let mut pairs = Pairs::new();
        self.identity.pairs(&parts.extensions, &parts.headers, &made, &mut pairs);
        match self.request(parts, &pairs) {
            Ok(request) => {
                self.engine.admit_then(&request, self.reserve_for(), |verdict, holding| {
                    let step = self.conclude(verdict, holding, parts, self.patience());
                    self.tell(&request, verdict, step)
                })
            }
            Err(error) => Step::Answer(refusal(&error, Format::wanted(&parts.headers))),
        }
    }

    /// Asks any store.
    async fn ask_later(self: &Arc<Self>, parts: &Parts, patience: Duration) -> Step {
        let made = self.identity.make(&parts.extensions, &parts.headers, || self.engine.now());
        let mut pairs = Pairs::new();
        self.identity.pairs(&parts.extensions, &parts.headers, &made, &mut pairs);
        match self.request(parts, &pairs) {
            Ok(request) => {
                let mut admission = self.engine.admit_async(&request, self.reserve_for()).await;
                let Admission { verdict, holding } = &mut admission;
                let step = self.conclude(verdict, holding.take(), parts, patience);
                self.tell(&request, verdict, step)
            }
            Err(error) => Step::Answer(refusal(&error, Format::wanted(&parts.headers))),
        }
    }

    /// Asks until the request passes or its patience ends. `step` is what it was told already.
    async fn ask_patiently(
        self: &Arc<Self>,
        parts: &Parts,
        step: Option<Step>,
    ) -> Result<Ticket, Response<Bytes>> {
        let mut patience = self.patience();
        let mut place = None;
        let mut next = step;
        loop {
            let step = match next.take() {
                Some(step) => step,
                None => self.ask_later(parts, patience).await,
            };
            match step {
                Step::Pass { ticket, delay } => {
                    drop(place);
                    if !delay.is_zero() {
                        tokio::time::sleep(delay).await;
                    }
                    return Ok(ticket);
                }
                Step::Answer(response) => return Err(response),
                Step::Wait(wait) => {
                    place = place.or_else(|| self.place());
                    if place.is_none() {
                        // Too many wait: once more, by somebody who does not.
                        patience = Duration::ZERO;
                        continue;
                    }
                    let wait = wait.max(WAIT_MIN);
                    patience = patience.saturating_sub(wait);
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    #[inline]
    fn request<'a>(
        &self,
        parts: &'a Parts,
        pairs: &'a [(&'a str, &'a str)],
    ) -> Result<tollbar_rules::Request<'a>, RequestError> {
        let request = tollbar_rules::Request::new(parts.method.as_str(), parts.uri.path())?;
        let mut request = request.with_attributes(pairs)?;
        if let Some(cost) = &self.cost {
            request = request.with_cost(cost(parts));
        }
        if let Some(criticality) = &self.criticality {
            request = request.with_criticality(criticality(parts));
        }
        Ok(request)
    }

    fn reserve_for(&self) -> Option<Duration> {
        self.settle.as_ref().map(crate::Settle::reserve_for)
    }

    fn patience(&self) -> Duration {
        match self.on_denial {
            OnDenial::Reject => Duration::ZERO,
            OnDenial::Wait { at_most, .. } => at_most,
        }
    }

    /// What is to be done, by what the engine says.
    #[inline]
    fn conclude(
        self: &Arc<Self>,
        verdict: &Verdict,
        holding: Option<Holding>,
        parts: &Parts,
        patience: Duration,
    ) -> Step {
        if verdict.is_allowed() {
            let headers = self.style.prepare(verdict, || self.engine.now());
            let held = holding.map(|it| Box::new(Held::new(Arc::clone(self), it)));
            return Step::Pass { ticket: Ticket { headers, held }, delay: verdict.delay() };
        }
        match verdict.retry_after() {
            Some(wait) if wait <= patience && !patience.is_zero() => Step::Wait(wait),
            _ => Step::Answer(self.answer(verdict, parts)),
        }
    }

    /// Tells whoever observes; of those who wait, when they no longer do.
    #[inline]
    fn tell(&self, request: &tollbar_rules::Request<'_>, verdict: &Verdict, step: Step) -> Step {
        if let (Some(observe), Step::Pass { .. } | Step::Answer(_)) = (&self.observe, &step) {
            observe(request, verdict);
        }
        step
    }

    /// The response to a request that does not pass.
    #[cold]
    fn answer(&self, verdict: &Verdict, parts: &Parts) -> Response<Bytes> {
        let retry_after = verdict.retry_after().map(|wait| self.jitter.lengthen(wait));
        let denial = Denial::new(verdict, retry_after);
        let mut response = match &self.respond {
            Some(respond) => respond(&denial, parts),
            None => denial.response(Format::wanted(&parts.headers)),
        };
        if let Some(wait) = retry_after {
            write_retry_after(wait, response.headers_mut());
        }
        self.style.prepare(verdict, || self.engine.now()).insert_into(response.headers_mut());
        response
    }
}

impl<S: fmt::Debug> fmt::Debug for Tollbar<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tollbar").field("inner", &self.inner).finish_non_exhaustive()
    }
}
