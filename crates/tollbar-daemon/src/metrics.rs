//! What the daemon counts, for Prometheus at `GET /metrics` and for its own dashboard.
//!
//! On the path of a check are relaxed adds and nothing else; everything that takes longer is done when
//! somebody asks. No client, key or address is ever a label, and how many series there are is bounded:
//! decision 0046.

mod checks;
mod connections;
mod exposition;
mod families;
mod histogram;
mod history;
mod idle_rules;
mod reloads;
mod series;
mod sharded_counters;
mod snapshot;
mod store;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tollbar::Timestamp;
use tollbar_rules::AsyncEngine;

use crate::decision_log::DecisionId;
use crate::decision_log::DecisionLog;
use crate::health::HealthReport;
use crate::store::counters::Counters;
use crate::tasks::TaskReport;
use connections::Connections;
pub(crate) use connections::{ConnectionRefusal, ListenerConnections};
use families::{DenialExemplars, Scrape};
use histogram::{Exemplar, ExemplarId, Histogram};
pub use history::History;
// For the dashboard.
use checks::CheckCounts;
pub use checks::{Outcome, ProtocolName};
pub(crate) use exposition::TextFormat;
pub use history::{HistorySeries, MINUTES_MAX, Point, SECONDS_MAX};
use idle_rules::IdleRules;
pub use reloads::ReloadKind;
use reloads::Reloads;
use series::RuleSeries;
pub use snapshot::MetricsSnapshot;
use store::{MemoryStatsCache, StoreState};

/// In memory one check in so many is timed: reading the clock twice costs a good part of the check.
const TIMED_EVERY: u128 = 16;

/// How the parts and the tasks of the daemon are doing at one moment.
#[derive(Debug, Default)]
pub(crate) struct DaemonState {
    pub(crate) health: HealthReport,
    pub(crate) tasks: Vec<TaskReport>,
    pub(crate) wall_difference_us: i64,
    pub(crate) log_lines_dropped: usize,
    /// Wrong tokens, by listener.
    pub(crate) auth_failures: Vec<(&'static str, u64)>,
    /// Requests that wait in queues.
    pub(crate) waiters: usize,
    /// Requests that were denied because too many others waited.
    pub(crate) waits_refused: u64,
}

/// Everything that is counted.
#[derive(Debug, Default)]
pub struct Metrics {
    checks: CheckCounts,
    durations: Histogram,
    reloads: Reloads,
    connections: Connections,
    hold_failures: AtomicU64,
    permit_limits_skipped: AtomicU64,
    memory: MemoryStatsCache,
    series: Mutex<RuleSeries>,
    history: Mutex<History>,
    idle_rules: Mutex<IdleRules>,
}

impl Metrics {
    /// Returns the start of a check that is timed: all where `is_timed`, and else one in [`TIMED_EVERY`]. Ids are
    /// random, so the choice is too.
    pub(crate) fn start_timer(id: DecisionId, is_timed: bool) -> Option<Instant> {
        (is_timed || id.0.is_multiple_of(TIMED_EVERY)).then(Instant::now)
    }

    /// Counts what a request of the gateway held and the store did not renew or take back. Returns how many
    /// there are with it.
    pub(crate) fn count_hold_failure(&self) -> u64 {
        self.hold_failures.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts limits on what is in flight that a call of Envoy met, and that do not apply there.
    pub(crate) fn count_permit_limits_skipped(&self, count: u32) {
        self.permit_limits_skipped.fetch_add(count.into(), Ordering::Relaxed);
    }

    /// Counts a check over `protocol`, and its duration where it was timed.
    pub(crate) fn record_check(
        &self,
        protocol: ProtocolName,
        outcome: Outcome,
        id: DecisionId,
        took: Option<Duration>,
        now: impl FnOnce() -> Timestamp,
    ) {
        if let Some(took) = took {
            self.durations.record(took, ExemplarId::Decision(id.0), now);
        }
        self.count(protocol, outcome);
    }

    /// Counts a check that is not timed.
    pub(crate) fn count(&self, protocol: ProtocolName, outcome: Outcome) {
        self.checks.count(protocol, outcome);
    }

    /// Makes a trace the exemplar of the class of durations that `took` is in.
    pub(crate) fn set_trace_exemplar(
        &self,
        took: Duration,
        trace_id: u128,
        now: impl FnOnce() -> Timestamp,
    ) {
        self.durations.set_exemplar(took, ExemplarId::Trace(trace_id), now);
    }

    pub fn count_reload(&self, kind: ReloadKind, is_good: bool) {
        self.reloads.count(kind, is_good);
    }

    /// Notes when the rules in force were read.
    pub fn rules_loaded(&self, at: Timestamp) {
        self.reloads.rules_loaded(at);
    }

    /// Returns the counters of a listener's connections.
    pub(crate) fn listener_connections(&self, listener: &'static str) -> Arc<ListenerConnections> {
        self.connections.listener(listener)
    }

    /// Once a second.
    pub fn tick(&self, engine: &AsyncEngine, now: Timestamp) {
        let (tallies, total) = (engine.tallies(), self.checks.total());
        self.history().tick(now, total, &tallies);
        self.idle_rules().tick(engine, &tallies, total.sum(), now);
        // So that what rules have counted is known when they go.
        self.series().update(&tallies);
    }

    /// What was decided over time.
    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything, as text.
    pub(crate) fn write(
        &self,
        engine: &AsyncEngine,
        counters: &Counters,
        decision_log: &DecisionLog,
        daemon: DaemonState,
        now: Timestamp,
        format: TextFormat,
    ) -> String {
        let denials = match format {
            TextFormat::Prometheus => DenialExemplars::new(),
            TextFormat::OpenMetrics => latest_denials(decision_log),
        };
        let samples = self.series().collect(&engine.tallies());
        let store = StoreState::read(counters, &self.memory, now);
        let ahead_without_rule = engine.ahead_of_clock().denials_without_rule;
        let scrape = Scrape { samples, store, denials, ahead_without_rule, daemon };
        families::write(self, &scrape, format)
    }

    fn idle_rules(&self) -> MutexGuard<'_, IdleRules> {
        self.idle_rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn series(&self) -> MutexGuard<'_, RuleSeries> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the latest denial by each tier of each rule.
fn latest_denials(decision_log: &DecisionLog) -> DenialExemplars {
    let mut latest = DenialExemplars::new();
    decision_log.for_each(|denial| {
        let Some(rule) = denial.verdict.rule() else {
            return;
        };
        let binding = denial.verdict.binding();
        let tier = binding.as_ref().and_then(tollbar_rules::RuleDecision::tier);
        let id = ExemplarId::Decision(denial.id.0);
        let exemplar = Exemplar { id, took_ns: 0, at: denial.at };
        let tiers = latest.entry(Arc::clone(&rule.name)).or_default();
        match tiers.iter_mut().find(|(known, _)| known.as_deref() == tier) {
            None => tiers.push((tier.map(Into::into), exemplar)),
            Some((_, known)) if known.at <= exemplar.at => *known = exemplar,
            Some(_) => {}
        }
    });
    latest
}
