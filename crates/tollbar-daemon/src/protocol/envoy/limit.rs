//! A limit as the reference service has it: so many in each window, and every hit is counted, also one
//! that is denied.

use std::time::Duration;

use thiserror::Error;
use tollbar::{Policy, PolicyError, Rate};
use tollbar_rules::StandaloneLimit;

use super::window_unit::WindowUnit;

/// What a counter counts to at least, so that it fits the word that a store in memory has for it in
/// windows of any length.
const COUNT_MAX: u64 = (1 << 26) - 1;

/// The name of all policies here: it keeps their counters apart from those of rules.
const POLICY_NAME: &str = "envoy";

/// So many requests in each window.
#[derive(Debug, Clone)]
pub(crate) struct EnvoyLimit {
    pub(crate) unit: WindowUnit,
    pub(crate) requests_per_unit: u32,
    /// A counter that goes on beyond the limit, because denied hits count.
    pub(crate) counter: Policy,
    /// The limit itself, for charging all or none; `None` where nothing passes.
    pub(crate) bound: Option<Policy>,
}

/// A limit too large to be counted beyond.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "{requests_per_unit} a {} is more than can be counted: write at most {max}, or `unlimited: true`",
    format!("{unit:?}").to_lowercase()
)]
pub(crate) struct LimitTooLarge {
    unit: WindowUnit,
    requests_per_unit: u32,
    max: u64,
}

impl EnvoyLimit {
    pub(crate) fn new(requests_per_unit: u32, unit: WindowUnit) -> Result<Self, LimitTooLarge> {
        let count_max = count_max(requests_per_unit);
        let policy = |tokens| -> Result<Policy, PolicyError> {
            Ok(Policy::fixed_window(Rate::new(tokens, unit.window()))?.with_name(POLICY_NAME))
        };
        // The one thing that can be wrong: more than a billion a second.
        let too_large = |_| LimitTooLarge { unit, requests_per_unit, max: rate_max(unit.window()) };
        let counter = policy(count_max).map_err(too_large)?;
        let bound = match requests_per_unit {
            0 => None,
            limit => Some(policy(u64::from(limit)).map_err(too_large)?),
        };
        Ok(Self { unit, requests_per_unit, counter, bound })
    }

    /// Returns the limit multiplied by so many percent, rounded down, but at least to one request if any
    /// may pass. A limit that would be too large stays as it is. What was counted stays counted.
    pub(crate) fn boosted(&self, factor_percent: u32) -> Self {
        let boosted = u64::from(self.requests_per_unit) * u64::from(factor_percent) / 100;
        let least = self.requests_per_unit.min(1);
        let boosted = u32::try_from(boosted).unwrap_or(u32::MAX).max(least);
        Self::new(boosted, self.unit).unwrap_or_else(|_| self.clone())
    }

    /// Returns the limit as logs and traces have it.
    pub(crate) fn standalone(&self, name: &str) -> StandaloneLimit {
        let unit = format!("{:?}", self.unit).to_lowercase();
        let text = format!("{}/{unit}", self.requests_per_unit);
        StandaloneLimit::new(name, &text, self.bound.as_ref().unwrap_or(&self.counter))
    }

    /// What of `hits` is charged. A counter within the limit has room for it and is above the limit
    /// with it, if it would be above with all hits; more would make no difference but to a refund.
    pub(crate) fn charge(&self, hits: u64) -> u64 {
        hits.min(self.counter.limit() - u64::from(self.requests_per_unit))
    }
}

/// What the counter of a limit counts to: twice the limit and one, at least.
///
/// A limit of 10: at a count of 10, a hit of 11 or more is charged as 11, which is above the limit and
/// within 21.
fn count_max(requests_per_unit: u32) -> u64 {
    (2 * u64::from(requests_per_unit) + 1).max(COUNT_MAX)
}

/// The largest limit whose counter is within what a policy may count: a billion a second.
fn rate_max(window: Duration) -> u64 {
    (window.as_secs() * 1_000_000_000 - 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_but_the_fastest_can_be_counted_beyond() {
        for unit in [WindowUnit::Second, WindowUnit::Minute, WindowUnit::Hour, WindowUnit::Year] {
            for requests_per_unit in [0, 1, 10, 33_554_431, 33_554_432, 499_999_999] {
                let limit = EnvoyLimit::new(requests_per_unit, unit).unwrap();
                let count_max = limit.counter.limit();
                for hits in [1, u64::from(requests_per_unit) + 1, u64::MAX] {
                    let charge = limit.charge(hits);
                    assert!(u64::from(requests_per_unit) + charge <= count_max);
                    assert!(charge == hits || charge > u64::from(requests_per_unit));
                }
            }
        }
        let boosted = |limit, percent| {
            let limit = EnvoyLimit::new(limit, WindowUnit::Second).unwrap();
            limit.boosted(percent).requests_per_unit
        };
        assert_eq!([boosted(3, 150), boosted(1, 50), boosted(0, 900)], [4, 1, 0]);
        assert_eq!(boosted(499_999_999, 200), 499_999_999);
        assert!(EnvoyLimit::new(u32::MAX, WindowUnit::Minute).is_ok());
        assert_eq!(
            EnvoyLimit::new(500_000_000, WindowUnit::Second).unwrap_err().to_string(),
            "500000000 a second is more than can be counted: write at most 499999999, or \
             `unlimited: true`"
        );
    }
}
