//! Sliding window counter: the count of this window plus a share of the last one's.
//!
//! A quarter into the window, three quarters of the last window still count. With 70 then and 30
//! now the estimate is 70 x 0.75 + 30 = 82.5, so 17 more fit under a limit of 100. The estimate
//! takes the last window's requests as evenly spread; if they were not, up to twice the limit can
//! pass within one window's length. For a bound without that doubt use `sliding_strict`.
//!
//! What the last window still weighs is rounded up to whole requests. That changes no decision,
//! since everything else is whole, and it is all the arithmetic there is: one product, one
//! division. The retry-after is exact for the estimate.
//!
//! The reset is the window's end if the same request passes then. Often it does not: a window that
//! was used up weighs as much at its end as it did before. With 5 of 5 used in 10 s, a request
//! passes again a fifth into the next window, so the reset is 2 s after the window's end.

use super::debt::PRODUCT_MAX;
use super::fixed_window::window_end_us;
use super::word::{
    DecisionBasis, NUMBER_MAX, PAYLOAD_BITS, Step, TIME_MAX, WordParts, WordState, window_shift,
};
use super::{Algorithm, Refund};
use crate::units::Rate;
use crate::{Decision, Outcome, PolicyError, Timestamp};

/// The algorithm's name.
pub const NAME: &str = "sliding_window_counter";

/// The numbers of one sliding window policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlidingWindow {
    limit: u64,
    window_us: u64,
    /// Time within the window is counted in this many microseconds, rounded down, so that
    /// limit x ticks stays below 2^53. Mostly 1.
    tick_us: u64,
    ticks: u64,
}

/// The counts of the window that ends at `end_us` and of the one before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TwoCounts {
    end_us: u64,
    previous: u64,
    current: u64,
}

impl SlidingWindow {
    pub(crate) fn new(rate: Rate) -> Result<Self, PolicyError> {
        let limit = rate.whole_limit()?;
        let window_us = rate.window_us;
        let is_exact = |ticks: u64| limit.checked_mul(ticks).is_some_and(|p| p < PRODUCT_MAX);
        let tick_us = (0..15)
            .map(|power| 10_u64.pow(power))
            .take_while(|tick_us| window_us.is_multiple_of(*tick_us))
            .find(|tick_us| is_exact(window_us / tick_us))
            .ok_or(PolicyError::LimitTooLarge { limit })?;
        Ok(Self { limit, window_us, tick_us, ticks: window_us / tick_us })
    }

    /// The same windows, counted in the same ticks, with another limit, which must be a lower one.
    pub(crate) fn with_limit(&self, limit: u64) -> Self {
        debug_assert!(limit <= self.limit);
        Self { limit, ..self.clone() }
    }

    pub(crate) fn tick_us(&self) -> u64 {
        self.tick_us
    }

    pub(crate) fn fits_word(&self) -> bool {
        self.limit <= self.count_max()
    }

    /// Each of the two counts gets half of the payload.
    #[inline]
    fn count_bits(&self) -> u32 {
        (PAYLOAD_BITS + self.shift()) >> 1
    }

    #[inline]
    fn count_max(&self) -> u64 {
        (1 << self.count_bits()) - 1
    }

    /// The state as of `now_us`: moved on by as many windows as have ended since.
    #[inline]
    fn at(&self, state: TwoCounts, now_us: u64) -> TwoCounts {
        if now_us < state.end_us {
            // Also where the clock has gone back: the newest window stays in force.
            state
        } else if now_us < state.end_us + self.window_us {
            let end_us = state.end_us + self.window_us;
            TwoCounts { end_us, previous: state.current, current: 0 }
        } else {
            let end_us = window_end_us(now_us, self.window_us);
            TwoCounts { end_us, previous: 0, current: 0 }
        }
    }

    /// Ticks of the window that have passed; none where the clock is before it.
    #[inline]
    fn elapsed_ticks(&self, end_us: u64, now_us: u64) -> u64 {
        let elapsed_us = self.window_us.saturating_sub(end_us - now_us);
        if self.tick_us == 1 { elapsed_us } else { elapsed_us / self.tick_us }
    }

    /// When a request of `cost` passes that does not fit this window, if nobody else asks: in the
    /// next one, where what is current weighs as previous.
    #[cold]
    fn allowed_in_next_us(&self, state: TwoCounts, cost: u64) -> u64 {
        self.weighs_at_us(state.end_us, state.current, self.limit - cost)
    }

    /// When the count of the window before the one that began at `start_us` weighs no more than
    /// `room`.
    ///
    /// `count` weighs at most `room` once ceil(count x (ticks - e) / ticks) <= room, which is
    /// at e = ticks - floor(room x ticks / count).
    fn weighs_at_us(&self, start_us: u64, count: u64, room: u64) -> u64 {
        let ticks_left = mul_div(room, self.ticks, count).min(self.ticks);
        start_us + (self.ticks - ticks_left) * self.tick_us
    }

    /// When a request of `cost` that is denied passes, if nobody else asks.
    #[cold]
    fn allowed_at_us(&self, state: TwoCounts, cost: u64) -> u64 {
        match self.limit.checked_sub(state.current + cost) {
            Some(room) => {
                // Saturating for states that no check has written; those that one has are in order.
                let start_us = state.end_us.saturating_sub(self.window_us);
                self.weighs_at_us(start_us, state.previous, room)
            }
            None => self.allowed_in_next_us(state, cost),
        }
    }

    /// The window's end or, if the request does not pass then, when it does. `state` is the one
    /// that the request leaves. A peek is told of a request of cost 1, and a cost above the limit of
    /// the whole limit.
    #[inline]
    fn reset_at_us(&self, state: TwoCounts, cost: u64) -> u64 {
        let cost = cost.clamp(1, self.limit);
        if state.current + cost <= self.limit {
            state.end_us
        } else {
            self.allowed_in_next_us(state, cost)
        }
    }
}

/// floor(a x b / c). The product is below 2^53 unless the limit was lowered under a full counter.
#[inline]
fn mul_div(a: u64, b: u64, c: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product / c,
        None => (u128::from(a) * u128::from(b) / u128::from(c)) as u64,
    }
}

/// ceil(a x b / c).
#[inline]
fn mul_div_ceil(a: u64, b: u64, c: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product.div_ceil(c),
        None => (u128::from(a) * u128::from(b)).div_ceil(u128::from(c)) as u64,
    }
}

impl WordState for SlidingWindow {
    type State = TwoCounts;

    fn shift(&self) -> u32 {
        window_shift(self.window_us)
    }

    #[inline(always)]
    fn step(&self, state: TwoCounts, now_us: u64, cost: u64) -> Step<TwoCounts> {
        let state = self.at(state, now_us);
        let ticks_left = self.ticks - self.elapsed_ticks(state.end_us, now_us);
        let weight = match state.previous {
            0 => 0,
            previous => mul_div_ceil(previous, ticks_left, self.ticks),
        };
        let remaining = self.limit.saturating_sub(state.current + weight);
        let (outcome, remaining, next) = if cost > self.limit {
            (Outcome::Never, remaining, None)
        } else if cost == 0 {
            (Outcome::Allow, remaining, None)
        } else if cost <= remaining {
            let next = TwoCounts { current: state.current + cost, ..state };
            (Outcome::Allow, remaining - cost, Some(next))
        } else {
            let retry_after_us = self.allowed_at_us(state, cost).saturating_sub(now_us);
            (Outcome::Deny { retry_after_us }, remaining, None)
        };
        let end_us = self.reset_at_us(next.unwrap_or(state), cost);
        let basis = DecisionBasis { amount: remaining, end_us, excess_us: 0 };
        Step { outcome, next, basis }
    }

    #[inline(always)]
    fn is_heavy(&self, basis: &DecisionBasis) -> bool {
        basis.amount * 2 < self.limit
    }

    fn fits(&self, state: TwoCounts) -> bool {
        let fresh_at_us_max = TIME_MAX >> self.shift() << self.shift();
        state.previous.max(state.current) <= self.count_max()
            && state.end_us + self.window_us <= fresh_at_us_max
    }

    /// As in the fixed window, rounding down to a multiple of the window undoes the rounding up.
    #[inline(always)]
    fn unpack(&self, parts: WordParts) -> TwoCounts {
        let fresh_at_us = parts.fresh_at_us / self.window_us * self.window_us;
        TwoCounts {
            end_us: fresh_at_us.saturating_sub(self.window_us),
            previous: parts.payload & self.count_max(),
            current: parts.payload >> self.count_bits() & self.count_max(),
        }
    }

    #[inline(always)]
    fn pack(&self, state: TwoCounts) -> WordParts {
        // A fresh state is all zeros, and stays so.
        let fresh_at_us = if state.end_us == 0 { 0 } else { state.end_us + self.window_us };
        WordParts { fresh_at_us, payload: state.current << self.count_bits() | state.previous }
    }

    fn from_words(words: &[u64]) -> TwoCounts {
        let [end_us, previous, current] = [0, 1, 2].map(|at| words[at].min(NUMBER_MAX));
        TwoCounts { end_us, previous, current }
    }

    fn to_words(state: TwoCounts, words: &mut [u64]) {
        words[..3].copy_from_slice(&[state.end_us, state.previous, state.current]);
    }
}

impl Algorithm for SlidingWindow {
    fn name(&self) -> &'static str {
        NAME
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn window_us(&self) -> u64 {
        self.window_us
    }

    fn words(&self) -> usize {
        3
    }

    fn transition(&self, state: &mut [u64], now: Timestamp, cost: u64) -> Decision {
        self.transition_words(state, now, cost)
    }

    /// The end of the window it is counted in.
    fn stamp(&self, state: &[u64]) -> u64 {
        Self::from_words(state).end_us
    }

    /// From the window it was counted in: this one, or the one before.
    fn refund(&self, state: &mut [u64], now: Timestamp, stamp: u64, amount: u64) -> Refund {
        let mut counts = Self::from_words(state);
        let next_end_us = stamp.saturating_add(self.window_us);
        let count = if next_end_us <= now.as_micros() {
            return Refund::default();
        } else if stamp == counts.end_us {
            &mut counts.current
        } else if next_end_us == counts.end_us {
            &mut counts.previous
        } else {
            return Refund::default();
        };
        let refunded = amount.min(*count);
        *count -= refunded;
        if refunded > 0 {
            Self::to_words(counts, state);
        }
        Refund { tokens: refunded, sooner_us: 0 }
    }

    fn overdraw(&self, state: &mut [u64], now: Timestamp, amount: u64) -> u64 {
        let counts = self.at(Self::from_words(state), now.as_micros());
        let charged = amount.min(NUMBER_MAX - counts.current);
        Self::to_words(TwoCounts { current: counts.current + charged, ..counts }, state);
        charged
    }

    fn fresh_at(&self, state: &[u64]) -> Timestamp {
        Timestamp::from_micros(Self::from_words(state).end_us + self.window_us)
    }
}
