//! The arithmetic of buckets: a debt of time that falls by one microsecond per microsecond.
//!
//! Charging `cost` tokens adds `cost` intervals to the debt; a bucket of `burst` tokens can owe at
//! most `burst` intervals. An interval is a fraction `numerator / denominator` of microseconds, so
//! the debt is counted in units of `1 / denominator` microsecond and every sum is an exact integer.
//! The largest, a full debt and the overdraft, is below 2^53, which a double holds as well.
//!
//! 5 per 10 s with burst 5: an interval is 2,000,000 / 1 us, a full debt 10,000,000. Five requests
//! at t = 0 owe all of it; at t = 0.1 s the debt is 9,900,000, so one more would owe 11,900,000:
//! 1,900,000 too much, and the client is asked to wait 1.9 s.
//!
//! # Why no clock can overshoot
//!
//! The state is P, the instant at which the debt is paid. It changes in one way only: a request
//! with clock reading `now` and cost c is allowed if max(P, now) + c x interval <= now + full, and
//! then that sum becomes P. **A denial writes nothing, and a debt is never cut.** So each admitted
//! request occupies a stretch of c intervals in time, from max(P, now) to the new P. Stretches never
//! overlap, and each lies within [now, now + full] of its own request. All requests whose readings
//! lie in [s, t] therefore share [s, t + full], which holds at most burst + rate x (t - s) tokens.
//!
//! The proof asks nothing of the readings: threads may read the clock at different instants, hold
//! on to a reading, or read clocks that differ. A reading that is behind the state makes the debt
//! look larger, which can only make the client wait. An earlier version cut the debt to what the
//! policy allows at the reading at hand, and stored that; every stale reading forgave what the cut
//! took off, and two threads admitted several times the limit.
//!
//! More than a full debt is owed after the burst was lowered or the clock went back. It is paid by
//! time like any other: after `burst 100 -> 10`, a bucket with 60 spent still owes 60. A *rate*
//! change keeps the debt as time, so tokens owed are re-priced: after `40/s -> 20/s` with burst 20,
//! a debt of 0.5 s that was 20 tokens is 10. A lower rate so forgives at most (1 - new/old) of one
//! burst per change, and a higher one forgives nothing.

mod cut;
mod ladder;

use super::word::{DecisionBasis, NUMBER_MAX, PAYLOAD_BITS, Step, TIME_MAX, WordParts, WordState};
use super::{Algorithm, Refund};
use crate::algorithm::fraction::Fraction;
use crate::units::Rate;
use crate::{Decision, Outcome, PolicyError, Timestamp};

pub(crate) use ladder::Ladder;

/// How long it takes to earn one token: exactly `numerator_us / denominator` microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// The numerator, in microseconds.
    pub numerator_us: u64,
    /// The denominator.
    pub denominator: u64,
}

/// The numbers of one bucket policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Meter {
    name: &'static str,
    interval: Interval,
    /// A full debt, that of an empty bucket, in units of `1 / denominator` microsecond.
    full: u64,
    /// The most that can be owed, a full debt and the overdraft, or more for the steps of a warm-up;
    /// below 2^53.
    most: u64,
    /// `most` in whole microseconds, rounded down.
    most_us: u64,
    burst: u64,
    overdraft: u64,
    limit: u64,
    window_us: u64,
}

/// What a client owes: the instant its debt is paid, and a part of a microsecond more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DebtState {
    paid_at_us: u64,
    /// In units of `1 / denominator` microsecond, below one microsecond.
    remainder: u64,
}

/// All products stay below this, where a double is still exact.
pub(crate) const PRODUCT_MAX: u64 = 1 << 53;

/// The largest debt of time, 35 years: what a clock shows and a debt together fit in 52 bits.
const MOST_US_MAX: u128 = (1 << 50) - 2;

/// Denominators up to this leave a remainder that fits the payload of one word.
const WORD_DENOMINATOR_MAX: u128 = 1 << PAYLOAD_BITS;
const WIDE_DENOMINATOR_MAX: u128 = 1 << 31;

impl Meter {
    /// Rounds `rate` to an interval that is exact, or longer by less than a millionth.
    pub(crate) fn new(
        name: &'static str,
        rate: Rate,
        burst: Option<u64>,
    ) -> Result<Self, PolicyError> {
        Self::with_overdraft(name, rate, burst, 0)
    }

    /// The same for a bucket that may owe `overdraft` tokens more than it holds.
    pub(crate) fn with_overdraft(
        name: &'static str,
        rate: Rate,
        burst: Option<u64>,
        overdraft: u64,
    ) -> Result<Self, PolicyError> {
        let limit = (rate.tokens / rate.tokens_divisor).max(1);
        let burst = burst.unwrap_or(limit);
        if burst == 0 {
            return Err(PolicyError::ZeroBurst);
        }
        let exact = Fraction::new(
            u128::from(rate.window_us) * u128::from(rate.tokens_divisor),
            u128::from(rate.tokens),
        );
        let refuse = || match overdraft {
            0 => PolicyError::BurstTooLarge { burst },
            _ => PolicyError::OverdraftTooLarge { overdraft },
        };
        // So many times numerator / denominator microseconds are owed at most.
        let tokens_max = u128::from(burst) + u128::from(overdraft);
        let most_us_max = tokens_max
            .checked_mul(exact.numerator)
            .map(|product| product.div_ceil(exact.denominator))
            .filter(|most_us| *most_us <= MOST_US_MAX)
            .ok_or_else(refuse)?;
        // One microsecond more than the largest debt, so that the sums of a step fit as well.
        let units_per_us_max = u128::from(PRODUCT_MAX - 1) / (most_us_max + 1);
        let interval = [WORD_DENOMINATOR_MAX, WIDE_DENOMINATOR_MAX]
            .into_iter()
            .map(|denominator_max| denominator_max.min(units_per_us_max).max(1))
            .map(|denominator_max| exact.round_up_to_denominator(denominator_max))
            .find(|rounded| rounded.is_within_a_millionth_above(exact))
            .ok_or_else(refuse)?;
        let full = u128::from(burst) * interval.numerator;
        let most = tokens_max * interval.numerator;
        if most + interval.denominator >= u128::from(PRODUCT_MAX) {
            return Err(refuse());
        }
        Ok(Self {
            name,
            full: full as u64,
            most: most as u64,
            most_us: (most / interval.denominator) as u64,
            interval: Interval {
                numerator_us: interval.numerator as u64,
                denominator: interval.denominator as u64,
            },
            burst,
            overdraft,
            limit,
            window_us: rate.window_us,
        })
    }

    /// The same bucket without `tokens` of its burst. They are owed at most as well, as if they were an overdraft:
    /// whoever may take them leaves as large a debt as before.
    pub(crate) fn reserving(&self, tokens: u64) -> Self {
        debug_assert!(tokens < self.burst);
        Self {
            full: self.full - tokens * self.interval.numerator_us,
            burst: self.burst - tokens,
            overdraft: self.overdraft + tokens,
            ..self.clone()
        }
    }

    pub(crate) fn interval(&self) -> Interval {
        self.interval
    }

    pub(crate) fn overdraft(&self) -> u64 {
        self.overdraft
    }

    /// A full debt, in units of `1 / denominator` microsecond.
    pub(super) fn full(&self) -> u64 {
        self.full
    }

    pub(crate) fn fits_word(&self) -> bool {
        u128::from(self.interval.denominator) <= WORD_DENOMINATOR_MAX
    }

    /// The step of every bucket. See the module's example for the numbers.
    #[inline(always)]
    fn meter(&self, owed: DebtState, now_us: u64, cost: u64) -> Step<DebtState> {
        let debt = self.debt(owed, now_us);
        if cost > self.burst {
            return Step::of_debt(Outcome::Never, debt, None);
        }
        if cost == 0 {
            return Step::of_debt(Outcome::Allow, debt, None);
        }
        // Neither sum can overflow: both are at most `most` and a microsecond more, below 2^53.
        let units_after = debt.units + cost * self.interval.numerator_us;
        if units_after <= self.full && debt.excess_us == 0 {
            let next = Some(self.owed(units_after, now_us));
            return Step::of_debt(Outcome::Allow, Debt { units: units_after, excess_us: 0 }, next);
        }
        let too_much = units_after.saturating_sub(self.full);
        let retry_after_us = debt.excess_us + self.to_us_ceil(too_much);
        Step::of_debt(Outcome::Deny { retry_after_us }, debt, None)
    }

    /// The debt at `now_us`.
    #[inline(always)]
    pub(super) fn debt(&self, owed: DebtState, now_us: u64) -> Debt {
        let Some(whole_us) = owed.paid_at_us.checked_sub(now_us) else {
            return Debt::default();
        };
        // Taken off before anything is multiplied, so that no product passes 2^53.
        let excess_us = whole_us.saturating_sub(self.most_us);
        let units = (whole_us - excess_us) * self.interval.denominator + self.remainder(owed);
        Debt { units, excess_us }
    }

    /// The part of a microsecond that is owed. One written under another denominator is cut to
    /// below one microsecond.
    #[inline(always)]
    fn remainder(&self, owed: DebtState) -> u64 {
        owed.remainder.min(self.interval.denominator - 1)
    }

    /// Takes `units` off a debt that is at least as large.
    pub(super) fn less(&self, owed: DebtState, units: u64) -> DebtState {
        let denominator = u128::from(self.interval.denominator);
        let paid_at = u128::from(owed.paid_at_us) * denominator + u128::from(self.remainder(owed));
        let paid_at = paid_at.saturating_sub(units.into());
        DebtState {
            paid_at_us: (paid_at / denominator) as u64,
            remainder: (paid_at % denominator) as u64,
        }
    }

    #[inline(always)]
    pub(super) fn owed(&self, debt: u64, now_us: u64) -> DebtState {
        if self.interval.denominator == 1 {
            return DebtState { paid_at_us: now_us + debt, remainder: 0 };
        }
        DebtState {
            paid_at_us: now_us + debt / self.interval.denominator,
            remainder: debt % self.interval.denominator,
        }
    }

    /// When all but `cost` tokens of `owed` is paid, rounded up to a microsecond.
    #[cfg(feature = "until-ready")]
    pub(super) fn paid_before(&self, owed: DebtState, cost: u64) -> Option<u64> {
        let Interval { numerator_us, denominator } = self.interval;
        let denominator = u128::from(denominator);
        let units = u128::from(owed.paid_at_us) * denominator + u128::from(owed.remainder);
        let before = units.checked_sub(u128::from(cost) * u128::from(numerator_us))?;
        Some(before.div_ceil(denominator) as u64)
    }

    #[inline]
    pub(super) fn to_us_ceil(&self, debt: u64) -> u64 {
        if self.interval.denominator == 1 { debt } else { debt.div_ceil(self.interval.denominator) }
    }
}

impl Step<DebtState> {
    #[inline(always)]
    fn of_debt(outcome: Outcome, debt: Debt, next: Option<DebtState>) -> Self {
        let Debt { units: amount, excess_us } = debt;
        Self { outcome, next, basis: DecisionBasis { amount, end_us: 0, excess_us } }
    }
}

/// What is owed at an instant: `excess_us` whole microseconds, and `units` of `1 / denominator`
/// microsecond.
///
/// There is an excess only where more than the policy's largest debt is owed, and then `units` are
/// within a microsecond of that.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Debt {
    pub(super) units: u64,
    pub(super) excess_us: u64,
}

impl Debt {
    /// All of it in units, which may pass 2^53.
    pub(super) fn in_units(self, denominator: u64) -> u128 {
        u128::from(self.excess_us) * u128::from(denominator) + u128::from(self.units)
    }
}

impl Algorithm for Meter {
    fn name(&self) -> &'static str {
        self.name
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn capacity(&self) -> u64 {
        self.burst
    }

    fn window_us(&self) -> u64 {
        self.window_us
    }

    fn words(&self) -> usize {
        2
    }

    fn transition(&self, state: &mut [u64], now: Timestamp, cost: u64) -> Decision {
        self.transition_words(state, now, cost)
    }

    /// The instant at which the charge is paid, if time pays charges in the order they came.
    fn stamp(&self, state: &[u64]) -> u64 {
        Self::from_words(state).paid_at_us
    }

    /// Time pays charges in their order, so of a charge that is paid at `stamp` no more than
    /// `stamp - now` is still owed. Given back more, the client would be let through twice for it:
    /// once for the time it waited, once for the refund.
    ///
    /// 5 per 10 s, burst 5: five tokens at t = 0 are paid at t = 10 s. Given back at t = 6 s, with
    /// other five tokens taken since: 4 s are still owed of them, two tokens' worth.
    fn refund(&self, state: &mut [u64], now: Timestamp, stamp: u64, amount: u64) -> Refund {
        let now_us = now.as_micros();
        let owed = Self::from_words(state);
        let Interval { numerator_us, denominator } = self.interval;
        // No refund moves 2^53 units or more: a policy that could charge as much is rejected.
        let asked = amount.min((PRODUCT_MAX - 1) / numerator_us) * numerator_us;
        let unpaid = u128::from(stamp.saturating_sub(now_us)) * u128::from(denominator);
        let debt = self.debt(owed, now_us).in_units(denominator);
        let refunded = u128::from(asked).min(unpaid).min(debt) as u64;
        if refunded > 0 {
            Self::to_words(self.less(owed, refunded), state);
        }
        Refund { tokens: refunded / numerator_us, sooner_us: refunded.div_ceil(denominator) }
    }

    /// As far as the overdraft goes.
    fn overdraw(&self, state: &mut [u64], now: Timestamp, amount: u64) -> u64 {
        let debt = self.debt(Self::from_words(state), now.as_micros());
        if debt.excess_us > 0 {
            return 0;
        }
        let room = self.most.saturating_sub(debt.units);
        let charged = amount.min(room / self.interval.numerator_us);
        if charged > 0 {
            let units = debt.units + charged * self.interval.numerator_us;
            Self::to_words(self.owed(units, now.as_micros()), state);
        }
        charged
    }

    fn fresh_at(&self, state: &[u64]) -> Timestamp {
        Timestamp::from_micros(Self::from_words(state).fresh_at_us())
    }
}

impl WordState for Meter {
    type State = DebtState;

    fn shift(&self) -> u32 {
        0
    }

    #[inline(always)]
    fn step(&self, owed: DebtState, now_us: u64, cost: u64) -> Step<DebtState> {
        self.meter(owed, now_us, cost)
    }

    #[inline(always)]
    fn decision(&self, step: &Step<DebtState>, now_us: u64) -> Decision {
        let DecisionBasis { amount: units, excess_us, .. } = step.basis;
        let is_within = u64::from(excess_us == 0);
        let remaining = self.full.saturating_sub(units) / self.interval.numerator_us * is_within;
        let reset_at = Timestamp::from_micros(now_us + excess_us + self.to_us_ceil(units));
        Decision::new(step.outcome, self.limit, remaining, reset_at)
    }

    #[inline(always)]
    fn is_heavy(&self, basis: &DecisionBasis) -> bool {
        basis.excess_us > 0 || basis.amount * 2 > self.full
    }

    /// A remainder written under a finer denominator is cut to what fits; it stays below one
    /// microsecond.
    fn fits(&self, owed: DebtState) -> bool {
        owed.fresh_at_us() <= TIME_MAX
    }

    #[inline(always)]
    fn unpack(&self, parts: WordParts) -> DebtState {
        let paid_at_us = parts.fresh_at_us.saturating_sub(u64::from(parts.payload > 0));
        DebtState { paid_at_us, remainder: parts.payload }
    }

    /// The leading time rounds the remainder up, so that a part of a microsecond still counts as
    /// not yet fresh; `unpack` takes it off again.
    #[inline(always)]
    fn pack(&self, owed: DebtState) -> WordParts {
        let remainder_max = (1 << PAYLOAD_BITS) - 1;
        WordParts { fresh_at_us: owed.fresh_at_us(), payload: owed.remainder.min(remainder_max) }
    }

    fn from_words(words: &[u64]) -> DebtState {
        DebtState { paid_at_us: words[0].min(NUMBER_MAX), remainder: words[1] }
    }

    fn to_words(owed: DebtState, words: &mut [u64]) {
        words[..2].copy_from_slice(&[owed.paid_at_us, owed.remainder]);
    }
}

impl DebtState {
    /// Tells debts apart whose remainder fits the payload of a word. Zero is nobody's: nothing owed.
    pub(super) fn name(self) -> u64 {
        let remainder_max = (1 << PAYLOAD_BITS) - 1;
        self.paid_at_us << PAYLOAD_BITS | self.remainder.min(remainder_max)
    }

    /// What [`name`](Self::name) has named.
    #[cfg(feature = "until-ready")]
    pub(super) fn of_name(name: u64) -> Option<Self> {
        let remainder = name & ((1 << PAYLOAD_BITS) - 1);
        (name != 0).then_some(Self { paid_at_us: name >> PAYLOAD_BITS, remainder })
    }

    fn fresh_at_us(self) -> u64 {
        self.paid_at_us + u64::from(self.remainder > 0)
    }
}
