//! Everything that is counted at one moment, as the dashboard wants it.

#![allow(dead_code, reason = "the dashboard is its reader")]

use std::sync::Arc;

use tollbar::Timestamp;
use tollbar_rules::{AsyncEngine, Counts, Mode};

use super::store::StoreState;
use super::{Metrics, Outcomes, Reloaded, Wire};
use crate::counters::Counters;

/// Everything at one moment, for the dashboard.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) rules_version: u64,
    /// All checks.
    pub(crate) total: Outcomes,
    pub(crate) by_wire: Vec<(Wire, Outcomes)>,
    /// Every rule and tier that has limits, in the order of the rules.
    pub(crate) rules: Vec<RuleCounts>,
    /// The time that half of the checks took at most, and 99 of a hundred.
    pub(crate) check_p50_us: Option<u64>,
    pub(crate) check_p99_us: Option<u64>,
    pub(crate) store: StoreState,
    pub(crate) reload_failures: u64,
    pub(crate) rules_loaded_at: Option<Timestamp>,
}

/// What one rule, or one tier of it, has decided.
#[derive(Debug)]
pub(crate) struct RuleCounts {
    pub(crate) rule: Arc<str>,
    pub(crate) tier: Option<Box<str>>,
    pub(crate) is_shadow: bool,
    pub(crate) counts: Counts,
}

impl Metrics {
    /// Everything, at this moment. Walks all rules: once a second, not for every request.
    pub(crate) fn snapshot(
        &self,
        engine: &AsyncEngine,
        counters: &Counters,
        now: Timestamp,
    ) -> Snapshot {
        let tallies = engine.tallies();
        let durations = self.durations.read();
        let rules = tallies.iter().map(|it| RuleCounts {
            rule: Arc::clone(&it.rule.name),
            tier: it.tier.map(Into::into),
            is_shadow: it.rule.mode == Mode::Shadow,
            counts: it.counts,
        });
        Snapshot {
            rules_version: tallies.rules_version(),
            total: self.wires.total(),
            by_wire: Wire::ALL.iter().map(|wire| (*wire, self.wires.of(*wire))).collect(),
            rules: rules.collect(),
            check_p50_us: durations.percentile_us(50),
            check_p99_us: durations.percentile_us(99),
            store: StoreState::of(counters, &self.memory, now),
            reload_failures: Reloaded::ALL.iter().map(|it| self.reloads.of(*it).1).sum(),
            rules_loaded_at: self.reloads.rules_loaded_at(),
        }
    }
}
