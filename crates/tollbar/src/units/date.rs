//! Days and dates of the Gregorian calendar, in whole numbers. No clock, no zone, no leap second.
//!
//! The method is Howard Hinnant's (`days_from_civil`, `civil_from_days`). A year is taken to begin
//! in March, so that the leap day comes last and every month but that one has a fixed length; 400
//! years are an era of 146,097 days, after which all repeats. Days are from the first of March of
//! the year 0 on, which keeps all numbers below 2<sup>32</sup> and unsigned: a check on a monthly
//! quota does this once, and it is most of its work.

/// Days from 0000-03-01, where eras are counted from, to 1970-01-01.
const EPOCH_DAY: i64 = 719_468;

const ERA_DAYS: u32 = 146_097;
const ERA_YEARS: u32 = 400;

/// A day of the calendar, from 0000-03-01 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Date {
    pub(crate) year: u32,
    /// 1 to 12.
    pub(crate) month: u32,
    /// 1 to 31.
    pub(crate) day: u32,
}

impl Date {
    /// The date of the day `days` after 1970-01-01, or before it where that is negative.
    #[inline]
    pub(crate) fn from_days(days: i64) -> Self {
        debug_assert!((-EPOCH_DAY..1 << 31).contains(&days));
        let days = (days + EPOCH_DAY).cast_unsigned() as u32;
        // Rounding down is meant, here and below.
        let era = days / ERA_DAYS;
        let day_of_era = days % ERA_DAYS;
        // Takes out the leap days: one in 4 years, none in 100, one in 400.
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - days_before_year(year_of_era);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        Self {
            year: era * ERA_YEARS + year_of_era + u32::from(month <= 2),
            month,
            day: day_of_year - days_before_month(month_from_march) + 1,
        }
    }

    /// Days since 1970-01-01; negative before it.
    #[inline]
    pub(crate) fn to_days(self) -> i64 {
        let year = self.year - u32::from(self.month <= 2);
        let month_from_march = if self.month > 2 { self.month - 3 } else { self.month + 9 };
        let day_of_year = days_before_month(month_from_march) + self.day - 1;
        let day_of_era = days_before_year(year % ERA_YEARS) + day_of_year;
        i64::from(year / ERA_YEARS * ERA_DAYS + day_of_era) - EPOCH_DAY
    }

    /// The first day of the month after this one.
    #[inline]
    pub(crate) fn next_month(self) -> Self {
        match self.month {
            12 => Self { year: self.year + 1, month: 1, day: 1 },
            month => Self { year: self.year, month: month + 1, day: 1 },
        }
    }
}

/// Of an era, before its year `year`, 0 to 399.
#[inline]
fn days_before_year(year: u32) -> u32 {
    year * 365 + year / 4 - year / 100
}

/// Of a year, before its month `month_from_march`, 0 to 11. From March the lengths are 31, 30, 31,
/// 30, 31 and again: 153 days in five months, and the rounding falls right.
#[inline]
fn days_before_month(month_from_march: u32) -> u32 {
    (153 * month_from_march + 2) / 5
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(year: u32, month: u32, day: u32) -> Date {
        Date { year, month, day }
    }

    /// Days as `date --utc --date=... +%s` has them, divided by 86,400.
    #[test]
    fn known_dates_have_their_known_days() {
        for (known, days) in [
            (date(1969, 12, 31), -1),
            (date(1970, 1, 1), 0),
            (date(1970, 3, 1), 59),
            (date(2000, 2, 29), 11_016),
            (date(2000, 3, 1), 11_017),
            (date(2024, 2, 29), 19_782),
            (date(2024, 12, 31), 20_088),
            (date(2100, 2, 28), 47_540),
            (date(2100, 3, 1), 47_541),
            (date(2112, 9, 17), 52_124),
        ] {
            assert_eq!((known.to_days(), Date::from_days(days)), (days, known));
        }
    }

    #[test]
    fn months_have_their_lengths() {
        let length = |year, month| {
            let first = date(year, month, 1);
            first.next_month().to_days() - first.to_days()
        };
        let common = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        for (month, days) in (1..).zip(common) {
            assert_eq!(length(2023, month), days);
            assert_eq!(length(2100, month), days, "2100 is no leap year");
            let leap_days = days + i64::from(month == 2);
            assert_eq!(length(2000, month), leap_days, "2000 is one, as every 400th year");
            assert_eq!(length(2024, month), leap_days);
        }
    }

    #[test]
    fn every_day_of_a_thousand_years_follows_the_one_before() {
        let mut before = Date::from_days(-200_000);
        for days in -199_999..200_000 {
            let now = Date::from_days(days);
            let next_day = Date { day: before.day + 1, ..before };
            assert!(now == next_day || (before.day >= 28 && now == before.next_month()));
            assert_eq!(now.to_days(), days);
            before = now;
        }
    }
}
