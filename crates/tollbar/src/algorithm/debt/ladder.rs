//! One bucket at several limits, from the lowest to its own, all counted in the same parts of a
//! microsecond: so a debt moves from one to the next without being rounded.

use super::{Interval, MOST_US_MAX, Meter, PRODUCT_MAX, WIDE_DENOMINATOR_MAX};
use crate::algorithm::fraction::Fraction;

/// The meters of a bucket that warms up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ladder {
    /// The bucket as it is without a warm-up.
    plain: Meter,
    /// Never empty; the last decides as `plain` does.
    rungs: Box<[Meter]>,
}

impl Ladder {
    /// A meter for each of `limits`, then `plain` itself. `None` where they cannot be counted in the
    /// same parts of a microsecond, each exactly or slower by less than a millionth.
    ///
    /// The parts are those in which all intervals are whole, if there are not too many of them;
    /// otherwise as many as the largest debt allows, and the intervals are rounded up. 100 a second
    /// that begin with 10 and 55: 100 ms, 18,181.8 us and 10 ms are whole in elevenths.
    pub(crate) fn new(plain: &Meter, limits: &[u64]) -> Option<Self> {
        let exact: Vec<Fraction> = limits
            .iter()
            .map(|limit| Fraction::new(plain.window_us.into(), (*limit).into()))
            .collect();
        let denominator = u128::from(plain.interval.denominator);
        let common = exact.iter().try_fold(denominator, |common, interval| {
            let reduced = Fraction::new(common, interval.denominator);
            // The least common multiple.
            let common = reduced.numerator * interval.denominator;
            (common <= WIDE_DENOMINATOR_MAX).then_some(common)
        });
        // A full debt at any limit is at most one interval of that limit and the plain full debt.
        let longest_us = exact
            .iter()
            .map(|interval| interval.numerator.div_ceil(interval.denominator))
            .max()
            .unwrap_or(0);
        let most_us = longest_us + u128::from(plain.most_us) + 2;
        // Rounding up adds less than one unit for each token.
        let units_max = u128::from(PRODUCT_MAX - 1).checked_sub(plain.burst.into())?;
        let finest = (units_max / most_us).min(WIDE_DENOMINATOR_MAX) / denominator * denominator;
        [common, Some(finest)]
            .into_iter()
            .flatten()
            .filter(|denominator| *denominator > 0)
            .find_map(|denominator| Self::in_parts(plain, limits, &exact, denominator))
    }

    /// Counted in `1 / denominator` microseconds, a multiple of the plain bucket's denominator.
    fn in_parts(
        plain: &Meter,
        limits: &[u64],
        exact: &[Fraction],
        denominator: u128,
    ) -> Option<Self> {
        let times = denominator / u128::from(plain.interval.denominator);
        let plain_numerator = u128::from(plain.interval.numerator_us) * times;
        // One token fits in any case, and the others in proportion. Scaled like this, what passes
        // at a lower limit would have passed the plain bucket: with D owed, a request of one passes
        // where D <= (burst - 1) x interval, and that is never more than it is there.
        let others = (u128::from(plain.burst) - 1) * plain_numerator;
        let mut most = u128::from(plain.most) * times;
        let mut rungs = Vec::with_capacity(limits.len() + 1);
        for (limit, exact) in limits.iter().zip(exact) {
            let numerator = (exact.numerator * denominator).div_ceil(exact.denominator);
            // The plain interval was rounded up as well; no rung is faster.
            let numerator = numerator.max(plain_numerator);
            if !(Fraction { numerator, denominator }).is_within_a_millionth_above(*exact) {
                return None;
            }
            let burst = 1 + others / numerator;
            most = most.max(burst * numerator);
            rungs.push((*limit, burst, numerator));
        }
        rungs.push((plain.limit, plain.burst.into(), plain_numerator));
        if most + denominator >= u128::from(PRODUCT_MAX) || most / denominator > MOST_US_MAX {
            return None;
        }
        let rung = |(limit, burst, numerator): (u64, u128, u128)| Meter {
            name: plain.name,
            interval: Interval { numerator_us: numerator as u64, denominator: denominator as u64 },
            full: (burst * numerator) as u64,
            // One for all rungs: an overdraft reaches as far on each.
            most: most as u64,
            most_us: (most / denominator) as u64,
            burst: burst as u64,
            overdraft: plain.overdraft,
            limit,
            window_us: plain.window_us,
        };
        Some(Self { plain: plain.clone(), rungs: rungs.into_iter().map(rung).collect() })
    }

    pub(crate) fn plain(&self) -> &Meter {
        &self.plain
    }

    pub(crate) fn intervals(&self) -> impl Iterator<Item = Interval> {
        self.rungs.iter().map(|rung| rung.interval)
    }

    /// The last one where there are fewer.
    pub(crate) fn rung(&self, step: usize) -> &Meter {
        &self.rungs[step.min(self.rungs.len() - 1)]
    }
}
