//! How fast keys are asked for here: a rate, and a bounded sketch of the rates of all keys that are not held.

use std::sync::atomic::{AtomicU64, Ordering};

/// The length of the windows that a rate is counted in.
pub(crate) const WINDOW_US: u64 = 100_000;

/// Keys that share a cell of the sketch compete for it.
const CELLS: usize = 16_384;

/// Tokens that were asked for in this window and in the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Rate {
    window: u64,
    previous: u64,
    current: u64,
}

impl Rate {
    /// Counts `tokens` that somebody has asked for.
    pub(crate) fn offer(&mut self, tokens: u64, now_us: u64) {
        *self = self.at(now_us);
        self.current = self.current.saturating_add(tokens);
    }

    /// Returns the tokens that are asked for in `period_us`, by the last two windows: of the previous one only the
    /// part that is less than a window ago.
    ///
    /// 80 tokens in the previous window and 20 in the first quarter of this one are 80 x 3/4 + 20 = 80 per
    /// 100 ms, and 40 in 50 ms.
    pub(crate) fn tokens_per(&self, period_us: u64, now_us: u64) -> u64 {
        let rate = self.at(now_us);
        let left_us = WINDOW_US - now_us % WINDOW_US;
        let window = u128::from(WINDOW_US);
        let sliding =
            u128::from(rate.previous) * u128::from(left_us) + u128::from(rate.current) * window;
        // Rounded down: a key is not hot by rounding.
        u64::try_from(sliding * u128::from(period_us) / (window * window)).unwrap_or(u64::MAX)
    }

    fn at(self, now_us: u64) -> Self {
        let window = now_us / WINDOW_US;
        match window.saturating_sub(self.window) {
            0 => self,
            1 => Self { window, previous: self.current, current: 0 },
            _ => Self { window, previous: 0, current: 0 },
        }
    }
}

/// The rates of the keys that win their cells. A cell belongs to one key at a time: others that fall into it count
/// against it, and take it over when nothing is left. So a hot key finds its cell, and a million cold ones that
/// share cells do not look like a hot one.
pub(crate) struct Heat {
    cells: Box<[AtomicU64]>,
}

impl Heat {
    pub(crate) fn new() -> Self {
        Self { cells: (0..CELLS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Counts `tokens` that were asked of the key with this hash, and returns its rate so far. One compare-and-swap.
    pub(crate) fn offer(&self, hash: u64, tokens: u64, now_us: u64) -> Rate {
        let cell = &self.cells[hash as usize % CELLS];
        let tag = (hash >> TAG_SHIFT) as u16;
        let mut word = cell.load(Ordering::Relaxed);
        loop {
            let offered = Cell::unpack(word, now_us).offer(tag, tokens, now_us);
            let next = offered.pack();
            match cell.compare_exchange_weak(word, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) if offered.tag == tag => return offered.rate,
                // The cell is another key's, which is hotter.
                Ok(_) => return Rate::default(),
                Err(changed) => word = changed,
            }
        }
    }
}

/// A rate and 16 bits of the hash of the key that it is of. In a word: the tag, 12 bits of the window's number, 18
/// of each count.
struct Cell {
    tag: u16,
    rate: Rate,
}

const TAG_SHIFT: u32 = 48;
const WINDOW_SHIFT: u32 = 36;
const WINDOW_MASK: u64 = (1 << 12) - 1;
const COUNT_BITS: u32 = 18;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

impl Cell {
    /// Reads a cell at `now_us`. Of the window's number only the low bits are kept: it is the latest that has them.
    fn unpack(word: u64, now_us: u64) -> Self {
        let now = now_us / WINDOW_US;
        let age = now.wrapping_sub(word >> WINDOW_SHIFT) & WINDOW_MASK;
        let rate = Rate {
            window: now.saturating_sub(age),
            previous: word >> COUNT_BITS & COUNT_MAX,
            current: word & COUNT_MAX,
        };
        Self { tag: (word >> TAG_SHIFT) as u16, rate: rate.at(now_us) }
    }

    fn pack(&self) -> u64 {
        let Rate { window, previous, current } = self.rate;
        u64::from(self.tag) << TAG_SHIFT
            | (window & WINDOW_MASK) << WINDOW_SHIFT
            | previous.min(COUNT_MAX) << COUNT_BITS
            | current.min(COUNT_MAX)
    }

    /// Counts for the key that has the cell, or against it if another one asks.
    fn offer(mut self, tag: u16, tokens: u64, now_us: u64) -> Self {
        if self.tag == tag {
            self.rate.offer(tokens, now_us);
            return self;
        }
        let Rate { previous, current, .. } = &mut self.rate;
        let of_current = tokens.min(*current);
        let of_previous = (tokens - of_current).min(*previous);
        *current -= of_current;
        *previous -= of_previous;
        if *current + *previous == 0 {
            self.tag = tag;
            self.rate.offer(tokens - of_current - of_previous, now_us);
        }
        self
    }
}

impl std::fmt::Debug for Heat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heat").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000;

    #[test]
    fn a_rate_slides_over_two_windows() {
        let mut rate = Rate::default();
        for at_ms in 0..80 {
            rate.offer(1, at_ms * MS);
        }
        for at_ms in 100..120 {
            rate.offer(1, at_ms * MS);
        }
        assert_eq!(rate.tokens_per(WINDOW_US, 125 * MS), 80);
        assert_eq!(rate.tokens_per(WINDOW_US / 2, 125 * MS), 40);
        assert_eq!(rate.tokens_per(WINDOW_US, 200 * MS), 20);
        assert_eq!(rate.tokens_per(WINDOW_US, 300 * MS), 0);
    }

    #[test]
    fn a_hot_key_is_found_among_cold_ones() {
        let heat = Heat::new();
        let hot = 0xabcd_0000_0000_0007;
        let mut rate = Rate::default();
        for at in 0..1_000 {
            // A hundred cold keys of the same cell, each asked for ten times.
            let cold = (at % 100) << TAG_SHIFT | 7;
            heat.offer(cold, 1, at * 50);
            rate = heat.offer(hot, 2, at * 50);
        }
        assert!(rate.tokens_per(WINDOW_US, 50_000) >= 900, "{rate:?}");
    }

    #[test]
    fn cold_keys_together_do_not_look_hot() {
        let heat = Heat::new();
        for at in 0..100_000_u64 {
            // 1,000,000 requests a second over keys that all share one cell.
            let rate = heat.offer((at % 5_000) << TAG_SHIFT | 7, 1, at);
            assert!(rate.tokens_per(WINDOW_US, at) < 4, "{rate:?}");
        }
    }

    #[test]
    fn counts_that_do_not_fit_a_cell_are_cut() {
        let heat = Heat::new();
        heat.offer(7, u64::MAX, 0);
        assert_eq!(heat.offer(7, 1, 1).tokens_per(WINDOW_US, 1), COUNT_MAX + 1);
        // After the low bits of the window's number have come round.
        let round_us = (WINDOW_MASK + 2) * WINDOW_US;
        assert!(heat.offer(7, 1, round_us).tokens_per(WINDOW_US, round_us) <= COUNT_MAX + 1);
    }
}
