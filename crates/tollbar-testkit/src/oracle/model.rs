//! What an algorithm says of a history. Each answer follows from the whole log, every time.

use std::fmt::Debug;

use super::log::{Event, Log};
use crate::oracle::ratio::Ratio;

/// How tokens are lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lending {
    /// Less may be owed while they are out.
    UnderCut,
    /// They end with the window that they were charged in.
    UntilReset,
}

/// One algorithm with its numbers.
pub trait Model: Debug {
    /// The largest cost that can ever pass.
    fn capacity(&self) -> u64;

    /// Whether `cost` may be charged at `now_us`.
    fn fits(&self, log: &Log, now_us: u128, cost: u64) -> bool;

    /// Tokens left at `now_us`.
    fn remaining(&self, log: &Log, now_us: u128) -> u128;

    /// When the window ends, or the bucket is full.
    fn reset_at_us(&self, log: &Log, now_us: u128) -> u128;

    /// The reset that a request of `cost` is told. If the same request does not pass at the end of
    /// the window, it is when it does.
    fn told_reset_at_us(&self, log: &Log, now_us: u128, cost: u64) -> u128 {
        let reset_at_us = self.reset_at_us(log, now_us);
        let cost = cost.clamp(1, self.capacity());
        if !self.tells_when() || self.fits(log, reset_at_us, cost) {
            return reset_at_us;
        }
        reset_at_us + self.retry_after_us(log, reset_at_us, cost)
    }

    /// The limit reported, where it is not the policy's.
    fn limit(&self, _log: &Log, _now_us: u128) -> Option<u64> {
        None
    }

    /// Whether time alone lets a denied request pass, so that a retry-after can be told.
    fn tells_when(&self) -> bool {
        true
    }

    /// How its tokens are lent; `None` where they are not.
    fn lends(&self) -> Option<Lending> {
        None
    }

    /// How long a request that is admitted at `now_us` waits for its turn, before it is charged.
    fn delay_us(&self, _log: &Log, _now_us: u128) -> u128 {
        0
    }

    /// Writes a charge down.
    fn charge(&self, log: &mut Log, now_us: u128, cost: u64) {
        log.events.push(Event::Charged { at_us: now_us, cost, token_us: Ratio::ZERO });
    }

    /// Of buckets, what a token costs in microseconds.
    fn token_us(&self) -> Option<Ratio> {
        None
    }

    /// Whether it matters which charge is given back.
    fn numbers_charges(&self) -> bool {
        true
    }

    /// Whether the charge that is event number `stamp` still counts at `now_us`.
    fn counts(&self, log: &Log, now_us: u128, stamp: u64) -> bool;

    /// Gives back up to `amount` of the charge that is event number `stamp`, as far as it still
    /// counts, and says how much.
    fn refund(&self, log: &mut Log, now_us: u128, stamp: u64, amount: u64) -> u64 {
        if !self.counts(log, now_us, stamp) {
            return 0;
        }
        match log.events.get_mut(stamp as usize) {
            Some(Event::Charged { cost, .. }) => {
                let refunded = amount.min(*cost);
                *cost -= refunded;
                refunded
            }
            _ => 0,
        }
    }

    /// Renews the lease that is event number `stamp`, and says until when; `None` where it is gone.
    fn renew(&self, _log: &mut Log, _now_us: u128, _stamp: u64) -> Option<u128> {
        None
    }

    /// Charges `amount` whether or not it fits, and says how much of it.
    fn overdraw(&self, log: &mut Log, now_us: u128, amount: u64) -> u64 {
        self.charge(log, now_us, amount);
        amount
    }

    /// How long a denied request has to wait; `None` where no wait is long enough.
    fn wait_us(&self, log: &Log, now_us: u128, cost: u64) -> Option<u128> {
        Some(self.retry_after_us(log, now_us, cost))
    }

    /// The least wait after which the same request passes if nobody else comes: found by asking,
    /// since what has been let go stays let go.
    fn retry_after_us(&self, log: &Log, now_us: u128, cost: u64) -> u128 {
        let fits_after = |wait_us: u128| self.fits(log, now_us + wait_us, cost);
        let mut too_short_us = 0;
        let mut long_enough_us = 1;
        while !fits_after(long_enough_us) {
            too_short_us = long_enough_us;
            long_enough_us *= 2;
        }
        while long_enough_us - too_short_us > 1 {
            let middle_us = too_short_us.midpoint(long_enough_us);
            if fits_after(middle_us) {
                long_enough_us = middle_us;
            } else {
                too_short_us = middle_us;
            }
        }
        long_enough_us
    }
}
