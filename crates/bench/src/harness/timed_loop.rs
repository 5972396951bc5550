//! The timed loop.

use std::ops::Range;
use std::sync::Barrier;
use std::time::Duration;

use crate::timer::{Stopwatch, thread_time};

/// Checks every key of a slice once and returns how many were allowed.
pub type Checks = dyn Fn(&[String]) -> u64 + Send + Sync;

/// Keys between two looks at the stopwatch: often enough to stop in time, and seldom enough that
/// looking (some 25 ns) does not count.
pub const CHUNK: usize = 1_024;

/// What a timed loop found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoopTimes {
    /// Per thread: with two threads at 100 ns each, 20 million checks pass in a second.
    pub ns_per_check: f64,
    /// The same of processor time.
    pub cpu_ns_per_check: f64,
    /// Checks of all threads together, without the warm-up.
    pub checks: u64,
    /// How many of these were allowed.
    pub allowed: u64,
}

/// Runs `checks` over `keys`, round and round, on `threads` pinned threads for `duration`, after a
/// warm-up of an eighth of that.
///
/// Each thread, and each `round`, begins elsewhere in `keys`.
///
/// # Panics
/// If `keys` is empty or not a multiple of [`CHUNK`], or if `checks` panics.
#[must_use]
pub fn time_checks(
    checks: &(dyn Fn(&[String]) -> u64 + Send + Sync),
    keys: &[String],
    threads: usize,
    round: usize,
    duration: Duration,
) -> LoopTimes {
    assert!(!keys.is_empty() && keys.len().is_multiple_of(CHUNK), "{} keys", keys.len());
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let barrier = Barrier::new(threads);
    let totals: Vec<LoopTimes> = std::thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads)
            .map(|thread| {
                // From the last core down: the first serves most interrupts.
                let core = cores.iter().rev().cycle().nth(thread).copied();
                let start = start_chunk(keys.len() / CHUNK, thread, threads, round);
                let barrier = &barrier;
                scope.spawn(move || {
                    if let Some(core) = core {
                        core_affinity::set_for_current(core);
                    }
                    let mut chunks = chunks(keys.len(), start).map(|range| checks(&keys[range]));
                    time_chunks(&mut chunks, duration / 8);
                    barrier.wait();
                    time_chunks(&mut chunks, duration)
                })
            })
            .collect();
        spawned.into_iter().map(|thread| thread.join().expect("a check panicked")).collect()
    });
    let mean = |of: fn(&LoopTimes) -> f64| totals.iter().map(of).sum::<f64>() / threads as f64;
    LoopTimes {
        ns_per_check: mean(|times| times.ns_per_check),
        cpu_ns_per_check: mean(|times| times.cpu_ns_per_check),
        checks: totals.iter().map(|timed| timed.checks).sum(),
        allowed: totals.iter().map(|timed| timed.allowed).sum(),
    }
}

/// Takes from `chunks`, each a number of allowed checks, until `duration` has passed.
fn time_chunks(chunks: &mut impl Iterator<Item = u64>, duration: Duration) -> LoopTimes {
    let (stopwatch, before) = (Stopwatch::start(), thread_time());
    let (mut count, mut allowed) = (0_u64, 0_u64);
    loop {
        allowed += chunks.next().expect("chunks go round and round");
        count += 1;
        let elapsed = stopwatch.elapsed();
        if elapsed >= duration {
            let checks = count * CHUNK as u64;
            let ns_per_check = |time: Duration| time.as_nanos() as f64 / checks as f64;
            return LoopTimes {
                ns_per_check: ns_per_check(elapsed),
                cpu_ns_per_check: ns_per_check(thread_time().saturating_sub(before)),
                checks,
                allowed,
            };
        }
    }
}

/// Threads begin evenly apart, rounds by the golden ratio, so that no two begin at one place.
fn start_chunk(chunk_count: usize, thread: usize, threads: usize, round: usize) -> usize {
    (chunk_count * thread / threads + chunk_count * round * 618 / 1_000) % chunk_count
}

/// The chunks of `key_count` keys from chunk `start` on, round and round.
fn chunks(key_count: usize, start: usize) -> impl Iterator<Item = Range<usize>> {
    (0..key_count / CHUNK).cycle().skip(start).map(|chunk| chunk * CHUNK..(chunk + 1) * CHUNK)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::keys::{Order, sequence};

    #[test]
    fn checks_and_allows_are_counted_over_all_threads() {
        let keys = sequence(Order::Uniform, 10, 2 * CHUNK);
        let seen = AtomicU64::new(0);
        let half = |keys: &[String]| {
            seen.fetch_add(keys.len() as u64, Ordering::Relaxed);
            keys.len() as u64 / 2
        };
        let timed = time_checks(&half, &keys, 2, 3, Duration::from_millis(2));
        assert_eq!(timed.allowed * 2, timed.checks);
        assert!(timed.checks.is_multiple_of(CHUNK as u64));
        // The warm-up is checked and not counted.
        assert!(seen.load(Ordering::Relaxed) > timed.checks);
        assert!(timed.ns_per_check > 0.0 && timed.cpu_ns_per_check > 0.0);
    }

    #[test]
    fn chunks_wrap_around() {
        let starts: Vec<usize> = chunks(3 * CHUNK, 2).take(4).map(|range| range.start).collect();
        assert_eq!(starts, [2 * CHUNK, 0, CHUNK, 2 * CHUNK]);
    }

    #[test]
    fn threads_and_rounds_begin_apart() {
        assert_eq!(start_chunk(100, 0, 2, 0), 0);
        assert_eq!(start_chunk(100, 1, 2, 0), 50);
        assert_eq!(start_chunk(100, 0, 2, 1), 61);
        assert_eq!(start_chunk(100, 1, 2, 1), 11);
        assert_eq!(start_chunk(1, 1, 2, 5), 0);
    }
}
