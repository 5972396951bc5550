//! A policy for requests that must leave a part of the limit to others.
//!
//! It is the same counter under a lower limit, and nothing else: what requests under it have charged is in the state
//! that all others see, and no state says which of them has charged it. So a store needs to know nothing of reserves.
//! Decision 0084.

use super::{Kind, Policy, PolicyError};
use crate::units::Rate;

impl Policy {
    /// Returns the policy for requests that leave `tokens` of its [capacity](Self::capacity) to others on the same
    /// counter: of the limit of a window, the burst of a bucket, the places of a queue, the permits in flight.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollbar::{Limiter, MemoryStore, Policy};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Arc::new(MemoryStore::builder().max_keys(100).build());
    /// let all = Policy::fixed_window("10/h")?.with_name("checks");
    /// let usual = Limiter::builder(all.reserving(3)?).store(store.clone()).build()?;
    /// let urgent = Limiter::builder(all).store(store).build()?;
    /// # let (mut passed, mut urgent_passed) = (0, 0);
    /// for _ in 0..20 {
    ///     passed += u64::from(usual.check("user:42").is_allowed());
    /// }
    /// for _ in 0..20 {
    ///     urgent_passed += u64::from(urgent.check("user:42").is_allowed());
    /// }
    /// assert_eq!((passed, urgent_passed), (7, 3));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A request of cost c passes under it exactly where one of c + `tokens` would pass under the whole policy, and
    /// is charged c. So its retry-after is as exact, and it can never pass only where c alone is above what is left
    /// to it.
    ///
    /// # Errors
    /// If nothing would be left, and for algorithms of one's own and limits that warm up.
    pub fn reserving(&self, tokens: u64) -> Result<Self, PolicyError> {
        let capacity = self.capacity();
        if tokens == 0 {
            return Ok(self.clone());
        }
        if tokens >= capacity {
            return Err(PolicyError::ReserveTooLarge { reserved: tokens, capacity });
        }
        let limit = capacity - tokens;
        let kind = match &self.kind {
            Kind::Bucket(meter) => Kind::Bucket(meter.reserving(tokens)),
            Kind::LeakyQueue(queue) => Kind::LeakyQueue(queue.reserving(tokens)),
            Kind::FixedWindow(window) => Kind::FixedWindow(window.with_limit(limit)),
            Kind::StaggeredWindow(window) => Kind::StaggeredWindow(window.with_limit(limit)),
            Kind::CalendarWindow(window) => Kind::CalendarWindow(window.with_limit(limit)),
            Kind::SlidingWindow(window) => Kind::SlidingWindow(window.with_limit(limit)),
            Kind::SlidingStrict(window) => Kind::SlidingStrict(window.with_limit(limit)),
            Kind::SlidingLog(log) => Kind::SlidingLog(log.with_limit(limit)),
            Kind::Concurrency(permits) => Kind::Concurrency(permits.with_limit(limit)),
            Kind::Leased(leased) => Kind::Leased(leased.with_limit(limit)),
            Kind::WarmUp(_) => return Err(PolicyError::ReserveWithWarmUp),
            Kind::Custom(_) => return Err(PolicyError::ReserveOfCustom),
        };
        // A bucket is as fast as before. What a window counts is its limit.
        let is_window = self.interval().is_none();
        let lower = |rate: Rate| Rate { tokens: limit, tokens_divisor: 1, ..rate };
        let rate = if is_window { self.rate.map(lower) } else { self.rate };
        Ok(Self { kind, rate, ..self.clone() })
    }
}
