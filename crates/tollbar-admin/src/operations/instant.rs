//! Instants that people send.

use tollbar::Timestamp;
use tollbar_rules::admin::parse_instant;

use tollbar_daemon::problem::Problem;
use tollbar_daemon::rfc3339::Date;

const DAY_US: u64 = 86_400_000_000;

/// Parses an instant in the future; `None` if none was sent.
pub(crate) fn parse_future(
    field: &str,
    text: Option<&str>,
    now: Timestamp,
) -> Result<Option<Timestamp>, Problem> {
    let Some(text) = text else {
        return Ok(None);
    };
    let instant = parse_instant(text).ok_or_else(|| {
        Problem::invalid_field(
            field,
            "this is no instant: send one such as \"2027-01-01T12:00:00Z\"",
        )
    })?;
    if instant <= now {
        return Err(Problem::invalid_field(field, "this is in the past: send a later instant"));
    }
    Ok(Some(instant))
}

/// The day of an instant, in UTC.
pub(crate) fn day_of(instant: Timestamp) -> Date {
    Date(i32::try_from(instant.as_micros() / DAY_US).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_to_come_is_a_future() {
        let now = parse_instant("2026-11-16T00:00:00Z").unwrap();
        assert_eq!(day_of(now).to_string(), "2026-11-16");
        assert_eq!(parse_future("expiresAt", None, now), Ok(None));
        assert!(matches!(
            parse_future("expiresAt", Some("2026-11-16T00:00:01Z"), now),
            Ok(Some(_))
        ));
        for text in ["2026-11-16T00:00:00Z", "1999-01-01", "tomorrow", ""] {
            assert!(parse_future("expiresAt", Some(text), now).is_err(), "{text}");
        }
    }
}
