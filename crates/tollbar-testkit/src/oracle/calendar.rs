//! Calendar window: what was charged since the last midnight, Monday or first of the month.

use super::log::Log;
use crate::oracle::almanac::Almanac;
use crate::oracle::model::{Lending, Model};

/// The numbers of a calendar window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calendar {
    /// Tokens in each window.
    pub limit: u64,
    /// Which windows there are.
    pub almanac: Almanac,
}

impl Calendar {
    fn window(&self, log: &Log, now_us: u128) -> u128 {
        let charged = log.by_window(|at_us| self.almanac.window(at_us));
        let newest = charged.last().map_or(0, |(window, _)| window);
        self.almanac.window(now_us).max(newest)
    }

    fn count(&self, log: &Log, now_us: u128) -> u128 {
        let current = self.window(log, now_us);
        let charged = log.by_window(|at_us| self.almanac.window(at_us));
        charged.filter(|(window, _)| *window == current).map(|(_, cost)| cost).sum()
    }
}

impl Model for Calendar {
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
        let mut charged = log.by_window(|at_us| self.almanac.window(at_us));
        let window = charged.nth(stamp as usize).map(|(window, _)| window);
        window == Some(self.window(log, now_us))
    }

    fn lends(&self) -> Option<Lending> {
        Some(Lending::UntilReset)
    }

    fn reset_at_us(&self, log: &Log, now_us: u128) -> u128 {
        self.almanac.end_us(self.window(log, now_us))
    }
}
