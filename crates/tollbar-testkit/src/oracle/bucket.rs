//! Token bucket and leaky meter: a debt in microseconds that time pays off.
//!
//! The log is replayed from the beginning for every answer.

use super::log::{Event, Log};
use crate::oracle::model::{Lending, Model};
use crate::oracle::ratio::Ratio;

/// The numbers of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// How long one token takes to be earned, in microseconds.
    pub token_us: Ratio,
    /// How many tokens fit.
    pub burst: u64,
    /// How many more may be owed.
    pub overdraft: u64,
}

impl Bucket {
    pub(super) fn full_debt(&self) -> Ratio {
        self.token_us.times(self.burst.into())
    }

    pub(super) fn debt_max(&self) -> Ratio {
        self.full_debt().plus(self.token_us.times(self.overdraft.into()))
    }

    /// What the counter owes at `now_us`, after the first `events`.
    pub(super) fn debt_after(log: &Log, events: usize, now_us: u128) -> Ratio {
        Self::debt(&Log { events: log.events[..events].to_vec(), ..Log::default() }, now_us)
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
                Event::Refunded { at_us, back } => {
                    debt = aged(debt, owed_since_us, *at_us).minus_or_zero(*back);
                    owed_since_us = *at_us;
                }
                Event::Cut { .. } => {}
                Event::Leased { .. } => unreachable!("no bucket leases anything"),
            }
        }
        aged(debt, owed_since_us, now_us)
    }

    /// By how much less than a full debt may be owed at `now_us`. Every whole microsecond in which nothing was owed
    /// has taken one off.
    fn cut_us(log: &Log, now_us: u128) -> u128 {
        let (mut cut_us, mut debt, mut since_us) = (0, Ratio::ZERO, 0);
        for event in &log.events {
            let (Event::Charged { at_us, .. }
            | Event::Refunded { at_us, .. }
            | Event::Cut { at_us, .. }) = event
            else {
                unreachable!("no bucket leases anything")
            };
            cut_us = shrunk(cut_us, debt, since_us, *at_us);
            debt = aged(debt, since_us, *at_us);
            since_us = *at_us;
            match event {
                Event::Charged { cost, token_us, .. } => {
                    debt = debt.plus(token_us.times((*cost).into()));
                }
                Event::Refunded { back, .. } => debt = debt.minus_or_zero(*back),
                Event::Cut { cut_us: asked_us, .. } => cut_us = cut_us.max(*asked_us),
                Event::Leased { .. } => {}
            }
        }
        shrunk(cut_us, debt, since_us, now_us)
    }

    /// All that is in the way of a charge at `now_us`.
    fn debt_and_cut(log: &Log, now_us: u128) -> Ratio {
        Self::debt(log, now_us).plus(Ratio::whole(Self::cut_us(log, now_us)))
    }
}

impl Bucket {
    /// How much longer, in whole microseconds, something of the charge number `stamp` is owed.
    fn unpaid_us(log: &Log, now_us: u128, stamp: u64) -> u128 {
        let events = stamp as usize + 1;
        let Some(Event::Charged { at_us, .. }) = log.events.get(stamp as usize) else {
            return 0;
        };
        let paid_at = Ratio::whole(*at_us).plus(Self::debt_after(log, events, *at_us));
        let paid_at_us = paid_at.whole_parts(Ratio::whole(1));
        // What was given back since may have been ahead of it, and then it is paid sooner.
        let sooner = log.events[events..].iter().filter_map(|event| match event {
            Event::Refunded { back, .. } => Some(back.ceil()),
            Event::Charged { .. } | Event::Cut { .. } | Event::Leased { .. } => None,
        });
        paid_at_us.saturating_sub(sooner.sum()).saturating_sub(now_us)
    }
}

/// What a token costs, and what is owed at most.
pub(super) struct Prices {
    pub(super) token_us: Ratio,
    pub(super) debt_max: Ratio,
}

impl Prices {
    pub(super) fn refund(&self, log: &mut Log, now_us: u128, stamp: u64, amount: u64) -> u64 {
        let unpaid = Ratio::whole(Bucket::unpaid_us(log, now_us, stamp));
        let owed = Bucket::debt(log, now_us);
        let back = self.token_us.times(amount.into()).min(unpaid).min(owed);
        if back > Ratio::ZERO {
            log.events.push(Event::Refunded { at_us: now_us, back });
        }
        narrow(back.whole_parts(self.token_us))
    }

    pub(super) fn overdraw(&self, log: &mut Log, now_us: u128, amount: u64) -> u64 {
        let owed = Bucket::debt(log, now_us);
        let room = self.debt_max.minus_or_zero(owed).whole_parts(self.token_us);
        let charged = amount.min(narrow(room));
        if charged > 0 {
            let token_us = self.token_us;
            log.events.push(Event::Charged { at_us: now_us, cost: charged, token_us });
        }
        charged
    }
}

fn narrow(tokens: u128) -> u64 {
    u64::try_from(tokens).expect("tokens fit in 64 bits")
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

/// A cut of `from_us`, when `debt` was owed, as it stands at `to_us`.
fn shrunk(cut_us: u128, debt: Ratio, from_us: u128, to_us: u128) -> u128 {
    let paid_at_us = from_us + debt.ceil();
    cut_us.saturating_sub(to_us.saturating_sub(paid_at_us))
}

impl Model for Bucket {
    fn capacity(&self) -> u64 {
        self.burst
    }

    fn token_us(&self) -> Option<Ratio> {
        Some(self.token_us)
    }

    /// Time pays debts in their order: the charge counts until all that was owed with it is paid.
    fn counts(&self, log: &Log, now_us: u128, stamp: u64) -> bool {
        Self::unpaid_us(log, now_us, stamp) > 0
    }

    fn refund(&self, log: &mut Log, now_us: u128, stamp: u64, amount: u64) -> u64 {
        Prices { token_us: self.token_us, debt_max: self.debt_max() }
            .refund(log, now_us, stamp, amount)
    }

    fn overdraw(&self, log: &mut Log, now_us: u128, amount: u64) -> u64 {
        Prices { token_us: self.token_us, debt_max: self.debt_max() }.overdraw(log, now_us, amount)
    }

    fn fits(&self, log: &Log, now_us: u128, cost: u64) -> bool {
        let charge = self.token_us.times(cost.into());
        Self::debt_and_cut(log, now_us).plus(charge) <= self.full_debt()
    }

    fn charge(&self, log: &mut Log, now_us: u128, cost: u64) {
        log.events.push(Event::Charged { at_us: now_us, cost, token_us: self.token_us });
    }

    fn remaining(&self, log: &Log, now_us: u128) -> u128 {
        self.full_debt().minus_or_zero(Self::debt_and_cut(log, now_us)).whole_parts(self.token_us)
    }

    fn reset_at_us(&self, log: &Log, now_us: u128) -> u128 {
        now_us + Self::debt_and_cut(log, now_us).ceil()
    }

    fn lends(&self) -> Option<Lending> {
        Some(Lending::UnderCut)
    }
}
