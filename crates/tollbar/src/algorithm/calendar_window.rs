//! Calendar window: `limit` in each day, week or month, as a calendar on the wall shows them.
//!
//! For quotas that people read on a bill: "10,000 a month" begins again on the first, whether the
//! month has 28 days or 31. The calendar is that of a fixed offset from UTC. There are no time
//! zones here: a zone changes its offset twice a year and its rules by law, which is data and not
//! arithmetic.
//!
//! As in the fixed window, `limit` just before a boundary and `limit` just after it pass. The
//! retry-after is exact: the end of the day, week or month.

use std::fmt;

use super::counted_window::{CountedWindow, Windows};
use crate::PolicyError;
use crate::units::date::Date;

/// The algorithm's name.
pub const NAME: &str = "calendar_window";

/// The largest offset from UTC, either way: 18 hours, as in ISO 8601 libraries everywhere.
pub const UTC_OFFSET_MINUTES_MAX: i32 = 18 * 60;

const MINUTE_US: i64 = 60 * 1_000_000;
const DAY_US: i64 = 24 * 60 * MINUTE_US;

/// What of a calendar a window is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Period {
    /// From midnight to midnight.
    Day,
    /// From Monday to Sunday, as in ISO 8601.
    Week,
    /// From the first to the last, 28 to 31 days.
    Month,
}

impl fmt::Display for Period {
    /// `day`, `week` or `month`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        })
    }
}

impl Period {
    /// The length as it is reported to clients: a month is given as 30 days, the same that `month`
    /// means in a [`Rate`](crate::Rate). No decision is made with it.
    pub(crate) fn nominal_us(self) -> u64 {
        let days = match self {
            Self::Day => 1,
            Self::Week => 7,
            Self::Month => 30,
        };
        days * DAY_US.cast_unsigned()
    }

    /// The least length there is.
    fn shortest_us(self) -> u64 {
        match self {
            Self::Day | Self::Week => self.nominal_us(),
            Self::Month => 28 * DAY_US.cast_unsigned(),
        }
    }

    /// The greatest length there is.
    pub(crate) fn longest_us(self) -> u64 {
        match self {
            Self::Day | Self::Week => self.nominal_us(),
            Self::Month => 31 * DAY_US.cast_unsigned(),
        }
    }

    /// The first day of the period that `day` is in; both since 1970.
    #[inline]
    fn first_day(self, day: i64) -> i64 {
        match self {
            Self::Day => day,
            // 1970-01-01 was a Thursday, three days after a Monday.
            Self::Week => day - (day + 3).rem_euclid(7),
            Self::Month => day - i64::from(Date::from_days(day).day - 1),
        }
    }

    /// The first day of the period after the one that `day` is in.
    #[inline]
    fn next_first_day(self, day: i64) -> i64 {
        match self {
            Self::Day => day + 1,
            Self::Week => self.first_day(day) + 7,
            Self::Month => Date::from_days(day).next_month().to_days(),
        }
    }
}

/// So many in each day, week or month.
pub(crate) type CalendarWindow = CountedWindow<Calendar>;

/// The days, weeks or months of a calendar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Calendar {
    period: Period,
    utc_offset_minutes: i32,
}

impl CalendarWindow {
    pub(crate) fn new(limit: u64, period: Period) -> Self {
        Self { limit, windows: Calendar { period, utc_offset_minutes: 0 } }
    }

    pub(crate) fn with_utc_offset(&self, minutes: i32) -> Result<Self, PolicyError> {
        if !(-UTC_OFFSET_MINUTES_MAX..=UTC_OFFSET_MINUTES_MAX).contains(&minutes) {
            return Err(PolicyError::UtcOffset { minutes });
        }
        let windows = Calendar { utc_offset_minutes: minutes, ..self.windows };
        Ok(Self { limit: self.limit, windows })
    }

    pub(crate) fn period(&self) -> Period {
        self.windows.period
    }

    pub(crate) fn utc_offset_minutes(&self) -> i32 {
        self.windows.utc_offset_minutes
    }
}

impl Calendar {
    // East of UTC the clock on the wall is ahead: at +05:30 the day begins at 18:30 UTC. Time is
    // below 2^53, so nothing here comes near the end of an i64.

    #[inline]
    fn local_day(&self, at_us: u64) -> i64 {
        (at_us.cast_signed() + self.offset_us()).div_euclid(DAY_US)
    }

    #[inline]
    fn utc_us(&self, local_day: i64) -> u64 {
        (local_day * DAY_US - self.offset_us()).max(0).cast_unsigned()
    }

    #[inline]
    fn offset_us(&self) -> i64 {
        i64::from(self.utc_offset_minutes) * MINUTE_US
    }
}

impl Windows for Calendar {
    const NAME: &'static str = NAME;

    /// Each period and each offset has windows of its own.
    fn variant(&self) -> u64 {
        let offset = (self.utc_offset_minutes + UTC_OFFSET_MINUTES_MAX).cast_unsigned();
        u64::from(offset) << 8 | self.period as u64
    }

    fn window_us(&self) -> u64 {
        self.period.nominal_us()
    }

    fn shortest_us(&self) -> u64 {
        self.period.shortest_us()
    }

    // Neither is forced inline: both together in one function cost 10 ns more than they save.

    /// What is before 1970 is cut off.
    #[inline]
    fn start_us(&self, at_us: u64) -> u64 {
        self.utc_us(self.period.first_day(self.local_day(at_us)))
    }

    #[inline]
    fn end_us(&self, at_us: u64) -> u64 {
        self.utc_us(self.period.next_first_day(self.local_day(at_us)))
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::super::counted_window::WindowCount;
    use super::super::word::{WordParts, WordState, count_max};
    use super::*;
    use crate::Timestamp;
    use crate::algorithm::Algorithm;

    const PERIODS: [Period; 3] = [Period::Day, Period::Week, Period::Month];

    fn window(period: Period, utc_offset_minutes: i32) -> CalendarWindow {
        CalendarWindow::new(1, period).with_utc_offset(utc_offset_minutes).unwrap()
    }

    fn window_around(period: Period, utc_offset_minutes: i32, at_s: u64) -> Range<u64> {
        let window = window(period, utc_offset_minutes);
        let now_us = at_s * 1_000_000;
        window.windows.start_us(now_us) / 1_000_000..window.windows.end_us(now_us) / 1_000_000
    }

    /// The seconds are those of `date --utc --date=... +%s`.
    #[test]
    fn windows_are_those_of_the_calendar_on_the_wall() {
        // 2024-02-29T20:00Z, a Thursday; in India it is 01:30 of the first of March.
        let now_s = 1_709_236_800;
        assert_eq!(window_around(Period::Day, 0, now_s), 1_709_164_800..1_709_251_200);
        assert_eq!(window_around(Period::Week, 0, now_s), 1_708_905_600..1_709_510_400);
        assert_eq!(window_around(Period::Month, 0, now_s), 1_706_745_600..1_709_251_200);
        assert_eq!(window_around(Period::Day, 330, now_s), 1_709_231_400..1_709_317_800);
        assert_eq!(window_around(Period::Month, 330, now_s), 1_709_231_400..1_711_909_800);
        // In New York it is 15:00 of the 29th.
        assert_eq!(window_around(Period::Day, -300, now_s), 1_709_182_800..1_709_269_200);
    }

    #[test]
    fn at_the_beginning_of_time_what_is_before_it_is_cut_off() {
        let day_s = 86_400;
        assert_eq!(window_around(Period::Day, 0, 0), 0..day_s);
        assert_eq!(window_around(Period::Week, 0, 0), 0..4 * day_s);
        assert_eq!(window_around(Period::Month, 0, 0), 0..31 * day_s);
        assert_eq!(window_around(Period::Month, -60, 0), 0..3_600);
        assert_eq!(window_around(Period::Day, 1_080, 0), 0..6 * 3_600);
    }

    /// Every window there is, and at offsets of whole hours and of odd minutes.
    #[test]
    fn every_end_that_fits_comes_back_from_its_word() {
        for period in PERIODS {
            for utc_offset_minutes in (-1_080..=1_080).step_by(270).chain([-1_079, 1_079, 330]) {
                let window = window(period, utc_offset_minutes);
                let shift = window.shift();
                let mut end_us = 0;
                loop {
                    let start_us = window.windows.start_us(end_us);
                    assert_eq!(start_us, end_us, "windows follow each other without a gap");
                    end_us = window.windows.end_us(start_us);
                    assert!(start_us == 0 || end_us - start_us >= period.shortest_us());
                    if end_us.next_multiple_of(1 << shift) >= 1 << 52 {
                        break;
                    }
                    let state = WindowCount { end_us, count: count_max(shift) };
                    let word = window.pack(state).to_word(shift);
                    assert_eq!(window.unpack(WordParts::from_word(word, shift)), state);
                }
            }
        }
    }

    #[test]
    fn a_fresh_word_is_a_fresh_state_and_back() {
        for period in PERIODS {
            for utc_offset_minutes in [-1_080, -1, 0, 1, 1_080] {
                let window = window(period, utc_offset_minutes);
                let fresh = WindowCount::default();
                assert_eq!(window.unpack(WordParts::from_word(0, window.shift())), fresh);
                assert_eq!(window.pack(fresh).to_word(window.shift()), 0);
            }
        }
    }

    #[test]
    fn the_last_instant_of_all_has_a_window() {
        for period in PERIODS {
            for now in [Timestamp::MAX, Timestamp::from_micros(u64::MAX)] {
                let mut state = [0; 2];
                let decision = window(period, 0).transition(&mut state, now, 1);
                assert!(decision.is_allowed() && state[0] > now.as_micros());
            }
        }
    }
}
