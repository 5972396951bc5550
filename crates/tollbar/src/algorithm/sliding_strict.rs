//! Sliding window, strict: never more than `limit` in any window, wherever it starts.
//!
//! The window is cut into `n` sub-windows, and the current one and the `n` before it must together
//! stay within the limit. Those n + 1 cover any window that ends now, so the bound is hard; what it
//! costs is that a request counts for up to one sub-window too long, and a client that always asks
//! gets n / (n + 1) of the limit. The retry-after is exact: a sub-window's boundary.
//!
//! A sub-window is a whole number of microseconds, rounded up, so n of them may be longer than the
//! window, and the client gets less by as much. 15 us in 10 parts are parts of 2 us: the limit in
//! every 22 us is 15/22 of it in a window, and not the 10/11 that were promised. So a window that n
//! parts exceed by more than a thousandth is refused. One of 61 ms or more never is, because n parts
//! exceed a window by less than n us.
//!
//! The state is the newest sub-window's number plus one (so that zero is fresh) and a ring of
//! n + 1 counts.

use super::word::NUMBER_MAX;
use super::{Algorithm, Refund, STATE_WORDS_MAX};
use crate::units::Rate;
use crate::{Decision, Outcome, PolicyError, Timestamp};

/// The algorithm's name.
pub const NAME: &str = "sliding_window_strict";

/// The most sub-windows a window may be cut into.
pub const SUBWINDOWS_MAX: u32 = STATE_WORDS_MAX as u32 - 2;

/// The part of a window by which its sub-windows together may exceed it: one thousandth.
const EXCESS_DIVISOR: u64 = 1_000;

/// The numbers of one strict policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlidingStrict {
    limit: u64,
    window_us: u64,
    /// Rounded up, so that n of them are at least a window.
    subwindow_us: u64,
    /// n, the sub-windows in a window. The ring has one more.
    subwindows: u64,
}

impl SlidingStrict {
    pub(crate) fn new(rate: Rate, subwindows: u32) -> Result<Self, PolicyError> {
        if !(1..=SUBWINDOWS_MAX).contains(&subwindows) {
            return Err(PolicyError::Subwindows { subwindows });
        }
        let (limit, window_us) = (rate.whole_limit()?, rate.window_us);
        if !is_divisible(window_us, subwindows) {
            return Err(PolicyError::UnevenSubwindows {
                window_us,
                subwindows,
                // One part always is the window itself.
                fewer: (1..subwindows).rev().find(|n| is_divisible(window_us, *n)).unwrap_or(1),
                longer_us: window_us.next_multiple_of(u64::from(subwindows)),
            });
        }
        let subwindows = u64::from(subwindows);
        let subwindow_us = window_us.div_ceil(subwindows);
        Ok(Self { limit, window_us, subwindow_us, subwindows })
    }

    /// The same windows with another limit.
    pub(crate) fn with_limit(&self, limit: u64) -> Self {
        Self { limit, ..self.clone() }
    }

    pub(crate) fn subwindows(&self) -> u32 {
        self.subwindows as u32
    }

    pub(crate) fn subwindow_us(&self) -> u64 {
        self.subwindow_us
    }

    /// The length of the n sub-windows before the current one, which count with it.
    pub(crate) fn subwindows_us(&self) -> u64 {
        self.subwindows * self.subwindow_us
    }

    fn ring_len(&self) -> u64 {
        self.subwindows + 1
    }

    /// The count of sub-window `number`, given that `state` is at its newest.
    fn count(&self, state: &[u64], number: u64) -> u64 {
        let Some(newest) = state[0].checked_sub(1) else {
            return 0;
        };
        let is_in_ring = number <= newest && newest - number <= self.subwindows;
        if is_in_ring { state[self.slot(number)].min(NUMBER_MAX) } else { 0 }
    }

    /// The newest sub-window that was charged. One that cannot be, which no check has written, is
    /// the last that can.
    fn newest(&self, state: &[u64]) -> Option<u64> {
        state[0].checked_sub(1).map(|newest| newest.min(NUMBER_MAX / self.subwindow_us))
    }

    /// The sub-window that is in force. The newest one stays so where the clock has gone back
    /// before it.
    fn current(&self, state: &[u64], now: Timestamp) -> u64 {
        (now.as_micros() / self.subwindow_us).max(self.newest(state).unwrap_or(0))
    }

    fn slot(&self, number: u64) -> usize {
        1 + (number % self.ring_len()) as usize
    }

    /// The sub-windows that count when `newest` is the current one.
    fn in_force(&self, newest: u64) -> std::ops::RangeInclusive<u64> {
        newest.saturating_sub(self.subwindows)..=newest
    }

    /// Moves the ring on to `current` and charges it.
    fn charge(&self, state: &mut [u64], current: u64, cost: u64) {
        let newest = match self.newest(state) {
            Some(newest) if current - newest <= self.subwindows => newest,
            _ => {
                state.fill(0);
                current
            }
        };
        for number in newest + 1..=current {
            state[self.slot(number)] = 0;
        }
        state[0] = current + 1;
        let count = &mut state[self.slot(current)];
        *count = (*count).min(NUMBER_MAX) + cost;
    }

    /// The start of the first sub-window in which `cost` fits, if nobody else asks.
    fn allowed_at_us(&self, state: &[u64], current: u64, used: u64, cost: u64) -> u64 {
        let mut used = used;
        let mut number = current;
        while used + cost > self.limit && number <= current + self.subwindows {
            if let Some(leaving) = number.checked_sub(self.subwindows) {
                used -= self.count(state, leaving);
            }
            number += 1;
        }
        number * self.subwindow_us
    }
}

/// True where `subwindows` parts of whole microseconds exceed the window by a thousandth of it at
/// most: 7 parts of 143 us exceed 1,000 us by 1 us.
fn is_divisible(window_us: u64, subwindows: u32) -> bool {
    let excess_us = window_us.next_multiple_of(u64::from(subwindows)) - window_us;
    excess_us * EXCESS_DIVISOR <= window_us
}

impl Algorithm for SlidingStrict {
    fn name(&self) -> &'static str {
        NAME
    }

    fn variant(&self) -> u64 {
        self.subwindows
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn window_us(&self) -> u64 {
        self.window_us
    }

    fn words(&self) -> usize {
        1 + self.ring_len() as usize
    }

    fn transition(&self, state: &mut [u64], now: Timestamp, cost: u64) -> Decision {
        let now_us = now.as_micros();
        let current = self.current(state, now);
        let used: u64 = self.in_force(current).map(|number| self.count(state, number)).sum();
        let remaining = self.limit.saturating_sub(used);
        let (outcome, remaining) = if cost > self.limit {
            (Outcome::Never, remaining)
        } else if cost == 0 {
            (Outcome::Allow, remaining)
        } else if cost <= remaining {
            self.charge(state, current, cost);
            (Outcome::Allow, remaining - cost)
        } else {
            let allowed_at_us = self.allowed_at_us(state, current, used, cost);
            (Outcome::Deny { retry_after_us: allowed_at_us - now_us }, remaining)
        };
        let reset_at = self.fresh_at(state).max(now);
        Decision::new(outcome, self.limit, remaining, reset_at)
    }

    /// The end of the sub-window it is counted in.
    fn stamp(&self, state: &[u64]) -> u64 {
        self.newest(state).map_or(0, |newest| (newest + 1) * self.subwindow_us)
    }

    fn refund(&self, state: &mut [u64], now: Timestamp, stamp: u64, amount: u64) -> Refund {
        let Some(number) = (stamp / self.subwindow_us).checked_sub(1) else {
            return Refund::default();
        };
        let refunded = amount.min(self.count(state, number));
        let is_an_end = stamp.is_multiple_of(self.subwindow_us);
        if refunded == 0 || !is_an_end || !self.in_force(self.current(state, now)).contains(&number)
        {
            return Refund::default();
        }
        let count = &mut state[self.slot(number)];
        *count = (*count).min(NUMBER_MAX) - refunded;
        Refund { tokens: refunded, sooner_us: 0 }
    }

    fn overdraw(&self, state: &mut [u64], now: Timestamp, amount: u64) -> u64 {
        let current = self.current(state, now);
        let charged = amount.min(NUMBER_MAX - self.count(state, current));
        self.charge(state, current, charged);
        charged
    }

    /// When the newest sub-window leaves; it was charged, or it would not be there.
    fn fresh_at(&self, state: &[u64]) -> Timestamp {
        match self.newest(state) {
            None => Timestamp::ZERO,
            Some(newest) => {
                let left_at = newest + 1 + self.subwindows;
                Timestamp::from_micros(left_at * self.subwindow_us)
            }
        }
    }
}
