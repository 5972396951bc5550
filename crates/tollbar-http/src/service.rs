//! The service: checks a request, then calls the service behind it.
//!
//! Where the store is in memory, both happen at once and nothing is boxed. Where it is not, or the
//! request has to wait, a future does it.

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Request, Response, Uri, Version};
use http_body::Body;
use tollbar::Timestamp;
use tollbar_rules::{Admission, Hold, Verdict};
use tower_service::Service;

use crate::future::{ResponseFuture, ResponseStamp};
use crate::hold_guard::HoldGuard;
use crate::identity::{DerivedValues, Pairs};
use crate::layer_state::{DecisionReport, LayerState};
use crate::response::{RequestError, refusal};
use crate::{Denial, Format, Peer, QueuePlace, TollbarBody};

/// The shortest wait: timers know no shorter one, and nobody should spin.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// A service behind rules. Made by a [`TollbarLayer`](crate::TollbarLayer).
#[derive(Clone)]
pub struct TollbarService<S> {
    inner: S,
    shared: Arc<LayerState>,
    peer: Option<IpAddr>,
}

/// What is looked at of a request.
struct RequestHead<'r> {
    method: &'r Method,
    uri: &'r Uri,
    version: Version,
    headers: &'r HeaderMap,
    extensions: &'r Extensions,
    /// Who is known to ask, without a word of it in `extensions`.
    peer: Option<IpAddr>,
    /// All of that, for the functions that are told of it: missing where there are none.
    parts: Option<&'r Parts>,
}

/// What is to be done with a request. The ticket of one that passes is written where it is wanted: much
/// of what it takes to check a request is to move what was just written.
enum CheckStep {
    /// After this while, where it has to wait for its turn.
    Pass(Duration),
    /// Asked again then, it may pass.
    Wait(Duration),
    /// It has a place among those that wait in queues; asked again now, it may join one.
    Queue(Box<QueuePlace>),
    /// In a box, so that requests that pass do not carry its room around.
    Answer(Box<Response<Bytes>>),
}

impl<S> TollbarService<S> {
    pub(crate) fn new(inner: S, shared: Arc<LayerState>) -> Self {
        Self { inner, shared, peer: None }
    }

    /// The same for one connection, at whose other end is `peer`: its requests need not say so then, each
    /// by a [`Peer`].
    #[must_use]
    pub fn with_peer(self, peer: IpAddr) -> Self {
        Self { peer: Some(peer), ..self }
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

impl<S, Q, R> Service<Request<Q>> for TollbarService<S>
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
        let (mut step, mut stamp) = (None, ResponseStamp::default());
        // Taken apart only for those who look at its parts: it is some hundred bytes to be moved.
        if !self.shared.looks_at_parts() {
            match self.shared.check_now(&RequestHead::from_request(&request, self.peer), &mut stamp)
            {
                Some(CheckStep::Pass(Duration::ZERO)) => {
                    return ResponseFuture::passing(self.inner.call(request), stamp);
                }
                Some(CheckStep::Answer(response)) => return ResponseFuture::answered(response),
                later => step = later,
            }
        }
        let (mut parts, body) = request.into_parts();
        if let Some(peer) = self.peer {
            parts.extensions.insert(Peer(peer));
        }
        if self.shared.skip.as_ref().is_some_and(|skip| skip(&parts)) {
            let future = self.inner.call(Request::from_parts(parts, body));
            return ResponseFuture::passing(future, stamp);
        }
        if step.is_none() {
            match self.shared.check_now(&RequestHead::from_parts(&parts), &mut stamp) {
                Some(CheckStep::Pass(Duration::ZERO)) => {
                    let future = self.inner.call(Request::from_parts(parts, body));
                    return ResponseFuture::passing(future, stamp);
                }
                Some(CheckStep::Answer(response)) => return ResponseFuture::answered(response),
                later => step = later,
            }
        }
        // The service that is ready is the one that is called; the clone takes its place.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let shared = Arc::clone(&self.shared);
        ResponseFuture::asking(async move {
            if let Err(response) = shared.check_patiently(&parts, step, &mut stamp).await {
                return Ok(response.map(TollbarBody::own));
            }
            let mut inner = inner;
            let response = inner.call(Request::from_parts(parts, body)).await?;
            Ok(stamp.apply(response))
        })
    }
}

impl<'r> RequestHead<'r> {
    fn from_request<Q>(request: &'r Request<Q>, peer: Option<IpAddr>) -> Self {
        let (method, uri, version) = (request.method(), request.uri(), request.version());
        let (headers, extensions) = (request.headers(), request.extensions());
        Self { method, uri, version, headers, extensions, peer, parts: None }
    }

    fn from_parts(parts: &'r Parts) -> Self {
        let Parts { method, uri, version, headers, extensions, .. } = parts;
        let (version, peer) = (*version, None);
        Self { method, uri, version, headers, extensions, peer, parts: Some(parts) }
    }

    /// A copy, for who answers a request that does not pass: it is told of everything.
    fn to_parts(&self) -> Parts {
        let (mut parts, ()) = Request::new(()).into_parts();
        (parts.method, parts.uri) = (self.method.clone(), self.uri.clone());
        (parts.version, parts.headers) = (self.version, self.headers.clone());
        parts.extensions = self.extensions.clone();
        if let Some(peer) = self.peer {
            parts.extensions.insert(Peer(peer));
        }
        parts
    }
}

impl LayerState {
    /// True where a function of the user's is to be shown every request.
    fn looks_at_parts(&self) -> bool {
        self.skip.is_some() || self.cost.is_some() || self.criticality.is_some()
    }

    /// Returns the answer to a request that rules cannot look at, and reports it.
    #[cold]
    fn refuse(&self, error: &RequestError, head: &RequestHead<'_>) -> CheckStep {
        if let Some(on_error) = &self.on_invalid_request {
            on_error(error);
        }
        CheckStep::Answer(Box::new(refusal(error, Format::wanted(head.headers))))
    }

    /// Checks a request over a store that answers at once; `None` if it does not.
    fn check_now(
        self: &Arc<Self>,
        head: &RequestHead<'_>,
        stamp: &mut ResponseStamp,
    ) -> Option<CheckStep> {
        if !self.engine.answers_at_once() {
            return None;
        }
        let derived =
            self.identity.derive(head.peer, head.extensions, head.headers, || self.engine.now());
        let mut pairs = Pairs::new();
        self.identity.pairs(head.extensions, head.headers, &derived, &mut pairs);
        let mut request = match self.request(head, &derived, &pairs) {
            Ok(request) => request,
            Err(error) => return Some(self.refuse(&error, head)),
        };
        request.set_max_wait(Duration::ZERO);
        let began = self.start_report();
        self.engine.try_admit_then(&request, self.reserve_for(), |verdict, hold| {
            if let Some(place) = self.queue_waiters.enter(verdict, &request) {
                return CheckStep::Queue(Box::new(place));
            }
            let reserved = hold.map(|hold| (hold, request.cost()));
            let step = self.conclude(verdict, reserved, head, self.max_wait, stamp);
            self.report_decision(&request, verdict, head, began, step)
        })
    }

    /// Checks a request over any store. It may wait in queues if it has a place for that.
    async fn check(
        self: &Arc<Self>,
        parts: &Parts,
        patience: Duration,
        has_place: bool,
        stamp: &mut ResponseStamp,
    ) -> CheckStep {
        let head = &RequestHead::from_parts(parts);
        let derived =
            self.identity.derive(head.peer, head.extensions, head.headers, || self.engine.now());
        let mut pairs = Pairs::new();
        self.identity.pairs(head.extensions, head.headers, &derived, &mut pairs);
        let mut request = match self.request(head, &derived, &pairs) {
            Ok(request) => request,
            Err(error) => return self.refuse(&error, head),
        };
        let waiters = &self.queue_waiters;
        request.set_max_wait(if has_place { waiters.max_wait() } else { Duration::ZERO });
        let began = self.start_report();
        let Admission { verdict, hold } = self.engine.admit(&request, self.reserve_for()).await;
        if !has_place && let Some(place) = waiters.enter(&verdict, &request) {
            return CheckStep::Queue(Box::new(place));
        }
        let reserved = hold.map(|hold| (hold, request.cost()));
        let step = self.conclude(&verdict, reserved, head, patience, stamp);
        self.report_decision(&request, &verdict, head, began, step)
    }

    /// Checks again and again until the request passes or its patience ends. `step` is what it was told already.
    async fn check_patiently(
        self: &Arc<Self>,
        parts: &Parts,
        step: Option<CheckStep>,
        stamp: &mut ResponseStamp,
    ) -> Result<(), Box<Response<Bytes>>> {
        let mut patience = self.max_wait;
        let (mut waiter, mut place) = (None, None);
        let mut next = step;
        loop {
            let step = match next.take() {
                Some(step) => step,
                None => self.check(parts, patience, place.is_some(), stamp).await,
            };
            match step {
                CheckStep::Pass(delay) => {
                    drop(waiter);
                    if !delay.is_zero() {
                        tokio::time::sleep(delay).await;
                    }
                    return Ok(());
                }
                CheckStep::Answer(response) => return Err(response),
                // Kept until the request has had its turn.
                CheckStep::Queue(taken) => place = Some(taken),
                CheckStep::Wait(wait) => {
                    waiter = waiter.or_else(|| self.add_waiter());
                    if waiter.is_none() {
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

    /// The request as the rules see it: who asks, what it costs and how bad it is to turn it away. What trusted
    /// proxies say goes before what functions of the user's say.
    #[inline]
    fn request<'a>(
        &self,
        head: &RequestHead<'a>,
        derived: &DerivedValues<'_>,
        pairs: &'a [(&'a str, &'a str)],
    ) -> Result<tollbar_rules::Request<'a>, RequestError> {
        let mut request = tollbar_rules::Request::new(head.method.as_str(), head.uri.path())?;
        request.set_attributes(pairs)?;
        if let (Some(cost), Some(parts)) = (&self.cost, head.parts) {
            request.set_cost(cost(parts));
        }
        if let (Some(criticality), Some(parts)) = (&self.criticality, head.parts) {
            request.set_criticality(criticality(parts));
        }
        self.identity.describe(head.headers, derived, &mut request)?;
        Ok(request)
    }

    fn reserve_for(&self) -> Option<Duration> {
        self.settle.as_ref().map(crate::Settle::reserve_for)
    }

    /// Turns the engine's answer into the next step. `reserved` is what the request holds, and its cost.
    #[inline]
    fn conclude(
        self: &Arc<Self>,
        verdict: &Verdict,
        reserved: Option<(Hold, u64)>,
        head: &RequestHead<'_>,
        patience: Duration,
        stamp: &mut ResponseStamp,
    ) -> CheckStep {
        if verdict.is_allowed() {
            self.style.prepare(verdict, None, || self.engine.now(), &mut stamp.headers);
            stamp.guard =
                reserved.map(|(hold, cost)| Box::new(HoldGuard::new(Arc::clone(self), hold, cost)));
            return CheckStep::Pass(verdict.delay());
        }
        match verdict.retry_after() {
            Some(wait) if wait <= patience && !patience.is_zero() => CheckStep::Wait(wait),
            _ => CheckStep::Answer(Box::new(self.respond_to_denial(verdict, head))),
        }
    }

    /// When a check begins, where somebody is told of it.
    fn start_report(&self) -> Timestamp {
        self.on_decision.as_ref().map_or(Timestamp::ZERO, |_| self.engine.now())
    }

    /// Reports a decision to the observer; of a request that waits, when it no longer does.
    #[inline]
    fn report_decision(
        &self,
        request: &tollbar_rules::Request<'_>,
        verdict: &Verdict,
        head: &RequestHead<'_>,
        began: Timestamp,
        mut step: CheckStep,
    ) -> CheckStep {
        if let Some(on_decision) = &self.on_decision {
            let response_headers = match &mut step {
                CheckStep::Wait(_) | CheckStep::Queue(_) => return step,
                CheckStep::Pass(_) => None,
                CheckStep::Answer(response) => Some(response.headers_mut()),
            };
            let headers = head.headers;
            on_decision(DecisionReport { request, verdict, began, headers, response_headers });
        }
        step
    }

    /// The response to a request that does not pass.
    #[cold]
    fn respond_to_denial(&self, verdict: &Verdict, head: &RequestHead<'_>) -> Response<Bytes> {
        let retry_after = self.jitter.lengthen(verdict);
        let denial = Denial::new(verdict, retry_after);
        let mut response = match (&self.denial_response, head.parts) {
            (Some(denial_response), Some(parts)) => denial_response(&denial, parts),
            (Some(denial_response), None) => denial_response(&denial, &head.to_parts()),
            (None, _) => denial.response(Format::wanted(head.headers)),
        };
        self.style.write(verdict, retry_after, self.engine.now(), response.headers_mut());
        response
    }
}

impl<S: fmt::Debug> fmt::Debug for TollbarService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TollbarService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
