//! The floor: the least a keyed limiter can do, to tell what is left to win.
//!
//! A flat table of (tag, theoretical arrival time) pairs, four to a line of 64 bytes, one
//! compare-and-swap per allowed check. It shares the hash and the clock of the library, so that
//! the difference is the library's own. It is no limiter for use: it evicts nothing, forgets
//! nothing, reports nothing but yes or no, and panics when it is full.

use std::sync::atomic::{AtomicU64, Ordering};

use polymur_hash::PolymurHash;
use tollbar::Clock;

use crate::huge_pages::{AtomicWords, prefetch};

/// Slots in a line; a slot is two words: the tag, zero while it is free, and the time.
const LINE_SLOTS: usize = 4;
const SLOT_WORDS: usize = 2;
const LINE_WORDS: usize = LINE_SLOTS * SLOT_WORDS;

/// Checks that share one reading of the clock in [`Floor::check_group`].
pub const GROUP: usize = 256;

/// What the table enforces for every key: `burst` at once, then one per `interval_us`.
#[derive(Debug, Clone, Copy)]
pub struct FloorQuota {
    /// Microseconds in which one token is earned.
    pub interval_us: u64,
    /// Tokens of a key that has not been seen.
    pub burst: u64,
}

/// The table.
#[derive(Debug)]
pub struct Floor<C> {
    words: AtomicWords,
    line_count: u64,
    hasher: PolymurHash,
    clock: C,
    interval_us: u64,
    full_us: u64,
}

impl<C: Clock> Floor<C> {
    /// A table for `key_count_max` keys of 32 bytes each.
    #[must_use]
    pub fn new(key_count_max: usize, quota: FloorQuota, clock: C) -> Self {
        let slot_count = 2 * key_count_max;
        let line_count = slot_count.div_ceil(LINE_SLOTS).max(1);
        Self {
            words: AtomicWords::zeroed(line_count * LINE_WORDS),
            line_count: line_count as u64,
            hasher: PolymurHash::from_u64x2_seed(0x5EED, 0x70_11BA),
            clock,
            interval_us: quota.interval_us,
            full_us: quota.interval_us * quota.burst,
        }
    }

    /// Bytes of the table.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(self.words.as_slice())
    }

    /// Takes one token of `key`; false if there is none.
    #[inline]
    pub fn check(&self, key: &[u8]) -> bool {
        let now_us = self.clock.now().as_micros();
        let hash = self.hasher.hash(key);
        self.take(self.slot(hash), now_us)
    }

    /// Checks up to [`GROUP`] keys at one reading of the clock; returns how many were allowed.
    ///
    /// All lines are asked for before the first is used, so that memory misses overlap.
    ///
    /// # Panics
    /// If there are more keys than [`GROUP`].
    pub fn check_group(&self, keys: &[String]) -> u64 {
        let mut hashes = [0; GROUP];
        let hashes = &mut hashes[..keys.len()];
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.hasher.hash(key.as_bytes());
            prefetch(&self.words.as_slice()[self.line_start(*hash)]);
        }
        let now_us = self.clock.now().as_micros();
        hashes.iter().map(|hash| u64::from(self.take(self.slot(*hash), now_us))).sum()
    }

    /// Where the line of `hash` begins: the hash scaled to the number of lines.
    #[inline]
    fn line_start(&self, hash: u64) -> usize {
        let line = (u128::from(hash) * u128::from(self.line_count)) >> 64;
        line as usize * LINE_WORDS
    }

    /// The time of the key with this hash, claimed if the key is new.
    #[inline]
    fn slot(&self, hash: u64) -> &AtomicU64 {
        // Zero marks a free slot.
        let tag = hash | 1;
        let words = self.words.as_slice();
        let mut start = self.line_start(hash);
        for _ in 0..self.line_count {
            for slot in words[start..start + LINE_WORDS].chunks_exact(SLOT_WORDS) {
                let seen = slot[0].load(Ordering::Acquire);
                if seen == tag {
                    return &slot[1];
                }
                if seen == 0 {
                    // Whoever loses the race may have lost it to the same key.
                    match slot[0].compare_exchange(0, tag, Ordering::AcqRel, Ordering::Acquire) {
                        Ok(_) => return &slot[1],
                        Err(winner) if winner == tag => return &slot[1],
                        Err(_) => {}
                    }
                }
            }
            start += LINE_WORDS;
            if start == words.len() {
                start = 0;
            }
        }
        panic!("the floor table is full: it is sized for the keys of one workload");
    }

    /// The usual arithmetic: the arrival time moves on by one interval, unless that is further
    /// ahead than a full burst.
    #[inline]
    fn take(&self, slot: &AtomicU64, now_us: u64) -> bool {
        let mut arrival_us = slot.load(Ordering::Acquire);
        loop {
            let next_us = arrival_us.max(now_us) + self.interval_us;
            if next_us - now_us > self.full_us {
                return false;
            }
            match slot.compare_exchange_weak(
                arrival_us,
                next_us,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(current_us) => arrival_us = current_us,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollbar::{ManualClock, Timestamp};

    use super::*;
    use crate::keys::key;

    const START: Timestamp = Timestamp::from_micros(1_000_000_000);

    fn floor(key_count_max: usize) -> (Floor<ManualClock>, ManualClock) {
        let clock = ManualClock::at(START);
        let quota = FloorQuota { interval_us: 1_000, burst: 5 };
        (Floor::new(key_count_max, quota, clock.clone()), clock)
    }

    fn allowed(floor: &Floor<ManualClock>, key: &str, attempts: usize) -> usize {
        (0..attempts).filter(|_| floor.check(key.as_bytes())).count()
    }

    #[test]
    fn each_key_gets_its_burst_and_not_one_more() {
        let (floor, clock) = floor(1_000);
        for id in 0..1_000 {
            assert_eq!(allowed(&floor, &key(id), 8), 5, "key {id}");
        }
        clock.advance(Duration::from_micros(2_999));
        for id in 0..1_000 {
            assert_eq!(allowed(&floor, &key(id), 8), 2, "key {id}");
        }
    }

    #[test]
    fn a_group_decides_as_single_checks_do() {
        let (floor, _) = floor(1_000);
        let keys: Vec<String> = (0..GROUP as u64).map(|id| key(id % 40)).collect();
        // 256 checks over 40 keys: 6 or 7 each, of which 5 pass.
        assert_eq!(floor.check_group(&keys), 40 * 5);
        assert!(!floor.check(key(0).as_bytes()));
    }

    #[test]
    fn two_threads_share_one_burst() {
        let clock = ManualClock::at(START);
        let quota = FloorQuota { interval_us: 1, burst: 10_000 };
        let floor = Floor::new(16, quota, clock);
        let total: usize = std::thread::scope(|scope| {
            let checks = || (0..20_000).filter(|_| floor.check(b"shared")).count();
            let threads = [scope.spawn(checks), scope.spawn(checks)];
            threads.map(|thread| thread.join().expect("no panic")).iter().sum()
        });
        assert_eq!(total, 10_000);
    }

    #[test]
    fn a_key_takes_thirty_two_bytes() {
        let (floor, _) = floor(1_000);
        assert_eq!(floor.bytes(), 32_000);
    }
}
