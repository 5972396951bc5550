//! Instants and days as texts of RFC 3339, in UTC.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use jiff::tz::Offset;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::{Serialize, Serializer};
use thiserror::Error;
use tollbar::Timestamp;
use tollbar_rules::admin::parse_instant;

const DAY_S: i64 = 86_400;

/// An instant that is written as `2026-11-16T01:30:00.250Z`: milliseconds, rounded up, so that nobody
/// comes back too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rfc3339(pub Timestamp);

/// The text of an [`Rfc3339`], on the stack.
#[derive(Debug, Clone, Copy)]
pub struct Rfc3339Text([u8; 24]);

impl Rfc3339 {
    pub fn text(self) -> Rfc3339Text {
        // Instants end in 2255, where jiff's do not, so a year has four digits.
        let millis = self.0.as_micros().div_ceil(1_000).cast_signed();
        let instant = jiff::Timestamp::from_millisecond(millis).unwrap_or_default();
        let at = Offset::UTC.to_datetime(instant);
        let mut text = *b"0000-00-00T00:00:00.000Z";
        for (place, digits, mut value) in [
            (0, 4, at.year()),
            (5, 2, at.month().into()),
            (8, 2, at.day().into()),
            (11, 2, at.hour().into()),
            (14, 2, at.minute().into()),
            (17, 2, at.second().into()),
            (20, 3, at.millisecond()),
        ] {
            for at in (place..place + digits).rev() {
                text[at] = b'0' + (value % 10).cast_unsigned() as u8;
                value /= 10;
            }
        }
        Rfc3339Text(text)
    }
}

impl Rfc3339Text {
    pub fn as_str(&self) -> &str {
        // Digits and signs, all of it.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl Serialize for Rfc3339 {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.text().as_str())
    }
}

impl<'de> Deserialize<'de> for Rfc3339 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let wrong = || D::Error::custom(format_args!("`{text}` is not an instant"));
        parse_instant(&text).map(Self).ok_or_else(wrong)
    }
}

impl JsonSchema for Rfc3339 {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Instant".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

/// Writes an instant of a row as an [`Rfc3339`].
pub fn write<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    Rfc3339(*at).serialize(to)
}

/// Writes an instant that may be absent.
pub fn write_option<S: Serializer>(at: &Option<Timestamp>, to: S) -> Result<S::Ok, S::Error> {
    at.map(Rfc3339).serialize(to)
}

/// A day, by days since 1970-01-01, that is written as `2026-11-16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date(pub i32);

#[derive(Debug, Error, PartialEq, Eq)]
#[error("this is no day since 1970: write one such as 2026-11-16")]
pub struct DateError;

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let midnight = jiff::Timestamp::from_second(i64::from(self.0) * DAY_S).unwrap_or_default();
        Offset::UTC.to_datetime(midnight).date().fmt(f)
    }
}

/// Writes a day of a row as a [`Date`].
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
pub(crate) fn write_day<S: Serializer>(day: &i32, to: S) -> Result<S::Ok, S::Error> {
    Date(*day).serialize(to)
}

impl JsonSchema for Date {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Date".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date" })
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
        let date = text.parse::<jiff::civil::Date>().map_err(|_| DateError)?;
        // jiff takes other ways to write a day as well.
        let midnight = Offset::UTC.to_timestamp(date.at(0, 0, 0, 0)).map_err(|_| DateError)?;
        let day = Self((midnight.as_second() / DAY_S) as i32);
        if day.0 >= 0 && day.to_string() == text { Ok(day) } else { Err(DateError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(instant: Timestamp) -> String {
        Rfc3339(instant).text().as_str().to_owned()
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
