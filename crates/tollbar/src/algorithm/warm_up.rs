//! Warm-up: the limit of a new key climbs to the full one in a few steps.
//!
//! For a cache that is cold, a backend that scales up slowly, and accounts that nobody knows yet.
//! A key is *new* at its first charge, and again once it has been charged nothing for as long as
//! the warm-up takes. Its age picks the step, and each step is the same algorithm at another
//! limit, on the same state: a step up is what a raised limit is, buckets and queues keep their debt of
//! time, windows their counts, and permits stay in flight. Growing old or becoming new again forgives nothing, so what passes
//! would have passed without the warm-up as well.
//!
//! 100/s from 10 over 60 s in 3 steps: 10 at first, 40 from 20 s on, 70 from 40 s on, 100 from
//! 60 s on; 10 again for who comes back after a minute.
//!
//! A denial says when the same request passes, if nobody else asks, with the steps that are still
//! to come. But who waits is idle: where the key will be new again before it is old enough, nothing
//! is promised ([`Outcome::Busy`]).

mod life;
mod rungs;

use std::time::Duration;

use super::{Algorithm, Refund, STATE_WORDS_MAX};
#[cfg(feature = "until-ready")]
use super::{debt::Interval, leaky_queue::LeakyQueue, word::PAYLOAD_BITS};
use crate::{Decision, Outcome, Timestamp};

pub(crate) use life::{LIFE_WORDS, Life};
pub(crate) use rungs::Rungs;

/// The most steps a warm-up may have.
pub const STEPS_MAX: u32 = 16;

/// The most sub-windows of a strict window that warms up.
pub const SUBWINDOWS_MAX: u32 = super::sliding_strict::SUBWINDOWS_MAX - LIFE_WORDS as u32;

/// How the limit of a new key climbs: see [`Policy::with_warm_up`](crate::Policy::with_warm_up).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WarmUp {
    /// The limit of a new key: at least 1, and below the full one.
    pub start: u64,
    /// How long the climb takes, in whole microseconds (a fraction rounds up); and how long a key
    /// must be idle to be new again.
    pub over: Duration,
    /// In how many steps, 1 to [`STEPS_MAX`]. They are equally long, and the limit climbs by the
    /// same amount with each, rounded down.
    pub steps: u32,
}

impl WarmUp {
    pub(crate) fn over_us(&self) -> u64 {
        u64::try_from(self.over.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
    }

    /// The limit at `step`, the last of which is the full one: from 10 to 100 in 4 steps, 10, 32,
    /// 55, 77 and 100.
    #[must_use]
    pub fn limit_at(&self, step: u32, full: u64) -> u64 {
        // Below 2^53 times 16. Rounded down.
        let climbed = full.saturating_sub(self.start).saturating_mul(step.min(self.steps).into());
        self.start + climbed / u64::from(self.steps.max(1))
    }
}

/// An algorithm that warms up. The state is that of the algorithm, and the key's [`Life`].
#[derive(Debug, Clone)]
pub(crate) struct WarmUpAlgorithm {
    warm_up: WarmUp,
    over_us: u64,
    rungs: Rungs,
    // Of the algorithm in full, so that a check need not ask for them.
    limit: u64,
    capacity: u64,
    inner_words: usize,
}

impl WarmUpAlgorithm {
    /// `warm_up` has been checked, and `rungs` were made for it.
    pub(crate) fn new(warm_up: WarmUp, rungs: Rungs) -> Self {
        let full = rungs.full();
        let (limit, capacity, inner_words) = (full.limit(), full.capacity(), full.words());
        Self { over_us: warm_up.over_us(), warm_up, rungs, limit, capacity, inner_words }
    }

    pub(crate) fn warm_up(&self) -> WarmUp {
        self.warm_up
    }

    pub(crate) fn rungs(&self) -> &Rungs {
        &self.rungs
    }

    /// The same for one key, where keys differ.
    #[inline]
    pub(crate) fn for_key(&self, key: &[u8]) -> Option<Self> {
        Some(Self { rungs: self.rungs.for_key(key)?, ..*self })
    }

    /// The step of a key at `at_us`.
    fn step_at(&self, life: Life, at_us: u64) -> u32 {
        // Below 2^49 times 16. Rounded down: a step is climbed when its time is over.
        let age_us = life.age_us(at_us).min(self.over_us);
        (age_us * u64::from(self.warm_up.steps) / self.over_us) as u32
    }

    /// When the step of `at_us` is over for a key that is charged nothing; never, where it is new.
    fn step_ends_us(&self, life: Life, at_us: u64) -> Option<u64> {
        let new_at_us = Some(life.new_at_us()).filter(|new_at_us| *new_at_us > at_us)?;
        let next = u64::from(self.step_at(life, at_us)) + 1;
        let steps = u64::from(self.warm_up.steps);
        if next > steps {
            return Some(new_at_us);
        }
        // The first whole microsecond at which age x steps / over reaches the next.
        Some(new_at_us.min(life.born_us() + (next * self.over_us).div_ceil(steps)))
    }

    fn at_step<R>(&self, step: u32, ask: impl FnOnce(&dyn Algorithm) -> R) -> R {
        self.rungs.at(step, self.limit_at(step), ask)
    }

    /// The limit at `step`.
    pub(crate) fn limit_at(&self, step: u32) -> u64 {
        self.warm_up.limit_at(step, self.limit)
    }

    /// Returns the queue as it is at the step whose limit a decision has reported.
    #[cfg(feature = "until-ready")]
    pub(crate) fn queue_with_limit(&self, limit: u64) -> Option<LeakyQueue> {
        let Rungs::LeakyQueue(queue, ladder) = &self.rungs else { return None };
        // Steps of one limit have one interval.
        let step = (0..self.warm_up.steps).find(|step| self.limit_at(*step) == limit);
        Some(queue.with_meter(ladder.rung(step.unwrap_or(self.warm_up.steps) as usize)))
    }

    /// The interval of the step at which the charge of a queue was made that is called `stamp`.
    #[cfg(feature = "until-ready")]
    pub(crate) fn interval_of_stamp(&self, stamp: u64) -> Option<Interval> {
        self.rungs.intervals()?.nth((stamp >> QUEUE_STAMP_STEP_SHIFT) as usize)
    }

    /// Returns a queue's own stamp for the charge that is called `stamp` here, after which the queue is
    /// empty at `empty_at_us`.
    #[cfg(feature = "until-ready")]
    pub(crate) fn stamp_of_queue(stamp: u64, empty_at_us: u64) -> u64 {
        let kept = (1 << QUEUE_STAMP_STEP_SHIFT) - 1;
        if stamp == 0 { 0 } else { empty_at_us << PAYLOAD_BITS & !kept | stamp & kept }
    }

    /// Decides `cost` for a key of `life` at `now_us`, and has the life go on if it is charged.
    /// `ask` decides by the algorithm at a step, wherever its state is kept.
    pub(crate) fn decide(
        &self,
        life: &mut Life,
        now_us: u64,
        cost: u64,
        mut ask: impl FnMut(StepQuery) -> Decision,
    ) -> Decision {
        let step = self.step_at(*life, now_us);
        let mut decision = ask(StepQuery { step, at_us: now_us, may_charge: true });
        if decision.is_allowed() {
            if cost > 0 {
                *life = life.charged(now_us, self.over_us);
            }
        } else if cost <= self.capacity {
            decision.outcome = self.denial(decision.outcome, *life, now_us, &mut ask);
            if let Outcome::Deny { retry_after_us } = decision.outcome {
                // A window ends, or a bucket fills, before the limit has climbed to the cost.
                let passes_at = Timestamp::from_micros(now_us + retry_after_us);
                decision.reset_at = decision.reset_at.max(passes_at);
            }
        }
        decision
    }

    /// What to tell a request that was denied at `now_us`, by the `outcome` of the step it is on: when it
    /// passes, if nobody else asks.
    ///
    /// Within a step the algorithm itself knows. So each step that the key will go through is
    /// asked when it begins, until one lets the request pass before it is over. Of permits nothing is
    /// promised, with a warm-up as without: they come back when their holders are done.
    #[cold]
    fn denial(
        &self,
        mut outcome: Outcome,
        life: Life,
        now_us: u64,
        ask: &mut dyn FnMut(StepQuery) -> Decision,
    ) -> Outcome {
        if self.rungs.is_in_flight() {
            return Outcome::Busy;
        }
        let mut at_us = now_us;
        // The steps, and the first one again at the end.
        for _ in 0..=self.warm_up.steps + 1 {
            let allowed_at_us = match outcome {
                Outcome::Allow => Some(at_us),
                Outcome::Deny { retry_after_us } => Some(at_us + retry_after_us),
                Outcome::Busy | Outcome::Never => None,
            };
            let step_ends_us = self.step_ends_us(life, at_us);
            let in_step = |allowed_at_us: &u64| step_ends_us.is_none_or(|end| *allowed_at_us < end);
            if let Some(allowed_at_us) = allowed_at_us.filter(in_step) {
                return Outcome::Deny { retry_after_us: allowed_at_us - now_us };
            }
            let Some(end) = step_ends_us else { break };
            at_us = end;
            let step = self.step_at(life, at_us);
            outcome = ask(StepQuery { step, at_us, may_charge: false }).outcome();
        }
        Outcome::Busy
    }

    /// The key's life after a charge at `now_us`.
    pub(crate) fn charged(&self, life: Life, now_us: u64) -> Life {
        life.charged(now_us, self.over_us)
    }

    /// Grants leased permits on leases in a slice of words, as lease `id`.
    pub(crate) fn grant(&self, state: &mut [u64], now: Timestamp, cost: u64, id: u64) -> Decision {
        self.decide_words(state, now, cost, |step, leases| match &self.rungs {
            Rungs::Leased(leased) => {
                leased.with_limit(self.limit_at(step)).grant(leases, now, cost, id)
            }
            _ => self.at_step(step, |algorithm| algorithm.transition(leases, now, cost)),
        })
    }

    /// Decides on a state in words. `charge` decides at the step the key is on, and charges.
    fn decide_words(
        &self,
        state: &mut [u64],
        now: Timestamp,
        cost: u64,
        charge: impl Fn(u32, &mut [u64]) -> Decision,
    ) -> Decision {
        let (state, life_words) = self.split_mut(state);
        let mut life = Life::from_words(life_words);
        let decision = self.decide(&mut life, now.as_micros(), cost, |query| {
            if query.may_charge {
                return charge(query.step, state);
            }
            let at = Timestamp::from_micros(query.at_us);
            let peek = |copy: &mut [u64]| {
                self.at_step(query.step, |algorithm| algorithm.transition(copy, at, cost))
            };
            // A later step may allow the request, and then charges what it was asked on.
            let mut copy = [0; STATE_WORDS_MAX];
            match copy.get_mut(..state.len()) {
                Some(copy) => {
                    copy.copy_from_slice(state);
                    peek(copy)
                }
                None => peek(&mut state.to_vec()),
            }
        });
        if decision.is_allowed() && cost > 0 {
            life.to_words(life_words);
        }
        decision
    }

    /// The algorithm's own state, and the words of the key's life: behind it, and before a list, whose
    /// length changes.
    fn split<'s>(&self, state: &'s [u64]) -> (&'s [u64], &'s [u64]) {
        if self.rungs.is_list() {
            let (life, list) = state.split_at(LIFE_WORDS);
            return (list, life);
        }
        state.split_at(self.inner_words)
    }

    fn split_mut<'s>(&self, state: &'s mut [u64]) -> (&'s mut [u64], &'s mut [u64]) {
        if self.rungs.is_list() {
            let (life, list) = state.split_at_mut(LIFE_WORDS);
            return (list, life);
        }
        state.split_at_mut(self.inner_words)
    }

    /// The algorithm's own part of a state.
    pub(crate) fn inner_mut<'s>(&self, state: &'s mut [u64]) -> &'s mut [u64] {
        self.split_mut(state).0
    }
}

/// A question to the algorithm at one of its steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepQuery {
    pub(crate) step: u32,
    pub(crate) at_us: u64,
    /// False where it is only asked what would be decided: nothing may be charged.
    pub(crate) may_charge: bool,
}

/// Set in the variant of whatever warms up: it never shares a counter with what does not.
const VARIANT_BIT: u64 = 1 << 63;

/// Where a stamp keeps the step of its charge: what an algorithm itself says is below 2^53.
const STAMP_STEP_SHIFT: u32 = 56;

/// Where that of a queue does: an instant in 52 bits and ten more. It loses its four highest bits, so
/// that two charges of one queue have the same name if they are paid nine years apart.
const QUEUE_STAMP_STEP_SHIFT: u32 = 58;

impl WarmUpAlgorithm {
    /// `None` where stamps have no step: a lease has any name, and permits have no price.
    fn stamp_step_shift(&self) -> Option<u32> {
        match self.rungs {
            Rungs::LeakyQueue(..) => Some(QUEUE_STAMP_STEP_SHIFT),
            Rungs::Leased(_) => None,
            _ => Some(STAMP_STEP_SHIFT),
        }
    }

    /// What a charge at `step` is called that the algorithm itself calls `stamp`.
    fn stamp_at_step(&self, step: u32, stamp: u64) -> u64 {
        match (self.stamp_step_shift(), &self.rungs) {
            // It cannot be given back.
            (_, Rungs::LeakyQueue(..)) if stamp == 0 => 0,
            (Some(shift), _) => u64::from(step) << shift | stamp & ((1 << shift) - 1),
            (None, _) => stamp,
        }
    }
}

impl Algorithm for WarmUpAlgorithm {
    fn name(&self) -> &'static str {
        self.rungs.full().name()
    }

    fn variant(&self) -> u64 {
        self.rungs.full().variant() | VARIANT_BIT
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn window_us(&self) -> u64 {
        self.rungs.full().window_us()
    }

    fn words(&self) -> usize {
        self.inner_words + LIFE_WORDS
    }

    fn transition(&self, state: &mut [u64], now: Timestamp, cost: u64) -> Decision {
        self.decide_words(state, now, cost, |step, state| {
            self.at_step(step, |algorithm| algorithm.transition(state, now, cost))
        })
    }

    /// With the step it was charged at, because what a token costs depends on it.
    fn stamp(&self, state: &[u64]) -> u64 {
        let (state, life_words) = self.split(state);
        let life = Life::from_words(life_words);
        let step = self.step_at(life, life.new_at_us().saturating_sub(self.over_us));
        self.stamp_at_step(step, self.at_step(step, |algorithm| algorithm.stamp(state)))
    }

    /// At the price it was charged at: a token of a key that is new again is dearer.
    fn refund(&self, state: &mut [u64], now: Timestamp, stamp: u64, amount: u64) -> Refund {
        let state = self.inner_mut(state);
        let Some(shift) = self.stamp_step_shift() else {
            return self.at_step(0, |algorithm| algorithm.refund(state, now, stamp, amount));
        };
        let step = ((stamp >> shift) as u32).min(self.warm_up.steps);
        self.at_step(step, |algorithm| {
            let stamp = stamp & ((1 << shift) - 1);
            if !matches!(self.rungs, Rungs::LeakyQueue(..)) {
                return algorithm.refund(state, now, stamp, amount);
            }
            // Only the last charge of a queue is given back, and its whole name is in the state.
            let last = algorithm.stamp(state);
            if last & ((1 << shift) - 1) != stamp {
                return Refund::default();
            }
            algorithm.refund(state, now, last, amount)
        })
    }

    fn overdraw(&self, state: &mut [u64], now: Timestamp, amount: u64) -> u64 {
        let (state, life_words) = self.split_mut(state);
        let life = Life::from_words(life_words);
        let step = self.step_at(life, now.as_micros());
        let charged = self.at_step(step, |algorithm| algorithm.overdraw(state, now, amount));
        if charged > 0 {
            self.charged(life, now.as_micros()).to_words(life_words);
        }
        charged
    }

    /// When the algorithm's state is, at any step, and the key is new again.
    fn fresh_at(&self, state: &[u64]) -> Timestamp {
        let (state, life_words) = self.split(state);
        let new_at = Timestamp::from_micros(Life::from_words(life_words).new_at_us());
        self.rungs.full().fresh_at(state).max(new_at)
    }
}
