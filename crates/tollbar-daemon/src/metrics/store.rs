//! How the store is doing, in numbers, whichever it is.

use std::sync::{Mutex, PoisonError};

use tollbar::{MemoryStats, Timestamp};
use tollbar_redis::{BreakerState, RemoteStats};

use super::histogram::percentile;
use crate::store::counters::Counters;

/// Counting live keys reads megabytes: not more often than this, however often somebody asks.
const MEMORY_EVERY_US: u64 = 1_000_000;

/// What is known of the store.
#[derive(Debug, Clone)]
pub struct StoreState {
    /// `memory` or `redis`.
    pub kind: &'static str,
    /// Whether it answers.
    pub is_up: bool,
    /// How often its circuit breaker has opened.
    pub breaker_opened: u64,
    pub redis: RemoteStats,
    /// Of the store in memory.
    pub memory: Option<MemoryStats>,
}

/// The latest statistics of a store in memory.
#[derive(Debug, Default)]
pub(super) struct MemoryStatsCache(Mutex<Option<(Timestamp, MemoryStats)>>);

impl StoreState {
    pub(super) fn of(counters: &Counters, cache: &MemoryStatsCache, now: Timestamp) -> Self {
        let (kind, redis) = ("memory", RemoteStats::default());
        match counters {
            Counters::Memory(store) => {
                let memory = Some(cache.at(now, || store.stats()));
                Self { kind, is_up: true, breaker_opened: 0, redis, memory }
            }
            Counters::Redis(store) => {
                let health = store.health();
                let is_up = health.breaker == BreakerState::Closed;
                let (breaker_opened, redis) = (health.opened, store.stats());
                Self { kind: "redis", is_up, breaker_opened, redis, memory: None }
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
