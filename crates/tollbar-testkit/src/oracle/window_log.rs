//! Sliding window log: what was charged in the window that ends now, by the log itself.

use tollbar::algorithm::sliding_log::LOG_TOKENS_MAX;

use super::log::Log;
use crate::oracle::model::Model;

/// The numbers of a sliding window log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowLog {
    /// Tokens in any window.
    pub limit: u64,
    /// How long a window is.
    pub window_us: u128,
}

impl WindowLog {
    /// Each charge and when it counts: at its time, unless the clock had gone back to before
    /// another; then at that one's.
    fn charges(log: &Log) -> impl Iterator<Item = (u128, u128)> {
        log.by_window(|at_us| at_us)
    }

    /// Now, or the newest charge where the clock has gone back before it.
    fn present_us(log: &Log, now_us: u128) -> u128 {
        Self::charges(log).last().map_or(now_us, |(newest_us, _)| newest_us.max(now_us))
    }

    fn is_in_window(&self, at_us: u128, present_us: u128) -> bool {
        at_us + self.window_us > present_us
    }

    fn sum(&self, log: &Log, now_us: u128) -> u128 {
        let present_us = Self::present_us(log, now_us);
        let in_window =
            Self::charges(log).filter(|(at_us, _)| self.is_in_window(*at_us, present_us));
        in_window.map(|(_, cost)| cost).sum()
    }
}

impl Model for WindowLog {
    fn capacity(&self) -> u64 {
        self.limit
    }

    fn fits(&self, log: &Log, now_us: u128, cost: u64) -> bool {
        self.sum(log, now_us) + u128::from(cost) <= u128::from(self.limit)
    }

    fn remaining(&self, log: &Log, now_us: u128) -> u128 {
        u128::from(self.limit).saturating_sub(self.sum(log, now_us))
    }

    /// When the newest charge leaves that was not given back.
    fn reset_at_us(&self, log: &Log, now_us: u128) -> u128 {
        let present_us = Self::present_us(log, now_us);
        let counting =
            Self::charges(log).filter(|(at_us, _)| self.is_in_window(*at_us, present_us));
        let paid = counting.filter(|(_, cost)| *cost > 0);
        paid.last().map_or(now_us, |(at_us, _)| at_us + self.window_us)
    }

    fn counts(&self, log: &Log, now_us: u128, stamp: u64) -> bool {
        let present_us = Self::present_us(log, now_us);
        let charge = Self::charges(log).nth(stamp as usize);
        charge.is_some_and(|(at_us, _)| self.is_in_window(at_us, present_us))
    }

    fn overdraw(&self, log: &mut Log, now_us: u128, amount: u64) -> u64 {
        let room = u128::from(LOG_TOKENS_MAX).saturating_sub(self.sum(log, now_us));
        let charged = u128::from(amount).min(room) as u64;
        if charged > 0 {
            self.charge(log, now_us, charged);
        }
        charged
    }
}
