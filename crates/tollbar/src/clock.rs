//! Where the time comes from. Nothing else in the project reads the machine's clock.
//!
//! A store asks a [`Clock`] once per call. [`SystemClock`] is the default; tests move a
//! [`ManualClock`] and never sleep.

mod slew;
mod system;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::Timestamp;

pub use system::SystemClock;

/// Tells the time in microseconds since 1970.
///
/// A clock may stand still. One that goes back costs no correctness: every algorithm holds what
/// it has counted until the clock has caught up, and mints nothing.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The present instant. Stores read anything past [`Timestamp::MAX`] as `MAX`.
    fn now(&self) -> Timestamp;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// A clock that stands still until it is moved. Clones share the same time.
///
/// ```
/// use std::time::Duration;
/// use tollbar::{Clock, ManualClock, Timestamp};
///
/// let clock = ManualClock::at(Timestamp::from_micros(1_000_000));
/// clock.advance(Duration::from_secs(2));
/// assert_eq!(clock.now(), Timestamp::from_micros(3_000_000));
/// ```
#[derive(Debug, Clone, Default)]
pub struct ManualClock {
    now_us: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock that stands at `start`.
    #[must_use]
    pub fn at(start: Timestamp) -> Self {
        Self { now_us: Arc::new(AtomicU64::new(start.clamp_to_clock().as_micros())) }
    }

    /// Moves the clock on by `step`; below a microsecond rounds down.
    pub fn advance(&self, step: Duration) {
        let advanced =
            |now_us| Some(Timestamp::from_micros(now_us).after(step).clamp_to_clock().as_micros());
        #[expect(clippy::let_underscore_must_use, reason = "the closure never returns `None`")]
        let _ = self.now_us.fetch_update(Ordering::AcqRel, Ordering::Acquire, advanced);
    }

    /// Puts the clock to `now`, forward or back.
    pub fn set(&self, now: Timestamp) {
        self.now_us.store(now.clamp_to_clock().as_micros(), Ordering::Release);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now_us.load(Ordering::Acquire))
    }
}
