//! A bucket whose tolerance is cut while tokens of it are lent.
//!
//! Lent tokens are spent up to a term after they were charged. For as long as they are out, less than a full
//! debt may be owed, by the *cut*: as much time as the longest term that was lent. Decision 0083 has the proof
//! that all spending then stays within burst + rate x T. The cut shrinks by one microsecond for every
//! microsecond in which nothing is owed. It is only compared with: a debt is never reduced to what fits under it.
//!
//! 5 per 10 s with burst 5 and a cut of 2 s: no more than 8 s may be owed, four tokens. If they are charged at
//! t = 0, they are paid at t = 8 s. A request of 5 is denied until the cut is gone, at t = 10 s.

use super::{DebtState, Meter};
use crate::algorithm::debt::Interval;
use crate::algorithm::word::{NUMBER_MAX, WordState};
use crate::{Decision, Outcome, Timestamp};

impl Meter {
    /// What is left at `now` of a cut that was `cut_us` when `words` was written. The instant at which the debt
    /// is paid is rounded up, so that a part of a microsecond does not shrink it.
    pub(crate) fn cut_left_us(words: &[u64], cut_us: u64, now: Timestamp) -> u64 {
        let idle_us = now.as_micros().saturating_sub(Self::from_words(words).fresh_at_us());
        cut_us.min(NUMBER_MAX).saturating_sub(idle_us)
    }

    /// Makes a debt that is paid one that is paid at `now`, from where a new cut begins to shrink.
    pub(crate) fn begin_cut(words: &mut [u64], now: Timestamp) {
        if Self::from_words(words).fresh_at_us() <= now.as_micros() {
            Self::to_words(DebtState { paid_at_us: now.as_micros(), remainder: 0 }, words);
        }
    }

    /// Decides `cost` where `cut_us` are left of the cut at `now`, and charges it if it is allowed.
    pub(crate) fn transition_with_cut(
        &self,
        words: &mut [u64],
        cut_us: u64,
        now: Timestamp,
        cost: u64,
    ) -> Decision {
        let Interval { numerator_us, denominator } = self.interval;
        let to_us = |units: u128| units.div_ceil(denominator.into()) as u64;
        let cut = u128::from(cut_us) * u128::from(denominator);
        let full = u128::from(self.full);
        let mut debt = self.debt(Self::from_words(words), now.as_micros()).in_units(denominator);
        let charge = u128::from(cost) * u128::from(numerator_us);
        let outcome = if cost > self.burst {
            Outcome::Never
        } else if cost == 0 {
            Outcome::Allow
        } else if debt + charge + cut <= full {
            debt += charge;
            // At most `full`, so it fits.
            Self::to_words(self.owed(debt as u64, now.as_micros()), words);
            Outcome::Allow
        } else if charge + cut <= full {
            Outcome::Deny { retry_after_us: to_us(debt + charge + cut - full) }
        } else {
            // First all debt has to be paid, up to the next microsecond, and then the cut shrinks.
            Outcome::Deny { retry_after_us: to_us(debt) + to_us(charge + cut - full) }
        };
        let remaining = full.saturating_sub(debt + cut) / u128::from(numerator_us);
        let reset_at = Timestamp::from_micros(now.as_micros() + to_us(debt) + cut_us);
        Decision::new(outcome, self.limit, remaining as u64, reset_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Rate;

    const START_US: u64 = 1_000_000_000;

    fn at(us: u64) -> Timestamp {
        Timestamp::from_micros(START_US + us)
    }

    fn denied(decision: Decision) -> u64 {
        let Outcome::Deny { retry_after_us } = decision.outcome() else { panic!("{decision:?}") };
        retry_after_us
    }

    /// The example of this file.
    #[test]
    fn a_cut_is_compared_with_and_shrinks_once_the_debt_is_paid() {
        let meter = Meter::new("bucket", Rate::new(5, std::time::Duration::from_secs(10)), None);
        let meter = meter.unwrap();
        let cut_us = 2_000_000;
        let mut words = [0, 0];
        Meter::begin_cut(&mut words, at(0));
        let four = meter.transition_with_cut(&mut words, cut_us, at(0), 4);
        assert!(four.is_allowed());
        assert_eq!((four.remaining(), four.reset_at()), (Some(0), Some(at(10_000_000))));
        assert_eq!(denied(meter.transition_with_cut(&mut words, cut_us, at(0), 1)), 2_000_000);
        assert_eq!(denied(meter.transition_with_cut(&mut words, cut_us, at(0), 5)), 10_000_000);
        for (us, left_us) in [(8_000_000, 2_000_000), (9_000_000, 1_000_000), (10_000_000, 0)] {
            assert_eq!(Meter::cut_left_us(&words, cut_us, at(us)), left_us);
        }
        let never = meter.transition_with_cut(&mut words, 1_000_000, at(9_000_000), 6);
        assert_eq!(never.outcome(), Outcome::Never);
        assert_eq!(
            denied(meter.transition_with_cut(&mut words, 1_000_000, at(9_000_000), 5)),
            1_000_000
        );
    }

    #[test]
    fn without_a_cut_it_decides_as_every_bucket_does() {
        use crate::Algorithm;
        let rate = Rate::new(2, std::time::Duration::from_micros(3));
        let meter = Meter::with_overdraft("bucket", rate, Some(4), 2).unwrap();
        for debt in 0..24 {
            for cost in 0..6 {
                let owed = meter.owed(debt, START_US);
                let mut plain = [owed.paid_at_us, owed.remainder];
                let mut cut = plain;
                let expected = meter.transition(&mut plain, at(0), cost);
                assert_eq!(meter.transition_with_cut(&mut cut, 0, at(0), cost), expected);
                assert_eq!(cut, plain);
            }
        }
    }
}
