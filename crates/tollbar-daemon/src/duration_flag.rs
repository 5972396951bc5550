//! A time as people write it behind a flag: `500ms`, `30s`, `5min`. The units are those of limits.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;
use tollbar::parse_duration;

/// How long something takes or is waited for: a millisecond to a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurationFlag(pub Duration);

const DURATION_MIN: Duration = Duration::from_millis(1);
const DURATION_MAX: Duration = Duration::from_hours(24);

#[derive(Debug, Error, PartialEq, Eq)]
#[error("this is no time of 1ms to 24h: write one such as 500ms, 30s or 5min")]
pub struct DurationFlagError;

impl FromStr for DurationFlag {
    type Err = DurationFlagError;

    fn from_str(text: &str) -> Result<Self, DurationFlagError> {
        let span = parse_duration(text).map_err(|_| DurationFlagError)?;
        if (DURATION_MIN..=DURATION_MAX).contains(&span) {
            Ok(Self(span))
        } else {
            Err(DurationFlagError)
        }
    }
}

impl fmt::Display for DurationFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_millis() {
            ms if !ms.is_multiple_of(1_000) => write!(f, "{ms}ms"),
            ms if ms.is_multiple_of(3_600_000) => write!(f, "{}h", ms / 3_600_000),
            ms if ms.is_multiple_of(60_000) => write!(f, "{}min", ms / 60_000),
            ms => write!(f, "{}s", ms / 1_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for text in ["1ms", "1500ms", "30s", "90s", "5min", "24h"] {
            assert_eq!(text.parse::<DurationFlag>().unwrap().to_string(), text);
        }
        for text in ["", "0s", "5", "-1s", "25h", "1us", "1/s", "99999999999999999999s"] {
            assert_eq!(text.parse::<DurationFlag>(), Err(DurationFlagError), "{text}");
        }
    }
}
