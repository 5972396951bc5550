//! Points in time and rates, parsed once at the edge.
//!
//! A [`Timestamp`] is whole microseconds since 1970; a [`Rate`] is so many tokens in so long a
//! window. Neither knows an algorithm: a [`Policy`](crate::Policy) decides whether a rate fits.

mod parse;

#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::time::Duration;

pub use parse::{DurationError, RateError, parse_duration};

/// A point in time: whole microseconds since 1970-01-01 UTC.
///
/// Clocks run from [`ZERO`](Self::ZERO) to [`MAX`](Self::MAX), which is in the year 2077; a clock
/// that shows more is read as `MAX`. What is computed from a clock, such as when a counter resets,
/// may lie up to 35 years beyond, below 2<sup>52</sup>: so that a store keeps it in 52 bits, and
/// stores whose numbers are doubles (Redis and its Lua) count with the same integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const ZERO: Self = Self(0);
    /// The last instant a clock can show: 2077-01-12.
    pub const MAX: Self = Self((1 << 52) - (1 << 50) - 1);

    /// The instant `micros` after 1970; from 2<sup>53</sup> on, the last one before it.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        const LAST: u64 = (1 << 53) - 1;
        if micros > LAST { Self(LAST) } else { Self(micros) }
    }

    /// The instant, or [`MAX`](Self::MAX) if it is beyond what a clock can show.
    #[must_use]
    pub const fn clamp_to_clock(self) -> Self {
        if self.0 > Self::MAX.0 { Self::MAX } else { self }
    }

    /// Microseconds since 1970.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The time from `earlier` until this instant; zero where `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// The instant `later` after this one. Below a microsecond rounds down.
    #[must_use]
    pub fn after(self, later: Duration) -> Self {
        let later_us = u64::try_from(later.as_micros()).unwrap_or(u64::MAX);
        Self::from_micros(self.0.saturating_add(later_us))
    }
}

/// So many tokens in so long a window: `10/s`, `450/15min`, `0.5/s`.
///
/// ```
/// use tollbar::Rate;
/// # fn main() -> Result<(), tollbar::RateError> {
/// assert_eq!("10/s".parse::<Rate>()?, Rate::per_second(10));
/// assert_eq!("600 per 10 minutes".parse::<Rate>()?, "600/10min".parse()?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Tokens are `tokens / tokens_divisor`: 0.5 is 5 / 10.
    pub(crate) tokens: u64,
    pub(crate) tokens_divisor: u64,
    pub(crate) window_us: u64,
}

const SECOND_US: u64 = 1_000_000;

impl Rate {
    /// `limit` tokens in each `window`; a window is whole microseconds, a fraction rounds up.
    #[must_use]
    pub fn new(limit: u64, window: Duration) -> Self {
        let window_us = u64::try_from(window.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        Self::per(limit, window_us)
    }

    /// `limit` tokens a second.
    #[must_use]
    pub const fn per_second(limit: u64) -> Self {
        Self::per(limit, SECOND_US)
    }

    /// `limit` tokens a minute.
    #[must_use]
    pub const fn per_minute(limit: u64) -> Self {
        Self::per(limit, 60 * SECOND_US)
    }

    /// `limit` tokens an hour.
    #[must_use]
    pub const fn per_hour(limit: u64) -> Self {
        Self::per(limit, 3_600 * SECOND_US)
    }

    /// `limit` tokens in 24 hours.
    #[must_use]
    pub const fn per_day(limit: u64) -> Self {
        Self::per(limit, 86_400 * SECOND_US)
    }

    const fn per(limit: u64, window_us: u64) -> Self {
        Self { tokens: limit, tokens_divisor: 1, window_us }
    }
}

// Lets `Policy::token_bucket(impl TryInto<Rate>)` take a `Rate` as it is.
impl From<Infallible> for RateError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
