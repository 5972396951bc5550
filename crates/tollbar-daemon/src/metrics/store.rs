//! How the store is doing, in numbers, whichever it is.

use std::sync::{Mutex, PoisonError};

use tollbar::{MemoryStats, Timestamp};
use tollbar_fleet::LendingStats;
use tollbar_redis::{BreakerState, FaultKind, RefusalReason, RemoteStats};

use super::histogram::percentile;
use crate::store::counters::Counters;

/// Counting live keys reads megabytes: not more often than this, however often somebody asks.
const MEMORY_EVERY_US: u64 = 1_000_000;

/// What is known of the store.
#[derive(Debug, Clone)]
pub struct StoreState {
    /// `memory` or `redis`.
    pub kind: &'static str,
    /// Whether it decides every check.
    pub is_up: bool,
    /// Whether its circuit breaker is closed.
    pub is_closed: bool,
    /// How often its circuit breaker has opened.
    pub breaker_opened: u64,
    pub redis: RemoteStats,
    /// How often its servers have refused, by reason.
    pub refusals: [(RefusalReason, u64); RefusalReason::ALL.len()],
    /// How many servers have a fault, by its kind. A fault of no single server counts as one.
    pub faults: [(&'static str, usize); FaultKind::NAMES.len()],
    /// How many keys its servers have evicted.
    pub evicted_keys: u64,
    /// Of loans from a store that a fleet shares.
    pub lending: LendingStats,
    /// Of the store in memory.
    pub memory: Option<MemoryStats>,
}

/// The latest statistics of a store in memory.
#[derive(Debug, Default)]
pub(super) struct MemoryStatsCache(Mutex<Option<(Timestamp, MemoryStats)>>);

impl StoreState {
    pub(super) fn read(counters: &Counters, cache: &MemoryStatsCache, now: Timestamp) -> Self {
        match counters {
            Counters::Memory(store) => Self {
                kind: "memory",
                is_up: true,
                is_closed: true,
                breaker_opened: 0,
                redis: RemoteStats::default(),
                refusals: RefusalReason::ALL.map(|reason| (reason, 0)),
                faults: FaultKind::NAMES.map(|name| (name, 0)),
                evicted_keys: 0,
                lending: LendingStats::default(),
                memory: Some(cache.at(now, || store.stats())),
            },
            Counters::Redis(store, loans) => {
                let (health, faults) = (store.health(), store.faults());
                let node_count = |name| {
                    let of_kind = faults.iter().filter(|fault| fault.kind.name() == name);
                    of_kind.map(|fault| fault.nodes.len().max(1)).sum()
                };
                Self {
                    kind: "redis",
                    is_up: !faults.iter().any(|fault| fault.kind.is_outage()),
                    is_closed: health.breaker == BreakerState::Closed,
                    breaker_opened: health.opened,
                    redis: store.stats(),
                    refusals: store.refusals(),
                    faults: FaultKind::NAMES.map(|name| (name, node_count(name))),
                    evicted_keys: store.evicted_keys(),
                    lending: loans.stats(),
                    memory: None,
                }
            }
        }
    }

    /// The time within which so many of a hundred questions were answered; `None` for memory.
    pub fn percentile_us(&self, percent: u64) -> Option<u64> {
        let bounds_us = tollbar_redis::LATENCY_BOUNDS_US;
        let class = percentile(&self.redis.latency, percent)?;
        Some(bounds_us[class.min(bounds_us.len() - 1)])
    }
}

impl MemoryStatsCache {
    fn at(&self, now: Timestamp, count: impl FnOnce() -> MemoryStats) -> MemoryStats {
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match *latest {
            Some((at, stats)) if now.as_micros().abs_diff(at.as_micros()) < MEMORY_EVERY_US => {
                stats
            }
            _ => {
                let stats = count();
                *latest = Some((now, stats));
                stats
            }
        }
    }
}
