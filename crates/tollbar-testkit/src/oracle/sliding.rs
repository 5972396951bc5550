//! Sliding window counter: the current window plus the share of the previous one that a window
//! ending now still covers, as if the previous one's charges were spread evenly.

use super::log::Log;
use crate::oracle::model::{Lending, Model};

/// The numbers of a sliding window counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sliding {
    /// Tokens in a window.
    pub limit: u64,
    /// How long a window is.
    pub window_us: u128,
    /// The steps in which the previous window is let go; one microsecond unless the numbers are
    /// enormous.
    pub granularity_us: u128,
}

impl Sliding {
    fn window(&self, log: &Log, now_us: u128) -> u128 {
        let newest = log.newest_window(self.window_us).unwrap_or(0);
        (now_us / self.window_us).max(newest)
    }

    /// The estimate, in tokens times the window's length.
    fn used(&self, log: &Log, now_us: u128) -> u128 {
        let window = self.window(log, now_us);
        // Zero where the clock went back to before the newest window.
        let elapsed_us = now_us.saturating_sub(window * self.window_us);
        let elapsed_us = elapsed_us - elapsed_us % self.granularity_us;
        let current = log.sum(self.window_us, window, window);
        let previous = match window.checked_sub(1) {
            Some(before) => log.sum(self.window_us, before, before),
            None => 0,
        };
        previous * (self.window_us - elapsed_us) + current * self.window_us
    }

    fn available(&self) -> u128 {
        u128::from(self.limit) * self.window_us
    }
}

impl Model for Sliding {
    fn capacity(&self) -> u64 {
        self.limit
    }

    fn fits(&self, log: &Log, now_us: u128, cost: u64) -> bool {
        self.used(log, now_us) + u128::from(cost) * self.window_us <= self.available()
    }

    fn remaining(&self, log: &Log, now_us: u128) -> u128 {
        self.available().saturating_sub(self.used(log, now_us)) / self.window_us
    }

    fn counts(&self, log: &Log, now_us: u128, stamp: u64) -> bool {
        let current = self.window(log, now_us);
        log.window_of(self.window_us, stamp).is_some_and(|window| window + 1 >= current)
    }

    fn lends(&self) -> Option<Lending> {
        Some(Lending::UntilReset)
    }

    fn reset_at_us(&self, log: &Log, now_us: u128) -> u128 {
        (self.window(log, now_us) + 1) * self.window_us
    }
}
