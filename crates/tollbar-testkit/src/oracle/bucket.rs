//! Token bucket and leaky meter: a debt in microseconds that time pays off.
//!
//! The log is replayed from the beginning for every answer.

use super::law::Law;
use super::log::{Event, Log};
use crate::ratio::Ratio;

/// The numbers of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// How long one token takes to be earned, in microseconds.
    pub token_us: Ratio,
    /// How many tokens fit.
    pub burst: u64,
}

impl Bucket {
    fn full_debt(&self) -> Ratio {
        self.token_us.times(self.burst.into())
    }

    /// What the counter owes at `now_us`.
    pub(super) fn debt(log: &Log, now_us: u128) -> Ratio {
        let mut debt = Ratio::ZERO;
        let mut owed_since_us = 0;
        for event in &log.events {
            match event {
                Event::Charged { at_us, cost, token_us } => {
                    debt = aged(debt, owed_since_us, *at_us).plus(token_us.times((*cost).into()));
                    owed_since_us = *at_us;
                }
                Event::Capped { at_us, debt_max } => {
                    debt = aged(debt, owed_since_us, *at_us).min(*debt_max);
                    owed_since_us = *at_us;
                }
            }
        }
        aged(debt, owed_since_us, now_us)
    }
}

/// A debt of `from_us` as it stands at `to_us`: smaller if time has passed, larger by as much as
/// the clock has gone back.
fn aged(debt: Ratio, from_us: u128, to_us: u128) -> Ratio {
    if to_us >= from_us {
        debt.minus_or_zero(Ratio::whole(to_us - from_us))
    } else {
        debt.plus(Ratio::whole(from_us - to_us))
    }
}

impl Law for Bucket {
    fn capacity(&self) -> u64 {
        self.burst
    }

    fn notice(&self, log: &mut Log, now_us: u128) {
        if Self::debt(log, now_us) > self.full_debt() {
            log.events.push(Event::Capped { at_us: now_us, debt_max: self.full_debt() });
        }
    }

    fn fits(&self, log: &Log, now_us: u128, cost: u64) -> bool {
        let charge = self.token_us.times(cost.into());
        Self::debt(log, now_us).plus(charge) <= self.full_debt()
    }

    fn charge(&self, log: &mut Log, now_us: u128, cost: u64) {
        log.events.push(Event::Charged { at_us: now_us, cost, token_us: self.token_us });
    }

    fn remaining(&self, log: &Log, now_us: u128) -> u128 {
        self.full_debt().minus_or_zero(Self::debt(log, now_us)).whole_parts(self.token_us)
    }

    fn reset_at_us(&self, log: &Log, now_us: u128) -> u128 {
        now_us + Self::debt(log, now_us).min(self.full_debt()).ceil()
    }
}
