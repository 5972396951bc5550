//! A little chance, so that not all who were told to wait come back at once.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Lengthens waits by up to so many seconds. Never shortens one: what was promised stays true.
#[derive(Debug)]
pub(crate) struct Jitter {
    max: Duration,
    state: AtomicU64,
}

impl Jitter {
    pub(crate) fn up_to(max: Duration) -> Self {
        // The standard library's way to random bits: its own hash keys, seeded by the system.
        Self { max, state: AtomicU64::new(RandomState::new().build_hasher().finish()) }
    }

    pub(crate) fn lengthen(&self, wait: Duration) -> Duration {
        if self.max.is_zero() {
            return wait;
        }
        let max_us = u64::try_from(self.max.as_micros()).unwrap_or(u64::MAX);
        wait.saturating_add(Duration::from_micros(self.next() % max_us.saturating_add(1).max(1)))
    }

    /// `SplitMix64`: a counter, scrambled.
    fn next(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut bits = self.state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
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
    fn numbers_are_those_of_split_mix_64() {
        let jitter = Jitter { max: Duration::ZERO, state: AtomicU64::new(1_234_567) };
        // From the reference implementation, seeded with the same number.
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973];
        assert_eq!([jitter.next(), jitter.next()], expected);
    }

    #[test]
    fn edges_do_no_harm() {
        assert_eq!(Jitter::up_to(Duration::ZERO).lengthen(Duration::MAX), Duration::MAX);
        let _ = Jitter::up_to(Duration::MAX).lengthen(Duration::MAX);
        let _ = Jitter::up_to(Duration::from_micros(1)).lengthen(Duration::ZERO);
    }
}
