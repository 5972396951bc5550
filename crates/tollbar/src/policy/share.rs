//! One node's share of a policy, for counting in this process while the store cannot answer.

use super::{Kind, Policy, PolicyError};
use crate::algorithm::Algorithm;
use crate::algorithm::warm_up::WarmUp;
use crate::units::Rate;

impl Policy {
    /// One node's share where `nodes` of them hold the limit together: rounded down, but at least one
    /// token. A custom algorithm cannot be divided, and stays as it is.
    #[must_use]
    pub fn share(&self, nodes: u64) -> Self {
        if nodes <= 1 {
            return self.clone();
        }
        let shared = self.divided(nodes).map(|policy| match self.warm_up() {
            // One token has nothing to climb.
            Some(warm_up) => {
                let warm_up = WarmUp { start: (warm_up.start / nodes).max(1), ..warm_up };
                policy.clone().with_warm_up(warm_up).unwrap_or(policy)
            }
            None => policy,
        });
        // A smaller limit fits wherever a larger one did; should it not, the whole limit is still one.
        let shared = shared.unwrap_or_else(|_| self.clone());
        match self.name() {
            Some(name) => shared.with_name(name),
            None => shared,
        }
    }

    fn divided(&self, nodes: u64) -> Result<Self, PolicyError> {
        let part = |tokens: u64| (tokens / nodes).max(1);
        let rate = Rate::new(part(self.limit()), self.window());
        match &*self.kind.plain() {
            Kind::Bucket(meter) => {
                // A bucket takes fractions: a third of `100/s` is `100/3s`, and holds a third.
                let slower = self.rate.map_or(rate, |rate| Rate {
                    window_us: rate.window_us.saturating_mul(nodes),
                    ..rate
                });
                let bucket = |rate| match meter.name() {
                    "leaky_bucket" => Self::leaky_bucket(rate),
                    _ => Self::token_bucket(rate),
                };
                bucket(slower).or_else(|_| bucket(rate))?.with_burst(part(self.capacity()))
            }
            Kind::LeakyQueue(queue) => {
                let shared = Self::leaky_queue(rate, queue.length() / nodes)?;
                match self.max_wait() {
                    Some(max_wait) => shared.with_max_wait(max_wait),
                    None => Ok(shared),
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
