//! Parts of a limit that are reserved for requests of a higher criticality: `reserve: { critical: 10%, high: 20% }`.
//!
//! A request counts on the same counter as every other and is compared with less of the limit. Decision 0084.

use std::borrow::Cow;
use std::fmt;

use thiserror::Error;
use tollbar::Policy;

use super::accuracy::{percent_ppm, percent_text};
use crate::Criticality;
use crate::message::shorten;

const WHOLE_PPM: u32 = 1_000_000;

/// The part of a limit that each criticality has before all below it.
///
/// ```
/// use tollbar_rules::{Criticality, Reserve};
/// # fn main() -> Result<(), tollbar_rules::ReserveError> {
/// let reserve = Reserve::new([(Criticality::Critical, "10%"), (Criticality::High, "20%")])?;
/// let of_100 = |criticality| 100 - reserve.held_back(100, criticality);
/// assert_eq!(of_100(Criticality::Critical), 100);
/// assert_eq!(of_100(Criticality::High), 90);
/// assert_eq!(of_100(Criticality::Normal), 70);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reserve {
    /// In millionths, the least criticality first.
    shares_ppm: [u32; Criticality::NAMED.len()],
}

/// Why something is no reserve. Says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// A text that is not a share of a limit.
    #[error("`{text}` is no share of a limit: write one above 0% and below 100%, such as `10%`")]
    Share {
        /// The text.
        text: String,
    },
    /// No class is below the lowest.
    #[error(
        "nothing is less critical than `low`, so nothing can be reserved for it: reserve for `normal`, `high` or \
         `critical`"
    )]
    ForLow,
    /// All of the limit, or more.
    #[error(
        "{} of the limit are reserved in all, which leaves nothing to other requests: reserve less than 100% together",
        percent_text(*.total_ppm)
    )]
    Everything {
        /// The sum of the shares, in millionths.
        total_ppm: u32,
    },
    /// No share at all.
    #[error(
        "nothing is reserved: write a share for a criticality, such as `{{ critical: 10% }}`, or leave this out"
    )]
    Nothing,
    /// A limit of which less than a token is left.
    #[error(
        "a limit of {capacity} leaves less than a token to requests that are {criticality}: write {capacity_min} or \
         more, or reserve less",
        criticality = .criticality.name()
    )]
    BelowOne {
        /// The limit, or the burst of a bucket.
        capacity: u64,
        /// Whose part it is.
        criticality: Criticality,
        /// The smallest limit that will do.
        capacity_min: u64,
    },
}

impl Reserve {
    /// The reserve of these shares, as files write them.
    ///
    /// # Errors
    /// If one is no share, is for `low`, or all together leave nothing.
    pub fn new<'t>(
        shares: impl IntoIterator<Item = (Criticality, &'t str)>,
    ) -> Result<Self, ReserveError> {
        let mut reserve = Self::default();
        for (criticality, text) in shares {
            if criticality == Criticality::Low {
                return Err(ReserveError::ForLow);
            }
            let share_ppm =
                percent_ppm(text).filter(|share_ppm| (1..WHOLE_PPM).contains(share_ppm));
            let unknown = || ReserveError::Share { text: shorten(text) };
            reserve.shares_ppm[criticality as usize] = share_ppm.ok_or_else(unknown)?;
        }
        match reserve.shares_ppm.iter().sum() {
            0 => Err(ReserveError::Nothing),
            WHOLE_PPM.. => {
                Err(ReserveError::Everything { total_ppm: reserve.shares_ppm.iter().sum() })
            }
            _ => Ok(reserve),
        }
    }

    /// The criticalities that something is reserved for, the highest first, and the share of each in millionths.
    pub fn shares(&self) -> impl Iterator<Item = (Criticality, u32)> {
        let all = Criticality::NAMED.into_iter().zip(self.shares_ppm).rev();
        all.filter(|(_, share_ppm)| *share_ppm > 0).map(|((_, of), share_ppm)| (of, share_ppm))
    }

    /// How many of `capacity` tokens a request must leave to others: what is reserved for more critical ones.
    /// 10% of 5 are 1: what is left to it is rounded down.
    #[must_use]
    pub fn held_back(&self, capacity: u64, criticality: Criticality) -> u64 {
        let above = &self.shares_ppm[criticality as usize + 1..];
        let left_ppm = WHOLE_PPM - above.iter().sum::<u32>();
        capacity - (u128::from(capacity) * u128::from(left_ppm) / u128::from(WHOLE_PPM)) as u64
    }

    /// The policy that a request is compared with. At least one token is left to it, also of a policy that a boost or
    /// a share has made smaller than any that is written.
    pub(crate) fn apply<'p>(
        &self,
        policy: &'p Policy,
        criticality: Criticality,
    ) -> Cow<'p, Policy> {
        let capacity = policy.capacity();
        let reserved = self.held_back(capacity, criticality).min(capacity.saturating_sub(1));
        match policy.reserving(reserved) {
            Ok(lower) if reserved > 0 => Cow::Owned(lower),
            _ => Cow::Borrowed(policy),
        }
    }

    /// Checks that every criticality has a token of a limit of `capacity`.
    pub(super) fn check(&self, capacity: u64) -> Result<(), ReserveError> {
        let is_too_little = |(_, of): &(_, Criticality)| self.held_back(capacity, *of) == capacity;
        let Some((_, criticality)) = Criticality::NAMED.into_iter().find(is_too_little) else {
            return Ok(());
        };
        let left_ppm = WHOLE_PPM - self.shares_ppm[criticality as usize + 1..].iter().sum::<u32>();
        let capacity_min = u64::from(WHOLE_PPM.div_ceil(left_ppm));
        Err(ReserveError::BelowOne { capacity, criticality, capacity_min })
    }
}

/// As files write it: `{ critical: 10%, high: 20% }`.
impl fmt::Display for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares = self.shares();
        let shares: Vec<String> =
            shares.map(|(of, ppm)| format!("{}: {}", of.name(), percent_text(ppm))).collect();
        write!(f, "{{ {} }}", shares.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserve(shares: &[(Criticality, &str)]) -> Result<Reserve, ReserveError> {
        Reserve::new(shares.iter().copied())
    }

    #[test]
    fn what_is_reserved_for_higher_classes_is_held_back_and_what_is_left_rounds_down() {
        let some =
            reserve(&[(Criticality::Critical, "10%"), (Criticality::Normal, "2.5%")]).unwrap();
        let left = |capacity: u64| {
            let all = Criticality::NAMED.map(|(_, of)| capacity - some.held_back(capacity, of));
            assert!(some.check(capacity).is_ok() == (all[0] > 0));
            all
        };
        assert_eq!(left(1_000), [875, 900, 900, 1_000]);
        assert_eq!(left(5), [4, 4, 4, 5]);
        assert_eq!(left(2), [1, 1, 1, 2]);
        assert_eq!(left(1), [0, 0, 0, 1]);
        assert_eq!(left(u64::MAX)[3], u64::MAX);
        assert_eq!(some.to_string(), "{ critical: 10%, normal: 2.5% }");
    }

    #[test]
    fn what_is_no_reserve_is_told_what_to_write() {
        use Criticality::{Critical, High, Low};
        for (shares, told) in [
            (&[(Critical, "100%")][..], "write one above 0% and below 100%"),
            (&[(Critical, "0%")], "write one above 0% and below 100%"),
            (&[(Critical, "10")], "`10` is no share of a limit"),
            (&[(Critical, "-1%")], "`-1%` is no share of a limit"),
            (&[(Low, "10%")], "nothing is less critical than `low`"),
            (&[(Critical, "60%"), (High, "40%")], "100% of the limit are reserved in all"),
            (&[(Critical, "60%"), (High, "40.5%")], "100.5% of the limit are reserved in all"),
            (&[], "nothing is reserved"),
        ] {
            let error = reserve(shares).unwrap_err().to_string();
            assert!(error.contains(told), "{shares:?}: {error}");
        }
        let most = reserve(&[(Critical, "75%")]).unwrap();
        assert_eq!(
            most.check(3).unwrap_err().to_string(),
            "a limit of 3 leaves less than a token to requests that are low: write 4 or more, or reserve less"
        );
        assert_eq!(most.check(4), Ok(()));
    }

    #[test]
    fn a_policy_keeps_a_token_for_every_class_however_small_a_boost_makes_it() {
        let most = reserve(&[(Criticality::Critical, "75%")]).unwrap();
        let one = Policy::fixed_window("1/h").unwrap();
        assert_eq!(most.apply(&one, Criticality::Low).capacity(), 1);
        let eight = Policy::fixed_window("8/h").unwrap();
        assert_eq!(most.apply(&eight, Criticality::Low).capacity(), 2);
        assert_eq!(most.apply(&eight, Criticality::Critical).capacity(), 8);
    }
}
