//! Dates as people write them: `2027-01-01`, `2027-01-01T12:00:00Z`, `2027-01-01T12:00:00+02:00`. And as they read
//! them: `1 Jan 2027, 12:00 UTC`.

use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::Offset;
use tollbar::{Timestamp, readable_duration};

/// The instant a text means; a date alone is its first instant in UTC. `None` for anything else,
/// and for what is before 1970. What is smaller than a microsecond is left out.
#[must_use]
#[cfg_attr(
    not(feature = "admin"),
    expect(unreachable_pub, reason = "public with the feature `admin`")
)]
pub fn parse_instant(text: &str) -> Option<Timestamp> {
    let signs = |places: &[(usize, u8)]| {
        places.iter().all(|(at, sign)| text.as_bytes().get(*at) == Some(sign))
    };
    // jiff knows more of ISO 8601 than people write on purpose: `20270101`, for example.
    if !signs(&[(4, b'-'), (7, b'-')]) {
        return None;
    }
    let instant = if text.len() == "2027-01-01".len() {
        Offset::UTC.to_timestamp(text.parse::<Date>().ok()?.at(0, 0, 0, 0)).ok()?
    } else if signs(&[(13, b':'), (16, b':')]) {
        text.parse::<jiff::Timestamp>().ok()?
    } else {
        return None;
    };
    u64::try_from(instant.as_microsecond()).ok().map(Timestamp::from_micros)
}

/// An instant as a text that reads as it: `2027-01-01T12:00:00Z`, with a fraction where it has one.
#[cfg(any(test, feature = "admin"))]
pub(crate) fn instant_text(instant: Timestamp) -> String {
    // Instants end in 2255, where jiff's do not.
    let micros = instant.as_micros().cast_signed();
    jiff::Timestamp::from_microsecond(micros).unwrap_or_default().to_string()
}

/// Returns an instant as people read it, rounded up to the minute: `1 Dec 2026, 00:00 UTC`.
#[must_use]
pub fn readable_instant(instant: Timestamp) -> String {
    const MINUTE_US: u64 = 60_000_000;
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    // Instants end in 2255, where jiff's do not.
    let micros = instant.as_micros().div_ceil(MINUTE_US) * MINUTE_US;
    let at = jiff::Timestamp::from_microsecond(micros.cast_signed()).unwrap_or_default();
    let at = Offset::UTC.to_datetime(at);
    let month = MONTHS[usize::from(at.month().unsigned_abs() - 1)];
    format!("{} {month} {}, {:02}:{:02} UTC", at.day(), at.year(), at.hour(), at.minute())
}

/// How much later than its decision a denial is recorded, at most.
const READING_SLACK: Duration = Duration::from_secs(1);

/// Returns how long a wait from `start` on lasts, for people: `9 s`, `5 min`, `14 days (until 1 Dec 2026, 00:00 UTC)`. A
/// wait of two hours and more is rounded down, because its end is there too.
#[must_use]
pub fn readable_wait(wait: Duration, start: Timestamp) -> String {
    let roughly = match wait.as_secs() {
        ..7_200 => return readable_duration(wait),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    };
    // A denial is recorded a little after it was decided. Without the slack, a wait until midnight would be until 00:01.
    let end = start.after(wait.saturating_sub(READING_SLACK));
    format!("{roughly} (until {})", readable_instant(end))
}

/// `+05:30` as minutes east of UTC; `Z` is none.
pub(crate) fn parse_offset(text: &str) -> Option<i32> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'+' => (1, &text[1..]),
        b'-' => (-1, &text[1..]),
        b'Z' if text.len() == 1 => return Some(0),
        _ => return None,
    };
    let (hours, minutes) = digits.split_once(':')?;
    let number = |part: &str| {
        let is_number = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| part.parse::<i32>().ok())?
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    (minutes < 60).then_some(sign * (hours * 60 + minutes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_times_are_instants() {
        let table = [
            ("1970-01-01", Some(0)),
            ("2000-03-01", Some(951_868_800)),
            ("2024-02-29", Some(1_709_164_800)),
            ("2027-01-01", Some(1_798_761_600)),
            ("2027-01-01T00:00:01Z", Some(1_798_761_601)),
            ("2027-01-01T02:00:00+02:00", Some(1_798_761_600)),
            ("2026-12-31 18:30:00-05:30", Some(1_798_761_600)),
            ("2027-01-01t00:00:01z", Some(1_798_761_601)),
            ("20270101", None),
            ("20270101T000001Z", None),
            ("2027-01-01T00Z", None),
            ("2027-02-29", None),
            ("2027-13-01", None),
            ("2027-00-01", None),
            ("2027-01-00", None),
            ("1969-12-31", None),
            ("2027-1-1", None),
            ("27-01-01", None),
            ("2027-01-01T24:00:00Z", None),
            ("2027-01-01T12:00:00", None),
            ("tomorrow", None),
            ("", None),
        ];
        for (text, seconds) in table {
            let micros = parse_instant(text).map(Timestamp::as_micros);
            assert_eq!(micros, seconds.map(|seconds: u64| seconds * 1_000_000), "{text}");
        }
    }

    #[test]
    fn fractions_are_microseconds() {
        let micros = |text: &str| parse_instant(text).map(Timestamp::as_micros);
        assert_eq!(micros("1970-01-01T00:00:01.5Z"), Some(1_500_000));
        assert_eq!(micros("1970-01-01T00:00:01.000Z"), Some(1_000_000));
        assert_eq!(micros("1970-01-01T00:00:01.0000019+00:00"), Some(1_000_001));
        for text in
            ["1970-01-01T00:00:01.Z", "1970-01-01T00:00:01.1234567890Z", "1970-01-01T00:00.5Z"]
        {
            assert_eq!(micros(text), None, "{text}");
        }
    }

    #[test]
    fn an_instant_is_written_as_it_reads() {
        let text = |seconds: u64| instant_text(Timestamp::from_micros(seconds * 1_000_000));
        assert_eq!(text(0), "1970-01-01T00:00:00Z");
        assert_eq!(text(1_709_164_800), "2024-02-29T00:00:00Z");
        assert_eq!(text(1_709_251_199), "2024-02-29T23:59:59Z");
        // Every day of four hundred years, and the ends of the calendar that has four digits.
        for day in (0..146_097).chain([2_932_896]) {
            let instant = Timestamp::from_micros(day * 86_400_000_000 + 43_200_000_001);
            assert_eq!(parse_instant(&instant_text(instant)), Some(instant), "{day}");
        }
        let _ = instant_text(Timestamp::MAX);
    }

    #[test]
    fn people_read_a_wait_with_its_end_where_it_is_long() {
        let monday = parse_instant("2026-11-16T19:17:14.093Z").unwrap();
        for (wait_ms, text) in [
            (250, "250 ms"),
            (9_000, "9 s"),
            (300_001, "6 min"),
            (7_200_000, "2 h (until 16 Nov 2026, 21:18 UTC)"),
            (1_226_565_907, "14 days (until 1 Dec 2026, 00:00 UTC)"),
            (1_226_566_907, "14 days (until 1 Dec 2026, 00:00 UTC)"),
            (1_226_566_908, "14 days (until 1 Dec 2026, 00:01 UTC)"),
        ] {
            assert_eq!(readable_wait(Duration::from_millis(wait_ms), monday), text);
        }
        let _ = readable_wait(Duration::MAX, Timestamp::MAX);
    }

    #[test]
    fn offsets_are_minutes_to_the_east() {
        let table = [
            ("+05:30", Some(330)),
            ("-08:00", Some(-480)),
            ("Z", Some(0)),
            ("+5:30", None),
            ("+05:60", None),
            ("05:30", None),
            ("", None),
            ("é", None),
        ];
        for (text, minutes) in table {
            assert_eq!(parse_offset(text), minutes, "{text}");
        }
    }
}
