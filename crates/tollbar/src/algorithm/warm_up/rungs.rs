//! The algorithms that can warm up, each at any of its limits.

use std::sync::Arc;

use crate::algorithm::Algorithm;
use crate::algorithm::calendar_window::CalendarWindow;
use crate::algorithm::debt::Ladder;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::sliding_strict::SlidingStrict;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::staggered_window::StaggeredWindow;

/// One algorithm at its full limit, and how it is made to have a lower one: a bucket has all of them
/// worked out, windows only have a number changed.
#[derive(Debug, Clone)]
pub(crate) enum Rungs {
    Bucket(Arc<Ladder>),
    FixedWindow(FixedWindow),
    StaggeredWindow(StaggeredWindow),
    CalendarWindow(CalendarWindow),
    SlidingWindow(SlidingWindow),
    SlidingStrict(SlidingStrict),
}

impl Rungs {
    /// The algorithm as it is without a warm-up.
    pub(super) fn full(&self) -> &dyn Algorithm {
        match self {
            Self::Bucket(ladder) => ladder.plain(),
            Self::FixedWindow(window) => window,
            Self::StaggeredWindow(window) => window,
            Self::CalendarWindow(window) => window,
            Self::SlidingWindow(window) => window,
            Self::SlidingStrict(window) => window,
        }
    }

    /// Asks the algorithm as it is at `step`, where its limit is `limit`.
    pub(super) fn at<R>(&self, step: u32, limit: u64, ask: impl FnOnce(&dyn Algorithm) -> R) -> R {
        match self {
            Self::Bucket(ladder) => ask(ladder.rung(step as usize)),
            Self::FixedWindow(window) => ask(&window.with_limit(limit)),
            Self::StaggeredWindow(window) => ask(&window.with_limit(limit)),
            Self::CalendarWindow(window) => ask(&window.with_limit(limit)),
            Self::SlidingWindow(window) => ask(&window.with_limit(limit)),
            Self::SlidingStrict(window) => ask(&window.with_limit(limit)),
        }
    }

    /// The same for one key, where keys differ: of staggered windows.
    #[inline]
    pub(super) fn for_key(&self, key: &[u8]) -> Option<Self> {
        match self {
            Self::StaggeredWindow(window) => Some(Self::StaggeredWindow(window.for_key(key))),
            _ => None,
        }
    }
}
