//! What all listeners answer with: one engine over one store, whatever the wire.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tollbar::{Clock, Store, SystemClock, Timestamp};
use tollbar_rules::{
    Admission, AsyncEngine, AsyncRuleHandle, Hold, Request, RuleSettlement, TokenError, UsageError,
    Verdict,
};

use crate::decision_log::{DecisionId, Decisions, LoggedRequest};
use crate::health::{Health, HealthSource};
use crate::metrics::{Metrics, Outcome, TextFormat, Wire};
use crate::store::counters::Counters;
use crate::telemetry::{Decided, DenialLog, Traced, Traces};
use crate::token::Tokens;
use crate::usage::Tally;

/// Shared by every listener.
#[derive(Debug)]
pub struct Daemon {
    pub engine: Arc<AsyncEngine>,
    pub counters: Counters,
    /// What clients must show, where something is asked for.
    pub(crate) tokens: Option<Arc<Tokens>>,
    /// The latest denials.
    pub decisions: Arc<Decisions>,
    /// Who has used how much, where there is a database to keep it.
    tally: Option<Arc<Tally>>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What those who ask come over.
    wire: Wire,
    /// Where some denials are told.
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
    traced: Option<Traced>,
}

impl Daemon {
    pub fn new(engine: Arc<AsyncEngine>, counters: Counters, tokens: Option<Arc<Tokens>>) -> Self {
        let daemon = Self {
            engine,
            counters,
            tokens,
            decisions: Arc::default(),
            tally: None,
            metrics: Arc::default(),
            wire: Wire::default(),
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

    /// Returns a handle that labels its metrics with `wire`.
    pub fn for_protocol(&self, wire: Wire) -> Arc<Self> {
        Arc::new(Self {
            engine: Arc::clone(&self.engine),
            counters: self.counters.clone(),
            tokens: self.tokens.clone(),
            decisions: Arc::clone(&self.decisions),
            tally: self.tally.clone(),
            metrics: Arc::clone(&self.metrics),
            wire,
            denial_log: Arc::clone(&self.denial_log),
            traces: self.traces.clone(),
            database: self.database.clone(),
            clock: SystemClock::new(),
        })
    }

    /// Everything that is counted, as text.
    pub(crate) fn write_metrics(&self, format: TextFormat) -> String {
        let Self { engine, counters, decisions, .. } = self;
        self.metrics.write(engine, counters, decisions, self.now(), format)
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
        let asked = LoggedRequest::of(request).under(rule);
        Ok(self.check_under(&self.engine.rule(rule)?, request, asked).await)
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
        asked: LoggedRequest<'_>,
    ) -> CheckAnswer {
        let check = self.begin(request.cost());
        let admission = Box::pin(rule.admit(request)).await;
        self.meter(&admission.verdict, request);
        self.conclude(&admission.verdict, &check, || asked);
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
        let traced = to.and_then(|traces| traces.begin(|| self.now()));
        let is_timed = traced.is_some() || !self.engine.answers_at_once();
        Check { id, cost, began: Metrics::begin(id, is_timed), traced }
    }

    /// Counts a verdict, and keeps it if it denies, so that it can be asked about.
    fn conclude<'a>(
        &self,
        verdict: &Verdict,
        check: &Check,
        asked: impl FnOnce() -> LoggedRequest<'a>,
    ) {
        let &Check { id, cost, began, ref traced } = check;
        if cost > 0 {
            let took = began.map(|it| it.elapsed());
            self.metrics.decided(self.wire, verdict, id, took, || self.now());
            if let (Some(traced), Some(to), Some(took)) = (traced, &self.traces, took) {
                let decided = Decided { wire: self.wire, verdict, id, took };
                let trace_id = to.end(traced, &decided);
                self.metrics.traced(took, trace_id, || self.now());
            }
        }
        if !verdict.is_allowed() {
            let now = self.now();
            self.decisions.record(id, now, &asked(), verdict);
            self.denial_log.tell(id, self.wire, verdict, now);
        }
    }

    /// Counts what was decided elsewhere.
    pub(crate) fn count_verdict(&self, verdict: &Verdict) {
        self.metrics.count(self.wire, Outcome::of(verdict));
    }

    /// Counts checks that no rule has decided.
    pub(crate) fn count(&self, is_allowed: bool) {
        let outcome = if is_allowed { Outcome::Allow } else { Outcome::Deny };
        self.metrics.count(self.wire, outcome);
    }

    /// Keeps a denial that was made elsewhere; the name by which it can be asked about.
    pub(crate) fn denied(&self, asked: &LoggedRequest<'_>, verdict: &Verdict) -> DecisionId {
        let id = DecisionId::random();
        self.decisions.record(id, self.now(), asked, verdict);
        id
    }

    /// By the clock that counts.
    pub fn now(&self) -> Timestamp {
        match &self.counters {
            Counters::Memory(store) => store.clock().map_or_else(|| self.clock.now(), Clock::now),
            Counters::Redis(_) => self.clock.now(),
        }
    }

    /// True where whoever shows `shown` may ask.
    pub(crate) fn is_admitted(&self, shown: Option<&[u8]>) -> bool {
        self.tokens.as_ref().is_none_or(|tokens| tokens.is(shown.unwrap_or_default()))
    }
}

impl CheckAnswer {
    pub(crate) fn as_ref(&self) -> AnswerRef<'_> {
        let Self { verdict, decision_id, lease, receipt } = self;
        let (lease, receipt) = (lease.as_ref(), receipt.as_deref());
        AnswerRef { verdict, decision_id: *decision_id, lease, receipt }
    }
}
