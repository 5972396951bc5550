//! The clock by which lots end: the time since the machine was started.
//!
//! It counts the time in which the machine was suspended, and nobody sets it. The wall clock, by which stores
//! count, may be set back while tokens are held.

use std::fmt;
use std::time::Duration;

/// Tells the time since some fixed instant, in microseconds. It never goes back.
pub trait BootClock: fmt::Debug + Send + Sync + 'static {
    /// The present instant.
    fn now_us(&self) -> u64;
}

/// The machine's own clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemBootClock;

#[cfg(target_os = "linux")]
impl BootClock for SystemBootClock {
    fn now_us(&self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        now.tv_sec.cast_unsigned() * 1_000_000 + now.tv_nsec.cast_unsigned() / 1_000
    }
}

/// Where there is no such clock, one that may stand still while the machine is suspended. Lots that were held then
/// last longer by as much.
#[cfg(not(target_os = "linux"))]
impl BootClock for SystemBootClock {
    #[expect(clippy::disallowed_methods, reason = "the clock of this crate")]
    fn now_us(&self) -> u64 {
        use std::sync::LazyLock;
        use std::time::Instant;
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        micros(START.elapsed())
    }
}

/// Returns when a lot ends that lives for `life` and was asked for at `sent_us`.
///
/// The store counted from when it charged, which is later. What is subtracted, a thousandth and a millisecond, is for
/// clocks that do not run equally fast, and for the time between the last look at the clock and the admission.
pub(crate) fn lot_end_us(sent_us: u64, life: Duration) -> u64 {
    let life_us = micros(life);
    let margin_us = life_us.div_ceil(1_000) + 1_000;
    sent_us + life_us.saturating_sub(margin_us)
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lot_ends_a_thousandth_and_a_millisecond_early() {
        assert_eq!(lot_end_us(7, Duration::from_millis(400)), 7 + 400_000 - 400 - 1_000);
        assert_eq!(lot_end_us(7, Duration::from_micros(900)), 7);
        assert_eq!(lot_end_us(7, Duration::ZERO), 7);
    }

    #[test]
    fn the_machines_clock_does_not_go_back() {
        let first_us = SystemBootClock.now_us();
        assert!((1..=SystemBootClock.now_us()).contains(&first_us));
    }
}
