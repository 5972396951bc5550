//! Fixed window: what was charged since the last multiple of the window.

use super::log::Log;
use crate::oracle::model::{Lending, Model};

/// The numbers of a fixed window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixed {
    /// Tokens in each window.
    pub limit: u64,
    /// How long a window is.
    pub window_us: u128,
}

impl Fixed {
    fn window(&self, log: &Log, now_us: u128) -> u128 {
        let newest = log.newest_window(self.window_us).unwrap_or(0);
        (now_us / self.window_us).max(newest)
    }

    fn count(&self, log: &Log, now_us: u128) -> u128 {
        let window = self.window(log, now_us);
        log.sum(self.window_us, window, window)
    }
}

impl Model for Fixed {
    fn capacity(&self) -> u64 {
        self.limit
    }

    fn fits(&self, log: &Log, now_us: u128, cost: u64) -> bool {
        self.count(log, now_us) + u128::from(cost) <= u128::from(self.limit)
    }

    fn remaining(&self, log: &Log, now_us: u128) -> u128 {
        u128::from(self.limit).saturating_sub(self.count(log, now_us))
    }

    fn counts(&self, log: &Log, now_us: u128, stamp: u64) -> bool {
        log.window_of(self.window_us, stamp) == Some(self.window(log, now_us))
    }

    fn lends(&self) -> Option<Lending> {
        Some(Lending::UntilReset)
    }

    fn reset_at_us(&self, log: &Log, now_us: u128) -> u128 {
        (self.window(log, now_us) + 1) * self.window_us
    }
}
