//! How long something took: a count for each class of durations, and for each class the latest case that
//! can be looked at.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollbar::Timestamp;

/// Upper ends of the classes, in nanoseconds; what took longer is in one more. A check in memory takes
/// a few hundred nanoseconds, one in Redis some hundred microseconds, and a deadline is 25 ms.
pub(super) const BOUNDS_NS: [u64; 17] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
];

const CLASSES: usize = BOUNDS_NS.len() + 1;

/// Durations, by class.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    counts: [AtomicU64; CLASSES],
    ns_sum: AtomicU64,
    exemplars: [Mutex<Option<Exemplar>>; CLASSES],
}

/// What was counted so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct HistogramSnapshot {
    pub(super) counts: [u64; CLASSES],
    pub(super) ns_sum: u64,
}

/// A case that can be looked at. It names a decision or a trace, never a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exemplar {
    pub(super) id: ExemplarId,
    pub(super) took_ns: u64,
    pub(super) at: Timestamp,
}

/// Which case it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExemplarId {
    Decision(u128),
    Trace(u128),
}

impl Histogram {
    pub(super) fn record(&self, took: Duration, id: ExemplarId, now: impl FnOnce() -> Timestamp) {
        let took_ns = nanos(took);
        self.counts[class_of(took_ns)].fetch_add(1, Ordering::Relaxed);
        self.ns_sum.fetch_add(took_ns, Ordering::Relaxed);
        self.set_exemplar(took, id, now);
    }

    /// Makes a case the one that is shown of its class. Where somebody else does at this moment, theirs
    /// is as good.
    pub(super) fn set_exemplar(
        &self,
        took: Duration,
        id: ExemplarId,
        now: impl FnOnce() -> Timestamp,
    ) {
        let took_ns = nanos(took);
        if let Ok(mut shown) = self.exemplars[class_of(took_ns)].try_lock() {
            *shown = Some(Exemplar { id, took_ns, at: now() });
        }
    }

    pub(super) fn read(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            counts: self.counts.each_ref().map(|count| count.load(Ordering::Relaxed)),
            ns_sum: self.ns_sum.load(Ordering::Relaxed),
        }
    }

    pub(super) fn exemplar(&self, class: usize) -> Option<Exemplar> {
        self.exemplars[class].try_lock().ok().and_then(|exemplar| *exemplar)
    }
}

impl HistogramSnapshot {
    #[allow(dead_code, reason = "the dashboard is its reader")]
    /// The time that so many of a hundred took at most: the upper end of their class.
    pub(super) fn percentile_us(&self, percent: u64) -> Option<u64> {
        percentile(&self.counts, percent).map(|class| {
            let bound_ns = BOUNDS_NS.get(class).unwrap_or(&BOUNDS_NS[BOUNDS_NS.len() - 1]);
            bound_ns.div_ceil(1_000)
        })
    }
}

/// The class in which so many of a hundred are reached.
pub(super) fn percentile(counts: &[u64], percent: u64) -> Option<usize> {
    let total: u64 = counts.iter().sum();
    // Up: the 99th of a hundred, the only one of one.
    let rank = total.saturating_mul(percent).div_ceil(100);
    let mut sum = 0;
    counts.iter().position(|count| {
        sum += count;
        total > 0 && sum >= rank
    })
}

fn nanos(took: Duration) -> u64 {
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
}

fn class_of(took_ns: u64) -> usize {
    BOUNDS_NS.partition_point(|bound_ns| *bound_ns < took_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_class_that_ends_at_it_or_above() {
        let histogram = Histogram::default();
        for ns in [0, 1_000, 1_001, 250_000_000, 250_000_001] {
            let took = Duration::from_nanos(ns);
            histogram.record(took, ExemplarId::Decision(u128::from(ns)), || Timestamp::ZERO);
        }
        let counted = histogram.read();
        assert_eq!((counted.counts[0], counted.counts[1]), (2, 1));
        assert_eq!((counted.counts[16], counted.counts[17]), (1, 1));
        assert_eq!(counted.ns_sum, 500_002_002);
        let shown = histogram.exemplar(0).map(|exemplar| exemplar.id);
        assert_eq!(shown, Some(ExemplarId::Decision(1_000)), "the latest of its class");
        assert_eq!(histogram.exemplar(5), None);
    }

    #[test]
    fn a_percentile_is_the_class_in_which_it_is_reached() {
        assert_eq!(percentile(&[0, 0, 0], 99), None);
        assert_eq!(percentile(&[0, 1, 0], 1), Some(1));
        assert_eq!(percentile(&[99, 0, 1], 99), Some(0));
        assert_eq!(percentile(&[98, 0, 2], 99), Some(2));
    }
}
