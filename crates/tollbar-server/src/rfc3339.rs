//! Instants and days as texts of RFC 3339, in UTC.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use thiserror::Error;
use tollbar::Timestamp;
use tollbar_rules::admin::parse_instant;

const DAY_US: u64 = 86_400_000_000;

/// An instant that is written as `2026-11-16T01:30:00.250Z`: milliseconds, rounded up, so that nobody
/// comes back too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instant(pub(crate) Timestamp);

/// The text of an [`Instant`], on the stack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Text([u8; 24]);

impl Instant {
    pub(crate) fn text(self) -> Text {
        let millis = self.0.as_micros().div_ceil(1_000);
        let (seconds, millis) = (millis / 1_000, millis % 1_000);
        let (days, of_day) = (seconds / 86_400, seconds % 86_400);
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
        let mut text = *b"0000-00-00T00:00:00.000Z";
        // Instants end in 2255, so a year has four digits.
        for (place, digits, mut value) in [
            (0, 4, year),
            (5, 2, month),
            (8, 2, day),
            (11, 2, hour),
            (14, 2, minute),
            (17, 2, second),
            (20, 3, millis),
        ] {
            for at in (place..place + digits).rev() {
                text[at] = b'0' + (value % 10) as u8;
                value /= 10;
            }
        }
        Text(text)
    }
}

impl Text {
    pub(crate) fn as_str(&self) -> &str {
        // Digits and signs, all of it.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl Serialize for Instant {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.text().as_str())
    }
}

/// A day, by days since 1970-01-01, that is written as `2026-11-16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Date(pub(crate) i32);

#[derive(Debug, Error, PartialEq, Eq)]
#[error("this is no day since 1970: write one such as 2026-11-16")]
pub(crate) struct DateError;

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil(u64::try_from(self.0).unwrap_or_default());
        write!(f, "{year:04}-{month:02}-{day:02}")
    }
}

impl Serialize for Date {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl FromStr for Date {
    type Err = DateError;

    fn from_str(text: &str) -> Result<Self, DateError> {
        let midnight = parse_instant(text).filter(|_| text.len() == "2026-11-16".len());
        let day = midnight.map(|it| Self((it.as_micros() / DAY_US) as i32));
        day.filter(|it| it.to_string() == text).ok_or(DateError)
    }
}

/// Year, month and day of the day so many days after 1970-01-01.
///
/// Counted in years that begin in March, so that a leap day is the last day of its year: day 0 of
/// the first such era of 400 years is 0000-03-01, 719,468 days before 1970.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(instant: Timestamp) -> String {
        Instant(instant).text().as_str().to_owned()
    }

    #[test]
    fn known_instants_are_written_as_calendars_have_them() {
        for (micros, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1, "1970-01-01T00:00:00.001Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000_000, "2000-03-01T00:00:00.000Z"),
            (1_709_251_199_999_001, "2024-03-01T00:00:00.000Z"),
            (1_735_689_599_500_000, "2024-12-31T23:59:59.500Z"),
            (4_102_444_800_000_000, "2100-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(text(Timestamp::from_micros(micros)), expected);
        }
        assert!(text(Timestamp::from_micros(u64::MAX)).starts_with("2255-06-05T"));
    }

    #[test]
    fn days_are_read_as_they_are_written_and_nothing_else_is() {
        for day in (0..100_000).step_by(17).chain([59, 60, 11_016, 11_017]) {
            assert_eq!(Date(day).to_string().parse(), Ok(Date(day)));
        }
        assert_eq!("2026-11-16".parse(), Ok(Date(20_773)));
        for text in [
            "",
            "2026-02-29",
            "2026-13-01",
            "2026-00-10",
            "2026-01-00",
            "1969-12-31",
            "2026-1-1",
            "2026-11-16T00:00:00Z",
            "+026-11-16",
            "2026/11/16",
            "é026-11-1",
        ] {
            assert_eq!(text.parse::<Date>(), Err(DateError), "{text}");
        }
    }
}
