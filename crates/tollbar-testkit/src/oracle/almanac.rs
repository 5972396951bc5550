//! A calendar written out day by day, for judges: no formula, only counting on from a known day.

use std::sync::OnceLock;

use tollbar::Period;

const DAY_US: u128 = 86_400_000_000;
const MINUTE_US: i128 = 60_000_000;

/// The almanac begins on Monday, 1969-12-29, three days before time does.
const DAYS_BEFORE_1970: i128 = 3;

/// It ends with this year; a judge looks further ahead than any clock goes.
const YEAR_LAST: u32 = 2_499;

/// A day's number, and those of its week and its month, counted from the first day.
#[derive(Debug, Clone, Copy)]
struct Day {
    number: u128,
    week: u128,
    month: u128,
}

/// Which windows of a calendar there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Almanac {
    /// What of the calendar a window is.
    pub period: Period,
    /// How far its midnight is east of UTC.
    pub utc_offset_minutes: i32,
}

impl Almanac {
    /// The number of the window that `at_us` is in.
    ///
    /// # Panics
    /// If `at_us` is after the year 2499, or there is a period it does not know.
    #[must_use]
    pub fn window(self, at_us: u128) -> u128 {
        self.number_of(&days()[self.day(at_us)])
    }

    /// When that window has ended: at the midnight after which the number is another.
    ///
    /// # Panics
    /// As [`window`](Self::window).
    #[must_use]
    pub fn end_us(self, window: u128) -> u128 {
        let day = days().partition_point(|day| self.number_of(day) <= window);
        let local_us = (day as i128 - DAYS_BEFORE_1970) * DAY_US.cast_signed();
        (local_us - self.offset_us()).max(0).cast_unsigned()
    }

    fn day(self, at_us: u128) -> usize {
        let since_first_us =
            at_us.cast_signed() + self.offset_us() + DAYS_BEFORE_1970 * DAY_US.cast_signed();
        usize::try_from(since_first_us.cast_unsigned() / DAY_US).expect("a day of the almanac")
    }

    fn number_of(self, day: &Day) -> u128 {
        match self.period {
            Period::Day => day.number,
            Period::Week => day.week,
            Period::Month => day.month,
            other => panic!("the almanac has no {other:?}"),
        }
    }

    fn offset_us(self) -> i128 {
        i128::from(self.utc_offset_minutes) * MINUTE_US
    }
}

fn days() -> &'static [Day] {
    static DAYS: OnceLock<Vec<Day>> = OnceLock::new();
    DAYS.get_or_init(walk)
}

/// From one day to the next, as one turns the leaves.
fn walk() -> Vec<Day> {
    let mut days = Vec::new();
    let (mut year, mut month_of_year, mut day_of_month, mut day_of_week) = (1969, 12, 29, 1);
    let (mut week, mut month) = (0, 0);
    while year <= YEAR_LAST {
        days.push(Day { number: days.len() as u128, week, month });
        day_of_week += 1;
        if day_of_week > 7 {
            day_of_week = 1;
            week += 1;
        }
        day_of_month += 1;
        if day_of_month > month_days(year, month_of_year) {
            day_of_month = 1;
            month_of_year += 1;
            month += 1;
        }
        if month_of_year > 12 {
            month_of_year = 1;
            year += 1;
        }
    }
    days
}

fn month_days(year: u32, month_of_year: u32) -> u32 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month_of_year {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds are those of `date --utc --date=... +%s`.
    #[test]
    fn the_almanac_knows_the_ends_of_days_weeks_and_months() {
        let end_s = |period, utc_offset_minutes, at_s: u128| {
            let almanac = Almanac { period, utc_offset_minutes };
            almanac.end_us(almanac.window(at_s * 1_000_000)) / 1_000_000
        };
        // 2024-02-29T20:00Z: the day ends, the month ends, the week on Sunday.
        let now_s = 1_709_236_800;
        assert_eq!(end_s(Period::Day, 0, now_s), 1_709_251_200);
        assert_eq!(end_s(Period::Month, 0, now_s), 1_709_251_200);
        assert_eq!(end_s(Period::Week, 0, now_s), 1_709_510_400);
        assert_eq!(end_s(Period::Month, 330, now_s), 1_711_909_800);
        assert_eq!(end_s(Period::Month, -1_080, 0), 18 * 3_600);
        // 2100-02-28T12:00Z, not a leap year.
        assert_eq!(end_s(Period::Month, 0, 4_107_499_200), 4_107_542_400);
    }
}
