//! Policies whose limit climbs for a new key: checked, built and taken apart again.

use std::sync::Arc;

use super::{Kind, Policy, PolicyError, WINDOW_US_MAX, salt};
use crate::algorithm::debt::{Interval, Ladder, Meter};
use crate::algorithm::warm_up::{Rungs, STEPS_MAX, SUBWINDOWS_MAX, WarmUp, WarmUpAlgorithm};

impl Policy {
    /// The same policy with a limit that climbs from `start` to the full one, for keys that are new
    /// and for those that have been idle for as long as the climb takes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollbar::{Limiter, Policy, WarmUp};
    /// # fn main() -> Result<(), tollbar::PolicyError> {
    /// let warm_up = WarmUp { start: 10, over: Duration::from_mins(1), steps: 6 };
    /// let limiter = Limiter::new(Policy::token_bucket("100/s")?.with_warm_up(warm_up)?);
    /// // 10/s at first, 25/s after ten seconds, 40/s after twenty, .. and 100/s after a minute.
    /// assert_eq!(limiter.check("user:42").limit(), 10);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// For every algorithm of the crate, but for [custom](Self::custom) ones. The burst of a bucket and the
    /// places of a queue climb in proportion: one token, and of the others as many as the rate allows. What
    /// a decision says of the limit and what remains of it is that of the step the key is on;
    /// [`limit`](Self::limit) and [`capacity`](Self::capacity) of the policy are the full ones. Neither a
    /// step nor becoming new forgives anything, so no more passes than without the warm-up. Nothing that
    /// was let in is taken back: permits in flight stay, and so do turns in a queue.
    ///
    /// A request that is denied is told when it passes, if nobody else asks. But a key that only
    /// waits is idle, and new again before long: a cost that no step until then can hold, and
    /// neither the first, is answered [`Outcome::Busy`](crate::Outcome::Busy), without a promise. Permits
    /// that are not free are always answered so.
    ///
    /// It has counters of its own, apart from those without a warm-up; they survive a change of the
    /// warm-up's numbers. A counter takes two words more, and is kept among the
    /// [wide](crate::MemoryStoreBuilder::max_wide_keys) ones. A log or leases stay among their own, and
    /// only how warm the key is is kept there: forgotten early for want of room, it is new.
    pub fn with_warm_up(self, warm_up: WarmUp) -> Result<Self, PolicyError> {
        let WarmUp { start, steps, .. } = warm_up;
        let plain = self.kind.plain().into_owned();
        let limit = plain.as_dyn().limit();
        if !(1..=STEPS_MAX).contains(&steps) {
            return Err(PolicyError::WarmUpSteps { steps });
        }
        let over_us = warm_up.over_us();
        if !(1..=WINDOW_US_MAX).contains(&over_us) {
            return Err(PolicyError::WarmUpDuration { over_us });
        }
        let rungs = match plain {
            kind @ (Kind::WarmUp(_) | Kind::Custom(_)) => {
                let algorithm = kind.as_dyn().name();
                return Err(PolicyError::WarmUpWithoutLimit { algorithm });
            }
            _ if !(1..limit).contains(&start) => {
                return Err(PolicyError::WarmUpStart { start, limit });
            }
            Kind::Bucket(meter) => Rungs::Bucket(ladder(&warm_up, &meter, limit)?),
            Kind::LeakyQueue(queue) => {
                let ladder = ladder(&warm_up, queue.meter(), limit)?;
                Rungs::LeakyQueue(queue.into(), ladder)
            }
            Kind::SlidingStrict(window) => {
                let subwindows = window.subwindows();
                if subwindows > SUBWINDOWS_MAX {
                    return Err(PolicyError::WarmUpSubwindows { subwindows });
                }
                Rungs::SlidingStrict(window)
            }
            Kind::FixedWindow(window) => Rungs::FixedWindow(window),
            Kind::StaggeredWindow(window) => Rungs::StaggeredWindow(window),
            Kind::CalendarWindow(window) => Rungs::CalendarWindow(window),
            Kind::SlidingWindow(window) => Rungs::SlidingWindow(window),
            Kind::SlidingLog(log) => Rungs::SlidingLog(log),
            Kind::Concurrency(permits) => Rungs::Concurrency(permits),
            Kind::Leased(leased) => Rungs::Leased(leased),
        };
        let kind = Kind::WarmUp(WarmUpAlgorithm::new(warm_up, rungs));
        let salt = salt(kind.as_dyn(), self.name.as_deref());
        Ok(Self { kind, salt, ..self })
    }

    /// How the limit of a new key climbs, if it does.
    #[must_use]
    pub fn warm_up(&self) -> Option<WarmUp> {
        match &self.kind {
            Kind::WarmUp(warming) => Some(warming.warm_up()),
            _ => None,
        }
    }

    /// For buckets and queues that warm up, the time that earns one token at each step, the full rate last: as
    /// [`interval`](Self::interval) is rounded, and in the same parts of a microsecond.
    #[must_use]
    pub fn warm_up_intervals(&self) -> Option<Vec<Interval>> {
        match &self.kind {
            Kind::WarmUp(warming) => warming.rungs().intervals().map(Iterator::collect),
            _ => None,
        }
    }

    /// The same policy with its full limit for all keys, and the counters of that.
    pub(super) fn without_warm_up(self) -> Self {
        let kind = self.kind.plain().into_owned();
        let salt = salt(kind.as_dyn(), self.name.as_deref());
        Self { kind, salt, ..self }
    }
}

/// The meters of a warm-up to `limit`, which is that of `meter`.
fn ladder(warm_up: &WarmUp, meter: &Meter, limit: u64) -> Result<Arc<Ladder>, PolicyError> {
    let WarmUp { start, steps, .. } = *warm_up;
    let limits: Vec<u64> = (0..steps).map(|step| warm_up.limit_at(step, limit)).collect();
    Ladder::new(meter, &limits).map(Arc::new).ok_or(PolicyError::WarmUpInexact { start })
}
