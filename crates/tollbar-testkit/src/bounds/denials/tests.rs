//! The sweep against the definition, and denials that were due and were not.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const TOKEN: Interval = Interval { numerator_us: 7, denominator: 2 };
const BURST: u64 = 4;

fn spans(tokens_max: u64) -> impl Strategy<Value = Vec<Span>> {
    let span = (100_u64..160, 0_u64..6, 1..=tokens_max);
    let span = span.prop_map(|(from_us, length_us, tokens)| Span {
        from_us,
        to_us: from_us + length_us,
        tokens,
    });
    vec(span, 0..14)
}

/// Whether every denial was due, by looking at every instant since every earlier denial.
fn all_due(admitted: &[Span], denied: &[Span], clock_error_us: i64) -> bool {
    let mut by_end = denied.to_vec();
    by_end.sort_unstable_by_key(|denial| denial.to_us);
    let busy_until = |denial: &Span| denial.from_us * 2 + BURST.saturating_sub(denial.tokens) * 7;
    (0..by_end.len()).all(|first| {
        let chain = by_end[first..].iter().enumerate().take_while(|(at, denial)| {
            let before = by_end[first..first + at].iter().map(busy_until).max();
            before.is_none_or(|busy_until| denial.to_us * 2 <= busy_until)
        });
        chain.map(|(_, denial)| denial).all(|denial| {
            (by_end[first].to_us..=denial.to_us).all(|start_us| {
                let touching = admitted
                    .iter()
                    .filter(|span| span.from_us <= denial.to_us && span.to_us >= start_us);
                let tokens: u64 = touching.map(|span| span.tokens).sum();
                let earned = (denial.from_us.cast_signed() - start_us.cast_signed()) * 2;
                (tokens + denial.tokens).cast_signed() * 7 + clock_error_us * 2 > earned
            })
        })
    })
}

proptest! {
    #[test]
    fn due_at_a_rate_is_what_looking_at_every_instant_says(
        admitted in spans(2), denied in spans(BURST), clock_error_us in 0_u64..3,
    ) {
        let swept = Tally::new(&admitted).due_at_rate(TOKEN, BURST, &denied, clock_error_us);
        let is_due = all_due(&admitted, &denied, clock_error_us.cast_signed());
        prop_assert_eq!(swept.is_ok(), is_due, "{:?}", swept);
    }
}

fn instant(at_us: u64, tokens: u64) -> Span {
    Span { from_us: at_us, to_us: at_us, tokens }
}

/// A client that asks every millisecond for a second and gets a token every `step_us`.
fn log(step_us: u64) -> (AdmissionLog, Vec<Span>) {
    let (mut log, mut denied) = (AdmissionLog::default(), Vec::new());
    let mut next_us = 10_000_000;
    for at_us in (10_000_000..11_000_000).step_by(1_000) {
        if at_us >= next_us {
            log.admitted.push(instant(at_us, 1));
            next_us += step_us;
        } else {
            denied.push(instant(at_us, 1));
        }
    }
    (log, denied)
}

#[test]
fn denials_of_a_bucket_that_earns_too_slowly_are_not_due() {
    let policy = Policy::token_bucket("100/s").unwrap().with_burst(10).unwrap();
    let (honest, denied) = log(10_000);
    assert_eq!(honest.justifies(&policy, b"", &denied, 0), Ok(()));
    let (slow, denied) = log(10_300);
    assert!(slow.justifies(&policy, b"", &denied, 0).is_err());
}

/// After 100 ms without a question the bucket may have been idle, so that nothing is known of the
/// time before.
#[test]
fn a_bucket_owes_nothing_for_a_pause_in_which_it_may_have_been_full() {
    let policy = Policy::token_bucket("100/s").unwrap().with_burst(10).unwrap();
    let denied = |after_us: u64| [instant(1_000_000, 1), instant(1_000_000 + after_us, 1)];
    let nothing = AdmissionLog::default();
    assert_eq!(nothing.justifies(&policy, b"", &denied(90_001), 0), Ok(()));
    let story = nothing.justifies(&policy, b"", &denied(90_000), 0).unwrap_err();
    assert!(story.contains("0 tokens had been admitted"), "{story}");
}

#[test]
fn denials_of_a_window_need_its_limit_admitted_in_it() {
    let key = b"user:42";
    let staggered_start_us = 60_000_000 + stagger_us(key, 10_000_000);
    let policies = [
        (Policy::fixed_window("3/10s"), 60_000_000),
        (Policy::fixed_window("3/10s").and_then(Policy::with_stagger), staggered_start_us),
        (Policy::sliding_window("3/10s"), 50_000_000),
        (Policy::sliding_window_strict("3/10s", 5), 56_000_000),
        (Policy::sliding_window_log("3/10s"), 56_500_001),
    ];
    for (policy, start_us) in policies {
        let policy = policy.unwrap();
        let denied = |cost| [instant(66_500_000, cost)];
        let admitted = |at_us| AdmissionLog {
            admitted: vec![instant(at_us, 1), instant(66_400_000, 2)],
            ..Default::default()
        };
        assert_eq!(admitted(start_us).justifies(&policy, key, &denied(1), 0), Ok(()), "{policy:?}");
        let early = admitted(start_us - 1);
        assert!(early.justifies(&policy, key, &denied(1), 0).is_err(), "{policy:?}");
        assert_eq!(early.justifies(&policy, key, &denied(2), 0), Ok(()), "{policy:?}");
    }
}

#[test]
fn calendar_windows_begin_where_the_calendar_says() {
    let day = |minutes| {
        Policy::calendar_window(1, Period::Day).unwrap().with_utc_offset(minutes).unwrap()
    };
    assert_eq!(calendar_offset_us(&day(0)), 0);
    assert_eq!(calendar_offset_us(&day(60)), DAY_US - 3_600_000_000);
    let week = Policy::calendar_window(1, Period::Week).unwrap();
    assert_eq!(calendar_offset_us(&week), FIRST_MONDAY_US);
    assert_eq!(
        calendar_offset_us(&week.with_utc_offset(-60).unwrap()),
        FIRST_MONDAY_US + 3_600_000_000
    );
}
