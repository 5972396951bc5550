//! Everything that is counted at one moment, as the dashboard wants it.

use std::collections::HashSet;
use std::sync::Arc;

use tollbar::Timestamp;
use tollbar_rules::AsyncEngine;

use super::store::StoreState;
use super::{Metrics, ReloadKind};
use crate::store::counters::Counters;

/// Everything at one moment, for the dashboard.
#[derive(Debug)]
pub struct MetricsSnapshot {
    pub rules_version: u64,
    /// The names of the rules that have limits.
    pub limited: HashSet<Arc<str>>,
    /// The time that 99 of a hundred checks took at most.
    pub check_p99_us: Option<u64>,
    pub store: StoreState,
    pub reload_failures: u64,
    pub rules_loaded_at: Option<Timestamp>,
}

impl Metrics {
    /// Everything, at this moment. Walks all rules: once a second, not for every request.
    pub fn snapshot(
        &self,
        engine: &AsyncEngine,
        counters: &Counters,
        now: Timestamp,
    ) -> MetricsSnapshot {
        let tallies = engine.tallies();
        MetricsSnapshot {
            rules_version: tallies.rules_version(),
            limited: tallies.iter().map(|tally| Arc::clone(&tally.rule.name)).collect(),
            check_p99_us: self.durations.read().percentile_us(99),
            store: StoreState::read(counters, &self.memory, now),
            reload_failures: ReloadKind::ALL.iter().map(|kind| self.reloads.counts(*kind).1).sum(),
            rules_loaded_at: self.reloads.rules_loaded_at(),
        }
    }
}
