//! Leaky bucket as a queue: requests leave one at a time, an interval apart, and a bounded number
//! of them waits for its turn.
//!
//! Nothing is held here. An allowed request is told its delay, and whoever asked waits for it:
//! `Limiter::wait`, or the caller. A request of `cost` tokens takes that many places, one
//! after the other; its turn is that of its first, and the next request's turn comes `cost`
//! intervals later. The delay is the time until then, rounded up to a microsecond, so that nobody
//! leaves early.
//!
//! It is the debt of `debt.rs` read in another way: what is owed before a charge is the delay, and
//! the instant at which all is paid is when the queue is empty. A queue in which `length` wait can
//! owe `length + 1` intervals, since one is on its way out.
//!
//! 2 per s, length 2: an interval is 500,000 us, a full debt 1,500,000. Four requests at t = 0 are
//! told to wait 0, 0.5 s and 1 s, and the fourth, which finds two waiting, to come back in 0.5 s.
//!
//! Turns are exact; what is rounded up is when they are used. So with an interval of 10/3 us the
//! delays of five requests at once are 0, 4, 7, 10 and 14 us: two departures whose costs between
//! them are c tokens are never closer than c intervals, rounded *down* to a microsecond.

use super::debt::{Debt, DebtState, Interval, Meter};
use super::word::{DecisionBasis, Step, WordParts, WordState};
use super::{Algorithm, Refund};
use crate::units::Rate;
use crate::{Decision, Outcome, PolicyError, Timestamp};

/// The algorithm's name.
pub const NAME: &str = "leaky_queue";

/// The numbers of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeakyQueue {
    meter: Meter,
    /// What a request may find owed and still join: a full debt, or what is paid within the longest
    /// wait. In units of the meter.
    wait_max: u64,
    wait_us_max: Option<u64>,
}

impl LeakyQueue {
    /// A queue in which up to `length` wait.
    pub(crate) fn new(rate: Rate, length: u64) -> Result<Self, PolicyError> {
        let too_long = |_| PolicyError::QueueTooLong { length };
        let places = length.checked_add(1).ok_or(PolicyError::QueueTooLong { length })?;
        let meter = Meter::new(NAME, rate, Some(places)).map_err(too_long)?;
        Ok(Self::from_meter(meter, None))
    }

    fn from_meter(meter: Meter, wait_us_max: Option<u64>) -> Self {
        // A wait whose product does not fit is longer than a full debt.
        let wait_max = wait_us_max
            .map_or(u64::MAX, |wait_us| wait_us.saturating_mul(meter.interval().denominator));
        Self { wait_max: wait_max.min(meter.full()), meter, wait_us_max }
    }

    /// The same queue without the last `tokens` of its places, which are for others. Turns are as far apart.
    pub(crate) fn reserving(&self, tokens: u64) -> Self {
        let meter = self.meter.reserving(tokens);
        Self { wait_max: self.wait_max.min(meter.full()), meter, ..*self }
    }

    /// How many places the queue has beyond its own, for others.
    pub(crate) fn reserved(&self) -> u64 {
        self.meter.overdraft()
    }

    /// The same queue, in which nobody waits for longer than `wait_us_max`.
    pub(crate) fn with_wait_us_max(self, wait_us_max: u64) -> Self {
        Self::from_meter(self.meter, Some(wait_us_max))
    }

    /// Returns the queue with the interval and the places of another meter, and its own longest wait.
    pub(crate) fn with_meter(&self, meter: &Meter) -> Self {
        Self::from_meter(meter.clone(), self.wait_us_max)
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    pub(crate) fn length(&self) -> u64 {
        self.meter.capacity() - 1
    }

    pub(crate) fn wait_us_max(&self) -> Option<u64> {
        self.wait_us_max
    }

    pub(crate) fn interval(&self) -> Interval {
        self.meter.interval()
    }

    pub(crate) fn fits_word(&self) -> bool {
        self.meter.fits_word()
    }

    /// When the turn of a charge of `cost` comes, rounded up to a microsecond: `cost` intervals
    /// before the queue is empty, which is what its stamp says. `None` where the stamp says nothing.
    #[cfg(feature = "until-ready")]
    pub(crate) fn turn_us(&self, stamp: u64, cost: u64) -> Option<u64> {
        let owed = DebtState::of_name(stamp).filter(|_| self.fits_word())?;
        self.meter.paid_before(owed, cost)
    }

    /// What a charge that has left `owed` behind is called.
    pub(crate) fn stamp_of(&self, owed: DebtState) -> u64 {
        if self.fits_word() { owed.name() } else { 0 }
    }

    fn tokens(&self, count: u64) -> u64 {
        count * self.meter.interval().numerator_us
    }
}

impl Step<DebtState> {
    /// `delay` is what was owed before the charge, and takes the place of a window's end.
    #[inline(always)]
    fn in_queue(outcome: Outcome, debt: Debt, delay: u64, next: Option<DebtState>) -> Self {
        let Debt { units: amount, excess_us } = debt;
        Self { outcome, next, basis: DecisionBasis { amount, end_us: delay, excess_us } }
    }
}

impl Algorithm for LeakyQueue {
    fn name(&self) -> &'static str {
        NAME
    }

    fn limit(&self) -> u64 {
        self.meter.limit()
    }

    fn capacity(&self) -> u64 {
        self.meter.capacity()
    }

    fn window_us(&self) -> u64 {
        self.meter.window_us()
    }

    fn words(&self) -> usize {
        self.meter.words()
    }

    fn transition(&self, state: &mut [u64], now: Timestamp, cost: u64) -> Decision {
        self.transition_words(state, now, cost)
    }

    /// The instant at which the queue is empty. A rate so awkward that this takes more than a word
    /// has none, and gives nothing back.
    fn stamp(&self, state: &[u64]) -> u64 {
        self.stamp_of(Self::from_words(state))
    }

    /// Only the last places can be given back, and only before their turn: somebody who has queued
    /// behind them was told a delay that counts them, and would meet whoever was let in instead. To
    /// be asked of the policy that charged: places are as wide as its interval.
    fn refund(&self, state: &mut [u64], now: Timestamp, stamp: u64, amount: u64) -> Refund {
        let is_last = stamp != 0 && self.stamp(state) == stamp;
        if !is_last || amount == 0 || amount > self.capacity() {
            return Refund::default();
        }
        let owed = Self::from_words(state);
        let debt = self.meter.debt(owed, now.as_micros());
        let returned = self.tokens(amount);
        if debt.in_units(self.interval().denominator) <= returned.into() {
            return Refund::default();
        }
        Self::to_words(self.meter.less(owed, returned), state);
        Refund { tokens: amount, sooner_us: 0 }
    }

    fn fresh_at(&self, state: &[u64]) -> Timestamp {
        self.meter.fresh_at(state)
    }
}

impl WordState for LeakyQueue {
    type State = DebtState;

    fn shift(&self) -> u32 {
        self.meter.shift()
    }

    #[inline(always)]
    fn step(&self, owed: DebtState, now_us: u64, cost: u64) -> Step<DebtState> {
        let debt = self.meter.debt(owed, now_us);
        if cost > self.meter.capacity() {
            return Step::in_queue(Outcome::Never, debt, 0, None);
        }
        if cost == 0 {
            return Step::in_queue(Outcome::Allow, debt, 0, None);
        }
        // Neither can overflow or go below zero: the cost is at most what makes a full debt.
        let debt_max = (self.meter.full() - self.tokens(cost)).min(self.wait_max);
        if debt.units <= debt_max && debt.excess_us == 0 {
            let units = debt.units + self.tokens(cost);
            let next = Some(self.meter.owed(units, now_us));
            let after = Debt { units, excess_us: 0 };
            return Step::in_queue(Outcome::Allow, after, debt.units, next);
        }
        let too_much = debt.units.saturating_sub(debt_max);
        let retry_after_us = debt.excess_us + self.meter.to_us_ceil(too_much);
        Step::in_queue(Outcome::Deny { retry_after_us }, debt, 0, None)
    }

    #[inline(always)]
    fn decision(&self, step: &Step<DebtState>, now_us: u64) -> Decision {
        let decision = self.meter.decision(step, now_us);
        let DecisionBasis { amount: debt, end_us: delay, .. } = step.basis;
        let remaining = if debt <= self.wait_max { decision.remaining } else { 0 };
        Decision::new(step.outcome, decision.limit(), remaining, decision.reset_at)
            .with_delay_us(self.meter.to_us_ceil(delay))
    }

    #[inline(always)]
    fn is_heavy(&self, basis: &DecisionBasis) -> bool {
        self.meter.is_heavy(basis)
    }

    fn fits(&self, owed: DebtState) -> bool {
        self.meter.fits(owed)
    }

    #[inline(always)]
    fn unpack(&self, parts: WordParts) -> DebtState {
        self.meter.unpack(parts)
    }

    #[inline(always)]
    fn pack(&self, owed: DebtState) -> WordParts {
        self.meter.pack(owed)
    }

    fn from_words(words: &[u64]) -> DebtState {
        Meter::from_words(words)
    }

    fn to_words(owed: DebtState, words: &mut [u64]) {
        Meter::to_words(owed, words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;

    const START_US: u64 = 1_700_000_000_000_000;

    /// A queue and its counter.
    struct QueueCounter {
        policy: Policy,
        state: [u64; 2],
    }

    impl QueueCounter {
        fn new(rate: &str, length: u64) -> Self {
            Self { policy: Policy::leaky_queue(rate, length).unwrap(), state: [0; 2] }
        }

        /// The delay, and the stamp of the charge.
        fn ask(&mut self, after_us: u64, cost: u64) -> (u64, u64) {
            let algorithm = self.policy.algorithm();
            let now = Timestamp::from_micros(START_US + after_us);
            let decision = algorithm.transition(&mut self.state, now, cost);
            assert!(decision.is_allowed(), "{decision:?}");
            (decision.delay().as_micros() as u64, algorithm.stamp(&self.state))
        }

        fn refund(&mut self, after_us: u64, stamp: u64, amount: u64) -> u64 {
            let now = Timestamp::from_micros(START_US + after_us);
            self.policy.algorithm().refund(&mut self.state, now, stamp, amount).tokens
        }
    }

    #[test]
    fn turns_are_exact_and_rounded_up_only_when_they_are_told() {
        let mut queue = QueueCounter::new("3/10us", 9);
        let delays: Vec<u64> = (0..5).map(|_| queue.ask(0, 1).0).collect();
        assert_eq!(delays, [0, 4, 7, 10, 14]);
        // Two places: the next turn comes 20/3 us after 50/3.
        assert_eq!(queue.ask(3, 2).0, 14);
        assert_eq!(queue.ask(3, 1).0, 21);
    }

    #[test]
    fn the_last_place_is_given_back_and_the_next_request_takes_it() {
        let mut queue = QueueCounter::new("3/10us", 9);
        queue.ask(0, 1);
        let (_, first) = queue.ask(0, 1);
        let (delay, last) = queue.ask(0, 2);
        assert_eq!(queue.refund(1, first, 1), 0, "somebody has queued behind it");
        assert_eq!(queue.refund(1, last, 2), 2);
        assert_eq!(queue.refund(1, last, 2), 0, "once");
        assert_eq!(queue.ask(1, 2).0, delay - 1);
        // What was behind it has gone, so it is the last again.
        let (_, last) = queue.ask(1, 1);
        assert_eq!(queue.refund(1, last, 1), 1);
        assert_eq!(queue.refund(1, 0, 1), 0);
        assert_eq!(queue.refund(1, last, u64::MAX), 0);
    }

    #[test]
    fn a_place_whose_turn_has_come_is_not_given_back() {
        let mut queue = QueueCounter::new("1/10us", 9);
        let (_, at_once) = queue.ask(0, 1);
        assert_eq!(queue.refund(0, at_once, 1), 0);
        let (delay, waited) = queue.ask(0, 1);
        assert_eq!((delay, queue.refund(10, waited, 1)), (10, 0));
        assert_eq!(queue.refund(9, waited, 1), 1);
    }

    #[test]
    fn an_awkward_rate_gives_nothing_back() {
        let mut queue = QueueCounter::new("999999999/s", 1_000_000);
        queue.ask(0, 500_000);
        let (_, stamp) = queue.ask(0, 500_000);
        assert_eq!((stamp, queue.refund(0, stamp, 500_000)), (0, 0));
    }
}
