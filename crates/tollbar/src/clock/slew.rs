//! Follows the wall clock after it was set, slowly and never backwards.
//!
//! Decisions go by monotonic time: a wall clock that is set forward by an hour frees nobody's counter, and one that is
//! set back by an hour locks nobody out. But windows begin by the wall clock, so the difference is made up for, by one
//! microsecond in 2,048 (0.05%, as `adjtime` does). While that goes on a limit of 1,000 a second admits between 999.5
//! and 1,000.5.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// One microsecond is added or taken away in so many.
pub(super) const US_PER_STEP: u64 = 2_048;

/// How often the wall clock is looked at.
const LOOK_EVERY_US: u64 = 100_000;

/// What is less may be an error of the measurement.
const NOISE_US: u64 = 100;

/// Both clocks at one instant, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct WallReading {
    /// Since the start, by the monotonic clock.
    pub(super) elapsed_us: u64,
    /// Since 1970, by the wall clock.
    pub(super) wall_us: u64,
}

/// What is added to monotonic time. The methods may be called by any number of threads.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "a name carries its unit")]
pub(super) struct Slew {
    /// The wall clock at the start.
    started_us: u64,
    correction_us: AtomicI64,
    /// How far the wall clock is ahead of the corrected time.
    difference_us: AtomicI64,
    looked_at_us: AtomicU64,
    /// Up to when `correction_us` has been brought.
    slewed_at_us: AtomicU64,
}

impl Slew {
    pub(super) fn new(started_us: u64) -> Self {
        Self {
            started_us,
            correction_us: AtomicI64::new(0),
            difference_us: AtomicI64::new(0),
            looked_at_us: AtomicU64::new(0),
            slewed_at_us: AtomicU64::new(0),
        }
    }

    /// Returns the corrected time at `elapsed_us`, in microseconds since 1970. `read` is called now and then; it
    /// returns `None` where the two clocks could not be read close enough to each other.
    pub(super) fn time_us(
        &self,
        elapsed_us: u64,
        read: impl FnOnce() -> Option<WallReading>,
    ) -> u64 {
        if advance(&self.looked_at_us, elapsed_us, LOOK_EVERY_US) > 0
            && let Some(WallReading { elapsed_us, wall_us }) = read()
        {
            let difference_us = wall_us.wrapping_sub(self.corrected_us(elapsed_us)).cast_signed();
            let is_noise = difference_us.unsigned_abs() <= NOISE_US;
            self.difference_us.store(if is_noise { 0 } else { difference_us }, Ordering::Relaxed);
        }
        let steps = advance(&self.slewed_at_us, elapsed_us, US_PER_STEP).cast_signed();
        let difference_us = self.difference_us.load(Ordering::Relaxed);
        if steps > 0 && difference_us != 0 {
            let step_us = difference_us.clamp(-steps, steps);
            self.correction_us.fetch_add(step_us, Ordering::Relaxed);
            self.difference_us.fetch_sub(step_us, Ordering::Relaxed);
        }
        self.corrected_us(elapsed_us)
    }

    /// Returns how far the wall clock was ahead when it was looked at last.
    pub(super) fn difference_us(&self) -> i64 {
        self.difference_us.load(Ordering::Relaxed)
    }

    fn corrected_us(&self, elapsed_us: u64) -> u64 {
        let correction_us = self.correction_us.load(Ordering::Relaxed);
        self.started_us.saturating_add(elapsed_us).saturating_add_signed(correction_us)
    }
}

/// Moves `mark` towards `now` by whole units, and returns by how many. Of several threads one moves it.
fn advance(mark: &AtomicU64, now: u64, unit: u64) -> u64 {
    let before = mark.load(Ordering::Relaxed);
    // Rounds down: the rest counts the next time.
    let units = now.saturating_sub(before) / unit;
    let after = before + units * unit;
    let moved = mark.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed);
    if moved.is_ok() { units } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STARTED_US: u64 = 1_800_000_000_000_000;

    /// A wall clock that is set now and then, and the clock that follows it.
    struct Simulation {
        slew: Slew,
        elapsed_us: u64,
        /// How far the wall clock was set, all in all.
        set_us: i64,
        last_us: u64,
    }

    impl Simulation {
        fn new() -> Self {
            let slew = Slew::new(STARTED_US);
            Self { slew, elapsed_us: 0, set_us: 0, last_us: STARTED_US }
        }

        /// Goes on, and checks that the time does so at the promised rate and never back.
        fn go_on(&mut self, us: u64) {
            self.elapsed_us += us;
            let (elapsed_us, set_us) = (self.elapsed_us, self.set_us);
            let wall_us = (STARTED_US + elapsed_us).saturating_add_signed(set_us);
            let now_us =
                self.slew.time_us(elapsed_us, || Some(WallReading { elapsed_us, wall_us }));
            let passed_us = now_us.checked_sub(self.last_us).expect("time goes back");
            let slack_us = us / US_PER_STEP + 1;
            assert!(passed_us.abs_diff(us) <= slack_us, "{passed_us} us in {us} us");
            self.last_us = now_us;
        }

        fn behind_us(&self) -> i64 {
            let wall_us = (STARTED_US + self.elapsed_us).saturating_add_signed(self.set_us);
            wall_us.cast_signed() - self.last_us.cast_signed()
        }
    }

    #[test]
    fn a_wall_clock_that_is_set_is_followed_by_one_in_2048_and_never_backwards() {
        for step_us in [3_000_000, -3_000_000, 250_000, -250_000] {
            let mut simulation = Simulation::new();
            for _ in 0..1_000 {
                simulation.go_on(1_000);
            }
            assert_eq!(simulation.behind_us(), 0, "nothing to follow");
            simulation.set_us = step_us;
            simulation.go_on(LOOK_EVERY_US);
            let behind_us = simulation.slew.difference_us();
            assert!(behind_us.abs_diff(step_us) < 100, "{behind_us} us is reported");
            // Half of the way is left when half of the time is over.
            let needed_us = step_us.unsigned_abs() * US_PER_STEP;
            for _ in 0..needed_us / 2_000 {
                simulation.go_on(1_000);
            }
            let left_us = simulation.behind_us();
            assert!(left_us.abs_diff(step_us / 2) < step_us.unsigned_abs() / 100, "{left_us}");
            for _ in 0..needed_us / 1_900 {
                simulation.go_on(1_000);
            }
            let left_us = simulation.behind_us();
            assert!(left_us.unsigned_abs() <= NOISE_US, "{left_us} us are left");
            assert!(simulation.slew.difference_us().unsigned_abs() <= NOISE_US);
        }
    }

    #[test]
    fn a_clock_that_is_read_once_an_hour_is_not_set_by_more_than_the_hour_allows() {
        let mut simulation = Simulation::new();
        simulation.set_us = 86_400_000_000;
        simulation.go_on(1_000);
        for _ in 0..10 {
            simulation.go_on(3_600_000_000);
        }
        let followed_us = simulation.set_us - simulation.behind_us();
        assert_eq!(followed_us, 10 * 3_600_000_000 / US_PER_STEP.cast_signed());
    }

    #[test]
    fn a_wall_clock_that_is_set_again_and_again_is_followed_to_where_it_is() {
        let mut simulation = Simulation::new();
        for step_us in [5_000_000, -9_000_000, 4_000_500] {
            simulation.set_us += step_us;
            for _ in 0..5_000 {
                simulation.go_on(997);
            }
        }
        for _ in 0..40_000 {
            simulation.go_on(100_003);
        }
        assert!(simulation.behind_us().unsigned_abs() <= NOISE_US, "{}", simulation.behind_us());
    }

    #[test]
    fn a_reading_that_is_none_changes_nothing() {
        let slew = Slew::new(STARTED_US);
        for elapsed_us in (0..10_000_000).step_by(1_000) {
            assert_eq!(slew.time_us(elapsed_us, || None), STARTED_US + elapsed_us);
        }
    }
}
