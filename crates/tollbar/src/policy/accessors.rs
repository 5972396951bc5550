//! What can be read from a policy.

use std::time::Duration;

use super::{Kind, Policy};
use crate::algorithm::Algorithm;
use crate::algorithm::calendar_window::Period;
use crate::algorithm::debt::Interval;
use crate::algorithm::staggered_window::stagger_us;
use crate::units::Rate;

impl Policy {
    /// The name, where it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// What its name, algorithm and window come to: two policies with the same identity count together on one key,
    /// whatever their numbers. The same in every process of one version.
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.salt
    }

    /// Tokens per window.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.algorithm().limit()
    }

    /// The rate it was made with; `None` for permits and custom algorithms, which have none.
    #[must_use]
    pub fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// The window; zero for [concurrency](crate::Concurrency), which has none.
    #[must_use]
    pub fn window(&self) -> Duration {
        Duration::from_micros(self.algorithm().window_us())
    }

    /// The time that it takes to earn [`limit`](Self::limit) tokens: the [window](Self::window), unless
    /// the rate has a fraction of a token. Rounded up, so that the limit in this time is never faster
    /// than the rate.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollbar::Policy;
    /// # fn main() -> Result<(), tollbar::PolicyError> {
    /// let slow = Policy::token_bucket("0.01/s")?;
    /// assert_eq!((slow.limit(), slow.limit_window()), (1, Duration::from_secs(100)));
    /// assert_eq!(slow.window(), Duration::from_secs(1));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn limit_window(&self) -> Duration {
        match self.rate {
            Some(rate) if !rate.is_whole() => {
                // Below 2^110: the limit is at most tokens / divisor, or 1.
                let window = u128::from(rate.window_us) * u128::from(rate.tokens_divisor);
                let window_us = (window * u128::from(self.limit())).div_ceil(rate.tokens.into());
                Duration::from_micros(u64::try_from(window_us).unwrap_or(u64::MAX))
            }
            _ => self.window(),
        }
    }

    /// The largest cost that can ever pass: the burst of a bucket, one more than may wait in a queue,
    /// the limit of anything else.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.algorithm().capacity()
    }

    /// The algorithm, as a pure function. It knows no key, so of a [staggered](Self::with_stagger)
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

    /// The longest time for which a charge can still count under this policy's own numbers, rounded up:
    /// a bucket's whole debt, a queue's places, one window, two of a sliding window counter. A warm-up adds
    /// the time of its climb, at the rate of its first step. `None` for permits, which count until they are
    /// given back, and for algorithms of one's own.
    ///
    /// No denial asks to wait for longer, but for one by a counter that was written under other numbers or
    /// by a clock that was ahead of today's.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollbar::Policy;
    /// # fn main() -> Result<(), tollbar::PolicyError> {
    /// let policy = Policy::token_bucket("10/s")?.with_burst(50)?;
    /// assert_eq!(policy.memory(), Some(Duration::from_secs(5)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn memory(&self) -> Option<Duration> {
        let (slowest, climb_us) = match &self.kind {
            Kind::WarmUp(warming) => {
                let slowest = warming.rungs().intervals().and_then(|mut each| each.next());
                (slowest, warming.warm_up().over_us())
            }
            _ => (self.interval(), 0),
        };
        let window_us = self.algorithm().window_us();
        let memory_us = match &*self.kind.plain() {
            Kind::Bucket(_) | Kind::LeakyQueue(_) => {
                let Interval { numerator_us, denominator } = slowest?;
                let beyond = match &self.kind {
                    Kind::LeakyQueue(queue) => queue.reserved(),
                    _ => self.overdraft(),
                };
                let tokens = u128::from(self.capacity()) + u128::from(beyond);
                let debt_us = (tokens * u128::from(numerator_us)).div_ceil(denominator.into());
                u64::try_from(debt_us).unwrap_or(u64::MAX)
            }
            Kind::CalendarWindow(window) => window.period().longest_us(),
            Kind::FixedWindow(_) | Kind::StaggeredWindow(_) | Kind::SlidingLog(_) => window_us,
            Kind::SlidingWindow(_) => window_us.saturating_mul(2),
            Kind::SlidingStrict(window) => {
                let parts = u64::from(window.subwindows());
                // As long as the store's sub-windows, which are rounded up.
                window_us.div_ceil(parts).saturating_mul(parts + 1)
            }
            Kind::Concurrency(_) | Kind::Leased(_) | Kind::Custom(_) | Kind::WarmUp(_) => {
                return None;
            }
        };
        Some(Duration::from_micros(memory_us.saturating_add(climb_us)))
    }

    /// For queues, how many may wait.
    #[must_use]
    pub fn queue_length(&self) -> Option<u64> {
        match &*self.kind.plain() {
            Kind::LeakyQueue(queue) => Some(queue.length()),
            _ => None,
        }
    }

    /// For queues that have one, the longest wait.
    #[must_use]
    pub fn max_wait(&self) -> Option<Duration> {
        match &*self.kind.plain() {
            Kind::LeakyQueue(queue) => queue.wait_us_max().map(Duration::from_micros),
            _ => None,
        }
    }

    /// For strict sliding windows, in how many parts they are counted.
    #[must_use]
    pub fn subwindows(&self) -> Option<u32> {
        match &*self.kind.plain() {
            Kind::SlidingStrict(window) => Some(window.subwindows()),
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
