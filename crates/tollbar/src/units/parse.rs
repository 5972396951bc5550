//! The grammar of a rate: `NUMBER / [COUNT] UNIT` or `NUMBER per [COUNT] UNIT`.

use std::str::FromStr;

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
    /// The count before the unit, as in `15min`.
    #[error("`{count}` is not a whole number of windows: write digits such as the 15 of `15min`")]
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
    /// The window does not fit in 64 bits of microseconds.
    #[error("the window `{window}` is too long")]
    Window {
        /// The part that was too long.
        window: String,
    },
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let (number, window) = text
            .split_once('/')
            .or_else(|| text.split_once(" per "))
            .ok_or_else(|| RateError::Shape { text: shorten(text) })?;
        let (tokens, tokens_divisor) = parse_number(number.trim())?;
        let window_us = parse_window(window.trim())?;
        Ok(Self { tokens, tokens_divisor, window_us })
    }
}

impl TryFrom<&str> for Rate {
    type Error = RateError;

    fn try_from(text: &str) -> Result<Self, RateError> {
        text.parse()
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
fn parse_window(window: &str) -> Result<u64, RateError> {
    let unit_at = window.find(|c: char| !c.is_ascii_digit()).unwrap_or(window.len());
    let (count, unit) = window.split_at(unit_at);
    let unit_us = unit_us(unit.trim_start())?;
    let count: u64 = match count {
        "" => 1,
        digits => digits.parse().map_err(|_| RateError::Count { count: shorten(digits) })?,
    };
    count.checked_mul(unit_us).ok_or_else(|| RateError::Window { window: shorten(window) })
}

fn unit_us(unit: &str) -> Result<u64, RateError> {
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
            return Err(RateError::Unit { unit: shorten(unit) });
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
