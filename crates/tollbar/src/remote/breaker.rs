//! The circuit breaker: after a few failures in a row, checks fail at once instead of waiting.
//!
//! It opens when the connection is lost or so many checks in a row have missed their deadline. While
//! it is open checks fail at once. It closes when a new connection has answered, which a
//! [`Link`](super::Link) makes in the background, not some unlucky check.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Whether checks are sent at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerState {
    /// They are.
    Closed,
    /// Some are. Those of counters whose server is gone fail at once: a part of a cluster is missing.
    Partial,
    /// They fail at once, until a connection answers again.
    Open,
}

/// Counts failures in a row, and how often that was too many.
#[derive(Debug)]
pub struct Breaker {
    failures_max: u32,
    failures_in_a_row: AtomicU32,
    opened: AtomicU64,
}

impl Breaker {
    /// Opens after so many failures in a row; at least one.
    #[must_use]
    pub fn new(failures_max: u32) -> Self {
        Self {
            failures_max: failures_max.max(1),
            failures_in_a_row: AtomicU32::new(0),
            opened: AtomicU64::new(0),
        }
    }

    /// Notes that a check was answered, if only by a refusal.
    pub fn succeed(&self) {
        // Mostly it is 0 already, and a read leaves the cache line with everybody.
        if self.failures_in_a_row.load(Ordering::Relaxed) != 0 {
            self.failures_in_a_row.store(0, Ordering::Relaxed);
        }
    }

    /// Notes that a check was not answered; true if that opens the breaker.
    pub fn fail(&self) -> bool {
        self.failures_in_a_row.fetch_add(1, Ordering::Relaxed) + 1 >= self.failures_max
    }

    /// Counts that it has opened.
    pub fn count_opening(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    /// How often it has opened.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_in_a_row_are_too_many() {
        let breaker = Breaker::new(3);
        assert_eq!([breaker.fail(), breaker.fail()], [false, false]);
        breaker.succeed();
        assert_eq!([breaker.fail(), breaker.fail(), breaker.fail()], [false, false, true]);
    }
}
