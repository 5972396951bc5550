//! Concurrency: at most `limit` permits in flight at any instant.
//!
//! No window and no rate: what is taken stays taken until it is given back. So time changes nothing
//! here, a counter is fresh when and only when nothing is in flight, and no retry-after can be
//! promised: permits come back when whoever holds them is done. A full one answers
//! [`Outcome::Busy`].
//!
//! A lowered limit cuts nothing that is in flight. New permits are refused until enough have come
//! back: of 5 in flight under a limit lowered to 3, three must come back before one more may go.

use super::word::{DecisionBasis, HEAVY_BIT, PERMITS_SHIFT, Step, WordParts, WordState};
use super::{Algorithm, Refund};
use crate::{Decision, Outcome, PolicyError, Timestamp};

/// The algorithm's name.
pub const NAME: &str = "concurrency";

/// The largest limit.
pub const LIMIT_MAX: u64 = 1 << 32;

/// From when on a counter with permits in flight is fresh: later than any clock, so that its slot
/// is the last to be given away. No other counter is fresh at this very instant.
pub(crate) const NEVER_US: u64 = ((1 << (52 - PERMITS_SHIFT)) - 1) << PERMITS_SHIFT;

/// At most so many at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConcurrencyLimit {
    limit: u64,
}

/// How many permits are in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct InFlight {
    count: u64,
}

impl ConcurrencyLimit {
    pub(crate) fn new(limit: u64) -> Result<Self, PolicyError> {
        match limit {
            0 => Err(PolicyError::ZeroLimit),
            1..=LIMIT_MAX => Ok(Self { limit }),
            _ => Err(PolicyError::TooManyPermits { limit }),
        }
    }

    /// The same with another limit, which must be a lower one.
    pub(crate) fn with_limit(&self, limit: u64) -> Self {
        debug_assert!((1..=self.limit).contains(&limit));
        Self { limit }
    }
}

impl InFlight {
    pub(super) fn new(count: u64) -> Self {
        Self { count }
    }

    /// After `amount` permits have come back, and how many of them were out: never more are given
    /// back than that, or a permit returned twice would make room for two.
    #[inline(always)]
    pub(crate) fn less(self, amount: u64) -> (Self, u64) {
        let returned = amount.min(self.count);
        (Self { count: self.count - returned }, returned)
    }

    #[inline(always)]
    pub(crate) fn from_word(word: u64) -> Self {
        Self { count: WordParts::from_word(word, PERMITS_SHIFT).payload }
    }

    /// Permits in flight are always heavy: a table that forgot them would admit others in their
    /// place.
    #[inline(always)]
    pub(crate) fn to_word(self) -> u64 {
        if self.count == 0 { 0 } else { self.parts().to_word(PERMITS_SHIFT) | HEAVY_BIT }
    }

    /// With nothing in flight all zero, as a fresh counter has to be.
    #[inline(always)]
    fn parts(self) -> WordParts {
        WordParts { fresh_at_us: self.fresh_at_us(), payload: self.count }
    }

    #[inline(always)]
    fn fresh_at_us(self) -> u64 {
        if self.count == 0 { 0 } else { NEVER_US }
    }
}

impl WordState for ConcurrencyLimit {
    type State = InFlight;

    #[inline(always)]
    fn shift(&self) -> u32 {
        PERMITS_SHIFT
    }

    #[inline(always)]
    fn step(&self, InFlight { count }: InFlight, now_us: u64, cost: u64) -> Step<InFlight> {
        // More are in flight than the limit allows where it was lowered.
        let remaining = self.limit.saturating_sub(count);
        let (outcome, remaining, next) = if cost > self.limit {
            (Outcome::Never, remaining, None)
        } else if cost == 0 {
            (Outcome::Allow, remaining, None)
        } else if cost <= remaining {
            (Outcome::Allow, remaining - cost, Some(InFlight { count: count + cost }))
        } else {
            (Outcome::Busy, remaining, None)
        };
        // It may be as good as new at any moment, as far as anybody knows.
        Step {
            outcome,
            next,
            basis: DecisionBasis { amount: remaining, end_us: now_us, excess_us: 0 },
        }
    }

    #[inline(always)]
    fn is_heavy(&self, _basis: &DecisionBasis) -> bool {
        true
    }

    fn fits(&self, _state: InFlight) -> bool {
        true
    }

    #[inline(always)]
    fn pack(&self, state: InFlight) -> WordParts {
        state.parts()
    }

    #[inline(always)]
    fn unpack(&self, parts: WordParts) -> InFlight {
        InFlight { count: parts.payload }
    }

    fn from_words(words: &[u64]) -> InFlight {
        InFlight { count: words[0].min(LIMIT_MAX) }
    }

    fn to_words(state: InFlight, words: &mut [u64]) {
        words[0] = state.count;
    }
}

impl Algorithm for ConcurrencyLimit {
    fn name(&self) -> &'static str {
        NAME
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    /// There is none.
    fn window_us(&self) -> u64 {
        0
    }

    fn words(&self) -> usize {
        1
    }

    fn transition(&self, state: &mut [u64], now: Timestamp, cost: u64) -> Decision {
        self.transition_words(state, now, cost)
    }

    /// A permit is like any other, so nothing hangs on which one comes back.
    fn refund(&self, state: &mut [u64], _now: Timestamp, _stamp: u64, amount: u64) -> Refund {
        let (left, returned) = Self::from_words(state).less(amount);
        Self::to_words(left, state);
        Refund { tokens: returned, sooner_us: 0 }
    }

    fn fresh_at(&self, state: &[u64]) -> Timestamp {
        Timestamp::from_micros(Self::from_words(state).fresh_at_us())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_any_count_and_nothing_in_flight_is_all_zero() {
        assert_eq!(InFlight { count: 0 }.to_word(), 0);
        for count in [0, 1, 2, LIMIT_MAX - 1, LIMIT_MAX] {
            let state = InFlight { count };
            assert_eq!(InFlight::from_word(state.to_word()), state);
            let parts = WordParts::from_word(state.to_word(), PERMITS_SHIFT);
            assert_eq!(parts.fresh_at_us > Timestamp::MAX.as_micros(), count > 0);
        }
    }

    #[test]
    fn no_more_come_back_than_were_out() {
        let five = InFlight { count: 5 };
        assert_eq!(five.less(2), (InFlight { count: 3 }, 2));
        assert_eq!(five.less(5), (InFlight { count: 0 }, 5));
        assert_eq!(five.less(u64::MAX), (InFlight { count: 0 }, 5));
    }
}
