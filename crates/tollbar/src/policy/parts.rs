//! A policy's algorithm and its numbers, for stores that count in another language.

use super::{Kind, Policy};
use crate::algorithm::calendar_window::Period;
use crate::algorithm::debt::Interval;

/// What a policy counts by, without its warm-up: every number after rounding, so that a store which
/// counts by them decides as every other store does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyParts {
    /// A token bucket or a leaky bucket.
    Bucket {
        /// The time that earns one token.
        interval: Interval,
        /// The tokens it holds.
        burst: u64,
        /// How many tokens more it may owe.
        overdraft: u64,
    },
    /// A leaky queue.
    LeakyQueue {
        /// The time between two turns.
        interval: Interval,
        /// One more than may wait.
        places: u64,
        /// The longest wait.
        wait_us_max: Option<u64>,
    },
    /// A fixed or staggered window.
    FixedWindow {
        /// Tokens per window.
        limit: u64,
        /// Its length.
        window_us: u64,
        /// How long after a multiple of its length it begins, for this key.
        stagger_us: u64,
    },
    /// A calendar window.
    CalendarWindow {
        /// Tokens per period.
        limit: u64,
        /// What of the calendar it is.
        period: Period,
        /// How far its midnight is east of UTC.
        utc_offset_minutes: i32,
    },
    /// A sliding window counter.
    SlidingWindow {
        /// Tokens per window.
        limit: u64,
        /// Its length.
        window_us: u64,
        /// The unit in which time within a window is counted; it divides the window.
        tick_us: u64,
    },
    /// A strict sliding window.
    SlidingStrict {
        /// Tokens per window.
        limit: u64,
        /// The length of a sub-window, rounded up.
        subwindow_us: u64,
        /// How many of them a window has.
        subwindows: u32,
    },
    /// A sliding window log.
    SlidingLog {
        /// Tokens per window.
        limit: u64,
        /// Its length.
        window_us: u64,
    },
    /// Permits in flight.
    Concurrency {
        /// How many.
        limit: u64,
    },
    /// Leased permits.
    Leased {
        /// How many.
        limit: u64,
        /// How long a lease lasts.
        ttl_us: u64,
    },
    /// An algorithm of one's own, which only Rust can count by.
    Custom,
}

impl Policy {
    /// What it counts by for `key`, without its [warm-up](Self::warm_up).
    #[must_use]
    pub fn parts(&self, key: &[u8]) -> PolicyParts {
        let algorithm = self.algorithm();
        let (limit, window_us) = (algorithm.limit(), algorithm.window_us());
        match &*self.kind.plain() {
            Kind::Bucket(meter) => PolicyParts::Bucket {
                interval: meter.interval(),
                burst: self.capacity(),
                overdraft: meter.overdraft(),
            },
            Kind::LeakyQueue(queue) => PolicyParts::LeakyQueue {
                interval: queue.interval(),
                places: self.capacity(),
                wait_us_max: queue.wait_us_max(),
            },
            Kind::FixedWindow(_) | Kind::StaggeredWindow(_) => {
                let stagger_us = self.stagger_us(key).unwrap_or(0);
                PolicyParts::FixedWindow { limit, window_us, stagger_us }
            }
            Kind::CalendarWindow(window) => PolicyParts::CalendarWindow {
                limit,
                period: window.period(),
                utc_offset_minutes: window.utc_offset_minutes(),
            },
            Kind::SlidingWindow(window) => {
                PolicyParts::SlidingWindow { limit, window_us, tick_us: window.tick_us() }
            }
            Kind::SlidingStrict(window) => PolicyParts::SlidingStrict {
                limit,
                subwindow_us: window.subwindow_us(),
                subwindows: window.subwindows(),
            },
            Kind::SlidingLog(_) => PolicyParts::SlidingLog { limit, window_us },
            Kind::Concurrency(_) => PolicyParts::Concurrency { limit },
            Kind::Leased(leased) => PolicyParts::Leased { limit, ttl_us: leased.ttl_us() },
            // A policy without its warm-up has none.
            Kind::Custom(_) | Kind::WarmUp(_) => PolicyParts::Custom,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::WarmUp;

    #[test]
    fn parts_are_the_rounded_numbers_without_the_warm_up() {
        let warm_up = WarmUp { start: 10, over: Duration::from_mins(1), steps: 3 };
        let strict = Policy::sliding_window_strict("100/min", 7).unwrap();
        let expected =
            PolicyParts::SlidingStrict { limit: 100, subwindow_us: 8_571_429, subwindows: 7 };
        assert_eq!(strict.parts(b"key"), expected);
        assert_eq!(strict.with_warm_up(warm_up).unwrap().parts(b"key"), expected);
        let staggered = Policy::fixed_window("5/min").and_then(Policy::with_stagger).unwrap();
        let PolicyParts::FixedWindow { limit: 5, window_us: 60_000_000, stagger_us } =
            staggered.parts(b"key")
        else {
            panic!("{staggered:?}");
        };
        assert_eq!(Some(stagger_us), staggered.stagger_us(b"key"));
    }
}
