//! When the daemon borrows tokens of hot keys from its store: as `--loans` says, or when the whole fleet knows loans.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use tollbar::Store;
use tollbar_fleet::{LendingStats, LendingStore};
use tracing::info;

/// The value of `--loans`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LoansMode {
    /// Borrows from the start: every daemon over the same store knows loans.
    On,
    /// Checks everything exactly.
    Off,
    /// Borrows while every daemon over the same database and store knows loans. Without a database, never.
    Auto,
}

/// The store that spends loans, and whether it may.
#[derive(Debug)]
pub struct Loans {
    store: Arc<LendingStore>,
    mode: LoansMode,
    /// Whether all nodes know loans, as the database said last.
    is_known_to_all: AtomicBool,
}

impl Loans {
    /// Lends what `inner` has, as `mode` says.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>, mode: LoansMode) -> Self {
        let store = Arc::new(LendingStore::new(inner));
        store.set_lending(mode == LoansMode::On);
        Self { store, mode, is_known_to_all: AtomicBool::new(false) }
    }

    /// Returns the store that engines are to ask.
    #[must_use]
    pub fn store(&self) -> Arc<LendingStore> {
        Arc::clone(&self.store)
    }

    #[must_use]
    pub fn stats(&self) -> LendingStats {
        self.store.stats()
    }

    /// Takes note of whether every node that counts in the same place knows loans. A node of an older version takes
    /// the counter of a loaned key for corrupt.
    pub fn set_known_to_all(&self, is_known: bool) {
        let was_known = self.is_known_to_all.swap(is_known, Ordering::Relaxed);
        if self.mode != LoansMode::Auto || was_known == is_known {
            return;
        }
        self.store.set_lending(is_known);
        if is_known {
            info!("all nodes know loans: hot keys of rules with an accuracy are paid from loans");
        } else {
            info!("a node does not know loans: all checks are exact until it is upgraded");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollbar::MemoryStore;

    #[test]
    fn loans_are_as_the_flag_says_or_as_the_fleet_knows_them() {
        let cases = [
            (LoansMode::On, [true, true, true]),
            (LoansMode::Off, [false, false, false]),
            (LoansMode::Auto, [false, true, false]),
        ];
        for (mode, [at_first, when_known, when_not]) in cases {
            let inner = Arc::new(MemoryStore::builder().max_keys(10).build());
            let loans = Loans::new(inner, mode);
            assert_eq!(loans.stats().is_lending, at_first, "{mode:?}");
            loans.set_known_to_all(true);
            assert_eq!(loans.stats().is_lending, when_known, "{mode:?}");
            loans.set_known_to_all(false);
            assert_eq!(loans.stats().is_lending, when_not, "{mode:?}");
        }
    }
}
