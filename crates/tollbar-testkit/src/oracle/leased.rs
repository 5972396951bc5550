//! Leased permits: the log is every lease there ever was, with when it ends and what it holds.

use super::log::{Event, Log};
use crate::oracle::model::Model;

/// The numbers of a limit on leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leased {
    /// Permits in flight at once.
    pub limit: u64,
    /// How long a lease lasts.
    pub ttl_us: u128,
}

/// The leases in the order in which they were granted: ends and permits.
fn leases(log: &mut Log) -> impl Iterator<Item = (&mut u128, &mut u64)> {
    log.events.iter_mut().map(|event| match event {
        Event::Leased { ends_at_us, permits } => (ends_at_us, permits),
        _ => unreachable!("leases are the only events of leased permits"),
    })
}

fn in_flight(log: &Log, now_us: u128) -> u128 {
    let mut log = log.clone();
    leases(&mut log)
        .filter(|(end_us, _)| **end_us > now_us)
        .map(|(_, permits)| u128::from(*permits))
        .sum()
}

/// What has ended by now is over, even if the clock goes back. Only what changes the leases notices.
fn strike_ended(log: &mut Log, now_us: u128) {
    for (_, permits) in leases(log).filter(|(end_us, _)| **end_us <= now_us) {
        *permits = 0;
    }
}

impl Model for Leased {
    fn capacity(&self) -> u64 {
        self.limit
    }

    fn fits(&self, log: &Log, now_us: u128, cost: u64) -> bool {
        u128::from(cost) <= self.remaining(log, now_us)
    }

    fn remaining(&self, log: &Log, now_us: u128) -> u128 {
        u128::from(self.limit).saturating_sub(in_flight(log, now_us))
    }

    fn reset_at_us(&self, _log: &Log, now_us: u128) -> u128 {
        now_us
    }

    fn tells_when(&self) -> bool {
        false
    }

    fn charge(&self, log: &mut Log, now_us: u128, cost: u64) {
        strike_ended(log, now_us);
        log.events.push(Event::Leased { ends_at_us: now_us + self.ttl_us, permits: cost });
    }

    fn counts(&self, log: &Log, now_us: u128, stamp: u64) -> bool {
        let lease = log.events.get(stamp as usize);
        matches!(lease, Some(Event::Leased { ends_at_us, permits: 1.. }) if *ends_at_us > now_us)
    }

    fn refund(&self, log: &mut Log, now_us: u128, stamp: u64, amount: u64) -> u64 {
        strike_ended(log, now_us);
        let Some((_, permits)) = leases(log).nth(stamp as usize) else {
            return 0;
        };
        let returned = amount.min(*permits);
        *permits -= returned;
        returned
    }

    fn overdraw(&self, _log: &mut Log, _now_us: u128, _amount: u64) -> u64 {
        0
    }

    fn renew(&self, log: &mut Log, now_us: u128, stamp: u64) -> Option<u128> {
        strike_ended(log, now_us);
        let (end_us, permits) = leases(log).nth(stamp as usize)?;
        *end_us = if *permits > 0 { now_us + self.ttl_us } else { *end_us };
        (*permits > 0).then_some(*end_us)
    }
}
