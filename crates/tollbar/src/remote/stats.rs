//! Statistics of a store across a network: latencies, errors by cause, and hits of the deny cache.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::failure::{Failure, FailureKind};

/// Upper ends of the classes of [`RemoteStats::latency`], in microseconds; what took longer is in one more.
pub const LATENCY_BOUNDS_US: [u64; 12] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000];

/// How the server has answered since the store was made. All namespaces of one connection count together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RemoteStats {
    /// Answers by the time they took: one class for each of [`LATENCY_BOUNDS_US`], and the rest.
    pub latency: [u64; LATENCY_BOUNDS_US.len() + 1],
    /// What all of them took together, in microseconds.
    pub latency_us_sum: u64,
    /// What was not answered.
    pub errors: StoreErrors,
    /// Denials that were known to hold, and not asked for again.
    pub deny_cache_hits: u64,
}

/// Questions that were not answered, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StoreErrors {
    /// There was no connection: the circuit breaker was open.
    pub disconnected: u64,
    /// No answer came in time.
    pub deadline_missed: u64,
    /// As many were under way as may be.
    pub overloaded: u64,
    /// The server refused, or answered what is no answer.
    pub refused: u64,
}

/// Counts for [`RemoteStats`].
#[derive(Debug, Default)]
pub struct RemoteCounters {
    latency: [AtomicU64; LATENCY_BOUNDS_US.len() + 1],
    latency_us_sum: AtomicU64,
    disconnected: AtomicU64,
    deadline_missed: AtomicU64,
    overloaded: AtomicU64,
    refused: AtomicU64,
    deny_cache_hits: AtomicU64,
}

impl RemoteStats {
    /// How many questions were answered.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.latency.iter().sum()
    }
}

impl StoreErrors {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.disconnected + self.deadline_missed + self.overloaded + self.refused
    }
}

impl RemoteCounters {
    /// Counts an answer.
    pub fn answered(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let class = LATENCY_BOUNDS_US.partition_point(|bound_us| *bound_us < us);
        self.latency[class].fetch_add(1, Ordering::Relaxed);
        self.latency_us_sum.fetch_add(us, Ordering::Relaxed);
    }

    /// Counts a question that was not answered.
    pub fn failed(&self, error: &impl Failure) {
        let counter = match error.kind() {
            FailureKind::Disconnected => &self.disconnected,
            FailureKind::DeadlineMissed => &self.deadline_missed,
            FailureKind::Overloaded => &self.overloaded,
            FailureKind::Broken | FailureKind::Refused => &self.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a denial that the deny cache knew.
    pub fn known(&self) {
        self.deny_cache_hits.fetch_add(1, Ordering::Relaxed);
    }

    /// What was counted so far.
    #[must_use]
    pub fn read(&self) -> RemoteStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RemoteStats {
            latency: self.latency.each_ref().map(read),
            latency_us_sum: read(&self.latency_us_sum),
            errors: StoreErrors {
                disconnected: read(&self.disconnected),
                deadline_missed: read(&self.deadline_missed),
                overloaded: read(&self.overloaded),
                refused: read(&self.refused),
            },
            deny_cache_hits: read(&self.deny_cache_hits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_in_the_class_that_ends_at_its_time_or_above() {
        let counters = RemoteCounters::default();
        for us in [0, 50, 51, 250_000, 250_001, u64::MAX / 2] {
            counters.answered(Duration::from_micros(us));
        }
        let stats = counters.read();
        assert_eq!(stats.latency, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(stats.answered(), 6);
    }
}
