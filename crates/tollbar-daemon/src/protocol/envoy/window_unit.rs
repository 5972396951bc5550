//! Units of time as Envoy's protocol has them: lengths in seconds, never the calendar's.

use std::time::Duration;

use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit as ProtoUnit;

/// How long the window of a limit is. They all begin at the epoch: a month is 30 days, a year 365.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowUnit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl WindowUnit {
    const ALL: [(&'static str, Self); 7] = [
        ("second", Self::Second),
        ("minute", Self::Minute),
        ("hour", Self::Hour),
        ("day", Self::Day),
        ("week", Self::Week),
        ("month", Self::Month),
        ("year", Self::Year),
    ];

    /// The unit of that name, in small letters or capitals.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, unit)| *unit)
    }

    /// The unit of an override. Its enum and that of responses have the same numbers.
    pub(super) fn from_proto(number: i32) -> Option<Self> {
        Self::ALL.iter().map(|(_, unit)| *unit).find(|unit| unit.to_proto() as i32 == number)
    }

    /// The unit that is so long, where there is one.
    pub(super) fn from_window(window: Duration) -> Option<Self> {
        Self::ALL.iter().map(|(_, unit)| *unit).find(|unit| unit.window() == window)
    }

    pub(super) fn window(self) -> Duration {
        const DAY_S: u64 = 24 * 60 * 60;
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 60 * 60,
            Self::Day => DAY_S,
            Self::Week => 7 * DAY_S,
            Self::Month => 30 * DAY_S,
            Self::Year => 365 * DAY_S,
        })
    }

    pub(super) fn to_proto(self) -> ProtoUnit {
        match self {
            Self::Second => ProtoUnit::Second,
            Self::Minute => ProtoUnit::Minute,
            Self::Hour => ProtoUnit::Hour,
            Self::Day => ProtoUnit::Day,
            Self::Week => ProtoUnit::Week,
            Self::Month => ProtoUnit::Month,
            Self::Year => ProtoUnit::Year,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_has_a_name_a_number_and_a_length() {
        for (name, unit) in WindowUnit::ALL {
            assert_eq!(WindowUnit::from_name(name), Some(unit));
            assert_eq!(WindowUnit::from_name(&name.to_uppercase()), Some(unit));
            assert_eq!(WindowUnit::from_proto(unit.to_proto() as i32), Some(unit));
            assert_eq!(WindowUnit::from_window(unit.window()), Some(unit));
        }
        assert_eq!(WindowUnit::from_name("unknown"), None);
        assert_eq!(WindowUnit::from_proto(0), None);
        assert_eq!(WindowUnit::from_window(Duration::from_secs(2)), None);
        assert_eq!(WindowUnit::Month.window(), Duration::from_hours(30 * 24));
        assert_eq!(WindowUnit::Year.window(), Duration::from_hours(365 * 24));
    }
}
