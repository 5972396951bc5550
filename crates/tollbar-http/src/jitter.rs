//! A random part of the wait that clients are told, so that not all of them come back at once.
//!
//! Fixed and calendar windows end for every client at the same instant. All clients that were denied would come back
//! then, and the first of them would use the new window up. The windows of other algorithms end at different times.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;
use tollbar::algorithm::{calendar_window, fixed_window};
use tollbar::{DurationError, parse_duration};
use tollbar_rules::Verdict;

/// By how much the wait of a denied client is lengthened. It is never shortened: whoever waits as long as told passes,
/// if nobody else asks.
///
/// ```
/// use std::time::Duration;
/// use tollbar_http::RetryJitter;
/// assert_eq!("5s".parse(), Ok(RetryJitter::UpTo(Duration::from_secs(5))));
/// assert_eq!("aligned".parse(), Ok(RetryJitter::default()));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RetryJitter {
    /// Not at all.
    Off,
    /// In windows that end for all clients at once, by up to a tenth of the window and at most 30 s.
    #[default]
    Aligned,
    /// Whatever the limit, by up to this time.
    UpTo(Duration),
}

/// Why a text is no [`RetryJitter`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{text}` is no jitter: write aligned, off, or the longest time that is added, such as 5s")]
pub struct RetryJitterError {
    text: String,
    source: DurationError,
}

/// The most that is added in aligned windows: a day that ends at midnight is not waited for until 2 o'clock.
const ALIGNED_MAX: Duration = Duration::from_secs(30);

impl RetryJitter {
    /// Returns how long the client of a denied request is told to wait: as long as `verdict` says, or longer. `None`
    /// where no wait is known to help.
    #[must_use]
    pub fn lengthen(self, verdict: &Verdict) -> Option<Duration> {
        let wait = verdict.retry_after()?;
        let aligned = verdict.binding().and_then(|binding| {
            let policy = binding.limit().policy();
            let name = policy.algorithm().name();
            let is_aligned = matches!(name, fixed_window::NAME | calendar_window::NAME);
            (is_aligned && binding.degraded().is_none()).then(|| policy.window())
        });
        Some(self.lengthen_wait(wait, aligned))
    }

    /// Returns `wait` or longer. `aligned` is the window that the client waits for, if it ends for all clients at once.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "nobody gains by guessing how long another waits"
    )]
    pub fn lengthen_wait(self, wait: Duration, aligned: Option<Duration>) -> Duration {
        let max = match (self, aligned) {
            (Self::UpTo(max), _) => max,
            (Self::Aligned, Some(window)) => (window / 10).min(ALIGNED_MAX),
            (Self::Off, _) | (Self::Aligned, None) => return wait,
        };
        let max_us = u64::try_from(max.as_micros()).unwrap_or(u64::MAX);
        wait.saturating_add(Duration::from_micros(fastrand::u64(0..=max_us)))
    }
}

impl From<Duration> for RetryJitter {
    fn from(max: Duration) -> Self {
        Self::UpTo(max)
    }
}

impl FromStr for RetryJitter {
    type Err = RetryJitterError;

    fn from_str(text: &str) -> Result<Self, RetryJitterError> {
        match text {
            "off" => Ok(Self::Off),
            "aligned" => Ok(Self::Aligned),
            time => match parse_duration(time) {
                Ok(max) => Ok(Self::UpTo(max)),
                Err(source) => {
                    Err(RetryJitterError { text: time.chars().take(40).collect(), source })
                }
            },
        }
    }
}

impl fmt::Display for RetryJitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Aligned => f.write_str("aligned"),
            Self::UpTo(max) => write!(f, "{}us", max.as_micros()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check, engine, engine_without_store};

    const WAIT: Duration = Duration::from_secs(3);

    /// The whole seconds that a thousand clients are told to wait.
    fn told(jitter: RetryJitter, aligned: Option<Duration>) -> std::collections::BTreeSet<u64> {
        (0..1_000).map(|_| jitter.lengthen_wait(WAIT, aligned).as_secs()).collect()
    }

    #[test]
    fn waits_are_lengthened_within_the_bound_and_never_shortened() {
        let up_to = RetryJitter::from(Duration::from_micros(9_999_999));
        // Each whole second of the range turns up among a thousand.
        assert_eq!(told(up_to, None), (3..13).collect());
        let (minute, month) = (Duration::from_mins(1), Duration::from_hours(24 * 30));
        assert!((3..=9).contains(told(RetryJitter::Aligned, Some(minute)).last().unwrap()));
        assert!((20..=33).contains(told(RetryJitter::Aligned, Some(month)).last().unwrap()));
        assert_eq!(told(RetryJitter::Aligned, None), [3].into());
        assert_eq!(told(RetryJitter::Off, Some(minute)), [3].into());
        assert_eq!(RetryJitter::Off.lengthen_wait(WAIT, None), WAIT);
    }

    #[test]
    fn edges_do_no_harm() {
        for aligned in [None, Some(Duration::ZERO), Some(Duration::MAX)] {
            for jitter in [RetryJitter::UpTo(Duration::MAX), RetryJitter::Aligned] {
                assert_eq!(jitter.lengthen_wait(Duration::MAX, aligned), Duration::MAX);
                let _ = jitter.lengthen_wait(Duration::ZERO, aligned);
            }
        }
    }

    #[test]
    fn what_is_written_is_read_and_a_mistake_says_what_to_write() {
        for jitter in [RetryJitter::Off, RetryJitter::Aligned, RetryJitter::UpTo(WAIT)] {
            assert_eq!(jitter.to_string().parse(), Ok(jitter));
        }
        let error = "soon".parse::<RetryJitter>().unwrap_err().to_string();
        assert!(error.contains("`soon`") && error.contains("aligned, off, or"), "{error}");
    }

    /// Clients of a fixed window all came back at the same instant.
    #[test]
    fn only_windows_that_end_for_all_clients_at_once_are_jittered_by_default() {
        for (limit, is_aligned) in [
            ("limit: 1/100s, algorithm: fixed_window", true),
            ("limit: 1 per calendar day", true),
            ("limit: 1/100s, algorithm: fixed_window, staggered: true", false),
            ("limit: 1/100s", false),
            ("limit: 1/100s, burst: 1", false),
            ("limit: 1/100s, algorithm: leaky_bucket", false),
            ("limit: 1/100s, algorithm: sliding_window_log", false),
            ("limit: 1/100s, algorithm: sliding_window_strict", false),
        ] {
            let (engine, _) = engine(&format!("rules: [{{ name: a, {limit} }}]"));
            check(&engine, 1);
            let verdict = check(&engine, 1);
            let exact = verdict.retry_after().unwrap();
            let waits: Vec<Duration> =
                (0..200).map(|_| RetryJitter::Aligned.lengthen(&verdict).unwrap()).collect();
            assert!(waits.iter().all(|wait| *wait >= exact), "{limit}");
            assert_eq!(waits.iter().any(|wait| *wait > exact), is_aligned, "{limit}");
        }
    }

    /// Without the store nobody knows the window, and the store does not come back for all at the end of one.
    #[test]
    fn a_wait_for_the_store_is_not_jittered() {
        for policy in ["deny", "local"] {
            let engine = engine_without_store(&format!(
                "rules: [{{ name: a, limit: 1/100s, algorithm: fixed_window, on_store_failure: {policy} }}]"
            ));
            check(&engine, 1);
            let verdict = check(&engine, 1);
            assert!(!verdict.is_allowed() && verdict.retry_after().is_some(), "{policy}");
            for _ in 0..50 {
                let told = RetryJitter::Aligned.lengthen(&verdict);
                assert_eq!(told, verdict.retry_after(), "{policy}");
            }
        }
    }
}
