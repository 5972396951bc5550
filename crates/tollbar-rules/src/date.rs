//! Dates as people write them: `2027-01-01`, `2027-01-01T12:00:00Z`, `2027-01-01T12:00:00+02:00`.

use tollbar::Timestamp;

const DAY_S: i64 = 86_400;

/// The instant a text means; a date alone is its first instant in UTC. `None` for anything else,
/// and for what is before 1970.
#[must_use]
#[cfg_attr(
    not(feature = "admin"),
    expect(unreachable_pub, reason = "public with the feature `admin`")
)]
pub fn parse_instant(text: &str) -> Option<Timestamp> {
    let (date, time) = match text.split_once(['T', 't', ' ']) {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let days = days_since_1970(year, month, day)?;
    let (second_of_day, micros) = match time {
        None => (0, 0),
        Some(time) => time_of_day(time)?,
    };
    let seconds = u64::try_from(days * DAY_S + second_of_day).ok()?;
    Some(Timestamp::from_micros(seconds.checked_mul(1_000_000)? + micros))
}

/// An instant as a text that reads as it: `2027-01-01T12:00:00Z`, with a fraction where it has one.
pub(crate) fn instant_text(instant: Timestamp) -> String {
    let (seconds, micros) = (instant.as_micros() / 1_000_000, instant.as_micros() % 1_000_000);
    let (days, second) = ((seconds / 86_400).cast_signed(), seconds % 86_400);
    // No year is longer, so this is not after the day; it is a few years before at most.
    let mut year = 1970 + days / 366;
    while days_since_1970(year + 1, 1, 1).is_some_and(|next| next <= days) {
        year += 1;
    }
    let begins = |month| days_since_1970(year, month, 1).filter(|begin| *begin <= days);
    let last = (1..=12).rev().find_map(|month| Some((month, begins(month)?)));
    let (month, begin) = last.unwrap_or((1, days));
    let day = days - begin + 1;
    let fraction = if micros == 0 { String::new() } else { format!(".{micros:06}") };
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// `12:00:00.5+02:00` as seconds after midnight in UTC, which may be on another day, and the rest in
/// microseconds.
fn time_of_day(time: &str) -> Option<(i64, u64)> {
    let zone_at = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(zone_at);
    let (clock, micros) = match clock.split_once('.') {
        Some((clock, fraction)) => (clock, micros_of(fraction)?),
        None => (clock, 0),
    };
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
    let is_time = hour < 24 && minute < 60 && second < 60;
    let offset_minutes = match zone {
        "Z" | "z" => 0,
        zone => parse_offset(zone)?,
    };
    let seconds = hour * 3_600 + minute * 60 + second - i64::from(offset_minutes) * 60;
    is_time.then_some((seconds, micros))
}

/// `25` of `.25` as microseconds; what is smaller is left out.
fn micros_of(fraction: &str) -> Option<u64> {
    let is_fraction =
        (1..=9).contains(&fraction.len()) && fraction.bytes().all(|byte| byte.is_ascii_digit());
    if !is_fraction {
        return None;
    }
    format!("{fraction:0<6.6}").parse().ok()
}

/// `+05:30` as minutes east of UTC; `Z` is none.
pub(crate) fn parse_offset(text: &str) -> Option<i32> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'+' => (1, &text[1..]),
        b'-' => (-1, &text[1..]),
        b'Z' if text.len() == 1 => return Some(0),
        _ => return None,
    };
    let [hours, minutes] = numbers(digits, ':', [2, 2])?;
    (minutes < 60).then_some(sign * (hours * 60 + minutes) as i32)
}

/// Exactly so many numbers of exactly so many digits.
fn numbers<const N: usize>(text: &str, between: char, digits: [usize; N]) -> Option<[i64; N]> {
    let mut numbers = [0; N];
    let mut parts = text.split(between);
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part = parts.next()?;
        if part.len() != digits || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

/// Days from 1970-01-01 to a date that exists. Years begin in March here, so that the day that not
/// every year has is the last: 2024-02-29 is day 365 of the year that began on 2023-03-01.
fn days_since_1970(year: i64, month: i64, day: i64) -> Option<i64> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_in_month = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        _ => return None,
    };
    if !(1..=days_in_month).contains(&day) {
        return None;
    }
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    // 153 days are five months from March on: 31, 30, 31, 30, 31. Rounds down on purpose.
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
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
