//! The API's requests, from a head and a body to a status, headers and JSON. Paths and their fields are in `route.rs`;
//! what is decided is the engine's business.

use std::sync::Arc;

use futures_util::future::join_all;
use hyper::header::{ACCEPT, ALLOW, AUTHORIZATION, HeaderMap, HeaderValue};
use hyper::{Method, StatusCode, Uri};
use tollbar_http::Format;

use super::callers::is_json;
use super::check_response;
use super::check_response::BatchResponse;
use super::inspect::HealthResponse;
use super::openapi::document;
use super::refusal::Refusal;
use super::request::{BatchRequest, CheckRequest, CheckTarget, Object, RequestForm, parse};
use super::response::{ApiResponse, JSON, empty, json, static_json, text};
use super::route::{BATCH_EXAMPLE, CHECK, Operation, PEEK, Route};
use crate::auth_failures::WrongToken;
use crate::daemon::{AnswerRef, CheckAnswer, Daemon};
use crate::metrics::TextFormat;
use crate::net::Peer;
use crate::protocol::forward_auth;

/// The largest body that is read.
pub(crate) const BODY_BYTES_MAX: usize = 256 * 1024;

/// The most requests of one batch.
pub(super) const BATCH_MAX: usize = 1_000;

/// How many requests of a batch wait for a store across a network at the same time.
const BATCH_AT_ONCE: usize = 64;

/// A request to the daemon, before its body.
pub(crate) struct RequestHead<'a> {
    pub(crate) method: &'a Method,
    pub(crate) uri: &'a Uri,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) peer: Peer,
}

/// A check that was answered, or that has to wait for the store.
enum CheckProgress<'b> {
    Ready(Result<ApiResponse, Refusal>),
    Waiting(Box<CheckRequest<'b>>),
}

/// Answers what is asked over HTTP.
#[derive(Debug, Clone)]
pub struct Api {
    pub(super) daemon: Arc<Daemon>,
}

impl Api {
    pub fn new(daemon: Arc<Daemon>) -> Self {
        Self { daemon }
    }

    /// Where the request goes, if its head says all that is needed: what is turned away here has not
    /// sent its body.
    pub(crate) fn route_for(
        &self,
        head: &RequestHead<'_>,
    ) -> Result<&'static Route, Box<ApiResponse>> {
        let refuse = |refusal: Refusal| Err(Box::new(refusal.answer(Format::wanted(head.headers))));
        let Some(route) = Route::find(head.uri.path()) else {
            let all = Route::all().chain([forward_auth::openapi::PATH]);
            return refuse(Refusal::unknown_path(all));
        };
        let is_read = !route.has_body() && *head.method == Method::HEAD;
        if head.method.as_str() != route.method() && !is_read {
            if *head.method == Method::OPTIONS {
                let allow = HeaderValue::from_static(route.methods());
                let headers = HeaderMap::from_iter([(ALLOW, allow)]);
                return Err(Box::new(empty(StatusCode::NO_CONTENT, headers)));
            }
            return refuse(Refusal::wrong_method(route.methods()));
        }
        if !route.is_open
            && let Err(wrong) = self.authorize(head)
        {
            return refuse(Refusal::unauthorized(wrong));
        }
        if route.is_sensitive() {
            if self.daemon.is_exposed {
                return refuse(Refusal::exposed());
            }
            if !is_json(head.headers) {
                return refuse(Refusal::no_json());
            }
        }
        Ok(route)
    }

    fn authorize(&self, head: &RequestHead<'_>) -> Result<(), WrongToken> {
        let shown = head.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let token = shown.and_then(|value| value.strip_prefix(b"Bearer "));
        self.daemon.authorize(token, head.peer)
    }

    /// The answer to a request that was admitted.
    pub(crate) async fn answer(
        &self,
        route: &Route,
        head: &RequestHead<'_>,
        body: &[u8],
    ) -> ApiResponse {
        let answer = match route.operation {
            Operation::Check => match self.check(head, body) {
                CheckProgress::Ready(answer) => answer,
                // In a box, so that a check does not carry the room for all the others around.
                CheckProgress::Waiting(check) => Box::pin(self.check_later(head, &check)).await,
            },
            _ => Box::pin(self.dispatch(route, head, body)).await,
        };
        answer.unwrap_or_else(|refusal| self.refuse(route, head, &refusal))
    }

    /// Returns the answer to a request that cannot be used, and counts it if it was to be checked.
    pub(crate) fn refuse(
        &self,
        route: &Route,
        head: &RequestHead<'_>,
        refusal: &Refusal,
    ) -> ApiResponse {
        if route.is_check() {
            self.daemon.reject(&refusal.0.detail);
        }
        refusal.answer(Format::wanted(head.headers))
    }

    async fn dispatch(
        &self,
        route: &Route,
        head: &RequestHead<'_>,
        body: &[u8],
    ) -> Result<ApiResponse, Refusal> {
        match route.operation {
            Operation::Check => self.check_later(head, &parse(body, CHECK.example)?).await,
            Operation::CheckBatch => self.check_batch(body).await,
            Operation::Peek => self.peek(head, body).await,
            Operation::Explain => self.explain(body).await,
            Operation::Reset => self.reset(body).await,
            Operation::Reserve => self.reserve(body, || Format::wanted(head.headers)).await,
            Operation::Commit => self.commit(body).await,
            Operation::Cancel => self.cancel(body).await,
            Operation::Release => self.release(body).await,
            Operation::Renew => self.renew(body).await,
            Operation::Usage => self.usage(head.uri.query().unwrap_or_default()).await,
            Operation::Decision => self.decision(route.id(head.uri.path())).await,
            Operation::OpenApi => Ok(static_json(document())),
            Operation::Metrics => Ok(self.metrics(head)),
            // 200 also where a part is degraded: the daemon still answers, as its rules say.
            Operation::Health => Ok(json(StatusCode::OK, JSON, &HealthResponse::new(&self.daemon))),
        }
    }

    fn metrics(&self, head: &RequestHead<'_>) -> ApiResponse {
        let accept = head.headers.get(ACCEPT).and_then(|value| value.to_str().ok());
        let format = TextFormat::wanted(accept);
        text(HeaderValue::from_static(format.content_type()), self.daemon.write_metrics(format))
    }

    /// Answers at once what can be: a request under all rules, by a store in this process.
    fn check<'b>(&self, head: &RequestHead<'_>, body: &'b [u8]) -> CheckProgress<'b> {
        let parsed: Result<CheckRequest<'_>, Refusal> = parse(body, CHECK.example);
        // Where it is: it is half a kilobyte.
        if let Ok(check) = &parsed
            && let Some(answer) = self.check_at_once(head, check).transpose()
        {
            return CheckProgress::Ready(answer);
        }
        match parsed {
            Ok(check) => CheckProgress::Waiting(Box::new(check)),
            Err(refusal) => CheckProgress::Ready(Err(refusal)),
        }
    }

    fn check_at_once(
        &self,
        head: &RequestHead<'_>,
        check: &CheckRequest<'_>,
    ) -> Result<Option<ApiResponse>, Refusal> {
        let CheckTarget::Request = check.target(&CHECK)? else {
            return Ok(None);
        };
        let pairs = check.pairs();
        let request = check.request(&pairs, check.cost_or_one(), &self.daemon)?;
        Ok(self.daemon.check_at_once(&request, |answer| self.response(head, answer)))
    }

    async fn check_later(
        &self,
        head: &RequestHead<'_>,
        check: &CheckRequest<'_>,
    ) -> Result<ApiResponse, Refusal> {
        let answer = self.decide(check, &CHECK, check.cost_or_one()).await?;
        Ok(self.response(head, answer.as_ref()))
    }

    fn response(&self, head: &RequestHead<'_>, answer: AnswerRef<'_>) -> ApiResponse {
        let (client_headers, now) = (self.daemon.client_headers, self.daemon.now());
        check_response::response(answer, client_headers, now, || Format::wanted(head.headers))
    }

    async fn peek(&self, head: &RequestHead<'_>, body: &[u8]) -> Result<ApiResponse, Refusal> {
        let check: CheckRequest<'_> = parse(body, PEEK.example)?;
        let answer = self.decide(&check, &PEEK, 0).await?;
        Ok(self.response(head, answer.as_ref()))
    }

    async fn check_batch(&self, body: &[u8]) -> Result<ApiResponse, Refusal> {
        let BatchRequest { requests } = parse(body, BATCH_EXAMPLE)?;
        if requests.len() > BATCH_MAX {
            let count = requests.len();
            let message = format!("{count} requests are too many: send at most {BATCH_MAX}");
            return Err(Refusal::bad_request(message));
        }
        // All are looked at before the first is charged: a batch with a mistake charges nothing.
        for (at, Object(check)) in requests.iter().enumerate() {
            let location = || format!("requests[{at}]");
            check.target(&CHECK).map_err(|refusal| refusal.within(&location()))?;
            let pairs = check.pairs();
            check
                .request(&pairs, 1, &self.daemon)
                .map_err(|error| Refusal::from(error).within(&location()))?;
        }
        let mut answers = Vec::with_capacity(requests.len());
        for some in requests.chunks(BATCH_AT_ONCE) {
            let pending =
                some.iter().map(|Object(check)| self.decide(check, &CHECK, check.cost_or_one()));
            answers.extend(join_all(pending).await);
        }
        for refusal in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            self.daemon.reject(&refusal.0.detail);
        }
        Ok(json(StatusCode::OK, JSON, &BatchResponse::from_answers(&answers)))
    }

    async fn decide(
        &self,
        check: &CheckRequest<'_>,
        form: &RequestForm,
        cost: u64,
    ) -> Result<CheckAnswer, Refusal> {
        let (target, pairs) = (check.target(form)?, check.pairs());
        if let CheckTarget::Subject { rule, subject } = target {
            let id = check.request_id();
            return Ok(self.daemon.check_subject(rule, subject, &pairs, cost, id).await?);
        }
        let request = check.request(&pairs, cost, &self.daemon)?;
        match target {
            CheckTarget::Rule(rule) => {
                if cost == 0 {
                    self.daemon.engine.rule(rule)?.check_complete(|name| check.has(name))?;
                }
                Ok(self.daemon.check_rule(rule, &request).await?)
            }
            _ => Ok(self.daemon.check(&request, None).await),
        }
    }
}
