//! What a rate reads as, and what each mistake is told.

use proptest::prelude::*;

use super::*;

#[track_caller]
fn check(text: &str, tokens: u64, tokens_divisor: u64, window_us: u64) {
    assert_eq!(text.parse::<Rate>(), Ok(Rate { tokens, tokens_divisor, window_us }), "{text}");
}

#[test]
fn every_form_of_a_rate_is_read() {
    check("10/s", 10, 1, 1_000_000);
    check("450/15min", 450, 1, 900_000_000);
    check("5/10s", 5, 1, 10_000_000);
    check("1000 per day", 1_000, 1, 86_400_000_000);
    check("1_000_000 per 2 hours", 1_000_000, 1, 7_200_000_000);
    check("0.5/s", 5, 10, 1_000_000);
    check("2.50 / 3 s", 250, 100, 3_000_000);
    check("1/month", 1, 1, 2_592_000_000_000);
    check("1 per year", 1, 1, 31_536_000_000_000);
    check("3/us", 3, 1, 1);
    check("1/250ms", 1, 1, 250_000);
}

#[test]
fn every_unit_has_its_length_under_each_of_its_names() {
    let units: [(&[&str], u64); 9] = [
        (&["us", "microsecond", "microseconds"], 1),
        (&["ms", "millisecond", "milliseconds"], 1_000),
        (&["s", "sec", "second", "seconds"], 1_000_000),
        (&["min", "minute", "minutes"], 60_000_000),
        (&["h", "hour", "hours"], 3_600_000_000),
        (&["d", "day", "days"], 86_400_000_000),
        (&["w", "week", "weeks"], 604_800_000_000),
        (&["month", "months"], 2_592_000_000_000),
        (&["year", "years"], 31_536_000_000_000),
    ];
    for (names, unit_us) in units {
        for name in names {
            check(&format!("1/{name}"), 1, 1, unit_us);
            check(&format!("1/3{name}"), 1, 1, 3 * unit_us);
        }
    }
}

#[track_caller]
fn refuse(text: &str, expected: &str) {
    let message = text.parse::<Rate>().expect_err(text).to_string();
    assert!(message.contains(expected), "{text}: {message}");
}

#[test]
fn every_mistake_in_a_rate_says_what_to_write() {
    refuse("", "write a number, `/` and a window");
    refuse("10", "such as `10/s`");
    refuse("/s", "`` is not a number of tokens");
    refuse("-1/s", "`-1` is not a number");
    refuse("1e9/s", "`1e9` is not a number");
    refuse("_1/s", "`_1` is not a number");
    refuse("1./s", "`1.` is not a number");
    refuse("0.0000000000000000001/s", "9 of them after the point");
    refuse("10/5m", "a bare `m` could be either");
    refuse("10/", "`` is not a unit");
    refuse("10/5", "`` is not a unit");
    refuse("10/fortnight", "`fortnight` is not a unit");
    refuse("10/99999999999999999999s", "not a whole number");
    refuse("10/9999999999999999month", "too long");
    refuse(&"9".repeat(1_000), "9999999999...` is not a rate");
}

#[test]
fn a_duration_is_a_count_and_a_unit_and_never_zero() {
    for (text, micros) in [
        ("1us", 1),
        ("500ms", 500_000),
        (" 30 s ", 30_000_000),
        ("min", 60_000_000),
        ("2 days", 172_800_000_000),
    ] {
        assert_eq!(parse_duration(text), Ok(Duration::from_micros(micros)), "{text}");
    }
    for (text, expected) in [
        ("0s", "`0s` is no time at all: write at least `1us`"),
        ("5", "`` is not a unit"),
        ("-1s", "`-1s` is not a unit"),
        ("1.5s", "`.5s` is not a unit"),
        ("99999999999999999999s", "not a whole number"),
        ("9999999999999999month", "`9999999999999999month` is too long a time"),
    ] {
        let message = parse_duration(text).expect_err(text).to_string();
        assert!(message.contains(expected), "{text}: {message}");
    }
}

proptest! {
    #[test]
    fn any_text_is_a_rate_or_a_short_error(text in "[0-9a-zé_. /-]{0,80}") {
        if let Err(error) = text.parse::<Rate>() {
            prop_assert!(error.to_string().len() < 300, "{error}");
        }
    }

    #[test]
    fn what_is_written_is_read(tokens in 0_u64..1_000_000, count in 1_u64..1_000) {
        let rate: Rate = format!("{tokens}/{count}min").parse().unwrap();
        prop_assert_eq!(rate, Rate { tokens, tokens_divisor: 1, window_us: count * 60_000_000 });
    }
}

#[test]
fn a_timestamp_past_the_end_is_the_end() {
    let last = Timestamp::from_micros((1 << 53) - 1);
    assert_eq!(Timestamp::from_micros(u64::MAX), last);
    assert_eq!(Timestamp::MAX.after(Duration::MAX), last);
    assert_eq!(last.clamp_to_clock(), Timestamp::MAX);
    assert_eq!(Timestamp::ZERO.since(Timestamp::MAX), Duration::ZERO);
}

#[test]
fn a_window_below_a_microsecond_rounds_up_and_not_to_zero() {
    assert_eq!(Rate::new(1, Duration::from_nanos(1)).window_us, 1);
    assert_eq!(Rate::new(1, Duration::from_nanos(1_001)).window_us, 2);
    assert_eq!(Rate::new(1, Duration::ZERO).window_us, 0);
}
