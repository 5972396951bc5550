//! The lower bound, from the side of the denials: each was due.
//!
//! "A client that always asks gets at least .." says what a denial may mean. Under a window, the
//! limit had been admitted within it. Under a bucket, the tokens that were earned since any earlier
//! denial had been admitted, all but the one that was asked for. So nobody needs to have asked all
//! the time, nor at a known rate: the more denials a log has, the more is checked.
//!
//! A denial is a span as well, with the cost that was asked for as its tokens. It was decided by a
//! clock reading within its span, and by no state later than its end.

use tollbar::algorithm::staggered_window::stagger_us;
use tollbar::{Interval, Period, Policy};

use super::AdmissionLog;
use super::spans::Span;

const DAY_US: u64 = 86_400_000_000;

/// Thursday, 1 January 1970, to the Monday after it.
const FIRST_MONDAY_US: u64 = 4 * DAY_US;

impl AdmissionLog {
    /// Checks that each of `denied` was due under `policy` for `key`, where the clock that decided
    /// was never more than `clock_error_us` ahead of the one that wrote the log. Permits in flight
    /// and queues with a longest wait promise nothing.
    ///
    /// What is logged of a queue must be when requests were admitted here, not when they departed.
    ///
    /// # Errors
    /// If one was not: which one, and what had been admitted.
    ///
    /// # Panics
    /// If the policy is a calendar month: those have no one length.
    pub fn justifies(
        &self,
        policy: &Policy,
        key: &[u8],
        denied: &[Span],
        clock_error_us: u64,
    ) -> Result<(), String> {
        let tally = Tally::new(&self.admitted);
        let window_us = policy.window().as_micros() as u64;
        let limit = policy.limit();
        let aligned = |offset_us: u64| {
            move |at_us: u64| at_us - (at_us + window_us - offset_us % window_us) % window_us
        };
        match policy.algorithm().name() {
            "leaky_queue" if policy.max_wait().is_some() => Ok(()),
            "token_bucket" | "leaky_bucket" | "leaky_queue" => {
                let token = policy.interval().expect("buckets and queues have an interval");
                tally.due_at_rate(token, policy.capacity(), denied, clock_error_us)
            }
            "fixed_window" => tally.due_in_window(limit, denied, aligned(0)),
            "staggered_window" => {
                tally.due_in_window(limit, denied, aligned(stagger_us(key, window_us)))
            }
            "calendar_window" => {
                tally.due_in_window(limit, denied, aligned(calendar_offset_us(policy)))
            }
            // Both windows count at least as much as the estimate.
            "sliding_window_counter" => {
                tally.due_in_window(limit, denied, |at_us| aligned(0)(at_us) - window_us)
            }
            "sliding_window_strict" => {
                let parts = policy.algorithm().variant();
                let part_us = window_us.div_ceil(parts);
                tally.due_in_window(limit, denied, |at_us| (at_us / part_us - parts) * part_us)
            }
            "sliding_window_log" => {
                tally.due_in_window(limit, denied, |at_us| at_us + 1 - window_us)
            }
            _ => Ok(()),
        }
    }
}

/// How long after a multiple of the window's length a calendar window begins.
///
/// # Panics
/// If it is a month: those have no one length.
pub(super) fn calendar_offset_us(policy: &Policy) -> u64 {
    let monday_us = match policy.period() {
        Some(Period::Day) => 0,
        Some(Period::Week) => FIRST_MONDAY_US,
        _ => panic!("months are not judged here"),
    };
    let east_us = i64::from(policy.utc_offset_minutes().unwrap_or(0)) * 60_000_000;
    let window_us = policy.window().as_micros() as i64;
    (monday_us.cast_signed() - east_us).rem_euclid(window_us).cast_unsigned()
}

/// Admissions in the order in which they begin and in which they end, with running sums.
struct Tally {
    begins: Vec<(u64, u64)>,
    ends: Vec<(u64, u64)>,
}

impl Tally {
    fn new(admitted: &[Span]) -> Self {
        let running = |at: fn(&Span) -> u64| {
            let mut sums: Vec<(u64, u64)> =
                admitted.iter().map(|span| (at(span), span.tokens)).collect();
            sums.sort_unstable();
            let mut sum = 0;
            for (_, tokens) in &mut sums {
                sum += *tokens;
                *tokens = sum;
            }
            sums
        };
        Self { begins: running(|span| span.from_us), ends: running(|span| span.to_us) }
    }

    fn begun_by(&self, at_us: u64) -> u64 {
        sum_of_first(&self.begins, self.begins.partition_point(|(from_us, _)| *from_us <= at_us))
    }

    fn ended_before(&self, at_us: u64) -> u64 {
        sum_of_first(&self.ends, self.ends.partition_point(|(to_us, _)| *to_us < at_us))
    }

    /// Checks that a denial of `cost` had all but `cost - 1` of the limit admitted before it, from the
    /// start of the window in which it was decided.
    fn due_in_window(
        &self,
        limit: u64,
        denied: &[Span],
        window_start_us: impl Fn(u64) -> u64,
    ) -> Result<(), String> {
        for denial in denied {
            let start_us = window_start_us(denial.from_us);
            let touching = self.begun_by(denial.to_us) - self.ended_before(start_us);
            if touching + denial.tokens <= limit {
                return Err(format!(
                    "{denial:?} was not due: {touching} of {limit} had been admitted since {start_us}"
                ));
            }
        }
        Ok(())
    }

    /// Checks that between denials in which the bucket was never idle, all that was earned had been
    /// admitted.
    ///
    /// Let P be the instant at which the debt is paid. A denial with reading `now` says that
    /// P > now + (burst - cost) intervals. Until that instant the bucket is not idle: P grows by an
    /// interval for each token, and by nothing else. At any instant `a`, P is at most a + burst
    /// intervals. So from `a` until a later denial more than (now - a) / interval - cost tokens were
    /// admitted, if the bucket was not idle in between.
    fn due_at_rate(
        &self,
        token: Interval,
        burst: u64,
        denied: &[Span],
        clock_error_us: u64,
    ) -> Result<(), String> {
        let (numerator, denominator) =
            (i128::from(token.numerator_us), i128::from(token.denominator));
        let units = |at_us: u64| i128::from(at_us) * denominator;
        let mut by_end = denied.to_vec();
        by_end.sort_unstable_by_key(|denial| denial.to_us);
        // Until when the bucket is certainly not idle, and the start from which least was admitted:
        // what had ended before it, less what was earned until then.
        let mut busy_until = i128::MIN;
        let mut worst = (i128::MIN, 0);
        let mut ended = 0;
        let value = |ended: u64, at_us: u64| i128::from(ended) * numerator - units(at_us);
        for denial in &by_end {
            if units(denial.to_us) > busy_until {
                worst = (value(self.ended_before(denial.to_us), denial.to_us), denial.to_us);
                ended = self.ends.partition_point(|(to_us, _)| *to_us < denial.to_us);
            }
            while let Some((to_us, _)) =
                self.ends.get(ended).filter(|(to_us, _)| *to_us < denial.to_us)
            {
                ended += 1;
                worst = worst.max((value(sum_of_first(&self.ends, ended), to_us + 1), to_us + 1));
            }
            let begun = i128::from(self.begun_by(denial.to_us)) * numerator;
            let (worst_value, start_us) = worst;
            let surplus = begun - units(denial.from_us) - worst_value
                + i128::from(denial.tokens) * numerator
                + i128::from(clock_error_us) * denominator;
            if surplus <= 0 {
                let tokens = self.begun_by(denial.to_us) - self.ended_before(start_us);
                let earned_us = denial.from_us.saturating_sub(start_us) as f64;
                return Err(format!(
                    "{denial:?} was not due: {tokens} tokens had been admitted since {start_us}, \
                     when it was last denied or later, of {:.3} that were earned",
                    earned_us * denominator as f64 / numerator as f64
                ));
            }
            let spare = i128::from(burst.saturating_sub(denial.tokens)) * numerator;
            busy_until = busy_until.max(units(denial.from_us) + spare);
        }
        Ok(())
    }
}

fn sum_of_first(sums: &[(u64, u64)], count: usize) -> u64 {
    count.checked_sub(1).map_or(0, |last| sums[last].1)
}

#[cfg(test)]
mod tests;
