//! A policy with other numbers in the same counters: one node's share of it, for counting in this process while
//! the store cannot answer, and a boost.

use super::{Kind, Policy, PolicyError};
use crate::algorithm::Algorithm;
use crate::algorithm::warm_up::WarmUp;
use crate::units::Rate;

impl Policy {
    /// Returns one node's share where `nodes` of them hold the limit together: rounded down, but at least one
    /// token. A custom algorithm cannot be divided, and stays as it is.
    #[must_use]
    pub fn share(&self, nodes: u64) -> Self {
        if nodes <= 1 {
            return self.clone();
        }
        // A bucket takes fractions: a third of `100/s` is `100/3s`, and holds a third.
        let slower =
            self.rate.map(|rate| Rate { window_us: rate.window_us.saturating_mul(nodes), ..rate });
        self.scaled(&|tokens| tokens / nodes, slower)
    }

    /// Returns the policy with `factor_percent` of its limit, its burst and its queue: rounded down, but at
    /// least one token. It stays as it is if that would not fit, and so does a custom algorithm.
    #[must_use]
    pub fn boosted(&self, factor_percent: u32) -> Self {
        // 150% of 3 is 4: down, never in the client's favour.
        let boost = |tokens: u64| {
            let tokens = u128::from(tokens) * u128::from(factor_percent) / 100;
            u64::try_from(tokens).unwrap_or(u64::MAX)
        };
        // Of a fraction of a token there is no whole limit to boost: 150% of 0.5/s is 75/100 a second.
        let faster = self.rate.filter(|rate| !rate.is_whole()).and_then(|rate| {
            let tokens = rate.tokens.checked_mul(factor_percent.into())?;
            Some(Rate { tokens, tokens_divisor: rate.tokens_divisor * 100, ..rate })
        });
        self.scaled(&boost, faster)
    }

    /// Returns the same algorithm and window with other tokens. A bucket has the rate `bucket_rate`, if that
    /// is one.
    fn scaled(&self, scale: &dyn Fn(u64) -> u64, bucket_rate: Option<Rate>) -> Self {
        let scaled = self.try_scaled(scale, bucket_rate).map(|policy| match self.warm_up() {
            // One token has nothing to climb.
            Some(warm_up) => {
                let warm_up = WarmUp { start: scale(warm_up.start).max(1), ..warm_up };
                policy.clone().with_warm_up(warm_up).unwrap_or(policy)
            }
            None => policy,
        });
        let scaled = scaled.unwrap_or_else(|_| self.clone());
        match self.name() {
            Some(name) => scaled.with_name(name),
            None => scaled,
        }
    }

    fn try_scaled(
        &self,
        scale: &dyn Fn(u64) -> u64,
        bucket_rate: Option<Rate>,
    ) -> Result<Self, PolicyError> {
        let part = |tokens: u64| scale(tokens).max(1);
        let rate = Rate::new(part(self.limit()), self.limit_window());
        match &*self.kind.plain() {
            Kind::Bucket(meter) => {
                let bucket = |rate| match meter.name() {
                    "leaky_bucket" => Self::leaky_bucket(rate),
                    _ => Self::token_bucket(rate),
                };
                bucket(bucket_rate.unwrap_or(rate))
                    .or_else(|_| bucket(rate))?
                    .with_burst(part(self.capacity()))
            }
            Kind::LeakyQueue(queue) => {
                let is_whole = self.rate.is_none_or(Rate::is_whole);
                let rate = bucket_rate.filter(|_| !is_whole).unwrap_or(rate);
                let scaled = Self::leaky_queue(rate, scale(queue.length()))?;
                match self.max_wait() {
                    Some(max_wait) => scaled.with_max_wait(max_wait),
                    None => Ok(scaled),
                }
            }
            Kind::FixedWindow(_) => Self::fixed_window(rate),
            Kind::StaggeredWindow(_) => Self::fixed_window(rate)?.with_stagger(),
            Kind::CalendarWindow(window) => {
                Self::calendar_window(part(self.limit()), window.period())?
                    .with_utc_offset(window.utc_offset_minutes())
            }
            Kind::SlidingWindow(_) => Self::sliding_window(rate),
            Kind::SlidingStrict(window) => Self::sliding_window_strict(rate, window.subwindows()),
            Kind::SlidingLog(_) => Self::sliding_window_log(rate),
            Kind::Concurrency(_) | Kind::Leased(_) => {
                let permits = Self::concurrency(part(self.limit()))?;
                match self.lease_ttl() {
                    Some(ttl) => permits.leased(ttl),
                    None => Ok(permits),
                }
            }
            Kind::Custom(_) | Kind::WarmUp(_) => Ok(self.clone()),
        }
    }
}
