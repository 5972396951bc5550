//! The two-sided bound, checked on a log of real admissions over every interval.
//!
//! This judge shares no clock with what it judges. An admission is a *span*: from the clock reading
//! it was decided by, or from when the request was sent, to when it had been applied, or the reply was
//! received. At which instant of its span it happened is not known, and need not be:
//!
//! * **At most**: the spans that lie wholly inside an interval all happened in it, so the interval's
//!   bound holds for their sum.
//! * **At least**: everything that happened in an interval has a span that touches it, so the sum of
//!   those is not below what the algorithm promises to a client that always asks.
//!
//! "Every interval" is meant literally: all starts and all ends, by a sweep instead of by samples.

mod denials;
mod spans;

use tollbar::algorithm::staggered_window::stagger_us;
use tollbar::{Interval, Policy};

pub use self::spans::{Span, Spans};

/// What a run admitted for one key, and when somebody asked.
#[derive(Debug, Clone, Default)]
pub struct AdmissionLog {
    /// The admissions, in any order.
    pub admitted: Vec<Span>,
    /// When each question was asked, allowed or denied, in any order. Only the lower bound needs it.
    pub questions_us: Vec<u64>,
}

impl AdmissionLog {
    /// Adds what another thread or process has logged.
    pub fn merge(&mut self, other: Self) {
        self.admitted.extend(other.admitted);
        self.questions_us.extend(other.questions_us);
    }

    /// Checks that `policy` admitted at most what it promises for `key`.
    ///
    /// # Errors
    /// If it admitted more: how much more, and where.
    ///
    /// # Panics
    /// If the policy has no such bound: permits in flight have [`in_flight_at_most`].
    pub fn at_most(&self, policy: &Policy, key: &[u8]) -> Result<(), String> {
        let spans = Spans::new(self.admitted.clone());
        let window_us = policy.window().as_micros() as u64;
        let limit = policy.limit();
        match policy.algorithm().name() {
            "token_bucket" | "leaky_bucket" => {
                spans.at_most_at_rate(interval(policy), policy.capacity(), 0)
            }
            // What is logged of a queue are departures. Delays are rounded up to a microsecond, so
            // two of them may be closer by less than one.
            "leaky_queue" => spans.at_most_at_rate(interval(policy), 1, 1),
            "fixed_window" => spans.at_most_in_aligned(window_us, 0, limit),
            "staggered_window" => {
                spans.at_most_in_aligned(window_us, stagger_us(key, window_us), limit)
            }
            "calendar_window" => {
                spans.at_most_in_aligned(window_us, denials::calendar_offset_us(policy), limit)
            }
            "sliding_window_counter" => {
                spans.at_most_in_aligned(window_us, 0, limit)?;
                spans.at_most_in_any(window_us, 2 * limit - 1)
            }
            "sliding_window_strict" | "sliding_window_log" => {
                spans.at_most_in_any(window_us, limit)
            }
            other => panic!("`{other}` has no bound over intervals"),
        }
    }

    /// Checks that a client that always asked got at least what `policy` promises, where no reading
    /// of the clock was more than `staleness_us` old when it was used.
    ///
    /// # Errors
    /// If it got less: how much less, and where.
    pub fn at_least(&self, policy: &Policy, key: &[u8], staleness_us: u64) -> Result<(), String> {
        let spans = Spans::new(self.admitted.clone());
        let window_us = policy.window().as_micros() as u64;
        let limit = policy.limit();
        let stretches = |gap_us_max: u64| self.stretches(gap_us_max);
        match policy.algorithm().name() {
            "token_bucket" | "leaky_bucket" => {
                let token = interval(policy);
                let gap_us_max = (policy.capacity() - 1) * token.numerator_us / token.denominator;
                stretches(gap_us_max.max(1)).into_iter().try_for_each(|(start_us, end_us)| {
                    spans.at_least_at_rate(token, start_us..end_us, staleness_us)
                })
            }
            "fixed_window" | "staggered_window" => {
                let offset_us = match policy.algorithm().name() {
                    "staggered_window" => stagger_us(key, window_us),
                    _ => 0,
                };
                stretches(window_us).into_iter().try_for_each(|(start_us, end_us)| {
                    spans.at_least_in_aligned(window_us, offset_us, limit, start_us..end_us)
                })
            }
            "sliding_window_strict" => {
                let parts = policy.algorithm().variant();
                let part_us = window_us.div_ceil(parts);
                stretches(part_us).into_iter().try_for_each(|(start_us, end_us)| {
                    let length_us = part_us * (parts + 1) + staleness_us + part_us;
                    spans.at_least_in_any(length_us, limit, start_us..end_us)
                })
            }
            _ => Ok(()),
        }
    }

    /// The stretches of time in which nobody waited longer than `gap_us_max` with a question.
    fn stretches(&self, gap_us_max: u64) -> Vec<(u64, u64)> {
        let mut questions_us = self.questions_us.clone();
        questions_us.sort_unstable();
        let mut stretches: Vec<(u64, u64)> = Vec::new();
        for at_us in questions_us {
            match stretches.last_mut() {
                Some((_, end_us)) if at_us - *end_us <= gap_us_max => *end_us = at_us,
                _ => stretches.push((at_us, at_us)),
            }
        }
        stretches
    }
}

/// Checks that no more than `limit` permits were out at any instant. A permit is certainly out from
/// the end of the span in which it was taken to the beginning of the span in which it was returned:
/// each pair is such a stretch.
///
/// # Errors
/// If more were out: how many, and when.
pub fn in_flight_at_most(limit: u64, held: &[(u64, u64)]) -> Result<(), String> {
    let taken = held.iter().filter(|(from, until)| from < until).map(|(from, _)| (*from, 1_i64));
    let returned = held.iter().filter(|(from, until)| from < until).map(|(_, until)| (*until, -1));
    let mut changes: Vec<(u64, i64)> = taken.chain(returned).collect();
    // At one instant, what comes back comes back first.
    changes.sort_unstable();
    let mut out = 0;
    for (at_us, change) in changes {
        out += change;
        if out > limit.cast_signed() {
            return Err(format!("{out} permits of {limit} were out at {at_us} us"));
        }
    }
    Ok(())
}

fn interval(policy: &Policy) -> Interval {
    policy.interval().expect("buckets and queues have an interval")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_permits_than_the_limit_are_noticed_and_the_limit_is_not() {
        assert!(in_flight_at_most(2, &[(0, 10), (5, 15), (10, 20)]).is_ok());
        assert!(in_flight_at_most(2, &[(0, 11), (5, 15), (10, 20)]).is_err());
        // Released before it was certain that it had been taken.
        assert!(in_flight_at_most(1, &[(0, 10), (5, 5), (7, 6)]).is_ok());
    }

    /// The log of the fault that this judge was written for: at 100/s with a burst of 10, 12 tokens
    /// in an instant.
    #[test]
    fn two_tokens_too_many_are_noticed_over_the_shortest_interval() {
        let policy = Policy::token_bucket("100/s").unwrap().with_burst(10).unwrap();
        let instant = |at_us| Span { from_us: at_us, to_us: at_us, tokens: 1 };
        let mut log = AdmissionLog { admitted: vec![instant(1_000_000); 10], ..Default::default() };
        log.admitted.push(instant(1_010_000));
        assert_eq!(log.at_most(&policy, b""), Ok(()));
        log.admitted.push(instant(1_010_000));
        let story = log.at_most(&policy, b"").unwrap_err();
        assert!(story.contains("12 tokens"), "{story}");
    }

    #[test]
    fn a_client_that_got_less_than_the_rate_is_noticed() {
        let policy = Policy::token_bucket("100/s").unwrap().with_burst(10).unwrap();
        let admitted = |step_us: u64| {
            let at = (0..100).map(|at| at * step_us);
            let span = |at_us| Span { from_us: at_us, to_us: at_us, tokens: 1 };
            let questions_us = (0..=1_000).map(|at| at * step_us / 10).collect();
            AdmissionLog { admitted: at.map(span).collect(), questions_us }
        };
        assert_eq!(admitted(10_000).at_least(&policy, b"", 0), Ok(()));
        assert!(admitted(10_300).at_least(&policy, b"", 0).is_err());
        // Staleness explains a wait once, and not all the time.
        assert!(admitted(10_300).at_least(&policy, b"", 10_000).is_err());
    }
}
