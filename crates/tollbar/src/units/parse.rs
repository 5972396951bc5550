//! The grammar of a duration, `[COUNT] UNIT`, and of a rate, `NUMBER / DURATION` or `NUMBER per DURATION`.

use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use super::{Rate, SECOND_US};

/// Why a text is not a rate. Says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RateError {
    /// Neither `/` nor `per` stands between the number and the window.
    #[error(
        "`{text}` is not a rate: write a number, `/` and a window, such as `10/s` or `450/15min`"
    )]
    Shape {
        /// The whole text.
        text: String,
    },
    /// The number before the `/`.
    #[error(
        "`{number}` is not a number of tokens: write digits such as `10`, `1_000` or `0.5` \
         (at most 18 digits, 9 of them after the point)"
    )]
    Number {
        /// The part that was not understood.
        number: String,
    },
    /// The window after the `/`.
    #[error(transparent)]
    Window(#[from] DurationError),
}

/// Why a text is not a duration. Says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DurationError {
    /// The count before the unit, as in `15min`.
    #[error("`{count}` is not a whole number: write digits such as the 15 of `15min`")]
    Count {
        /// The part that was not understood.
        count: String,
    },
    /// The unit.
    #[error(
        "`{unit}` is not a unit of time: write us, ms, s, min, h, day, week or month \
         (30 days); a bare `m` could be either, so it is none"
    )]
    Unit {
        /// The part that was not understood.
        unit: String,
    },
    /// It does not fit in 64 bits of microseconds.
    #[error("`{text}` is too long a time")]
    TooLong {
        /// The whole text.
        text: String,
    },
    /// It is zero.
    #[error("`{text}` is no time at all: write at least `1us`")]
    Zero {
        /// The whole text.
        text: String,
    },
}

/// A duration as people write it, such as `500ms`, `15min` or `2 days`: a count and a unit, or a unit alone
/// for one of it. The units are those of a [`Rate`]; it is never zero.
///
/// ```
/// # fn main() -> Result<(), tollbar::DurationError> {
/// assert_eq!(tollbar::parse_duration("15min")?, std::time::Duration::from_mins(15));
/// # Ok(())
/// # }
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    match parse_micros(text.trim())? {
        0 => Err(DurationError::Zero { text: shorten(text) }),
        micros => Ok(Duration::from_micros(micros)),
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let (number, window) = text
            .split_once('/')
            .or_else(|| text.split_once(" per "))
            .ok_or_else(|| RateError::Shape { text: shorten(text) })?;
        let (tokens, tokens_divisor) = parse_number(number.trim())?;
        let window_us = parse_micros(window.trim())?;
        Ok(Self { tokens, tokens_divisor, window_us })
    }
}

/// `2.50` becomes (250, 100): exact, never a float.
fn parse_number(number: &str) -> Result<(u64, u64), RateError> {
    let refuse = || RateError::Number { number: shorten(number) };
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if (1..=9).contains(&fraction.len()) => (whole, fraction),
        Some(_) => return Err(refuse()),
        None => (number, ""),
    };
    if !whole.starts_with(|first: char| first.is_ascii_digit()) || whole.ends_with('_') {
        return Err(refuse());
    }
    let mut tokens: u64 = 0;
    let mut digit_count = 0;
    for byte in whole.bytes().filter(|byte| *byte != b'_').chain(fraction.bytes()) {
        digit_count += 1;
        if !byte.is_ascii_digit() || digit_count > 18 {
            return Err(refuse());
        }
        tokens = tokens * 10 + u64::from(byte - b'0');
    }
    Ok((tokens, 10_u64.pow(fraction.len() as u32)))
}

/// `15min` becomes 900,000,000 microseconds; `s` alone is one second.
fn parse_micros(text: &str) -> Result<u64, DurationError> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (count, unit) = text.split_at(unit_at);
    let unit_us = unit_us(unit.trim_start())?;
    let count: u64 = match count {
        "" => 1,
        digits => digits.parse().map_err(|_| DurationError::Count { count: shorten(digits) })?,
    };
    count.checked_mul(unit_us).ok_or_else(|| DurationError::TooLong { text: shorten(text) })
}

fn unit_us(unit: &str) -> Result<u64, DurationError> {
    Ok(match unit {
        "us" | "microsecond" | "microseconds" => 1,
        "ms" | "millisecond" | "milliseconds" => 1_000,
        "s" | "sec" | "second" | "seconds" => SECOND_US,
        "min" | "minute" | "minutes" => 60 * SECOND_US,
        "h" | "hour" | "hours" => 3_600 * SECOND_US,
        "d" | "day" | "days" => 86_400 * SECOND_US,
        "w" | "week" | "weeks" => 7 * 86_400 * SECOND_US,
        "month" | "months" => 30 * 86_400 * SECOND_US,
        "year" | "years" => 365 * 86_400 * SECOND_US,
        _ => {
            return Err(DurationError::Unit { unit: shorten(unit) });
        }
    })
}

/// Error messages quote at most this much of what they were given.
const QUOTE_CHARS_MAX: usize = 40;

fn shorten(text: &str) -> String {
    match text.char_indices().nth(QUOTE_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
