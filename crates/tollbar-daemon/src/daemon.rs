//! The service behind every protocol: it decides by one engine over one store, and counts, logs and traces the result.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tollbar::{Clock, Store, SystemClock, Timestamp};
use tollbar_rules::{
    Admission, AsyncEngine, AsyncRuleHandle, Hold, Request, RuleSettlement, TokenError, UsageError,
    Verdict,
};

use crate::decision_log::{DecisionId, DecisionLog, LoggedRequest};
use crate::health::{Health, HealthSource};
use crate::metrics::{Metrics, Outcome, ProtocolName, TextFormat};
use crate::store::counters::Counters;
use crate::telemetry::{CheckSpan, DenialLog, FinishedCheck, Traces};
use crate::token::Tokens;
use crate::usage::Tally;

/// Shared by every listener.
#[derive(Debug)]
pub struct Daemon {
    pub engine: Arc<AsyncEngine>,
    pub counters: Counters,
    /// The tokens that clients may send, where one is required.
    pub(crate) tokens: Option<Arc<Tokens>>,
    /// The latest denials.
    pub decision_log: Arc<DecisionLog>,
    /// Usage by subject, where there is a database to keep it.
    tally: Option<Arc<Tally>>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The protocol that this handle serves.
    protocol: ProtocolName,
    /// Logs some of the denials.
    denial_log: Arc<DenialLog>,
    /// Where some checks are traced to.
    pub(crate) traces: Option<Arc<Traces>>,
    /// The database of rules, where there is one.
    database: Option<Arc<dyn HealthSource>>,
    /// For a store that has no clock to offer.
    clock: SystemClock,
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
struct Check {
    id: DecisionId,
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
            decision_log: Arc::default(),
            tally: None,
            metrics: Arc::default(),
            protocol: ProtocolName::default(),
            denial_log: Arc::default(),
            traces: None,
            database: None,
            clock: SystemClock::new(),
        };
        daemon.metrics.rules_loaded(daemon.now());
        daemon
    }

    /// Counts usage in `tally`.
    #[must_use]
    pub fn with_metering(self, tally: Option<Arc<Tally>>) -> Self {
        Self { tally, ..self }
    }

    /// Logs denials to `denial_log` and traces checks to `traces`.
    #[must_use]
    pub fn with_telemetry(self, denial_log: DenialLog, traces: Option<Arc<Traces>>) -> Self {
        Self { denial_log: Arc::new(denial_log), traces, ..self }
    }

    /// Reports the health of the database of rules beside the store's.
    #[must_use]
    pub fn with_database(self, database: Arc<dyn HealthSource>) -> Self {
        Self { database: Some(database), ..self }
    }

    /// Returns the health of the database of rules; `None` where there is none.
    pub fn database_health(&self) -> Option<Health> {
        self.database.as_ref()?.health()
    }

    /// Returns a handle that labels its metrics with `protocol`.
    pub fn for_protocol(&self, protocol: ProtocolName) -> Arc<Self> {
        Arc::new(Self {
            engine: Arc::clone(&self.engine),
            counters: self.counters.clone(),
            tokens: self.tokens.clone(),
            decision_log: Arc::clone(&self.decision_log),
            tally: self.tally.clone(),
            metrics: Arc::clone(&self.metrics),
            protocol,
            denial_log: Arc::clone(&self.denial_log),
            traces: self.traces.clone(),
            database: self.database.clone(),
            clock: SystemClock::new(),
        })
    }

    /// Everything that is counted, as text.
    pub(crate) fn write_metrics(&self, format: TextFormat) -> String {
        let Self { engine, counters, decision_log, .. } = self;
        self.metrics.write(engine, counters, decision_log, self.now(), format)
    }

    /// How the store is doing: whatever it is, questions are answered.
    pub fn health(&self) -> Health {
        self.counters.health()
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
        let admission = match self.engine.try_admit(request, reserve_for) {
            Some(admission) => admission,
            // In a box, so that whoever waits for this does not carry kilobytes of places for
            // limits around.
            None => Box::pin(self.engine.admit(request, reserve_for)).await,
        };
        self.meter(&admission.verdict, request);
        self.conclude(&admission.verdict, &check, || LoggedRequest::of(request));
        (admission, check.id)
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
            self.conclude(verdict, &check, || LoggedRequest::of(request));
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
        let logged = LoggedRequest::of(request).under(rule);
        Ok(self.check_under(&self.engine.rule(rule)?, request, logged).await)
    }

    /// Decides and charges one value that a rule counts by, in place of a request.
    pub(crate) async fn check_subject(
        &self,
        rule: &str,
        subject: &str,
        cost: u64,
        request_id: Option<&str>,
    ) -> Result<CheckAnswer, UsageError> {
        let handle = self.engine.rule(rule)?;
        let request = handle.subject(subject)?;
        let mut request = request.request()?.with_cost(cost);
        if let Some(id) = request_id {
            request = request.with_request_id(id);
        }
        Ok(self.check_under(&handle, &request, LoggedRequest::subject(rule, subject, cost)).await)
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
        self.engine.settle(&self.engine.resume(receipt)?, spent).await
    }

    /// Gives the permits of a lease back. Returns false if it had ended before.
    pub(crate) async fn release(&self, lease: &str) -> Result<bool, TokenError> {
        self.engine.release(&self.engine.resume(lease)?).await
    }

    /// Begins leases anew, those of a receipt as well. Returns until when the first lasts now; `None` if
    /// one has ended.
    pub(crate) async fn renew(&self, token: &str) -> Result<Option<Timestamp>, TokenError> {
        self.engine.renew(&self.engine.resume(token)?).await
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

    /// True where usage is counted.
    pub(crate) fn is_metered(&self) -> bool {
        self.tally.is_some()
    }

    /// Counts what a verdict has admitted or denied, where usage is counted.
    #[inline]
    pub(crate) fn meter(&self, verdict: &Verdict, request: &Request<'_>) {
        if let Some(tally) = &self.tally {
            let at = self.now();
            verdict.meter(request, |it| tally.count(at, &it));
        }
    }

    fn begin(&self, cost: u64) -> Check {
        let id = DecisionId::random();
        // Who only looks is neither counted nor traced.
        let to = self.traces.as_ref().filter(|_| cost > 0);
        let span = to.and_then(|traces| traces.begin(|| self.now()));
        let is_timed = span.is_some() || !self.engine.answers_at_once();
        Check { id, cost, began: Metrics::start_timer(id, is_timed), span }
    }

    /// Counts a verdict, and records it if it denies, so that it can be looked up.
    fn conclude<'a>(
        &self,
        verdict: &Verdict,
        check: &Check,
        logged: impl FnOnce() -> LoggedRequest<'a>,
    ) {
        let &Check { id, cost, began, ref span } = check;
        if cost > 0 {
            let took = began.map(|it| it.elapsed());
            self.metrics.record_check(self.protocol, verdict, id, took, || self.now());
            if let (Some(span), Some(to), Some(took)) = (span, &self.traces, took) {
                let finished = FinishedCheck { protocol: self.protocol, verdict, id, took };
                let trace_id = to.end(span, &finished);
                self.metrics.set_trace_exemplar(took, trace_id, || self.now());
            }
        }
        if !verdict.is_allowed() {
            let now = self.now();
            self.decision_log.record(id, now, &logged(), verdict);
            self.denial_log.log(id, self.protocol, verdict, now);
        }
    }

    /// Counts what was decided elsewhere.
    pub(crate) fn count_verdict(&self, verdict: &Verdict) {
        self.metrics.count(self.protocol, Outcome::of(verdict));
    }

    /// Counts checks that no rule has decided.
    pub(crate) fn count(&self, is_allowed: bool) {
        let outcome = if is_allowed { Outcome::Allow } else { Outcome::Deny };
        self.metrics.count(self.protocol, outcome);
    }

    /// Records a denial that was made elsewhere, and returns the id by which it can be looked up.
    pub(crate) fn record_denial(
        &self,
        logged: &LoggedRequest<'_>,
        verdict: &Verdict,
    ) -> DecisionId {
        let id = DecisionId::random();
        self.decision_log.record(id, self.now(), logged, verdict);
        id
    }

    /// Returns the time by the clock that counts.
    pub fn now(&self) -> Timestamp {
        match &self.counters {
            Counters::Memory(store) => store.clock().map_or_else(|| self.clock.now(), Clock::now),
            Counters::Redis(_) => self.clock.now(),
        }
    }

    /// Returns true if requests with this token are answered.
    pub(crate) fn is_authorized(&self, token: Option<&[u8]>) -> bool {
        self.tokens.as_ref().is_none_or(|tokens| tokens.has(token.unwrap_or_default()))
    }
}

impl CheckAnswer {
    pub(crate) fn as_ref(&self) -> AnswerRef<'_> {
        let Self { verdict, decision_id, lease, receipt } = self;
        let (lease, receipt) = (lease.as_ref(), receipt.as_deref());
        AnswerRef { verdict, decision_id: *decision_id, lease, receipt }
    }
}
