//! Leaky queue: the bucket's debt is what a request waits for.

use std::time::Duration;

use super::bucket::Bucket;
use super::law::Law;
use super::log::{Event, Log};

/// The numbers of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// One token for whoever is on the way out, and one for each that may wait.
    pub bucket: Bucket,
    /// How long one may wait, if there is a bound.
    pub max_wait: Option<Duration>,
}

impl Queue {
    /// Whether somebody who came now would be let in, as far as waiting goes.
    fn may_wait(&self, log: &Log, now_us: u128) -> bool {
        self.max_wait.is_none_or(|max_wait| self.delay_us(log, now_us) <= max_wait.as_micros())
    }
}

impl Law for Queue {
    fn capacity(&self) -> u64 {
        self.bucket.capacity()
    }

    fn notice(&self, log: &mut Log, now_us: u128) {
        self.bucket.notice(log, now_us);
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

    /// The last thing that happened must be the charge itself, and its places must lie ahead.
    fn refund(&self, log: &mut Log, now_us: u128, stamp: u64, amount: u64) -> u64 {
        let Some(Event::Charged { at_us, cost, token_us }) = log.events.last().cloned() else {
            return 0;
        };
        let is_last = log.events.len() as u64 == stamp.saturating_add(1);
        let lies_ahead = Bucket::debt(log, now_us) > token_us.times(amount.into());
        if amount == 0 || amount > cost || !is_last || !lies_ahead {
            return 0;
        }
        log.events.pop();
        if cost > amount {
            // What is left of it goes by another number.
            log.events.push(Event::Charged { at_us, cost: 0, token_us });
            log.events.push(Event::Charged { at_us, cost: cost - amount, token_us });
        }
        amount
    }
}
