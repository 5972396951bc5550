//! Exact fractions that are never negative: what the oracle counts microseconds in.
//!
//! A product or sum that does not fit in 128 bits panics. The oracle would rather stop than
//! round.

use std::cmp::Ordering;

/// A fraction in lowest terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ratio {
    numerator: u128,
    denominator: u128,
}

impl Ratio {
    /// Nothing at all.
    pub const ZERO: Self = Self { numerator: 0, denominator: 1 };

    /// `numerator / denominator`.
    ///
    /// # Panics
    /// If the denominator is zero.
    #[must_use]
    pub fn new(numerator: u128, denominator: u128) -> Self {
        assert!(denominator > 0, "a fraction needs a denominator");
        if denominator == 1 {
            return Self::whole(numerator);
        }
        let divisor = gcd(numerator, denominator);
        Self { numerator: numerator / divisor, denominator: denominator / divisor }
    }

    /// A whole number.
    #[must_use]
    pub fn whole(number: u128) -> Self {
        Self { numerator: number, denominator: 1 }
    }

    /// The sum.
    ///
    /// # Panics
    /// If it does not fit in 128 bits.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self::new(
            product(self.numerator, other.denominator)
                .checked_add(product(other.numerator, self.denominator))
                .expect("a sum of the oracle fits in 128 bits"),
            product(self.denominator, other.denominator),
        )
    }

    /// The difference, or zero where `other` is the larger one.
    #[must_use]
    pub fn minus_or_zero(self, other: Self) -> Self {
        Self::new(
            product(self.numerator, other.denominator)
                .saturating_sub(product(other.numerator, self.denominator)),
            product(self.denominator, other.denominator),
        )
    }

    /// The product with a whole number.
    #[must_use]
    pub fn times(self, factor: u128) -> Self {
        Self::new(product(self.numerator, factor), self.denominator)
    }

    /// How often `part` fits in whole.
    ///
    /// # Panics
    /// If `part` is zero.
    #[must_use]
    pub fn whole_parts(self, part: Self) -> u128 {
        assert!(part.numerator > 0, "nothing fits infinitely often");
        product(self.numerator, part.denominator) / product(part.numerator, self.denominator)
    }

    /// The least whole number that is not below.
    #[must_use]
    pub fn ceil(self) -> u128 {
        self.numerator.div_ceil(self.denominator)
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ratio {
    fn cmp(&self, other: &Self) -> Ordering {
        product(self.numerator, other.denominator).cmp(&product(other.numerator, self.denominator))
    }
}

fn product(left: u128, right: u128) -> u128 {
    left.checked_mul(right).expect("a product of the oracle fits in 128 bits")
}

fn gcd(mut left: u128, mut right: u128) -> u128 {
    while right > 0 {
        (left, right) = (right, left % right);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::Ratio;

    #[test]
    fn thirds_add_up_to_a_whole() {
        let third = Ratio::new(1, 3);
        assert_eq!(third.plus(third).plus(third), Ratio::whole(1));
    }

    #[test]
    fn a_difference_stops_at_zero_and_ceil_rounds_up() {
        let half = Ratio::new(2, 4);
        assert_eq!(half.minus_or_zero(Ratio::whole(1)), Ratio::ZERO);
        assert_eq!(Ratio::new(7, 2).ceil(), 4);
        assert_eq!(Ratio::whole(4).ceil(), 4);
        assert_eq!(Ratio::whole(5).whole_parts(Ratio::new(5, 3)), 3);
    }
}
