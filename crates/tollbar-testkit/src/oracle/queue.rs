//! Leaky queue: the bucket's debt is what a request waits for.

use std::time::Duration;

use super::bucket::Bucket;
use super::log::{Event, Log};
use crate::oracle::model::Model;
use crate::oracle::ratio::Ratio;

/// The numbers of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// One token for whoever is on the way out, and one for each that may wait.
    pub bucket: Bucket,
    /// How long one may wait, if there is a bound.
    pub max_wait: Option<Duration>,
    /// Whether places can be given back: not where a token takes so awkward a part of a microsecond
    /// that an instant does not fit one number.
    pub gives_back: bool,
}

impl Queue {
    /// Whether somebody who came now would be let in, as far as waiting goes.
    fn may_wait(&self, log: &Log, now_us: u128) -> bool {
        self.max_wait.is_none_or(|max_wait| self.delay_us(log, now_us) <= max_wait.as_micros())
    }
}

impl Model for Queue {
    fn capacity(&self) -> u64 {
        self.bucket.capacity()
    }

    fn fits(&self, log: &Log, now_us: u128, cost: u64) -> bool {
        self.bucket.fits(log, now_us, cost) && self.may_wait(log, now_us)
    }

    fn charge(&self, log: &mut Log, now_us: u128, cost: u64) {
        self.bucket.charge(log, now_us, cost);
    }

    /// What would pass now: nothing where one would wait for too long.
    fn remaining(&self, log: &Log, now_us: u128) -> u128 {
        if self.may_wait(log, now_us) { self.bucket.remaining(log, now_us) } else { 0 }
    }

    fn reset_at_us(&self, log: &Log, now_us: u128) -> u128 {
        self.bucket.reset_at_us(log, now_us)
    }

    fn delay_us(&self, log: &Log, now_us: u128) -> u128 {
        Bucket::debt(log, now_us).ceil()
    }

    fn counts(&self, log: &Log, now_us: u128, stamp: u64) -> bool {
        self.bucket.counts(log, now_us, stamp)
    }

    /// Whoever has left cannot take another place in the queue.
    fn overdraw(&self, _log: &mut Log, _now_us: u128, _amount: u64) -> u64 {
        0
    }

    /// The queue must be empty at the very instant at which it was to be after the charge: nobody has
    /// come behind it, or all who did have gone back. And its places must lie ahead.
    fn refund(&self, log: &mut Log, now_us: u128, stamp: u64, amount: u64) -> u64 {
        let number = stamp as usize;
        let Some(Event::Charged { at_us, cost, token_us }) = log.events.get(number).cloned() else {
            return 0;
        };
        let empty_at = |at_us: u128, debt: Ratio| Ratio::whole(at_us).plus(debt);
        let was_to_be = empty_at(at_us, Bucket::debt_after(log, number + 1, at_us));
        let debt = Bucket::debt(log, now_us);
        let back = token_us.times(amount.into());
        let is_last = empty_at(now_us, debt) == was_to_be;
        if !self.gives_back || amount == 0 || amount > cost || !is_last || debt <= back {
            return 0;
        }
        log.events.push(Event::Refunded { at_us: now_us, back });
        amount
    }
}
