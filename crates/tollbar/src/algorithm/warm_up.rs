//! Warm-up: the limit of a new key climbs to the full one in a few steps.
//!
//! For a cache that is cold, a backend that scales up slowly, and accounts that nobody knows yet.
//! A key is *new* at its first charge, and again once it has been charged nothing for as long as
//! the warm-up takes. Its age picks the step, and each step is the same algorithm at another
//! limit, on the same state: a step up is what a raised limit is, buckets keep their debt of time
//! and windows their counts. Growing old or becoming new again forgives nothing, so what passes
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
use crate::{Decision, Outcome, Timestamp};

use life::{LIFE_WORDS, Life};
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
        let limit = self.warm_up.limit_at(step, self.limit);
        self.rungs.at(step, limit, ask)
    }

    /// What to tell a request that was denied at `now_us`: when it passes, if nobody else asks.
    ///
    /// Within a step the algorithm itself knows. So each step that the key will go through is
    /// asked when it begins, until one lets the request pass before it is over.
    #[cold]
    fn denial(&self, state: &[u64], life: Life, now_us: u64, cost: u64) -> Outcome {
        // A later step may allow the request, and then charges what it was asked on.
        let mut copy = [0; STATE_WORDS_MAX];
        let copy = &mut copy[..state.len()];
        let mut at_us = now_us;
        // The steps, and the first one again at the end.
        for _ in 0..=self.warm_up.steps + 1 {
            copy.copy_from_slice(state);
            let at = Timestamp::from_micros(at_us);
            let decided = |algorithm: &dyn Algorithm| algorithm.transition(copy, at, cost);
            let decision = self.at_step(self.step_at(life, at_us), decided);
            let allowed_at_us = match decision.outcome() {
                Outcome::Allow => Some(at_us),
                Outcome::Deny { retry_after_us } => Some(at_us + retry_after_us),
                Outcome::Busy | Outcome::Never => None,
            };
            let step_ends_us = self.step_ends_us(life, at_us);
            let in_step = |allowed_at_us: &u64| step_ends_us.is_none_or(|end| *allowed_at_us < end);
            if let Some(allowed_at_us) = allowed_at_us.filter(in_step) {
                return Outcome::Deny { retry_after_us: allowed_at_us - now_us };
            }
            match step_ends_us {
                Some(end) => at_us = end,
                None => break,
            }
        }
        Outcome::Busy
    }

    fn charged(&self, life: Life, now: Timestamp) -> Life {
        life.charged(now.as_micros(), self.over_us)
    }
}

/// Set in the variant of whatever warms up: it never shares a counter with what does not.
const VARIANT_BIT: u64 = 1 << 63;

/// Where a stamp keeps the step of its charge: what an algorithm itself says is below 2^53.
const STAMP_STEP_SHIFT: u32 = 56;

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
        let (state, life_words) = state.split_at_mut(self.inner_words);
        let life = Life::from_words(life_words);
        let now_us = now.as_micros();
        let is_possible = cost <= self.capacity;
        let step = self.step_at(life, now_us);
        let mut decision = self.at_step(step, |algorithm| algorithm.transition(state, now, cost));
        if decision.is_allowed() {
            if cost > 0 {
                self.charged(life, now).to_words(life_words);
            }
        } else if is_possible {
            decision.outcome = self.denial(state, life, now_us, cost);
            if let Outcome::Deny { retry_after_us } = decision.outcome {
                // A window ends, or a bucket fills, before the limit has climbed to the cost.
                let passes_at = Timestamp::from_micros(now_us + retry_after_us);
                decision.reset_at = decision.reset_at.max(passes_at);
            }
        }
        decision
    }

    /// With the step it was charged at, because what a token costs depends on it.
    fn stamp(&self, state: &[u64]) -> u64 {
        let (state, life_words) = state.split_at(self.inner_words);
        let life = Life::from_words(life_words);
        let step = self.step_at(life, life.new_at_us().saturating_sub(self.over_us));
        let inner = self.at_step(step, |algorithm| algorithm.stamp(state));
        u64::from(step) << STAMP_STEP_SHIFT | inner & ((1 << STAMP_STEP_SHIFT) - 1)
    }

    /// At the price it was charged at: a token of a key that is new again is dearer.
    fn refund(&self, state: &mut [u64], now: Timestamp, stamp: u64, amount: u64) -> Refund {
        let step = ((stamp >> STAMP_STEP_SHIFT) as u32).min(self.warm_up.steps);
        let stamp = stamp & ((1 << STAMP_STEP_SHIFT) - 1);
        let state = &mut state[..self.inner_words];
        self.at_step(step, |algorithm| algorithm.refund(state, now, stamp, amount))
    }

    fn overdraw(&self, state: &mut [u64], now: Timestamp, amount: u64) -> u64 {
        let (state, life_words) = state.split_at_mut(self.inner_words);
        let life = Life::from_words(life_words);
        let step = self.step_at(life, now.as_micros());
        let charged = self.at_step(step, |algorithm| algorithm.overdraw(state, now, amount));
        if charged > 0 {
            self.charged(life, now).to_words(life_words);
        }
        charged
    }

    /// When the algorithm's state is, at any step, and the key is new again.
    fn fresh_at(&self, state: &[u64]) -> Timestamp {
        let (state, life_words) = state.split_at(self.inner_words);
        let new_at = Timestamp::from_micros(Life::from_words(life_words).new_at_us());
        self.rungs.full().fresh_at(state).max(new_at)
    }
}
