//! What can be read from a policy.

use std::time::Duration;

use super::{Kind, Policy};
use crate::algorithm::Algorithm;
use crate::algorithm::calendar_window::Period;
use crate::algorithm::debt::Interval;
use crate::algorithm::staggered_window::stagger_us;

impl Policy {
    /// The name, where it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Tokens per window.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.algorithm().limit()
    }

    /// The window; zero for [concurrency](Self::concurrency), which has none.
    #[must_use]
    pub fn window(&self) -> Duration {
        Duration::from_micros(self.algorithm().window_us())
    }

    /// The largest cost that can ever pass: the burst of a bucket, one more than may wait in a queue,
    /// the limit of anything else.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.algorithm().capacity()
    }

    /// The algorithm, as a pure function. It knows no key, so of a [staggered](Self::staggered)
    /// window it is that of a key whose [`stagger_us`](Self::stagger_us) is 0. A
    /// [log](Self::sliding_window_log) asks for more words than
    /// [`STATE_WORDS_MAX`](crate::algorithm::STATE_WORDS_MAX): as many as its limit.
    #[must_use]
    pub fn algorithm(&self) -> &dyn Algorithm {
        self.kind.as_dyn()
    }

    /// True for an [algorithm of one's own](Self::custom), which only this process can count by.
    #[must_use]
    pub fn is_custom(&self) -> bool {
        matches!(self.kind, Kind::Custom(_))
    }

    /// For buckets and queues, the time that earns one token, after rounding: never shorter than asked for,
    /// and longer by less than one part in a million.
    #[must_use]
    pub fn interval(&self) -> Option<Interval> {
        match &*self.kind.plain() {
            Kind::Bucket(meter) => Some(meter.interval()),
            Kind::LeakyQueue(queue) => Some(queue.interval()),
            _ => None,
        }
    }

    /// For queues, how many may wait.
    #[must_use]
    pub fn queue_length(&self) -> Option<u64> {
        match &self.kind {
            Kind::LeakyQueue(queue) => Some(queue.length()),
            _ => None,
        }
    }

    /// For queues that have one, the longest wait.
    #[must_use]
    pub fn max_wait(&self) -> Option<Duration> {
        match &self.kind {
            Kind::LeakyQueue(queue) => queue.wait_us_max().map(Duration::from_micros),
            _ => None,
        }
    }

    /// True where what is taken comes back: permits, leased or not.
    #[must_use]
    pub fn has_permits(&self) -> bool {
        self.kind.is_in_flight()
    }

    /// How many tokens more than it holds a bucket may owe.
    #[must_use]
    pub fn overdraft(&self) -> u64 {
        match &*self.kind.plain() {
            Kind::Bucket(meter) => meter.overdraft(),
            _ => 0,
        }
    }

    /// For leased permits, how long a lease lasts.
    #[must_use]
    pub fn lease_ttl(&self) -> Option<Duration> {
        self.kind.as_leased().map(|leased| Duration::from_micros(leased.ttl_us()))
    }

    /// For staggered windows, how long after a multiple of the window those of `key` begin. Public
    /// arithmetic, the same in every store: see
    /// [`staggered_window::stagger_us`](crate::algorithm::staggered_window::stagger_us).
    #[must_use]
    pub fn stagger_us(&self, key: &[u8]) -> Option<u64> {
        match &*self.kind.plain() {
            Kind::StaggeredWindow(window) => Some(stagger_us(key, window.window_us())),
            _ => None,
        }
    }

    /// For calendar windows, what of the calendar they are.
    #[must_use]
    pub fn period(&self) -> Option<Period> {
        match &*self.kind.plain() {
            Kind::CalendarWindow(window) => Some(window.period()),
            _ => None,
        }
    }

    /// For calendar windows, how far their midnight is east of UTC.
    #[must_use]
    pub fn utc_offset_minutes(&self) -> Option<i32> {
        match &*self.kind.plain() {
            Kind::CalendarWindow(window) => Some(window.utc_offset_minutes()),
            _ => None,
        }
    }

    /// For sliding window counters, the unit in which time within a window is counted: 1 unless
    /// limit x window would reach 2<sup>53</sup>.
    #[must_use]
    pub fn sliding_granularity_us(&self) -> Option<u64> {
        match &*self.kind.plain() {
            Kind::SlidingWindow(window) => Some(window.tick_us()),
            _ => None,
        }
    }
}
