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
use tollbar_rules::{AsyncEngine, Verdict};

use crate::decision_log::DecisionId;
use crate::decision_log::Decisions;
use crate::store::counters::Counters;
use connections::Connections;
pub(crate) use connections::Port;
use families::{Denials, Scrape};
use histogram::{Exemplar, Histogram, Names};
pub use history::History;
// For the dashboard.
use checks::Wires;
pub use checks::{Outcome, Wire};
pub(crate) use exposition::TextFormat;
pub use history::{MINUTES_MAX, Point, SECONDS_MAX, Series as Past};
pub use reloads::Reloaded;
use reloads::Reloads;
use series::Series;
pub use snapshot::Snapshot;
use store::{MemoryLook, StoreState};

/// In memory one check in so many is timed: reading the clock twice costs a good part of the check.
const TIMED_EVERY: u128 = 16;

/// Everything that is counted.
#[derive(Debug, Default)]
pub struct Metrics {
    wires: Wires,
    durations: Histogram,
    reloads: Reloads,
    connections: Connections,
    hold_failures: AtomicU64,
    memory: MemoryLook,
    series: Mutex<Series>,
    history: Mutex<History>,
}

impl Metrics {
    /// When a check begins, if it is one that is timed: where `is_timed`, and else some. Its id is random, so
    /// which ones is, too.
    pub(crate) fn begin(id: DecisionId, is_timed: bool) -> Option<Instant> {
        (is_timed || id.0.is_multiple_of(TIMED_EVERY)).then(Instant::now)
    }

    /// Counts what a request of the gateway held and the store did not renew or take back.
    pub(crate) fn hold_failed(&self) {
        self.hold_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// A check over `wire` is decided.
    pub(crate) fn decided(
        &self,
        wire: Wire,
        verdict: &Verdict,
        id: DecisionId,
        took: Option<Duration>,
        now: impl FnOnce() -> Timestamp,
    ) {
        if let Some(took) = took {
            self.durations.record(took, Names::Decision(id.0), now);
        }
        self.count(wire, Outcome::of(verdict));
    }

    /// The same, of what is not timed.
    pub(crate) fn count(&self, wire: Wire, outcome: Outcome) {
        self.wires.count(wire, outcome);
    }

    /// A check that took so long is part of a trace: whoever looks at its class is shown that.
    pub(crate) fn traced(&self, took: Duration, trace_id: u128, now: impl FnOnce() -> Timestamp) {
        self.durations.show(took, Names::Trace(trace_id), now);
    }

    pub fn reloaded(&self, what: Reloaded, is_good: bool) {
        self.reloads.count(what, is_good);
    }

    /// Rules are in force that were read now.
    pub fn rules_loaded(&self, at: Timestamp) {
        self.reloads.rules_loaded(at);
    }

    /// The connections of a listener.
    pub(crate) fn port(&self, listener: &'static str) -> Arc<Port> {
        self.connections.port(listener)
    }

    /// Once a second.
    pub fn tick(&self, engine: &AsyncEngine, now: Timestamp) {
        let tallies = engine.tallies();
        self.history().tick(now, self.wires.total(), &tallies);
        // So that what rules have counted is known when they go.
        self.series().look(&tallies);
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
        decisions: &Decisions,
        now: Timestamp,
        format: TextFormat,
    ) -> String {
        let denials = match format {
            TextFormat::Prometheus => Denials::new(),
            TextFormat::OpenMetrics => latest_denials(decisions),
        };
        let collected = self.series().collect(&engine.tallies());
        let store = StoreState::of(counters, &self.memory, now);
        let ahead_without_rule = engine.ahead_of_clock().denials_without_rule;
        families::write(self, &Scrape { collected, store, denials, ahead_without_rule }, format)
    }

    fn series(&self) -> MutexGuard<'_, Series> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The latest denial of each rule.
fn latest_denials(decisions: &Decisions) -> Denials {
    let mut latest = Denials::new();
    decisions.for_each(|denial| {
        let Some(rule) = denial.verdict.rule() else {
            return;
        };
        let is_later = latest.get(&rule.name).is_none_or(|it| it.at <= denial.at);
        if is_later {
            let names = Names::Decision(denial.id.0);
            let exemplar = Exemplar { names, took_ns: 0, at: denial.at };
            latest.insert(Arc::clone(&rule.name), exemplar);
        }
    });
    latest
}
