//! The service behind every protocol: it decides by one engine over one store, and counts, logs and traces the result.

use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderMap;
use tokio::time::Instant;
use tollbar::{Clock, Store, SystemClock, Timestamp};
use tollbar_http::QueueWaiters;
use tollbar_rules::{
    Admission, AsyncEngine, AsyncRuleHandle, Criticality, Hold, Request, RuleSettlement,
    TokenError, UsageError, UsageRecord, Verdict,
};
use tracing::warn;

use crate::auth_failures::{AuthFailures, WrongToken};
use crate::clock_watch::{self, CLOCK};
use crate::decision_log::{DecisionId, DecisionLog, LoggedRequest};
use crate::header_flags::ClientHeaders;
use crate::health::{HealthPart, HealthParts};
use crate::metrics::{DaemonState, Metrics, Outcome, ProtocolName, TextFormat};
use crate::net::Peer;
use crate::store::counters::Counters;
use crate::tasks::{TASKS, Tasks};
use crate::telemetry::{CheckSpan, DenialLog, FinishedCheck, Traces, dropped_line_count};
use crate::token::Tokens;
use crate::usage::Tally;

/// The store of counters, as a part of the daemon.
const STORE: HealthPart = HealthPart {
    name: "store",
    degraded: "the store does not answer: rules say what to answer without it",
    recovered: "the store answers again",
};

/// How much of the reason for a rejection is logged.
const REJECTION_BYTES_MAX: usize = 400;

/// Why a request to [exposed](Daemon::is_exposed) listeners is refused.
pub(crate) const EXPOSED: &str = "beyond loopback, resets and explanations need a token: start the daemon with \
                                  --token-file FILE and send one of its tokens";

/// Shared by every listener.
#[derive(Debug)]
pub struct Daemon {
    pub engine: Arc<AsyncEngine>,
    pub counters: Counters,
    /// The tokens that clients may send, where one is required.
    pub(crate) tokens: Option<Arc<Tokens>>,
    /// Wrong tokens, of every listener.
    pub auth_failures: Arc<AuthFailures>,
    /// The requests that wait in queues, of every listener.
    pub(crate) queue_waiters: Arc<QueueWaiters>,
    /// What clients are told in headers.
    pub(crate) client_headers: ClientHeaders,
    /// The latest denials.
    pub decision_log: Arc<DecisionLog>,
    /// Usage by subject, where there is a database to keep it.
    tally: Option<Arc<Tally>>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The protocol that this handle serves.
    protocol: ProtocolName,
    /// True where strangers can ask: beyond loopback, without tokens. They may check, but neither reset counters
    /// nor have the rules explained.
    pub(crate) is_exposed: bool,
    /// Logs some of the denials.
    denial_log: Arc<DenialLog>,
    /// Where some checks are traced to.
    pub(crate) traces: Option<Arc<Traces>>,
    /// How its parts are doing.
    pub health: Arc<HealthParts>,
    /// What runs beside requests.
    pub tasks: Arc<Tasks>,
    /// For a store that has no clock to offer.
    clock: Arc<SystemClock>,
}

/// The answer to a check: a verdict, the id by which it can be looked up, and the tokens of what the request
/// holds.
#[derive(Debug)]
pub(crate) struct CheckAnswer {
    pub(crate) verdict: Verdict,
    pub(crate) decision_id: DecisionId,
    /// The permits that the request holds.
    pub(crate) lease: Option<Lease>,
    /// By which what the request has paid can be settled.
    pub(crate) receipt: Option<String>,
}

/// A borrowed answer. A verdict is most of a kilobyte, so renderers borrow it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerRef<'a> {
    pub(crate) verdict: &'a Verdict,
    pub(crate) decision_id: DecisionId,
    pub(crate) lease: Option<&'a Lease>,
    pub(crate) receipt: Option<&'a str>,
}

/// The token of the permits that a request holds.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) text: String,
    pub(crate) ends_at: Option<Timestamp>,
}

/// A check that has begun.
pub(crate) struct Check {
    pub(crate) id: DecisionId,
    cost: u64,
    /// Where it is timed.
    began: Option<Instant>,
    span: Option<CheckSpan>,
}

impl Daemon {
    pub fn new(engine: Arc<AsyncEngine>, counters: Counters, tokens: Option<Arc<Tokens>>) -> Self {
        let daemon = Self {
            engine,
            counters,
            tokens,
            auth_failures: Arc::default(),
            queue_waiters: Arc::default(),
            client_headers: ClientHeaders::default(),
            decision_log: Arc::default(),
            tally: None,
            metrics: Arc::default(),
            protocol: ProtocolName::default(),
            is_exposed: false,
            denial_log: Arc::default(),
            traces: None,
            health: Arc::default(),
            tasks: Arc::default(),
            clock: Arc::new(SystemClock::new()),
        };
        let (counters, tasks) = (daemon.counters.clone(), Arc::clone(&daemon.tasks));
        daemon.health.add(STORE, move || Some(counters.health()));
        daemon.health.add(TASKS, move || Some(tasks.health()));
        let clock = Arc::clone(&daemon.clock);
        daemon.health.add(CLOCK, move || Some(clock_watch::health(clock.wall_difference_us())));
        daemon.metrics.rules_loaded(daemon.now());
        daemon
    }

    /// Counts usage in `tally`.
    #[must_use]
    pub fn with_metering(self, tally: Option<Arc<Tally>>) -> Self {
        Self { tally, ..self }
    }

    /// Bounds the requests that wait in queues.
    #[must_use]
    pub fn with_queue_waiters(self, queue_waiters: QueueWaiters) -> Self {
        Self { queue_waiters: Arc::new(queue_waiters), ..self }
    }

    /// Tells clients of their limits by `client_headers`.
    #[must_use]
    pub fn with_client_headers(self, client_headers: ClientHeaders) -> Self {
        Self { client_headers, ..self }
    }

    /// Logs denials to `denial_log` and traces checks to `traces`.
    #[must_use]
    pub fn with_telemetry(self, denial_log: DenialLog, traces: Option<Arc<Traces>>) -> Self {
        Self { denial_log: Arc::new(denial_log), traces, ..self }
    }

    /// Returns a handle that labels its metrics with `protocol`.
    pub fn for_protocol(&self, protocol: ProtocolName) -> Arc<Self> {
        self.for_listener(protocol, self.is_exposed)
    }

    /// Returns a handle for a listener that speaks `protocol`, and that strangers can ask if `is_exposed`.
    pub fn for_listener(&self, protocol: ProtocolName, is_exposed: bool) -> Arc<Self> {
        Arc::new(Self {
            engine: Arc::clone(&self.engine),
            counters: self.counters.clone(),
            tokens: self.tokens.clone(),
            auth_failures: Arc::clone(&self.auth_failures),
            queue_waiters: Arc::clone(&self.queue_waiters),
            client_headers: self.client_headers,
            decision_log: Arc::clone(&self.decision_log),
            tally: self.tally.clone(),
            metrics: Arc::clone(&self.metrics),
            protocol,
            is_exposed,
            denial_log: Arc::clone(&self.denial_log),
            traces: self.traces.clone(),
            health: Arc::clone(&self.health),
            tasks: Arc::clone(&self.tasks),
            clock: Arc::clone(&self.clock),
        })
    }

    /// Everything that is counted, as text.
    pub(crate) fn write_metrics(&self, format: TextFormat) -> String {
        let Self { engine, counters, decision_log, .. } = self;
        let state = DaemonState {
            health: self.health.report(),
            tasks: self.tasks.reports(),
            wall_difference_us: self.wall_difference_us(),
            log_lines_dropped: dropped_line_count(),
            auth_failures: self.auth_failures.counts().collect(),
            waiters: self.queue_waiters.count(),
            waits_refused: self.queue_waiters.refusals(),
        };
        self.metrics.write(engine, counters, decision_log, state, self.now(), format)
    }

    /// Decides and charges a request, to be settled within `reserve_for`. What it holds is given out as text.
    pub(crate) async fn check(
        &self,
        request: &Request<'_>,
        reserve_for: Option<Duration>,
    ) -> CheckAnswer {
        let (admission, decision_id) = self.admit(request, reserve_for).await;
        self.answer(admission, decision_id)
    }

    /// Decides and charges a request, to be settled within `reserve_for`. What it holds stays with the
    /// caller.
    pub(crate) async fn admit(
        &self,
        request: &Request<'_>,
        reserve_for: Option<Duration>,
    ) -> (Admission, DecisionId) {
        let check = self.begin(request.cost());
        let mut admission = self.decide(request, reserve_for).await;
        if let Some(tally) = &self.tally {
            let at = self.now();
            admission.verdict.meter(request, |record| tally.count(at, &record));
            if let Some(hold) = &mut admission.hold {
                hold.note_usage(&admission.verdict, request, at);
            }
        }
        self.conclude(&admission.verdict, &check, || LoggedRequest::from_request(request));
        (admission, check.id)
    }

    /// Decides and charges a request, to be settled within `reserve_for`. The caller counts the verdict.
    pub(crate) async fn decide(
        &self,
        request: &Request<'_>,
        reserve_for: Option<Duration>,
    ) -> Admission {
        match self.engine.try_admit(request, reserve_for) {
            Some(admission) => admission,
            // In a box, so that whoever waits for this does not carry kilobytes of places for
            // limits around.
            None => Box::pin(self.engine.admit(request, reserve_for)).await,
        }
    }

    /// Decides and charges a request and lends the answer to `render`, without moving it about. Returns `None`,
    /// having done nothing, if the store is across a network.
    pub(crate) fn check_at_once<T>(
        &self,
        request: &Request<'_>,
        render: impl FnOnce(AnswerRef<'_>) -> T,
    ) -> Option<T> {
        if !self.engine.answers_at_once() {
            return None;
        }
        let check = self.begin(request.cost());
        self.engine.try_admit_then(request, None, |verdict, hold| {
            self.meter(verdict, request);
            self.conclude(verdict, &check, || LoggedRequest::from_request(request));
            let (lease, receipt) = self.tokens_of(hold);
            let (lease, receipt) = (lease.as_ref(), receipt.as_deref());
            render(AnswerRef { verdict, decision_id: check.id, lease, receipt })
        })
    }

    /// Decides and charges a request under one rule, whatever that matches.
    pub(crate) async fn check_rule(
        &self,
        rule: &str,
        request: &Request<'_>,
    ) -> Result<CheckAnswer, UsageError> {
        let logged = LoggedRequest::from_request(request).under(rule);
        Ok(self.check_under(&self.engine.rule(rule)?, request, logged).await)
    }

    /// Decides and charges whom a rule counts, in place of a request. Attributes beside it may name a tier.
    pub(crate) async fn check_subject(
        &self,
        rule: &str,
        subject: &str,
        attributes: &[(&str, &str)],
        cost: u64,
        request_id: Option<&str>,
    ) -> Result<CheckAnswer, UsageError> {
        let handle = self.engine.rule(rule)?;
        let request = handle.subject(subject, attributes)?;
        let mut request = request.request()?.with_cost(cost);
        if let Some(id) = request_id {
            request = request.with_request_id(id);
        }
        let logged = LoggedRequest::attributes(rule, attributes, cost).of(subject);
        Ok(self.check_under(&handle, &request, logged).await)
    }

    async fn check_under(
        &self,
        rule: &AsyncRuleHandle<'_>,
        request: &Request<'_>,
        logged: LoggedRequest<'_>,
    ) -> CheckAnswer {
        let check = self.begin(request.cost());
        let admission = Box::pin(rule.admit(request)).await;
        self.meter(&admission.verdict, request);
        self.conclude(&admission.verdict, &check, || logged);
        self.answer(admission, check.id)
    }

    /// Settles a reservation that came to `spent`; `None` is as much as was reserved, 0 cancels it.
    pub(crate) async fn settle(
        &self,
        receipt: &str,
        spent: Option<u64>,
    ) -> Result<RuleSettlement, TokenError> {
        let hold = self.engine.resume(receipt)?;
        let settlement = self.engine.settle(&hold, spent).await?;
        if let (Some(tally), false) = (&self.tally, settlement.is_repeat) {
            hold.meter_settlement(spent, |at, record| tally.count(at, &record));
        }
        Ok(settlement)
    }

    /// Gives the permits of a lease back. Returns false if it had ended before.
    pub(crate) async fn release(&self, lease: &str) -> Result<bool, TokenError> {
        self.engine.release(&self.engine.resume_lease(lease)?).await
    }

    /// Begins leases anew, those of a receipt as well. Returns until when the first lasts now; `None` if
    /// one has ended.
    pub(crate) async fn renew(&self, token: &str) -> Result<Option<Timestamp>, TokenError> {
        self.engine.renew(&self.engine.resume_lease(token)?).await
    }

    fn answer(&self, admission: Admission, decision_id: DecisionId) -> CheckAnswer {
        let Admission { verdict, hold } = admission;
        let (lease, receipt) = self.tokens_of(hold);
        CheckAnswer { verdict, decision_id, lease, receipt }
    }

    /// Returns the token of what a request holds: a lease, or the receipt of a reservation.
    fn tokens_of(&self, hold: Option<Hold>) -> (Option<Lease>, Option<String>) {
        let Some(hold) = hold else {
            return (None, None);
        };
        let (is_reservation, ends_at) = (hold.is_reservation(), hold.lease_ends_at());
        match self.engine.token(hold) {
            text if is_reservation => (None, text),
            text => (text.map(|text| Lease { text, ends_at }), None),
        }
    }

    /// True where checks are [finished](crate::finish::Finish) even if their client hangs up: usage is counted, and the
    /// store is across a network.
    pub(crate) fn finishes_checks(&self) -> bool {
        self.is_metered() && !self.engine.answers_at_once()
    }

    /// True where usage is counted.
    pub(crate) fn is_metered(&self) -> bool {
        self.tally.is_some()
    }

    /// Counts what a verdict has admitted or denied, where usage is counted.
    #[inline]
    pub(crate) fn meter(&self, verdict: &Verdict, request: &Request<'_>) {
        if let Some(tally) = &self.tally {
            let at = self.now();
            verdict.meter(request, |record| tally.count(at, &record));
        }
    }

    /// Counts one record of usage, where usage is counted.
    pub(crate) fn count_usage(&self, record: &UsageRecord<'_>) {
        if let Some(tally) = &self.tally {
            tally.count(self.now(), record);
        }
    }

    /// Begins a check of this cost, which [`conclude`](Self::conclude) ends.
    pub(crate) fn begin(&self, cost: u64) -> Check {
        let id = DecisionId::random();
        // Who only looks is neither counted nor traced.
        let to = self.traces.as_ref().filter(|_| cost > 0);
        let span = to.and_then(|traces| traces.begin(|| self.now()));
        let is_timed = span.is_some() || !self.engine.answers_at_once();
        Check { id, cost, began: Metrics::start_timer(id, is_timed), span }
    }

    /// Counts a verdict, and records it if it denies, so that it can be looked up.
    pub(crate) fn conclude<'a>(
        &self,
        verdict: &Verdict,
        check: &Check,
        logged: impl FnOnce() -> LoggedRequest<'a>,
    ) {
        let took = check.began.map(|began| began.elapsed());
        self.conclude_as(Outcome::from_verdict(verdict), verdict, check, took, logged);
    }

    /// Counts a verdict on a request that came at `began` with these headers, and records it if it denies.
    /// Returns the id by which it can be looked up then.
    pub(crate) fn conclude_since(
        &self,
        verdict: &Verdict,
        request: &Request<'_>,
        began: Timestamp,
        headers: &HeaderMap,
    ) -> DecisionId {
        let span = self.traces.as_ref().and_then(|traces| {
            let _caller = traces.context_of(headers).map(opentelemetry::Context::attach);
            traces.begin(|| began)
        });
        let took = self.engine.now().since(began);
        let (id, cost) = (DecisionId::random(), request.cost());
        let check = Check { id, cost, began: None, span };
        let logged = || LoggedRequest::from_request(request);
        self.conclude_as(Outcome::from_verdict(verdict), verdict, &check, Some(took), logged);
        id
    }

    /// Begins a check by a limit that stands in no rule. `None` where nobody traces checks: then nothing is to
    /// be known of it before it is decided.
    pub(crate) fn begin_standalone(&self, cost: u64) -> Option<Check> {
        self.traces.is_some().then(|| self.begin(cost))
    }

    /// Counts what a limit that stands in no rule has decided, and records it if it denies: then it returns
    /// the id by which the denial can be looked up. The verdict and the request are made only if somebody is to
    /// read them.
    pub(crate) fn conclude_standalone<'a>(
        &self,
        outcome: Outcome,
        cost: u64,
        began: Option<Check>,
        verdict: impl FnOnce() -> Verdict,
        logged: impl FnOnce() -> LoggedRequest<'a>,
    ) -> Option<DecisionId> {
        let is_traced = began.as_ref().is_some_and(|check| check.span.is_some());
        if outcome.is_denial() || is_traced {
            let unobserved = || Check { id: DecisionId::random(), cost, began: None, span: None };
            let check = began.unwrap_or_else(unobserved);
            let took = check.began.map(|began| began.elapsed());
            self.conclude_as(outcome, &verdict(), &check, took, logged);
            return outcome.is_denial().then_some(check.id);
        }
        if cost > 0 {
            self.count(outcome);
        }
        None
    }

    fn conclude_as<'a>(
        &self,
        outcome: Outcome,
        verdict: &Verdict,
        check: &Check,
        took: Option<Duration>,
        logged: impl FnOnce() -> LoggedRequest<'a>,
    ) {
        let &Check { id, cost, ref span, .. } = check;
        if cost > 0 {
            self.metrics.record_check(self.protocol, outcome, id, took, || self.now());
            if let (Some(span), Some(to), Some(took)) = (span, &self.traces, took) {
                let finished =
                    FinishedCheck { protocol: self.protocol, outcome, verdict, id, took };
                let trace_id = to.end(span, &finished);
                self.metrics.set_trace_exemplar(took, trace_id, || self.now());
            }
        }
        if outcome.is_denial() {
            let now = self.now();
            self.decision_log.record(id, now, &logged(), verdict);
            self.denial_log.log(id, self.protocol, verdict, now);
        }
    }

    /// Counts a request that cannot be decided and is denied for it, and logs why.
    pub(crate) fn reject(&self, why: &str) {
        self.count(Outcome::Rejected);
        // It may repeat what a client has sent.
        let why = &why[..why.floor_char_boundary(REJECTION_BYTES_MAX)];
        self.denial_log.log_rejection(self.protocol, why, self.now());
    }

    /// Counts a check that has this outcome, and nothing to log or to trace.
    pub(crate) fn count(&self, outcome: Outcome) {
        self.metrics.count(self.protocol, outcome);
    }

    /// Counts what a request held and did not get renewed or give back. The log has the first, the second, the
    /// fourth and so on: an outage with a thousand requests in flight is ten lines.
    pub(crate) fn report_hold_failure(&self, error: &TokenError) {
        let failures = self.metrics.count_hold_failure();
        if failures.is_power_of_two() {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            warn!(%error, cause, failures, "a request's permit or reservation was not renewed or given back");
        }
    }

    /// Returns the time by the clock that counts.
    pub fn now(&self) -> Timestamp {
        match &self.counters {
            Counters::Memory(store) => store.clock().map_or_else(|| self.clock.now(), Clock::now),
            Counters::Redis(..) => self.clock.now(),
        }
    }

    /// Returns by how many microseconds the wall clock is ahead of the daemon's clock.
    pub fn wall_difference_us(&self) -> i64 {
        // It is measured while the clock is read, and over a store in memory nothing else reads this one.
        let _now = self.clock.now();
        self.clock.wall_difference_us()
    }

    /// Says how critical a request is on the word of its caller. Strangers can only make it less critical than the rules
    /// do.
    pub(crate) fn set_criticality(&self, request: &mut Request<'_>, criticality: Criticality) {
        if self.is_exposed {
            request.lower_criticality(criticality);
        } else {
            request.set_criticality(criticality);
        }
    }

    /// Checks the token of a request, where one is required. Counts a wrong one; a right one passes however many
    /// wrong ones came before.
    pub(crate) fn authorize(&self, token: Option<&[u8]>, peer: Peer) -> Result<(), WrongToken> {
        let token = token.unwrap_or_default();
        if self.tokens.as_ref().is_none_or(|tokens| tokens.has(token)) {
            return Ok(());
        }
        if token.is_empty() {
            return Err(WrongToken { retry_after_s: None });
        }
        let why = "it is not in --token-file";
        Err(self.auth_failures.record(self.protocol.name(), peer, token, why))
    }
}

impl CheckAnswer {
    pub(crate) fn as_ref(&self) -> AnswerRef<'_> {
        let Self { verdict, decision_id, lease, receipt } = self;
        let (lease, receipt) = (lease.as_ref(), receipt.as_deref());
        AnswerRef { verdict, decision_id: *decision_id, lease, receipt }
    }
}
