//! The best fraction with a small denominator that is not below a given one.
//!
//! A bucket earns a token every `window / limit` microseconds. Where that fraction needs too many
//! bits, the nearest one above it is used: earning later never admits more.

/// A positive fraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fraction {
    pub(crate) numerator: u128,
    pub(crate) denominator: u128,
}

impl Fraction {
    /// In lowest terms. Both parts must be positive.
    pub(crate) fn new(numerator: u128, denominator: u128) -> Self {
        debug_assert!(numerator > 0 && denominator > 0);
        let divisor = gcd(numerator, denominator);
        Self { numerator: numerator / divisor, denominator: denominator / divisor }
    }

    /// The least fraction >= `self` whose denominator is at most `denominator_max`.
    ///
    /// Walks the continued fraction: convergents come from below and above in turn, and where the
    /// next one's denominator is too large, the last one and the best semiconvergent enclose
    /// `self` with nothing of a small enough denominator between them. For 600,000,001 tokens a
    /// second and a denominator of at most 1,024, 1,000,000 / 600,000,001 becomes 1 / 600.
    pub(crate) fn round_up_to_denominator(self, denominator_max: u128) -> Self {
        debug_assert!(denominator_max > 0);
        if self.denominator <= denominator_max {
            return self;
        }
        let (mut previous, mut current) = ((0, 1), (1, 0));
        let (mut dividend, mut divisor) = (self.numerator, self.denominator);
        let mut current_is_above = true;
        loop {
            let quotient = dividend / divisor;
            let next = (previous.0 + quotient * current.0, previous.1 + quotient * current.1);
            if next.1 > denominator_max {
                break;
            }
            (previous, current) = (current, next);
            (dividend, divisor) = (divisor, dividend % divisor);
            current_is_above = !current_is_above;
        }
        let (numerator, denominator) = if current_is_above {
            current
        } else {
            let steps = (denominator_max - previous.1) / current.1;
            (previous.0 + steps * current.0, previous.1 + steps * current.1)
        };
        Self { numerator, denominator }
    }

    /// True where `self`, which must be >= `exact`, is less than one part in a million above it.
    pub(crate) fn is_within_a_millionth_above(self, exact: Self) -> bool {
        let ours = self.numerator * exact.denominator;
        let theirs = exact.numerator * self.denominator;
        debug_assert!(ours >= theirs);
        ours - theirs <= (theirs - 1) / 1_000_000
    }
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(numerator: u128, denominator: u128, denominator_max: u128) -> (u128, u128) {
        let fraction =
            Fraction::new(numerator, denominator).round_up_to_denominator(denominator_max);
        (fraction.numerator, fraction.denominator)
    }

    #[test]
    fn rounding_up_keeps_what_fits_and_is_above_otherwise() {
        assert_eq!(up(60_000_000, 100, 1_024), (600_000, 1));
        assert_eq!(up(1_000_000, 600_000_001, 1_024), (1, 600));
        assert_eq!(up(7, 3, 2), (5, 2));
        assert_eq!(up(7, 3, 1), (3, 1));
        assert_eq!(up(1, 1_000, 10), (1, 10));
    }

    #[test]
    fn nothing_of_a_small_denominator_lies_between() {
        for denominator in 1..60_u128 {
            for numerator in 1..130_u128 {
                for denominator_max in 1..20_u128 {
                    let best = (1..=denominator_max)
                        .map(|d| ((numerator * d).div_ceil(denominator), d))
                        .min_by(|a, b| (a.0 * b.1, a.1).cmp(&(b.0 * a.1, b.1)))
                        .unwrap();
                    let ours = up(numerator, denominator, denominator_max);
                    assert_eq!(ours.0 * best.1, best.0 * ours.1, "{numerator}/{denominator}");
                }
            }
        }
    }
}
