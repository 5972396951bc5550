//! Leased permits: at most `limit` in flight at any instant, each for a while.
//!
//! For holders elsewhere, who may vanish without a word. What is taken is a lease with a name of its
//! own. It ends by itself, at its very instant, unless it is renewed; until then it can be given
//! back, once. As with permits without an end, a full counter answers [`Busy`](crate::Outcome::Busy):
//! the earliest end is known, but it may be put off.
//!
//! What has ended is struck from the list by the next lease that is granted, renewed or given back.

mod lease_record;
mod lease_slice;

use std::time::Duration;

pub(crate) use lease_record::{LeaseList, LeaseRecord};
use lease_slice::LeaseSlice;

use super::concurrency::{ConcurrencyLimit, InFlight};
use super::word::WordState;
use super::{Algorithm, Refund};
use crate::{Decision, PolicyError, Timestamp};

/// The algorithm's name.
pub const NAME: &str = "leased_concurrency";

/// The largest limit: all leases are looked through to find one.
pub const LEASE_LIMIT_MAX: u64 = 10_000;

/// The longest time of a lease: ten years of 366 days.
const TTL_US_MAX: u128 = 10 * 366 * 86_400 * 1_000_000;

/// The numbers of one policy of leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeasedConcurrency {
    permits: ConcurrencyLimit,
    ttl_us: u64,
}

impl LeasedConcurrency {
    /// `ttl` rounds down to a microsecond: a lease that is longer than asked for would admit less.
    pub(crate) fn new(permits: &ConcurrencyLimit, ttl: Duration) -> Result<Self, PolicyError> {
        let limit = permits.limit();
        if limit > LEASE_LIMIT_MAX {
            return Err(PolicyError::TooManyLeases { limit });
        }
        if !(1..=TTL_US_MAX).contains(&ttl.as_micros()) {
            return Err(PolicyError::LeaseTime { ttl });
        }
        Ok(Self { permits: permits.clone(), ttl_us: ttl.as_micros() as u64 })
    }

    /// Returns the policy with another limit, on the same leases.
    pub(crate) fn with_limit(&self, limit: u64) -> Self {
        Self { permits: ConcurrencyLimit::at_step(limit), ..*self }
    }

    /// The same limit, where all that counts is how many are in flight.
    pub(crate) fn permits(&self) -> &ConcurrencyLimit {
        &self.permits
    }

    pub(crate) fn ttl_us(&self) -> u64 {
        self.ttl_us
    }

    /// Decides `cost` where `count` permits are in flight. Reads only: what is allowed is then
    /// [charged](Self::charge).
    pub(crate) fn decide(&self, count: u64, now_us: u64, cost: u64) -> Decision {
        let step = self.permits.step(InFlight::new(count), now_us, cost);
        self.permits.decision(&step, now_us)
    }

    /// Writes down a lease of `permits` from `now_us` on.
    pub(crate) fn charge(&self, leases: &mut impl LeaseList, now_us: u64, id: u64, permits: u64) {
        leases.strike_ended(now_us);
        let ends_at_us = now_us + self.ttl_us;
        let mut left = permits;
        while left > 0 {
            let part = left.min(LeaseRecord::PERMITS_MAX);
            leases.push(LeaseRecord::new(id, ends_at_us, part));
            left -= part;
        }
    }

    /// Until when lease `id` is held now; `None` where it has ended or was given back.
    pub(crate) fn renew(&self, leases: &mut impl LeaseList, now_us: u64, id: u64) -> Option<u64> {
        let ends_at_us = now_us + self.ttl_us;
        let mut is_held = false;
        leases.alter(|lease| {
            if lease.ends_at_us() <= now_us {
                return None;
            }
            if lease.id() != id {
                return Some(lease);
            }
            is_held = true;
            Some(LeaseRecord::new(id, ends_at_us, lease.permits()))
        });
        is_held.then_some(ends_at_us)
    }

    /// Decides `cost` on leases in a slice of words, and grants it as lease `id`.
    pub(crate) fn grant(&self, state: &mut [u64], now: Timestamp, cost: u64, id: u64) -> Decision {
        let now_us = now.clamp_to_clock().as_micros();
        let mut leases = LeaseSlice::new(state);
        let decision = self.decide(leases.in_flight(now_us), now_us, cost);
        if cost > 0 && decision.is_allowed() {
            self.charge(&mut leases, now_us, id, cost);
        }
        decision
    }

    /// Renews lease `id` among leases in a slice of words.
    pub(crate) fn extend(&self, state: &mut [u64], now: Timestamp, id: u64) -> Option<Timestamp> {
        let mut leases = LeaseSlice::new(state);
        let now_us = now.clamp_to_clock().as_micros();
        self.renew(&mut leases, now_us, id).map(Timestamp::from_micros)
    }

    /// Takes back up to `amount` permits of lease `id`, and says how many.
    pub(crate) fn give_back(leases: &mut impl LeaseList, now_us: u64, id: u64, amount: u64) -> u64 {
        let mut left = amount;
        leases.alter(|lease| {
            if lease.ends_at_us() <= now_us {
                return None;
            }
            if lease.id() != id {
                return Some(lease);
            }
            let back = lease.permits().min(left);
            left -= back;
            let kept = lease.permits() - back;
            (kept > 0).then(|| LeaseRecord::new(id, lease.ends_at_us(), kept))
        });
        amount - left
    }
}

/// Over words that are nobody's list: two for each lease, then zeros. Leases are named by numbers
/// here, each one more than the largest that is held.
impl Algorithm for LeasedConcurrency {
    fn name(&self) -> &'static str {
        NAME
    }

    fn limit(&self) -> u64 {
        self.permits.limit()
    }

    /// There is none.
    fn window_us(&self) -> u64 {
        0
    }

    /// A permit has a lease of its own at worst.
    fn words(&self) -> usize {
        self.limit() as usize * LeaseRecord::WORDS
    }

    fn transition(&self, state: &mut [u64], now: Timestamp, cost: u64) -> Decision {
        let id = LeaseSlice::new(state).next_id();
        self.grant(state, now, cost, id)
    }

    fn stamp(&self, state: &[u64]) -> u64 {
        lease_slice::newest_id(state)
    }

    fn refund(&self, state: &mut [u64], now: Timestamp, stamp: u64, amount: u64) -> Refund {
        let now_us = now.clamp_to_clock().as_micros();
        let tokens = Self::give_back(&mut LeaseSlice::new(state), now_us, stamp, amount);
        Refund { tokens, sooner_us: 0 }
    }

    fn fresh_at(&self, state: &[u64]) -> Timestamp {
        Timestamp::from_micros(lease_slice::last_end_us(state))
    }
}
