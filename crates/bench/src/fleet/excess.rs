//! How much a merged log has above its limit, over every interval.

use std::time::SystemTime;

use tollbar::{Policy, PolicyParts};
use tollbar_bench::timer::wall_clock;
use tollbar_testkit::bounds::{Span, Spans};

/// The wall clock, by which the server's windows begin.
pub(super) fn wall_clock_us() -> u64 {
    let wall = wall_clock().duration_since(SystemTime::UNIX_EPOCH);
    wall.map_or(0, |wall| wall.as_micros() as u64)
}

/// Returns by how many tokens the worst interval is above what `policy` promises.
pub(super) fn tokens_over(policy: &Policy, admitted: Vec<Span>) -> u64 {
    let total: u64 = admitted.iter().map(|span| span.tokens).sum();
    let spans = Spans::new(admitted);
    let fits = |more: u64| {
        if let PolicyParts::Bucket { interval, burst, .. } = policy.parts(b"") {
            return spans.at_most_at_rate(interval, burst + more, 0).is_ok();
        }
        let window_us = policy.window().as_micros() as u64;
        spans.at_most_in_aligned(window_us, 0, policy.limit() + more).is_ok()
    };
    if fits(0) {
        return 0;
    }
    // The least that fits is above `low` and at most `high`.
    let (mut low, mut high) = (0, total);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_above_the_limit_is_counted() {
        let span = |at_us, tokens| Span { from_us: at_us, to_us: at_us, tokens };
        let bucket = Policy::token_bucket("10/s").unwrap().with_burst(5).unwrap();
        assert_eq!(tokens_over(&bucket, vec![span(1_000_000, 5), span(1_100_000, 1)]), 0);
        assert_eq!(tokens_over(&bucket, vec![span(1_000_000, 5), span(1_100_000, 4)]), 3);
        let window = Policy::fixed_window("10/s").unwrap();
        assert_eq!(tokens_over(&window, vec![span(1_000_000, 7), span(1_900_000, 7)]), 4);
        assert_eq!(tokens_over(&window, vec![span(1_900_000, 7), span(2_000_000, 7)]), 0);
    }
}
