//! Dates as people write them: `2027-01-01`, `2027-01-01T12:00:00Z`, `2027-01-01T12:00:00+02:00`.

use tollbar::Timestamp;

const DAY_S: i64 = 86_400;

/// The instant a text means; a date alone is its first instant in UTC. `None` for anything else,
/// and for what is before 1970.
pub(crate) fn parse_instant(text: &str) -> Option<Timestamp> {
    let (date, time) = match text.split_once(['T', 't', ' ']) {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let days = days_since_1970(year, month, day)?;
    let second_of_day = match time {
        None => 0,
        Some(time) => second_of_day(time)?,
    };
    let seconds = u64::try_from(days * DAY_S + second_of_day).ok()?;
    Some(Timestamp::from_micros(seconds.checked_mul(1_000_000)?))
}

/// `12:00:00+02:00` as seconds after midnight in UTC, which may be on another day.
fn second_of_day(time: &str) -> Option<i64> {
    let zone_at = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(zone_at);
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
    let is_time = hour < 24 && minute < 60 && second < 60;
    let offset_minutes = match zone {
        "Z" | "z" => 0,
        zone => parse_offset(zone)?,
    };
    is_time.then_some(hour * 3_600 + minute * 60 + second - i64::from(offset_minutes) * 60)
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
