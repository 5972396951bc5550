//! The machine's clock, fast: the processor's counter, corrected every millisecond.
//!
//! Reading the operating system's monotonic clock costs 22 ns here and its fence keeps the
//! processor from running ahead; reading the time-stamp counter costs 12 ns. But a counter
//! drifts: 50 parts in a million are four seconds a day, and windows are aligned to the wall. So
//! the counter only interpolates, for a millisecond at most, between readings of the operating
//! system's clock, and whatever is wrong with it (drift, a virtual machine that moved) is wrong
//! for a millisecond. A wall clock that is set does not set us: the difference is made up for slowly, see
//! `slew.rs`. All of that is on the cold path, once a millisecond.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use super::Clock;
use super::slew::{Slew, WallReading};
use crate::Timestamp;

/// The default clock: anchored to the wall clock when it is made, monotonic from then on.
///
/// A wall clock that is set later is followed by at most 0.05%: see
/// [`wall_difference_us`](Self::wall_difference_us).
#[derive(Debug)]
pub struct SystemClock {
    counter: quanta::Clock,
    /// Microseconds per tick of the counter, in units of 2^-64, and 0.1% too few.
    us_per_tick: u64,
    started: Instant,
    slew: Slew,
    read_wall_us: fn() -> u64,
    /// What to add to the counter's microseconds. Wrapping: the counter may be ahead of the wall.
    offset_us: AtomicU64,
    /// The counter's microseconds up to which `offset_us` may be used.
    trusted_until_us: AtomicU64,
}

/// For how long the counter may interpolate. At twice the 0.1% below, still about a microsecond.
const TRUSTED_US: u64 = 1_000;

/// How far apart the two readings of a correction may be.
const PAUSE_US_MAX: u64 = 1;

/// So often they are taken again. Where the system's clock takes longer to read than that, the
/// correction is as good as it can be.
const READ_TRIES_MAX: u32 = 8;

/// How long it may take to read the wall clock between two readings of the monotonic clock, for the two to be
/// compared.
const WALL_PAUSE_US_MAX: u64 = 20;

/// How often the two are read at the start, where the best pair of readings has to do. 200 ms of a busy machine have
/// been seen between the two.
const START_TRIES_MAX: u32 = 64;

impl SystemClock {
    /// A clock anchored to the wall clock now.
    ///
    /// A wall clock before 1970 counts as 1970.
    #[must_use]
    pub fn new() -> Self {
        Self::with_wall(read_wall_us)
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
    fn with_wall(read_wall_us: fn() -> u64) -> Self {
        // The first counter of a process is calibrated here, for up to 200 ms. Both clocks are read after
        // that: the time between their readings is by how much windows would begin late.
        let counter = quanta::Clock::new();
        let us_per_tick = us_per_tick(&counter);
        let started = Instant::now();
        let readings = (0..START_TRIES_MAX).map(|_| read_wall(started, read_wall_us));
        let (first, pause_us) = closest(readings);
        debug_assert!(pause_us < u64::MAX, "the clocks were read");
        let started_us = first.wall_us.saturating_sub(first.elapsed_us);
        let clock = Self {
            us_per_tick,
            counter,
            started,
            slew: Slew::new(started_us),
            read_wall_us,
            offset_us: AtomicU64::new(0),
            trusted_until_us: AtomicU64::new(0),
        };
        let counter_us = clock.counter_us();
        // The first offset is what makes the counter read `started_us`, so that `anchor`, which
        // only ever raises the offset, starts from below.
        clock.offset_us.store(started_us.wrapping_sub(counter_us), Ordering::Relaxed);
        clock
    }

    /// Returns how many microseconds the wall clock is ahead of this clock, or, below 0, behind it. It is 0 until
    /// somebody sets the wall clock, and goes back to 0 by 0.05% of the time that passes.
    ///
    /// It is measured ten times a second while the clock is read.
    #[must_use]
    pub fn wall_difference_us(&self) -> i64 {
        self.slew.difference_us()
    }

    /// The counter in microseconds from an arbitrary start, made to run 0.1% slow.
    ///
    /// Slow, so that each correction moves the time forward (by about one microsecond a
    /// millisecond) and never back, as long as the counter's frequency is known to 0.1%.
    #[inline]
    fn counter_us(&self) -> u64 {
        ((u128::from(self.counter.raw()) * u128::from(self.us_per_tick)) >> 64) as u64
    }

    /// What the operating system's clock and the counter show at one instant.
    ///
    /// A pause of this thread between the two would make the clock seem to be ahead, and leave it
    /// uncorrected for another millisecond: on a busy machine, several times in a row.
    fn read_both(&self) -> (u64, u64) {
        let mut tries = 0;
        loop {
            let before_us = self.counter_us();
            let elapsed_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
            let counter_us = self.counter_us();
            tries += 1;
            if counter_us.wrapping_sub(before_us) <= PAUSE_US_MAX || tries == READ_TRIES_MAX {
                return (elapsed_us, counter_us);
            }
        }
    }

    /// Returns both clocks of the operating system at one instant; `None` if this thread was paused each time.
    fn read_wall(&self) -> Option<WallReading> {
        let mut tries = (0..READ_TRIES_MAX).map(|_| read_wall(self.started, self.read_wall_us));
        tries.find(|(_, pause_us)| *pause_us <= WALL_PAUSE_US_MAX).map(|(reading, _)| reading)
    }

    /// Reads the operating system's clock and corrects the offset.
    #[cold]
    fn anchor(&self) -> u64 {
        let (elapsed_us, counter_us) = self.read_both();
        let now_us = self.slew.time_us(elapsed_us, || self.read_wall());
        let offset_us = now_us.wrapping_sub(counter_us);
        // Two threads may anchor at once; the larger offset wins, so nobody sees time go back.
        // Offsets wrap, so "larger" is a signed difference.
        let raised = self.offset_us.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old_us| {
            (offset_us.wrapping_sub(old_us).cast_signed() > 0).then_some(offset_us)
        });
        let in_force_us = if raised.is_ok() { offset_us } else { raised.unwrap_or_else(|old| old) };
        self.trusted_until_us.store(counter_us + TRUSTED_US, Ordering::Release);
        counter_us.wrapping_add(in_force_us)
    }
}

/// Returns both clocks of the operating system, and how long it took to read the wall clock between two readings of
/// the monotonic one.
fn read_wall(started: Instant, read_wall_us: fn() -> u64) -> (WallReading, u64) {
    let elapsed_us = || u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    let before_us = elapsed_us();
    let wall_us = read_wall_us();
    let after_us = elapsed_us();
    (WallReading { elapsed_us: after_us, wall_us }, after_us - before_us)
}

/// Returns the reading with the shortest pause.
fn closest(readings: impl Iterator<Item = (WallReading, u64)>) -> (WallReading, u64) {
    let mut best = (WallReading { elapsed_us: 0, wall_us: 0 }, u64::MAX);
    for reading in readings {
        if reading.1 < best.1 {
            best = reading;
        }
        if best.1 <= PAUSE_US_MAX {
            break;
        }
    }
    best
}

/// Microseconds since 1970 by the wall clock.
#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
fn read_wall_us() -> u64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since_epoch.unwrap_or(Duration::ZERO).as_micros()).unwrap_or(u64::MAX)
}

/// What the counter's calibration says of 2^40 ticks (some minutes), as one factor: the clock is
/// then one multiplication.
fn us_per_tick(counter: &quanta::Clock) -> u64 {
    let ns = u128::from(counter.delta_as_nanos(0, 1 << 40));
    let slow_ns = ns - ns / 1_024;
    // A counter of less than a megahertz would not fit, and would be no use; it would stand still,
    // and every reading ask the system.
    u64::try_from((slow_ns << 24) / 1_000).unwrap_or(0)
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        // Read the deadline first: an offset read after it is that deadline's, or a newer one.
        let trusted_until_us = self.trusted_until_us.load(Ordering::Acquire);
        let counter_us = self.counter_us();
        let now_us = if counter_us < trusted_until_us {
            counter_us.wrapping_add(self.offset_us.load(Ordering::Acquire))
        } else {
            self.anchor()
        };
        Timestamp::from_micros(now_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_agrees_with_the_wall_and_never_goes_back() {
        let clock = SystemClock::new();
        let mut last = clock.now();
        // Some 10 to 20 ms of reading: a dozen corrections.
        for _ in 0..500_000 {
            let now = clock.now();
            assert!(now >= last, "{now:?} is before {last:?}");
            last = now;
        }
        #[expect(clippy::disallowed_methods, reason = "the wall clock is what we compare with")]
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let off_us = wall.as_micros().abs_diff(u128::from(clock.now().as_micros()));
        // Generous, because the wall clock may be stepped under us; a wrong unit is off by far more.
        assert!(off_us < 10_000_000, "{off_us} us from the wall clock");
    }

    /// By how much the wall clock of the next test is set.
    static SET_US: AtomicU64 = AtomicU64::new(0);

    fn wall_that_is_set() -> u64 {
        read_wall_us() + SET_US.load(Ordering::Relaxed)
    }

    #[test]
    fn a_wall_clock_that_is_set_is_reported_and_does_not_set_the_system_clock() {
        let clock = SystemClock::with_wall(wall_that_is_set);
        let first = clock.now();
        SET_US.store(60_000_000, Ordering::Relaxed);
        #[expect(
            clippy::disallowed_methods,
            reason = "the monotonic clock is what we compare with"
        )]
        let started = Instant::now();
        let mut last = first;
        while clock.wall_difference_us() == 0 {
            let now = clock.now();
            assert!(now >= last, "{now:?} is before {last:?}");
            last = now;
            assert!(started.elapsed() < Duration::from_secs(30), "the difference is never seen");
        }
        let difference_us = clock.wall_difference_us();
        assert!(difference_us.abs_diff(60_000_000) < 10_000, "{difference_us} us");
        let ours_us = clock.now().as_micros() - first.as_micros();
        let elapsed_us = u64::try_from(started.elapsed().as_micros()).unwrap();
        assert!(ours_us <= elapsed_us + elapsed_us / 1_000 + 1_000, "{ours_us} in {elapsed_us}");
    }

    #[test]
    fn the_start_takes_the_reading_with_the_shortest_pause() {
        let reading = |wall_us, pause_us| (WallReading { elapsed_us: 7, wall_us }, pause_us);
        let readings = [reading(1, 199_000), reading(2, 12), reading(3, 40)];
        assert_eq!(closest(readings.into_iter()).0.wall_us, 2, "199 ms behind for life");
        let until_good = [reading(1, 90), reading(2, 1), reading(3, 0)];
        assert_eq!(closest(until_good.into_iter()).0.wall_us, 2, "good enough");
    }

    #[test]
    fn the_system_clock_keeps_step_with_the_monotonic_clock() {
        let clock = SystemClock::new();
        let first = clock.now();
        #[expect(
            clippy::disallowed_methods,
            reason = "the monotonic clock is what we compare with"
        )]
        let started = Instant::now();
        let mut elapsed_us = 0;
        while elapsed_us < 20_000 {
            let ours_us = clock.now().as_micros() - first.as_micros();
            elapsed_us = u64::try_from(started.elapsed().as_micros()).unwrap();
            // We read first, so we may be behind by any pause of the machine, but never ahead.
            assert!(ours_us <= elapsed_us + 1_000, "{ours_us} us against {elapsed_us} us");
        }
    }
}
