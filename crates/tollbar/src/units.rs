//! Points in time and rates, parsed once at the edge.
//!
//! A [`Timestamp`] is whole microseconds since 1970; a [`Rate`] is so many tokens in so long a
//! window. Neither knows an algorithm: a [`Policy`](crate::Policy) decides whether a rate fits.

pub(crate) mod date;
mod parse;
mod readable;

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::units::date::Date;

pub use parse::{DurationError, RateError, parse_duration};
pub use readable::readable_duration;

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

    /// The instant `secs` after 1970.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self::from_micros(secs.saturating_mul(SECOND_US))
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

impl Add<Duration> for Timestamp {
    type Output = Self;

    /// The instant `later` after this one, as [`after`](Self::after).
    fn add(self, later: Duration) -> Self {
        self.after(later)
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    /// The instant `earlier` before this one, and no earlier than 1970.
    fn sub(self, earlier: Duration) -> Self {
        let earlier_us = u64::try_from(earlier.as_micros()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(earlier_us))
    }
}

impl Sub for Timestamp {
    type Output = Duration;

    /// The time from `earlier` until this instant, as [`since`](Self::since).
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

impl From<SystemTime> for Timestamp {
    /// Below a microsecond rounds down; before 1970 is 1970.
    fn from(time: SystemTime) -> Self {
        Self::ZERO.after(time.duration_since(UNIX_EPOCH).unwrap_or_default())
    }
}

impl From<Timestamp> for SystemTime {
    fn from(instant: Timestamp) -> Self {
        UNIX_EPOCH + Duration::from_micros(instant.0)
    }
}

impl fmt::Display for Timestamp {
    /// As RFC 3339 has it, in UTC: `2023-11-14T22:13:20Z`, with a fraction where there is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (secs, micros) = (self.0 / SECOND_US, self.0 % SECOND_US);
        let (days, of_day) = (secs / 86_400, secs % 86_400);
        let Date { year, month, day } = Date::from_days(days.cast_signed());
        let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        match micros {
            0 => f.write_str("Z"),
            micros => write!(f, ".{micros:06}Z"),
        }
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

impl fmt::Display for Rate {
    /// As it can be written: `10/s`, `450/15min`, `0.5/s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 6] = [
            ("day", 86_400 * SECOND_US),
            ("h", 3_600 * SECOND_US),
            ("min", 60 * SECOND_US),
            ("s", SECOND_US),
            ("ms", 1_000),
            ("us", 1),
        ];
        let (whole, part) = (self.tokens / self.tokens_divisor, self.tokens % self.tokens_divisor);
        write!(f, "{whole}")?;
        if part > 0 {
            let digits = self.tokens_divisor.ilog10() as usize;
            let part = format!("{part:0digits$}");
            write!(f, ".{}", part.trim_end_matches('0'))?;
        }
        let fits = |unit: &&(&str, u64)| self.window_us.is_multiple_of(unit.1);
        match UNITS.iter().find(fits) {
            Some((unit, unit_us)) if self.window_us == *unit_us => write!(f, "/{unit}"),
            Some((unit, unit_us)) => write!(f, "/{}{unit}", self.window_us / unit_us),
            None => write!(f, "/{}us", self.window_us),
        }
    }
}

/// What a policy takes as its rate: a [`Rate`], a text such as `"10/s"`, or a number and a window.
///
/// ```
/// use std::time::Duration;
/// use tollbar::{Policy, Rate};
/// # fn main() -> Result<(), tollbar::PolicyError> {
/// let configured = String::from("10/s");
/// Policy::token_bucket("10/s")?;
/// Policy::token_bucket(configured)?;
/// Policy::token_bucket(Rate::per_second(10))?;
/// Policy::token_bucket((10, Duration::from_secs(1)))?;
/// # Ok(())
/// # }
/// ```
pub trait IntoRate: sealed::Sealed {
    /// The rate, if it is one.
    ///
    /// # Errors
    /// If a text is no rate; the error says what to write instead.
    fn into_rate(self) -> Result<Rate, RateError>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Rate {}
    impl Sealed for &str {}
    impl Sealed for String {}
    impl Sealed for &String {}
    impl Sealed for (u64, std::time::Duration) {}
}

impl IntoRate for Rate {
    fn into_rate(self) -> Result<Rate, RateError> {
        Ok(self)
    }
}

impl IntoRate for &str {
    fn into_rate(self) -> Result<Rate, RateError> {
        self.parse()
    }
}

impl IntoRate for String {
    fn into_rate(self) -> Result<Rate, RateError> {
        self.parse()
    }
}

impl IntoRate for &String {
    fn into_rate(self) -> Result<Rate, RateError> {
        self.parse()
    }
}

impl IntoRate for (u64, Duration) {
    fn into_rate(self) -> Result<Rate, RateError> {
        Ok(Rate::new(self.0, self.1))
    }
}
