//! Counters that many threads add to: a line of memory for a few of them, so that they seldom wait for
//! each other. Adding is one relaxed add; reading sums the lines.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Threads beyond this share lines.
const LINES: usize = 8;

/// `N` counters, at most 8 of them on a line.
#[derive(Debug)]
pub(super) struct Lines<const N: usize>([Line<N>; LINES]);

#[derive(Debug)]
#[repr(align(64))]
struct Line<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Lines<N> {
    fn default() -> Self {
        let line = |_| Line(std::array::from_fn(|_| AtomicU64::new(0)));
        Self(std::array::from_fn(line))
    }
}

impl<const N: usize> Lines<N> {
    pub(super) fn add(&self, counter: usize, amount: u64) {
        self.0[thread_number() % LINES].0[counter].fetch_add(amount, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> [u64; N] {
        std::array::from_fn(|counter| {
            let counts = self.0.iter().map(|line| line.0[counter].load(Ordering::Relaxed));
            counts.fold(0, u64::wrapping_add)
        })
    }
}

/// Threads are numbered as they first count.
fn thread_number() -> usize {
    thread_local! {
        static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0);

    NUMBER.get().unwrap_or_else(|| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        NUMBER.set(Some(number));
        number
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_add_is_summed() {
        let lines = Lines::<3>::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * LINES {
                scope.spawn(|| {
                    lines.add(0, 1);
                    lines.add(2, 5);
                });
            }
        });
        assert_eq!(lines.read(), [16, 0, 80]);
    }
}
