//! A little chance, so that not all who were told to wait come back at once.

use std::time::Duration;

/// Lengthens waits by up to so many seconds. Never shortens one: what was promised stays true.
#[derive(Debug)]
pub(crate) struct Jitter {
    max: Duration,
}

impl Jitter {
    pub(crate) fn up_to(max: Duration) -> Self {
        Self { max }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "nobody gains by guessing how long another waits"
    )]
    pub(crate) fn lengthen(&self, wait: Duration) -> Duration {
        if self.max.is_zero() {
            return wait;
        }
        let max_us = u64::try_from(self.max.as_micros()).unwrap_or(u64::MAX);
        wait.saturating_add(Duration::from_micros(fastrand::u64(0..=max_us)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_lengthened_within_the_bound_and_never_shortened() {
        let jitter = Jitter::up_to(Duration::from_secs(10));
        let wait = Duration::from_secs(3);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1_000 {
            let longer = jitter.lengthen(wait);
            assert!((wait..=Duration::from_secs(13)).contains(&longer), "{longer:?}");
            seen.insert(longer.as_secs());
        }
        // Each whole second of the range turns up among a thousand.
        assert!(seen.len() >= 10, "{seen:?}");
    }

    #[test]
    fn edges_do_no_harm() {
        assert_eq!(Jitter::up_to(Duration::ZERO).lengthen(Duration::MAX), Duration::MAX);
        let _ = Jitter::up_to(Duration::MAX).lengthen(Duration::MAX);
        let _ = Jitter::up_to(Duration::from_micros(1)).lengthen(Duration::ZERO);
    }
}
