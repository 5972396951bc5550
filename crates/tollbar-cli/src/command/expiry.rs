//! Until when something lasts, as people write it: an instant, a day, or a time from now.

use std::str::FromStr;

use tollbar::{Clock, SystemClock, Timestamp, parse_duration};

use tollbar_daemon::rfc3339::{Date, Rfc3339};

/// An instant, as the admin interface takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Expiry(pub(super) String);

impl FromStr for Expiry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::read(text, SystemClock::new().now())
            .ok_or_else(|| "write a time from now such as 2h or 30d, a day such as 2027-01-01, or an instant such as 2027-01-01T12:00:00Z".to_owned())
    }
}

impl Expiry {
    fn read(text: &str, now: Timestamp) -> Option<Self> {
        if text.parse::<Date>().is_ok() {
            return Some(Self(format!("{text}T00:00:00Z")));
        }
        if text.contains('T') {
            // The daemon says what is wrong with it, if something is.
            return Some(Self(text.to_owned()));
        }
        let end = now.after(parse_duration(text).ok()?);
        Some(Self(Rfc3339(end).text().as_str().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_days_and_times_from_now_are_taken() {
        let now = Timestamp::from_micros(20_773 * 86_400_000_000);
        for (text, expected) in [
            ("2h", "2026-11-16T02:00:00.000Z"),
            ("30d", "2026-12-16T00:00:00.000Z"),
            ("2027-01-01", "2027-01-01T00:00:00Z"),
            ("2027-01-01T12:00:00Z", "2027-01-01T12:00:00Z"),
        ] {
            assert_eq!(Expiry::read(text, now), Some(Expiry(expected.to_owned())), "{text}");
        }
        for text in ["", "soon", "2027-13-01", "-1h", "0s"] {
            assert_eq!(Expiry::read(text, now), None, "{text}");
        }
    }
}
