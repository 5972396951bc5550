//! A layer for one policy that was made in code, without a rules file.

use thiserror::Error;
use tollbar::Policy;
use tollbar_rules::{
    AlgorithmKind, Engine, Limit, LimitError, LimitOptions, Rule, RuleSet, RuleSetError,
};

use super::TollbarLayer;

/// Why there is no layer for a policy.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum PerClientError {
    /// Rules count by built-in algorithms.
    #[error(
        "`{algorithm}` is a custom algorithm, which a rule cannot have: use a built-in one, or call \
         `Limiter::check` in the handler"
    )]
    CustomAlgorithm {
        /// Its name.
        algorithm: &'static str,
    },
    /// The policy is no limit of a rule.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The rule is refused.
    #[error(transparent)]
    Rule(#[from] RuleSetError),
}

impl TollbarLayer {
    /// Limits each client by `policy`, by counters in this process.
    ///
    /// ```
    /// use tollbar::Policy;
    /// use tollbar_http::TollbarLayer;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let layer = TollbarLayer::per_client(&Policy::token_bucket("10/s")?)?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A client is known by its address, or by what layers in front know of it. The rule is called
    /// `per_client` in headers.
    ///
    /// # Errors
    /// If the policy has a custom algorithm.
    pub fn per_client(policy: &Policy) -> Result<Self, PerClientError> {
        let mut rule = Rule::new("per_client");
        rule.limits = vec![limit_of(policy)?];
        Ok(Self::new(Engine::new(RuleSet::new(vec![rule])?)))
    }
}

/// The limit as a rule has it.
fn limit_of(policy: &Policy) -> Result<Limit, PerClientError> {
    let algorithm = policy.algorithm().name();
    let mut options = LimitOptions::default();
    options.counting = Some(match algorithm {
        _ if policy.has_permits() => AlgorithmKind::Concurrency,
        _ if policy.stagger_us(b"").is_some() => AlgorithmKind::FixedWindow,
        name => match AlgorithmKind::of_name(name) {
            Some(counting) if !policy.is_custom() => counting,
            _ => return Err(PerClientError::CustomAlgorithm { algorithm }),
        },
    });
    options.staggered = policy.stagger_us(b"").is_some();
    options.utc_offset_minutes = policy.utc_offset_minutes();
    options.subwindows = policy.subwindows();
    options.warm_up = policy.warm_up();
    options.queue = policy.queue_length();
    options.max_wait = policy.max_wait();
    options.lease = policy.lease_ttl();
    if matches!(options.counting, Some(AlgorithmKind::TokenBucket | AlgorithmKind::LeakyBucket)) {
        options.burst = Some(policy.capacity());
    }
    let text = match (policy.period(), policy.rate()) {
        (Some(period), _) => format!("{} per calendar {period}", policy.limit()),
        (None, Some(rate)) => rate.to_string(),
        (None, None) => policy.limit().to_string(),
    };
    Ok(Limit::new(&text, options)?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollbar::{Concurrency, Period, WarmUp};

    use super::*;

    #[test]
    fn every_built_in_policy_is_the_limit_that_it_was_made_as() {
        let warm_up = WarmUp { start: 10, over: Duration::from_mins(1), steps: 6 };
        let month = Policy::calendar_window(100, Period::Month).unwrap();
        let policies = [
            Policy::token_bucket("10/s").unwrap(),
            Policy::token_bucket("0.5/s").unwrap().with_burst(7).unwrap(),
            Policy::token_bucket("100/s").unwrap().with_warm_up(warm_up).unwrap(),
            Policy::leaky_bucket("450/15min").unwrap(),
            Policy::leaky_queue("10/s", 5).unwrap().with_max_wait(Duration::from_secs(2)).unwrap(),
            Policy::fixed_window("100/h").unwrap(),
            Policy::fixed_window("100/h").unwrap().with_stagger().unwrap(),
            month.with_utc_offset(330).unwrap(),
            Policy::sliding_window("100/min").unwrap(),
            Policy::sliding_window_strict("100/min", 20).unwrap(),
            Policy::sliding_window_log("100/min").unwrap(),
            Concurrency::new(5).unwrap().into_policy(),
            Concurrency::new(5).unwrap().with_lease(Duration::from_secs(30)).unwrap().into_policy(),
        ];
        for policy in policies {
            assert_eq!(limit_of(&policy).unwrap().policy(), &policy, "{policy}");
        }
    }
}
