//! Permits in flight: the log is what is out, and what comes back is struck from it.

use super::log::{Event, Log};
use crate::oracle::model::Model;

/// The number of a concurrency limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Concurrency {
    /// Permits in flight at once.
    pub limit: u64,
}

/// Each request that is in flight, by the permits it still holds.
fn in_flight(log: &Log) -> impl Iterator<Item = u128> {
    log.events.iter().map(|event| match event {
        Event::Charged { cost, .. } => u128::from(*cost),
        _ => unreachable!("charges are the only events of permits"),
    })
}

impl Model for Concurrency {
    fn capacity(&self) -> u64 {
        self.limit
    }

    fn fits(&self, log: &Log, now_us: u128, cost: u64) -> bool {
        u128::from(cost) <= self.remaining(log, now_us)
    }

    fn remaining(&self, log: &Log, _now_us: u128) -> u128 {
        u128::from(self.limit).saturating_sub(in_flight(log).sum())
    }

    fn reset_at_us(&self, _log: &Log, now_us: u128) -> u128 {
        now_us
    }

    fn tells_when(&self) -> bool {
        false
    }

    /// What is out counts, whoever has it.
    fn numbers_charges(&self) -> bool {
        false
    }

    fn counts(&self, log: &Log, _now_us: u128, _stamp: u64) -> bool {
        !log.events.is_empty()
    }

    /// Permits are alike, so it does not matter whose come back.
    fn refund(&self, log: &mut Log, _now_us: u128, _stamp: u64, amount: u64) -> u64 {
        let mut returned = 0;
        while returned < amount {
            let Some(Event::Charged { cost, .. }) = log.events.last_mut() else {
                break;
            };
            let from_this = (*cost).min(amount - returned);
            *cost -= from_this;
            returned += from_this;
            if *cost == 0 {
                log.events.pop();
            }
        }
        returned
    }

    /// Nobody is in flight who was not let in.
    fn overdraw(&self, _log: &mut Log, _now_us: u128, _amount: u64) -> u64 {
        0
    }
}
