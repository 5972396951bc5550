//! The service `tollbar.v1.Limiter`: what each call asks of the engine.

use std::sync::Arc;
use std::time::Duration;

use tollbar_proto::v1;
use tonic::{Request, Response, Status, Streaming};

use super::check_many;
use super::check_many::Responses;
use super::request;
use super::request::{CheckForm, non_empty};
use super::response;
use crate::daemon::{AnswerRef, Daemon, EXPOSED};
use crate::shutdown::ShutdownSignal;

/// Where a reservation does not say how long it lasts.
const RESERVATION_TIME: Duration = Duration::from_mins(1);
/// What a reservation may say.
const RESERVATION_TIME_MAX: Duration = Duration::from_hours(24);

/// Answers by the daemon's engine.
pub(super) struct Limiter {
    daemon: Arc<Daemon>,
    stopped: ShutdownSignal,
}

type GrpcResult<T> = Result<Response<T>, Status>;

impl Limiter {
    pub(super) fn new(daemon: Arc<Daemon>, stopped: ShutdownSignal) -> Self {
        Self { daemon, stopped }
    }

    /// Refuses what strangers must not do, where they can ask.
    fn refuse_exposed(&self) -> Result<(), Status> {
        if self.daemon.is_exposed { Err(Status::unauthenticated(EXPOSED)) } else { Ok(()) }
    }
}

/// Decides, and charges what may pass. A message that cannot be decided is counted, unless it costs nothing.
pub(super) async fn decide(
    daemon: &Daemon,
    message: &v1::CheckRequest,
    cost: u64,
) -> Result<v1::CheckResponse, Status> {
    match check(daemon, message, cost).await {
        Ok(response) => response,
        Err(status) if cost == 0 => Err(status),
        Err(status) => Err(reject(daemon, status)),
    }
}

/// Counts a message that cannot be decided, and returns its status.
pub(super) fn reject(daemon: &Daemon, status: Status) -> Status {
    daemon.reject(status.message());
    status
}

/// Checks a message. The outer error is that of a message that cannot be decided, the inner one that of a verdict.
async fn check(
    daemon: &Daemon,
    message: &v1::CheckRequest,
    cost: u64,
) -> Result<Result<v1::CheckResponse, Status>, Status> {
    let answer = match CheckForm::parse(message)? {
        CheckForm::Subject { rule, subject, attributes } => {
            let id = non_empty(&message.request_id);
            let answer = daemon.check_subject(rule, subject, &attributes, cost, id).await;
            answer.map_err(|error| response::usage_error_status(&error))?
        }
        CheckForm::Full { rule: Some(rule), attributes } => {
            let request = request::request(message, &attributes, cost, daemon)?;
            if cost == 0
                && let Ok(rule) = daemon.engine.rule(rule)
            {
                let names = (&*message.method, &*message.path);
                request::check_complete(&rule, names, &attributes)?;
            }
            let answer = daemon.check_rule(rule, &request).await;
            answer.map_err(|error| response::usage_error_status(&error))?
        }
        CheckForm::Full { rule: None, attributes } => {
            let request = request::request(message, &attributes, cost, daemon)?;
            if let Some(response) = daemon.check_at_once(&request, response) {
                return Ok(response);
            }
            daemon.check(&request, None).await
        }
    };
    Ok(response(answer.as_ref()))
}

fn response(answer: AnswerRef<'_>) -> Result<v1::CheckResponse, Status> {
    response::refuse_unanswerable(answer.verdict)?;
    Ok(response::check_response(answer))
}

#[tonic::async_trait]
impl v1::limiter_server::Limiter for Limiter {
    async fn check(&self, request: Request<v1::CheckRequest>) -> GrpcResult<v1::CheckResponse> {
        let message = request.get_ref();
        decide(&self.daemon, message, message.cost.unwrap_or(1)).await.map(Response::new)
    }

    async fn check_many(
        &self,
        request: Request<Streaming<v1::CheckManyRequest>>,
    ) -> GrpcResult<Responses> {
        let (daemon, stopped) = (Arc::clone(&self.daemon), self.stopped.clone());
        Ok(Response::new(check_many::responses(request.into_inner(), daemon, stopped)))
    }

    async fn peek(&self, request: Request<v1::CheckRequest>) -> GrpcResult<v1::CheckResponse> {
        let message = request.get_ref();
        if message.cost.is_some() {
            return Err(Status::invalid_argument("a peek charges nothing: leave `cost` out"));
        }
        decide(&self.daemon, message, 0).await.map(Response::new)
    }

    async fn explain(
        &self,
        request: Request<v1::ExplainRequest>,
    ) -> GrpcResult<v1::ExplainResponse> {
        self.refuse_exposed()?;
        let message = request.get_ref();
        let attributes = request::pairs(&message.attributes);
        let request = request::basic_request(&message.method, &message.path, &attributes)?;
        let request = request.with_cost(message.cost.unwrap_or(1));
        let explanation = self.daemon.engine.explain(&request).await;
        Ok(Response::new(response::explain_response(explanation)))
    }

    async fn reserve(
        &self,
        request: Request<v1::ReserveRequest>,
    ) -> GrpcResult<v1::ReserveResponse> {
        let reject = |status| reject(&self.daemon, status);
        let (message, attributes, ttl) = parse_reservation(request.get_ref()).map_err(reject)?;
        let cost = message.cost.unwrap_or(1);
        let request = request::request(message, &attributes, cost, &self.daemon).map_err(reject)?;
        let answer = self.daemon.check(&request, Some(ttl)).await;
        let response = response(answer.as_ref())?;
        let receipt = answer.receipt.unwrap_or_default();
        Ok(Response::new(v1::ReserveResponse { answer: Some(response), receipt }))
    }

    async fn commit(&self, request: Request<v1::CommitRequest>) -> GrpcResult<v1::SettleResponse> {
        let v1::CommitRequest { receipt, cost } = request.get_ref();
        let settled = self.daemon.settle(text("receipt", receipt)?, *cost).await;
        let settled = settled.map_err(|error| response::token_error_status(&error))?;
        Ok(Response::new(response::settle_response(settled)))
    }

    async fn cancel(&self, request: Request<v1::CancelRequest>) -> GrpcResult<v1::SettleResponse> {
        let receipt = text("receipt", &request.get_ref().receipt)?;
        let settled = self.daemon.settle(receipt, Some(0)).await;
        let settled = settled.map_err(|error| response::token_error_status(&error))?;
        Ok(Response::new(response::settle_response(settled)))
    }

    async fn release(
        &self,
        request: Request<v1::ReleaseRequest>,
    ) -> GrpcResult<v1::ReleaseResponse> {
        let lease = text("lease", &request.get_ref().lease)?;
        let released = self.daemon.release(lease).await;
        let released = released.map_err(|error| response::token_error_status(&error))?;
        Ok(Response::new(v1::ReleaseResponse { released }))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> GrpcResult<v1::RenewResponse> {
        let lease = text("lease", &request.get_ref().lease)?;
        let ends_at = self.daemon.renew(lease).await;
        let ends_at = ends_at.map_err(|error| response::token_error_status(&error))?;
        Ok(Response::new(v1::RenewResponse { ends_at: ends_at.map(response::timestamp) }))
    }

    async fn reset(&self, request: Request<v1::ResetRequest>) -> GrpcResult<v1::ResetResponse> {
        self.refuse_exposed()?;
        let v1::ResetRequest { rule, method, path, attributes, subject } = request.get_ref();
        let rule = self.daemon.engine.rule(text("rule", rule)?);
        let rule = rule.map_err(|error| response::usage_error_status(&error.into()))?;
        let attributes = request::pairs(attributes);
        let reset = match non_empty(subject) {
            Some(_) if !(method.is_empty() && path.is_empty()) => {
                return Err(Status::invalid_argument(
                    "`subject` stands in place of `method` and `path`: send it or them",
                ));
            }
            Some(subject) => {
                let subject = rule
                    .subject(subject, &attributes)
                    .map_err(|error| response::usage_error_status(&error))?;
                let request =
                    subject.request().map_err(|error| response::usage_error_status(&error))?;
                rule.reset(&request).await
            }
            None => {
                request::check_complete(&rule, (method, path), &attributes)?;
                let request = request::basic_request(method, path, &attributes)?;
                rule.reset(&request).await
            }
        };
        reset.map_err(|error| response::usage_error_status(&error))?;
        Ok(Response::new(v1::ResetResponse {}))
    }
}

type Reservation<'a> = (&'a v1::CheckRequest, Vec<(&'a str, &'a str)>, Duration);

/// Reads what a reservation is for, with its attributes, and how long it lasts.
fn parse_reservation(message: &v1::ReserveRequest) -> Result<Reservation<'_>, Status> {
    let v1::ReserveRequest { request, ttl } = message;
    let request = request.as_ref().ok_or_else(|| {
        Status::invalid_argument("there is nothing to reserve for: send `request`")
    })?;
    let CheckForm::Full { rule: None, attributes } = CheckForm::parse(request)? else {
        return Err(Status::invalid_argument(
            "a reservation is charged under all rules: leave `rule` and `subject` out",
        ));
    };
    Ok((request, attributes, time_to_live(*ttl)?))
}

/// A field that a call cannot do without.
fn text<'a>(name: &str, text: &'a str) -> Result<&'a str, Status> {
    non_empty(text).ok_or_else(|| Status::invalid_argument(format!("`{name}` is missing: send it")))
}

fn time_to_live(ttl: Option<prost_types::Duration>) -> Result<Duration, Status> {
    let Some(ttl) = ttl else {
        return Ok(RESERVATION_TIME);
    };
    // By hand: prost's own conversion overflows at the edges of its numbers.
    let (seconds, nanos) = (u64::try_from(ttl.seconds).ok(), u32::try_from(ttl.nanos).ok());
    let time = seconds.zip(nanos.filter(|nanos| *nanos < 1_000_000_000));
    let time = time.map(|(seconds, nanos)| Duration::new(seconds, nanos));
    time.filter(|time| !time.is_zero() && *time <= RESERVATION_TIME_MAX).ok_or_else(|| {
        Status::invalid_argument("`ttl` cannot be kept: send more than 0 s and at most 86,400 s")
    })
}
