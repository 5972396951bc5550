//! The sweeps against the definition: every interval, one by one.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const TOKEN: Interval = Interval { numerator_us: 7, denominator: 2 };

fn spans() -> impl Strategy<Value = Vec<Span>> {
    let span = (0_u64..60, 0_u64..6, 1_u64..4);
    vec(
        span.prop_map(|(from_us, length_us, tokens)| Span {
            from_us,
            to_us: from_us + length_us,
            tokens,
        }),
        0..12,
    )
}

/// Every interval of the times that the spans above can have.
fn intervals() -> impl Iterator<Item = (u64, u64)> {
    (0_u64..70).flat_map(|start_us| (start_us..70).map(move |end_us| (start_us, end_us)))
}

fn inside(spans: &[Span], start_us: u64, end_us: u64) -> u64 {
    let spans = spans.iter().filter(|span| span.from_us >= start_us && span.to_us <= end_us);
    spans.map(|span| span.tokens).sum()
}

fn touching(spans: &[Span], start_us: u64, end_us: u64) -> u64 {
    let spans = spans.iter().filter(|span| span.from_us <= end_us && span.to_us >= start_us);
    spans.map(|span| span.tokens).sum()
}

proptest! {
    #[test]
    fn most_at_a_rate_is_what_looking_at_every_interval_says(spans in spans(), burst in 1_u64..12) {
        let is_within = intervals().all(|(start_us, end_us)| {
            inside(&spans, start_us, end_us) * 7 <= burst * 7 + (end_us - start_us) * 2
        });
        prop_assert_eq!(Spans::new(spans).at_most_at_rate(TOKEN, burst, 0).is_ok(), is_within);
    }

    #[test]
    fn least_at_a_rate_is_what_looking_at_every_interval_says(
        spans in spans(),
        start_us in 0_u64..30,
        length_us in 0_u64..40,
        slack_us in 0_u64..5,
    ) {
        let within = start_us..start_us + length_us;
        let is_within = intervals()
            .filter(|(start_us, end_us)| *start_us >= within.start && *end_us <= within.end)
            .all(|(start_us, end_us)| {
                let tokens = i128::from(touching(&spans, start_us, end_us));
                tokens * 7 + 7 + i128::from(slack_us) * 2 >= i128::from(end_us - start_us) * 2
            });
        let swept = Spans::new(spans).at_least_at_rate(TOKEN, within, slack_us);
        prop_assert_eq!(swept.is_ok(), is_within, "{:?}", swept);
    }

    #[test]
    fn most_in_any_window_is_what_looking_at_every_window_says(
        spans in spans(), window_us in 1_u64..20, limit in 1_u64..8,
    ) {
        let is_within =
            (0_u64..90).all(|end_us| inside(&spans, (end_us + 1).saturating_sub(window_us), end_us) <= limit);
        prop_assert_eq!(Spans::new(spans).at_most_in_any(window_us, limit).is_ok(), is_within);
    }

    #[test]
    fn least_in_any_window_is_what_looking_at_every_window_says(
        spans in spans(), length_us in 1_u64..20, limit in 1_u64..4,
    ) {
        let is_within =
            (5..=65 - length_us).all(|start_us| touching(&spans, start_us, start_us + length_us) >= limit);
        let swept = Spans::new(spans).at_least_in_any(length_us, limit, 5..65);
        prop_assert_eq!(swept.is_ok(), is_within, "{:?}", swept);
    }

    #[test]
    fn aligned_windows_are_what_looking_at_each_says(
        spans in spans(), window_us in 3_u64..20, offset in 0_u64..20, limit in 1_u64..6,
    ) {
        let offset_us = offset % window_us;
        let windows: Vec<(u64, u64)> = (0..40)
            .map(|number| (number * window_us + offset_us, (number + 1) * window_us + offset_us - 1))
            .chain((offset_us > 0).then(|| (0, offset_us - 1)))
            .collect();
        let most = windows.iter().all(|(start, end)| inside(&spans, *start, *end) <= limit);
        let least = windows.iter().filter(|(start, end)| *start >= 10 && *end < 50)
            .all(|(start, end)| touching(&spans, *start, *end) >= limit);
        let spans = Spans::new(spans);
        prop_assert_eq!(spans.at_most_in_aligned(window_us, offset_us, limit).is_ok(), most);
        let swept = spans.at_least_in_aligned(window_us, offset_us, limit, 10..50);
        prop_assert_eq!(swept.is_ok(), least, "{:?}", swept);
    }
}
