//! Counters that many threads add to: a line of memory for a few of them, so that they seldom wait for
//! each other. Adding is one relaxed add; reading sums the lines.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Threads beyond this share lines.
const SHARDS: usize = 8;

/// `N` counters, at most 8 of them on a line.
#[derive(Debug)]
pub(super) struct ShardedCounters<const N: usize>([CounterShard<N>; SHARDS]);

#[derive(Debug)]
#[repr(align(64))]
struct CounterShard<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for ShardedCounters<N> {
    fn default() -> Self {
        let shard = |_| CounterShard(std::array::from_fn(|_| AtomicU64::new(0)));
        Self(std::array::from_fn(shard))
    }
}

impl<const N: usize> ShardedCounters<N> {
    pub(super) fn add(&self, counter: usize, amount: u64) {
        self.0[thread_number() % SHARDS].0[counter].fetch_add(amount, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> [u64; N] {
        std::array::from_fn(|counter| {
            let counts = self.0.iter().map(|shard| shard.0[counter].load(Ordering::Relaxed));
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
        let counters = ShardedCounters::<3>::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * SHARDS {
                scope.spawn(|| {
                    counters.add(0, 1);
                    counters.add(2, 5);
                });
            }
        });
        assert_eq!(counters.read(), [16, 0, 80]);
    }
}
