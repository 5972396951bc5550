//! Loans: tokens that a process charges early, many at a time, and spends in memory until their term ends.
//!
//! A store lends by [`Store::lend`](crate::Store::lend). Whoever borrows (`tollbar-fleet`) answers for
//! entries whose [`Accuracy`] is [`Loaned`](Accuracy::Loaned) from the tokens it holds. Decision 0083 has the
//! proof that this admits no more than exact counting does.

use std::time::Duration;

use thiserror::Error;

use crate::policy::PolicyParts;
use crate::{Decision, Interval, Policy};

/// How exactly an entry must be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Accuracy {
    /// Every request is charged to the counter itself.
    #[default]
    Exact,
    /// Requests may be paid from tokens that the store has lent on these terms.
    Loaned(LoanTerms),
    /// By this process alone. The policy of the entry is this process's share of the limit.
    Local,
}

/// Where the answer to an entry comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Source {
    /// The counter itself.
    #[default]
    Store,
    /// Tokens that this process has borrowed, or a pause after the store had too few to lend. What remains and
    /// when it resets are estimates.
    Loan,
    /// This process's own share of the limit.
    Local,
}

impl Source {
    /// Its name in logs and responses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Loan => "loan",
            Self::Local => "local",
        }
    }
}

/// How a rule trades accuracy for fewer calls to the store. A share of the burst is in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoanMode {
    /// Never above the limit. While tokens are lent, a bucket holds this share of its burst less.
    Conservative {
        /// The share, in millionths.
        share_ppm: u32,
    },
    /// Above the limit of a bucket by at most this share of its burst. Windows are never above.
    Optimistic {
        /// The share, in millionths.
        share_ppm: u32,
    },
}

/// On which terms the tokens of one policy are lent. Made by [`LoanTerms::new`], which knows the limits of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoanTerms {
    /// How long the tokens of a loan can be spent.
    pub term: Duration,
    /// By how much a bucket's tolerance is cut while loans are out. Zero for windows, and for optimistic loans.
    pub cut: Duration,
    /// How often a busy process borrows.
    pub period: Duration,
    /// The most tokens that one loan may have.
    pub tokens_max: u64,
}

/// What a store is asked to lend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoanRequest {
    /// How many tokens. Fewer may be lent.
    pub tokens: u64,
    /// See [`LoanTerms::term`].
    pub term: Duration,
    /// See [`LoanTerms::cut`].
    pub cut: Duration,
}

/// What a store has lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loan {
    /// How many tokens were charged: none, some, or as many as were asked for.
    pub tokens: u64,
    /// For how long they can be spent, counted from when the store was asked. A duration, because the store's
    /// clock is not the borrower's.
    pub life: Duration,
    /// The counter after the loan: allowed if all tokens were lent, otherwise denied until the store has one
    /// more token. `None` from a store that lends nothing, to anybody.
    pub decision: Option<Decision>,
}

/// What a process holds of a counter that it borrows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoanHolding {
    /// Tokens that are not spent yet.
    pub tokens: u64,
    /// For how long the last of them can be spent.
    pub ends_in: Duration,
    /// For how long requests are denied that find no tokens, because the store had too few to lend. Zero if
    /// they are checked exactly.
    pub paused_for: Duration,
}

/// Why tokens of a policy cannot be lent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LoanError {
    /// Its algorithm cannot.
    #[error(
        "`{algorithm}` is always counted exactly: write `accuracy: exact`, or count by a bucket, a fixed, calendar \
         or sliding window"
    )]
    Algorithm {
        /// The algorithm.
        algorithm: &'static str,
    },
    /// A warm-up.
    #[error(
        "a limit with a warm-up is always counted exactly: write `accuracy: exact`, or leave the warm-up out"
    )]
    WarmUp,
    /// A bucket whose loans would end too soon to be of use.
    #[error(
        "a burst of {burst} is too small to lend from: its loans would end after {term:?}, and 20ms is the least. \
         Write `burst: {burst_min}` or more, or `accuracy: exact`"
    )]
    BurstTooSmall {
        /// The burst.
        burst: u64,
        /// How long a loan would last.
        term: Duration,
        /// The smallest burst that will do.
        burst_min: u64,
    },
    /// A window that is over before a loan is spent.
    #[error(
        "a window of {window:?} is too short to lend from: write one of 1s or longer, or `accuracy: exact`"
    )]
    WindowTooShort {
        /// The window.
        window: Duration,
    },
    /// A limit so small that loans would only get in the way.
    #[error("a limit of {limit} is too small to lend from: write 4 or more, or `accuracy: exact`")]
    LimitTooSmall {
        /// The limit.
        limit: u64,
    },
}

/// The longest term of a bucket's loans.
const TERM_MAX: Duration = Duration::from_secs(2);
/// The shortest: less is over before the answer has arrived.
const TERM_MIN: Duration = Duration::from_millis(20);
/// The term of a window's loans, unless the window ends before.
const WINDOW_TERM: Duration = Duration::from_millis(400);
/// The shortest window that is lent from.
const WINDOW_MIN: Duration = Duration::from_secs(1);
/// A term is this many periods; a loan is at most this part of what there is.
const PERIODS_PER_TERM: u32 = 4;
/// The smallest limit that is lent from: a quarter of it is a token.
const LIMIT_MIN: u64 = 4;
const MILLION: u128 = 1_000_000;

impl LoanTerms {
    /// The terms on which tokens of `policy` are lent.
    ///
    /// # Errors
    /// If they cannot be lent. The message says what to write instead.
    pub fn new(policy: &Policy, mode: LoanMode) -> Result<Self, LoanError> {
        if policy.warm_up().is_some() {
            return Err(LoanError::WarmUp);
        }
        match policy.parts(b"") {
            PolicyParts::Bucket { interval, burst, .. } => Self::of_bucket(interval, burst, mode),
            PolicyParts::FixedWindow { limit, .. }
            | PolicyParts::CalendarWindow { limit, .. }
            | PolicyParts::SlidingWindow { limit, .. } => Self::of_window(policy.window(), limit),
            _ => Err(LoanError::Algorithm { algorithm: policy.algorithm().name() }),
        }
    }

    fn of_bucket(interval: Interval, burst: u64, mode: LoanMode) -> Result<Self, LoanError> {
        let (share_ppm, is_cut) = match mode {
            LoanMode::Conservative { share_ppm } => (share_ppm, true),
            LoanMode::Optimistic { share_ppm } => (share_ppm, false),
        };
        let micros_of = |tokens: u128| {
            tokens * u128::from(interval.numerator_us) / u128::from(interval.denominator)
        };
        // At most the burst's whole time, whatever the share, so the cut never is more than the tolerance.
        let share_ppm = u128::from(share_ppm).min(MILLION);
        let term_us = micros_of(u128::from(burst)) * share_ppm / MILLION;
        let term = Duration::from_micros(u64::try_from(term_us).unwrap_or(u64::MAX)).min(TERM_MAX);
        if term < TERM_MIN {
            let needed = TERM_MIN.as_micros() * u128::from(interval.denominator) * MILLION;
            let burst_min = needed.div_ceil(u128::from(interval.numerator_us) * share_ppm.max(1));
            let burst_min = u64::try_from(burst_min).unwrap_or(u64::MAX);
            return Err(LoanError::BurstTooSmall { burst, term, burst_min });
        }
        if burst < LIMIT_MIN {
            return Err(LoanError::LimitTooSmall { limit: burst });
        }
        let cut = if is_cut { term } else { Duration::ZERO };
        let left_us = micros_of(u128::from(burst)).saturating_sub(cut.as_micros());
        let left = left_us * u128::from(interval.denominator) / u128::from(interval.numerator_us);
        let tokens_max = u64::try_from(left).unwrap_or(u64::MAX) / u64::from(PERIODS_PER_TERM);
        Ok(Self { term, cut, period: term / PERIODS_PER_TERM, tokens_max: tokens_max.max(1) })
    }

    fn of_window(window: Duration, limit: u64) -> Result<Self, LoanError> {
        if window < WINDOW_MIN {
            return Err(LoanError::WindowTooShort { window });
        }
        if limit < LIMIT_MIN {
            return Err(LoanError::LimitTooSmall { limit });
        }
        let tokens_max = limit / u64::from(PERIODS_PER_TERM);
        Ok(Self {
            term: WINDOW_TERM,
            cut: Duration::ZERO,
            period: WINDOW_TERM / PERIODS_PER_TERM,
            tokens_max,
        })
    }

    /// The longest time for which a borrower denies by itself after it got fewer tokens than it asked for: one period
    /// and a half.
    #[must_use]
    pub fn pause_max(&self) -> Duration {
        self.period * 3 / 2
    }

    /// A loan of `tokens` on these terms.
    #[must_use]
    pub fn request(&self, tokens: u64) -> LoanRequest {
        LoanRequest { tokens: tokens.min(self.tokens_max), term: self.term, cut: self.cut }
    }
}

impl Loan {
    /// The answer of a store that lends nothing.
    pub const NONE: Self = Self { tokens: 0, life: Duration::ZERO, decision: None };
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIVE_PERCENT: LoanMode = LoanMode::Conservative { share_ppm: 50_000 };

    #[test]
    fn a_bucket_lends_for_a_share_of_its_burst() {
        let policy = Policy::token_bucket("1000/s").unwrap().with_burst(10_000).unwrap();
        let terms = LoanTerms::new(&policy, FIVE_PERCENT).unwrap();
        assert_eq!(
            (terms.term, terms.cut),
            (Duration::from_millis(500), Duration::from_millis(500))
        );
        assert_eq!((terms.period, terms.tokens_max), (Duration::from_millis(125), 2_375));
        let optimistic =
            LoanTerms::new(&policy, LoanMode::Optimistic { share_ppm: 50_000 }).unwrap();
        assert_eq!((optimistic.term, optimistic.cut), (terms.term, Duration::ZERO));
        assert_eq!(optimistic.tokens_max, 2_500);
    }

    #[test]
    fn no_term_is_longer_than_two_seconds() {
        let policy = Policy::token_bucket("10/s").unwrap().with_burst(10_000).unwrap();
        let terms = LoanTerms::new(&policy, FIVE_PERCENT).unwrap();
        assert_eq!(terms.term, Duration::from_secs(2));
        assert_eq!(terms.request(1_000_000).tokens, terms.tokens_max);
    }

    #[test]
    fn a_burst_that_is_too_small_is_told_the_smallest_that_will_do() {
        let policy = Policy::token_bucket("1000/s").unwrap().with_burst(10).unwrap();
        let error = LoanTerms::new(&policy, FIVE_PERCENT).unwrap_err();
        let LoanError::BurstTooSmall { burst_min, .. } = error else { panic!("{error:?}") };
        assert_eq!(burst_min, 400);
        let enough = policy.clone().with_burst(400).unwrap();
        assert!(LoanTerms::new(&enough, FIVE_PERCENT).is_ok());
        assert!(LoanTerms::new(&policy.with_burst(399).unwrap(), FIVE_PERCENT).is_err());
    }

    #[test]
    fn windows_lend_and_what_is_always_exact_does_not() {
        let window = Policy::sliding_window("100/s").unwrap();
        let terms = LoanTerms::new(&window, FIVE_PERCENT).unwrap();
        assert_eq!((terms.term, terms.cut), (Duration::from_millis(400), Duration::ZERO));
        assert_eq!((terms.period, terms.tokens_max), (Duration::from_millis(100), 25));
        for exact in [
            Policy::sliding_window_strict("100/s", 10),
            Policy::sliding_window_log("100/s"),
            Policy::leaky_queue("100/s", 10),
            Policy::fixed_window("100/ms"),
            Policy::fixed_window("3/s"),
        ] {
            assert!(LoanTerms::new(&exact.unwrap(), FIVE_PERCENT).is_err());
        }
    }
}
