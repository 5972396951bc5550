//! Sliding window strict(n): the sub-window of now and the n before it, which together cover any
//! window that ends now.

use super::log::Log;
use crate::oracle::model::Model;

/// The numbers of a strict sliding window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strict {
    /// Tokens in any window.
    pub limit: u64,
    /// How long a window is.
    pub window_us: u128,
    /// Into how many parts a window is cut.
    pub parts: u32,
}

impl Strict {
    fn part_us(&self) -> u128 {
        self.window_us.div_ceil(self.parts.into())
    }

    fn part(&self, log: &Log, now_us: u128) -> u128 {
        let newest = log.newest_window(self.part_us()).unwrap_or(0);
        (now_us / self.part_us()).max(newest)
    }

    fn oldest_part(&self, log: &Log, now_us: u128) -> u128 {
        self.part(log, now_us).saturating_sub(self.parts.into())
    }

    fn sum(&self, log: &Log, now_us: u128) -> u128 {
        let newest = self.part(log, now_us);
        log.sum(self.part_us(), self.oldest_part(log, now_us), newest)
    }
}

impl Model for Strict {
    fn capacity(&self) -> u64 {
        self.limit
    }

    fn fits(&self, log: &Log, now_us: u128, cost: u64) -> bool {
        self.sum(log, now_us) + u128::from(cost) <= u128::from(self.limit)
    }

    fn remaining(&self, log: &Log, now_us: u128) -> u128 {
        u128::from(self.limit).saturating_sub(self.sum(log, now_us))
    }

    fn counts(&self, log: &Log, now_us: u128, stamp: u64) -> bool {
        let oldest = self.oldest_part(log, now_us);
        log.window_of(self.part_us(), stamp).is_some_and(|part| part >= oldest)
    }

    fn reset_at_us(&self, log: &Log, now_us: u128) -> u128 {
        match log.newest_window(self.part_us()) {
            Some(newest) if newest >= self.oldest_part(log, now_us) => {
                (newest + 1 + u128::from(self.parts)) * self.part_us()
            }
            _ => now_us,
        }
    }
}
