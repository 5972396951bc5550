//! Numbers for people: short, of one width, and never more exact than they are.

use std::fmt;

use tollbar::Timestamp;

use tollbar_daemon::rfc3339::Rfc3339;

/// What stands where nothing is known.
const NONE: &str = "–";

/// A count with its thousands apart: `1,234,567`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) u64);

/// A count in three digits or four: `1,234`, `12.3k`, `4.56M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShortCount(pub(crate) u64);

/// Events a second, of so many in so long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) count: u64,
    pub(crate) seconds: u64,
}

/// A share: `12.3%`, of nothing `–`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) part: u64,
    pub(crate) whole: u64,
}

/// A time that something took: `85 µs`, `1.2 ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Latency(pub(crate) Option<u64>);

/// How long ago something was, or how far ahead it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RelativeTime {
    pub(crate) then: Timestamp,
    pub(crate) now: Timestamp,
}

/// An instant as a clock shows it, in UTC: `06:12:03`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockTime(pub(crate) Timestamp);

/// An instant with its day, in UTC: `2026-11-16 06:12:03`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DateTime(pub(crate) Timestamp);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ShortCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units =
            [(1_000_000_000_000, 'T'), (1_000_000_000, 'G'), (1_000_000, 'M'), (1_000, 'k')];
        let unit = units.into_iter().find(|(unit, _)| self.0 >= *unit);
        match unit {
            Some((unit, name)) if self.0 >= 10_000 => {
                // Rounded down, each digit as it is: 12,399 is 12.3k.
                let (whole, hundredths) = (self.0 / unit, self.0 % unit / (unit / 100));
                match whole {
                    0..10 => write!(f, "{whole}.{hundredths:02}{name}"),
                    10..100 => write!(f, "{whole}.{}{name}", hundredths / 10),
                    _ => write!(f, "{}{name}", Count(whole)),
                }
            }
            _ => Count(self.0).fmt(f),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.seconds.max(1);
        let (whole, tenths) = (self.count / seconds, self.count % seconds * 10 / seconds);
        match (self.count, whole, tenths) {
            (0, ..) => f.write_str("0"),
            (_, 0, 0) => f.write_str("<0.1"),
            (_, 0..100, _) => write!(f, "{whole}.{tenths}"),
            _ => ShortCount(whole).fmt(f),
        }
    }
}

impl Share {
    /// In thousandths, rounded down.
    fn thousandths(self) -> u64 {
        (u128::from(self.part) * 1_000 / u128::from(self.whole.max(1))) as u64
    }

    /// In whole percents for a bar, at least one where there is anything.
    pub(crate) fn percent(self) -> u64 {
        let least = u64::from(self.part > 0);
        (self.thousandths() / 10).clamp(least, 100)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.part, self.whole, self.thousandths()) {
            (_, 0, _) => f.write_str(NONE),
            (0, ..) => f.write_str("0%"),
            (.., 0) => f.write_str("<0.1%"),
            (.., 1_000..) => f.write_str("100%"),
            (.., thousandths) => write!(f, "{}.{}%", thousandths / 10, thousandths % 10),
        }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str(NONE),
            Some(us @ 0..1_000) => write!(f, "{us} µs"),
            Some(us @ 1_000..100_000) => write!(f, "{}.{} ms", us / 1_000, us % 1_000 / 100),
            Some(us @ 100_000..10_000_000) => write!(f, "{} ms", us / 1_000),
            Some(us) => write!(f, "{} s", Count(us / 1_000_000)),
        }
    }
}

impl fmt::Display for RelativeTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (then, now) = (self.then.as_micros(), self.now.as_micros());
        let seconds = then.abs_diff(now) / 1_000_000;
        let (count, unit) = match seconds {
            0 => return f.write_str("now"),
            1..120 => (seconds, "s"),
            120..7_200 => (seconds / 60, "min"),
            7_200..172_800 => (seconds / 3_600, "h"),
            _ => (seconds / 86_400, "days"),
        };
        if then > now { write!(f, "in {count} {unit}") } else { write!(f, "{count} {unit} ago") }
    }
}

impl fmt::Display for ClockTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // To the second that has begun, where the text itself rounds up.
        let second = self.0.as_micros() / 1_000_000 * 1_000_000;
        f.write_str(&Rfc3339(Timestamp::from_micros(second)).text().as_str()[11..19])
    }
}

impl fmt::Display for DateTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let second = self.0.as_micros() / 1_000_000 * 1_000_000;
        let text = Rfc3339(Timestamp::from_micros(second)).text();
        write!(f, "{} {}", &text.as_str()[..10], &text.as_str()[11..19])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_short_and_never_rounded_up() {
        for (count, long, short) in [
            (0, "0", "0"),
            (999, "999", "999"),
            (1_000, "1,000", "1,000"),
            (9_999, "9,999", "9,999"),
            (12_399, "12,399", "12.3k"),
            (999_999, "999,999", "999k"),
            (4_567_890, "4,567,890", "4.56M"),
            (u64::MAX, "18,446,744,073,709,551,615", "18,446,744T"),
        ] {
            assert_eq!(Count(count).to_string(), long);
            assert_eq!(ShortCount(count).to_string(), short);
        }
    }

    #[test]
    fn a_share_of_nothing_is_no_share() {
        for (part, whole, text) in [
            (0, 0, "–"),
            (0, 9, "0%"),
            (1, 10_000, "<0.1%"),
            (1, 8, "12.5%"),
            (999, 1_000, "99.9%"),
            (8, 8, "100%"),
            (u64::MAX, u64::MAX, "100%"),
        ] {
            assert_eq!(Share { part, whole }.to_string(), text);
        }
        assert_eq!(Share { part: 1, whole: 1_000_000 }.percent(), 1);
        assert_eq!(Share { part: 0, whole: 1 }.percent(), 0);
    }

    #[test]
    fn rates_and_times_say_their_unit() {
        for (count, seconds, text) in
            [(0, 5, "0"), (1, 900, "<0.1"), (7, 2, "3.5"), (1_000, 1, "1,000"), (9, 0, "9.0")]
        {
            assert_eq!(Rate { count, seconds }.to_string(), text);
        }
        for (us, text) in [
            (None, "–"),
            (Some(85), "85 µs"),
            (Some(1_250), "1.2 ms"),
            (Some(250_000), "250 ms"),
            (Some(12_000_000), "12 s"),
        ] {
            assert_eq!(Latency(us).to_string(), text);
        }
    }

    #[test]
    fn instants_are_told_by_clock_and_distance() {
        let at = |seconds: u64| Timestamp::from_micros(seconds * 1_000_000);
        assert_eq!(
            ClockTime(Timestamp::from_micros(1_700_000_000_999_999)).to_string(),
            "22:13:20"
        );
        assert_eq!(DateTime(at(1_700_000_000)).to_string(), "2023-11-14 22:13:20");
        for (then, now, text) in [
            (100, 103, "3 s ago"),
            (100, 100, "now"),
            (0, 7_199, "119 min ago"),
            (0, 86_400, "24 h ago"),
            (0, 864_000, "10 days ago"),
            (160, 100, "in 60 s"),
        ] {
            assert_eq!(RelativeTime { then: at(then), now: at(now) }.to_string(), text);
        }
    }
}
