//! Everything a counter was ever charged, in the order it was charged. Nothing is forgotten.

use crate::oracle::ratio::Ratio;

/// One thing that happened to a counter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// A request was admitted.
    Charged {
        /// When, by the clock as it stood.
        at_us: u128,
        /// What it paid.
        cost: u64,
        /// What a token was worth then, in microseconds; zero for windows, which count tokens.
        token_us: Ratio,
    },
    /// Tokens of a bucket are lent, and less may be owed.
    Cut {
        /// When, by the clock as it stood.
        at_us: u128,
        /// By how much less at least.
        cut_us: u128,
    },
    /// A lease was granted.
    Leased {
        /// Until when, as far as is known: it may be renewed.
        ends_at_us: u128,
        /// What it still holds.
        permits: u64,
    },
    /// Part of a bucket's debt was given back.
    Refunded {
        /// When, by the clock as it stood.
        at_us: u128,
        /// How much of the debt, in microseconds.
        back: Ratio,
    },
}

/// The history of one counter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Log {
    /// Oldest first.
    pub events: Vec<Event>,
    /// How often the counter was reset.
    pub resets: u64,
    /// Of keys that warm up, each charge once more: when it was, and when the key would have been
    /// new again by the rule of that time.
    pub visits: Vec<Visit>,
}

/// A charge to a key that warms up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Visit {
    /// When, by the clock as it stood.
    pub at_us: u128,
    /// From when on the key is new, if it does not come back before.
    pub new_at_us: u128,
}

/// Where a stamp has the number of resets before its charge. The number of its event is below.
const RESETS_SHIFT: u32 = 32;

impl Log {
    /// What the event `number` is called outside.
    pub(super) fn stamp_of(&self, number: u64) -> u64 {
        self.resets << RESETS_SHIFT | number
    }

    /// The event that `stamp` names; none where the counter was reset since.
    pub(super) fn number_of(&self, stamp: u64) -> Option<u64> {
        (stamp >> RESETS_SHIFT == self.resets).then_some(stamp & ((1 << RESETS_SHIFT) - 1))
    }

    /// The newest window of `window_us` that was charged.
    pub(super) fn newest_window(&self, window_us: u128) -> Option<u128> {
        self.by_window(|at_us| at_us / window_us).last().map(|(window, _)| window)
    }

    /// What was charged to the windows numbered `from..=to`.
    pub(super) fn sum(&self, window_us: u128, from: u128, to: u128) -> u128 {
        self.by_window(|at_us| at_us / window_us)
            .filter(|(window, _)| (from..=to).contains(window))
            .map(|(_, cost)| cost)
            .sum()
    }

    /// The window that the charge number `stamp` counts in.
    pub(super) fn window_of(&self, window_us: u128, stamp: u64) -> Option<u128> {
        self.by_window(|at_us| at_us / window_us).nth(stamp as usize).map(|(window, _)| window)
    }

    /// Each charge with the window it counts in: that of its time, unless the clock had gone back
    /// to before a window already charged; then that one.
    pub(super) fn by_window(
        &self,
        window_of: impl Fn(u128) -> u128,
    ) -> impl Iterator<Item = (u128, u128)> {
        self.events.iter().scan(0, move |newest, event| {
            let Event::Charged { at_us, cost, .. } = event else {
                unreachable!("only buckets are refunded by time")
            };
            *newest = (*newest).max(window_of(*at_us));
            Some((*newest, u128::from(*cost)))
        })
    }
}
