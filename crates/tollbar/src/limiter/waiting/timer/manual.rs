//! A timer that goes by a clock which stands still until it is moved.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::{Sleep, Sleeps, Timer};
use crate::{Clock, ManualClock, Timestamp};

/// For tests: sleeps by a [`ManualClock`], and ends the sleeps that are due when it is moved. Clones
/// share their sleeps.
///
/// ```
/// use std::time::Duration;
/// use tollbar::{Limiter, ManualClock, ManualTimer, Policy, Timestamp};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = ManualClock::at(Timestamp::from_micros(1_000_000));
/// let timer = ManualTimer::new(clock.clone());
/// let limiter = Limiter::builder(Policy::leaky_queue("10/s", 5)?)
///     .clock(clock)
///     .timer(timer.clone())
///     .build()?;
/// // .. a task awaits limiter.wait("key") ..
/// timer.advance(Duration::from_millis(100));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ManualTimer(Arc<Sleeps<ManualClock>>);

impl ManualTimer {
    /// A timer that goes by `clock`.
    #[must_use]
    pub fn new(clock: ManualClock) -> Self {
        Self(Arc::new(Sleeps::new(clock)))
    }

    /// Moves the clock on by `step` and ends the sleeps that are due.
    pub fn advance(&self, step: Duration) {
        self.0.clock.advance(step);
        let now_us = self.0.clock.now().as_micros();
        let ended = Sleeps::<ManualClock>::take_ended(&mut self.0.wakers(), now_us);
        ended.into_values().for_each(Waker::wake);
    }

    /// When the next sleep ends, if there is any.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        let wakers = self.0.wakers();
        wakers.first_key_value().map(|((due_us, _), _)| Timestamp::from_micros(*due_us))
    }

    /// How many sleeps have not ended.
    #[must_use]
    pub fn sleepers(&self) -> usize {
        self.0.wakers().len()
    }
}

impl Timer for ManualTimer {
    fn sleep(&self, duration: Duration) -> Sleep {
        self.0.begin(duration)
    }
}
