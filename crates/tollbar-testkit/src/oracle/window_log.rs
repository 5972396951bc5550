//! Sliding window log: what was charged in the window that ends now, by the log itself.

use super::law::Law;
use super::log::{Event, Log};

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

    fn counts(&self, at_us: u128, present_us: u128) -> bool {
        at_us + self.window_us > present_us
    }

    fn sum(&self, log: &Log, now_us: u128) -> u128 {
        let present_us = Self::present_us(log, now_us);
        let in_window = Self::charges(log).filter(|(at_us, _)| self.counts(*at_us, present_us));
        in_window.map(|(_, cost)| cost).sum()
    }
}

impl Law for WindowLog {
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
        let counting = Self::charges(log).filter(|(at_us, _)| self.counts(*at_us, present_us));
        let paid = counting.filter(|(_, cost)| *cost > 0);
        paid.last().map_or(now_us, |(at_us, _)| at_us + self.window_us)
    }

    /// What is given back was never charged, but for the instant of it, which has passed.
    fn refund(&self, log: &mut Log, now_us: u128, stamp: u64, amount: u64) -> u64 {
        let number = stamp as usize;
        let present_us = Self::present_us(log, now_us);
        let charge = Self::charges(log).nth(number);
        if !charge.is_some_and(|(at_us, _)| self.counts(at_us, present_us)) {
            return 0;
        }
        let Some(Event::Charged { cost, .. }) = log.events.get_mut(number) else {
            return 0;
        };
        let given_back = amount.min(*cost);
        *cost -= given_back;
        given_back
    }
}
