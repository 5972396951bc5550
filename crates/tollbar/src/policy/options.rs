//! Policies changed in one respect: another burst, an overdraft, another beginning, a name.

use std::time::Duration;

use super::{Kind, Policy, PolicyError, salt};
use crate::algorithm::Algorithm;
use crate::algorithm::debt::Meter;

impl Policy {
    /// The same bucket holding `burst` tokens instead of one window's worth.
    pub fn with_burst(self, burst: u64) -> Result<Self, PolicyError> {
        if let Some(warm_up) = self.warm_up() {
            return self.without_warm_up().with_burst(burst)?.with_warm_up(warm_up);
        }
        match (&self.kind, self.rate) {
            (Kind::Bucket(meter), Some(rate)) => {
                let overdraft = meter.overdraft();
                let meter = Meter::with_overdraft(meter.name(), rate, Some(burst), overdraft)?;
                Ok(Self { kind: Kind::Bucket(meter), ..self })
            }
            (kind, _) => Err(PolicyError::BurstWithoutBucket { algorithm: kind.as_dyn().name() }),
        }
    }

    /// The same bucket going up to `tokens` into debt where a reservation is
    /// [committed](crate::Limiter::commit) with more than it reserved. 0 by default: then such a
    /// commit takes what is there, and says what it could not take.
    ///
    /// A bucket in debt allows nothing until it has paid.
    pub fn with_overdraft(self, tokens: u64) -> Result<Self, PolicyError> {
        if let Some(warm_up) = self.warm_up() {
            return self.without_warm_up().with_overdraft(tokens)?.with_warm_up(warm_up);
        }
        match (&self.kind, self.rate) {
            (Kind::Bucket(meter), Some(rate)) => {
                let burst = Some(meter.capacity());
                let meter = Meter::with_overdraft(meter.name(), rate, burst, tokens)?;
                Ok(Self { kind: Kind::Bucket(meter), ..self })
            }
            (kind, _) => {
                Err(PolicyError::OverdraftWithoutBucket { algorithm: kind.as_dyn().name() })
            }
        }
    }

    /// The same queue, in which nobody waits for longer than `max_wait`: who would is denied, with
    /// the exact retry-after. Below a microsecond rounds down.
    pub fn with_max_wait(self, max_wait: Duration) -> Result<Self, PolicyError> {
        if let Some(warm_up) = self.warm_up() {
            return self.without_warm_up().with_max_wait(max_wait)?.with_warm_up(warm_up);
        }
        match self.kind {
            Kind::LeakyQueue(queue) => {
                let wait_us_max = u64::try_from(max_wait.as_micros()).unwrap_or(u64::MAX);
                Ok(Self { kind: Kind::LeakyQueue(queue.with_wait_us_max(wait_us_max)), ..self })
            }
            kind => Err(PolicyError::MaxWaitWithoutQueue { algorithm: kind.as_dyn().name() }),
        }
    }

    /// The same fixed window beginning at another moment for every key, so that not all who were
    /// denied come back at once. It has counters of its own, apart from the plain window's.
    ///
    /// ```
    /// use tollbar::{Limiter, Policy};
    /// # fn main() -> Result<(), tollbar::PolicyError> {
    /// let limiter = Limiter::new(Policy::fixed_window("100/h")?.with_stagger()?);
    /// assert_ne!(limiter.check("user:42").reset_at(), limiter.check("user:43").reset_at());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// When a key's windows begin follows from its bytes: [`stagger_us`](Self::stagger_us).
    pub fn with_stagger(self) -> Result<Self, PolicyError> {
        if let Some(warm_up) = self.warm_up() {
            return self.without_warm_up().with_stagger()?.with_warm_up(warm_up);
        }
        match &self.kind {
            Kind::FixedWindow(window) => {
                let kind = Kind::StaggeredWindow(window.staggered());
                let salt = salt(kind.as_dyn(), self.name.as_deref());
                Ok(Self { kind, salt, ..self })
            }
            Kind::StaggeredWindow(_) => Ok(self),
            kind => Err(PolicyError::StaggerWithoutFixedWindow { algorithm: kind.as_dyn().name() }),
        }
    }

    /// The same calendar at a fixed offset from UTC, in minutes, positive to the east: -1080 to
    /// 1080. Each offset has counters of its own.
    ///
    /// A time zone that has summer time has two of them; this stays with the one it is given.
    pub fn with_utc_offset(self, minutes: i32) -> Result<Self, PolicyError> {
        if let Some(warm_up) = self.warm_up() {
            return self.without_warm_up().with_utc_offset(minutes)?.with_warm_up(warm_up);
        }
        match self.kind {
            Kind::CalendarWindow(window) => {
                let kind = Kind::CalendarWindow(window.with_utc_offset(minutes)?);
                let salt = salt(kind.as_dyn(), self.name.as_deref());
                Ok(Self { kind, salt, ..self })
            }
            kind => Err(PolicyError::OffsetWithoutCalendar { algorithm: kind.as_dyn().name() }),
        }
    }

    /// The same policy under a name, with counters of its own.
    #[must_use]
    pub fn with_name(self, name: &str) -> Self {
        let salt = salt(self.kind.as_dyn(), Some(name));
        Self { salt, name: Some(name.into()), ..self }
    }
}
