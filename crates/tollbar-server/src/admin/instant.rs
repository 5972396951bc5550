//! Instants and days that people send, and how days are written.

use tollbar::Timestamp;
use tollbar_rules::admin::parse_instant;

use super::problem::Problem;
use crate::rfc3339::Instant;

const DAY_US: u64 = 86_400_000_000;

/// An instant that has not been yet; none where none was sent.
pub(crate) fn future(
    field: &str,
    sent: Option<&str>,
    now: Timestamp,
) -> Result<Option<Timestamp>, Problem> {
    let Some(sent) = sent else {
        return Ok(None);
    };
    let instant = parse_instant(sent).ok_or_else(|| {
        Problem::invalid_field(field, "this is no instant: send one such as \"2027-01-01T12:00:00Z\"")
    })?;
    if instant <= now {
        return Err(Problem::invalid_field(field, "this is in the past: send a later instant"));
    }
    Ok(Some(instant))
}

/// A day in UTC, by days since 1970-01-01.
pub(crate) fn day(text: &str) -> Option<i32> {
    let instant = parse_instant(text).filter(|_| text.len() == "2026-11-16".len())?;
    i32::try_from(instant.as_micros() / DAY_US).ok()
}

/// The day of an instant.
pub(crate) fn day_of(instant: Timestamp) -> i32 {
    i32::try_from(instant.as_micros() / DAY_US).unwrap_or(i32::MAX)
}

/// `2026-11-16`.
pub(crate) fn day_text(day: i32) -> String {
    let micros = u64::try_from(day).unwrap_or_default().saturating_mul(DAY_US);
    let text = Instant(Timestamp::from_micros(micros)).text();
    text.as_str().get(..10).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_read_as_it_is_written_and_nothing_else_is() {
        for text in ["1970-01-01", "2024-02-29", "2026-11-16"] {
            assert_eq!(day(text).map(day_text).as_deref(), Some(text));
        }
        for text in ["", "2026-13-01", "2026-02-29", "2026-11-16T00:00:00Z", "20261116", "2026-1-1"] {
            assert_eq!(day(text), None, "{text}");
        }
        assert_eq!(day_text(-1), "1970-01-01");
    }

    #[test]
    fn only_what_is_to_come_is_a_future() {
        let now = parse_instant("2026-11-16T00:00:00Z").unwrap();
        assert_eq!(future("expiresAt", None, now), Ok(None));
        assert!(matches!(future("expiresAt", Some("2026-11-16T00:00:01Z"), now), Ok(Some(_))));
        for sent in ["2026-11-16T00:00:00Z", "1999-01-01", "tomorrow", ""] {
            assert!(future("expiresAt", Some(sent), now).is_err(), "{sent}");
        }
    }
}
