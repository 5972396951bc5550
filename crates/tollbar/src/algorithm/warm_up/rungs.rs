//! The algorithms that can warm up, each at any of its limits.

use std::sync::Arc;

use crate::algorithm::Algorithm;
use crate::algorithm::calendar_window::CalendarWindow;
use crate::algorithm::concurrency::ConcurrencyLimit;
use crate::algorithm::debt::{Interval, Ladder};
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::leaky_queue::LeakyQueue;
use crate::algorithm::leased::LeasedConcurrency;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_strict::SlidingStrict;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::staggered_window::StaggeredWindow;

/// One algorithm at its full limit, and how it is made to have a lower one: a bucket and a queue have
/// all of them worked out, the others only have a number changed.
#[derive(Debug, Clone)]
pub(crate) enum Rungs {
    Bucket(Arc<Ladder>),
    LeakyQueue(Arc<LeakyQueue>, Arc<Ladder>),
    FixedWindow(FixedWindow),
    StaggeredWindow(StaggeredWindow),
    CalendarWindow(CalendarWindow),
    SlidingWindow(SlidingWindow),
    SlidingStrict(SlidingStrict),
    SlidingLog(SlidingLog),
    Concurrency(ConcurrencyLimit),
    Leased(LeasedConcurrency),
}

impl Rungs {
    /// The algorithm as it is without a warm-up.
    pub(super) fn full(&self) -> &dyn Algorithm {
        match self {
            Self::Bucket(ladder) => ladder.plain(),
            Self::LeakyQueue(queue, _) => &**queue,
            Self::FixedWindow(window) => window,
            Self::StaggeredWindow(window) => window,
            Self::CalendarWindow(window) => window,
            Self::SlidingWindow(window) => window,
            Self::SlidingStrict(window) => window,
            Self::SlidingLog(log) => log,
            Self::Concurrency(permits) => permits,
            Self::Leased(leased) => leased,
        }
    }

    /// Asks the algorithm as it is at `step`, where its limit is `limit`.
    pub(super) fn at<R>(&self, step: u32, limit: u64, ask: impl FnOnce(&dyn Algorithm) -> R) -> R {
        match self {
            Self::Bucket(ladder) => ask(ladder.rung(step as usize)),
            Self::LeakyQueue(queue, ladder) => ask(&queue.with_meter(ladder.rung(step as usize))),
            Self::FixedWindow(window) => ask(&window.with_limit(limit)),
            Self::StaggeredWindow(window) => ask(&window.with_limit(limit)),
            Self::CalendarWindow(window) => ask(&window.with_limit(limit)),
            Self::SlidingWindow(window) => ask(&window.with_limit(limit)),
            Self::SlidingStrict(window) => ask(&window.with_limit(limit)),
            Self::SlidingLog(log) => ask(&log.with_limit(limit)),
            Self::Concurrency(permits) => ask(&permits.with_limit(limit)),
            Self::Leased(leased) => ask(&leased.with_limit(limit)),
        }
    }

    /// Returns the rungs for one key if keys differ, which only those of staggered windows do.
    #[inline]
    pub(super) fn for_key(&self, key: &[u8]) -> Option<Self> {
        match self {
            Self::StaggeredWindow(window) => Some(Self::StaggeredWindow(window.for_key(key))),
            _ => None,
        }
    }

    /// True for windows that count: their state does not tell a charge from one before a reset.
    pub(crate) fn is_counted_window(&self) -> bool {
        matches!(
            self,
            Self::FixedWindow(_)
                | Self::StaggeredWindow(_)
                | Self::CalendarWindow(_)
                | Self::SlidingWindow(_)
                | Self::SlidingStrict(_)
        )
    }

    /// True for permits: what was taken is in flight until it comes back, which time does not tell.
    pub(crate) fn is_in_flight(&self) -> bool {
        matches!(self, Self::Concurrency(_) | Self::Leased(_))
    }

    /// True for algorithms whose state is a list, which stores keep in their own way.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self, Self::SlidingLog(_) | Self::Leased(_))
    }

    /// For buckets and queues, the time that earns one token at each step.
    pub(crate) fn intervals(&self) -> Option<impl Iterator<Item = Interval>> {
        match self {
            Self::Bucket(ladder) | Self::LeakyQueue(_, ladder) => Some(ladder.intervals()),
            _ => None,
        }
    }
}
