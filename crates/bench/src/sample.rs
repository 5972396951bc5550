//! Medians over rounds, and ratios within them.

use serde::{Deserialize, Serialize};

/// One figure per round, summed up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The median; of an even number of rounds the mean of the middle two.
    pub value: f64,
    /// The least of all rounds.
    pub low: f64,
    /// The greatest of all rounds.
    pub high: f64,
    /// How many rounds there were.
    pub rounds: usize,
}

/// Sums up `figures`; `None` where there are none.
#[must_use]
pub fn summarise(figures: &[f64]) -> Option<Summary> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let value = if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    };
    Some(Summary { value, low, high, rounds: sorted.len() })
}

/// How many times `ours` goes into `theirs`, round by round, summed up.
///
/// Both were measured within the same round, moments apart, so a machine that slows down between
/// rounds slows both; dividing medians would compare different moments.
#[must_use]
pub fn ratio(theirs: &[f64], ours: &[f64]) -> Option<Summary> {
    let ratios: Vec<f64> = theirs.iter().zip(ours).map(|(theirs, ours)| theirs / ours).collect();
    summarise(&ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn median(figures: &[f64]) -> Option<f64> {
        summarise(figures).map(|summary| summary.value)
    }

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_the_middle_two() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[9.0, 1.0, 5.0, 6.0]), Some(5.5));
    }

    #[test]
    fn low_and_high_are_the_extremes() {
        let summary = summarise(&[3.0, 200.0, 1.0]).expect("there are figures");
        assert_eq!(summary, Summary { value: 3.0, low: 1.0, high: 200.0, rounds: 3 });
    }

    #[test]
    fn a_slow_round_slows_both_sides_and_leaves_the_ratio() {
        let theirs = [100.0, 200.0, 400.0];
        let ours = [50.0, 100.0, 200.0];
        let ratio = ratio(&theirs, &ours).expect("there are rounds");
        assert_eq!(ratio, Summary { value: 2.0, low: 2.0, high: 2.0, rounds: 3 });
    }
}
