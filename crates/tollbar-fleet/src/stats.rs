//! What a lending store has borrowed so far, and what became of it.

use crate::holdings::Fates;

/// Counts since the store was made, and how many keys it holds tokens of now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LendingStats {
    /// Loans of as many tokens as were asked for.
    pub loans_full: u64,
    /// Loans of fewer.
    pub loans_partial: u64,
    /// Questions to which the store lent nothing.
    pub loans_empty: u64,
    /// Questions that the store did not answer.
    pub loans_failed: u64,
    /// Tokens that requests were admitted with.
    pub tokens_spent: u64,
    /// Tokens that ended before they were spent.
    pub tokens_expired: u64,
    /// Tokens that were dropped: the counter was reset, or its limit changed.
    pub tokens_dropped: u64,
    /// Keys that tokens are borrowed for.
    pub loaned_keys: u64,
    /// True if tokens are borrowed at all.
    pub is_lending: bool,
}

impl LendingStats {
    /// Loans by their outcome, under the names that metrics have for them.
    #[must_use]
    pub fn loans(&self) -> [(&'static str, u64); 4] {
        [
            ("full", self.loans_full),
            ("partial", self.loans_partial),
            ("empty", self.loans_empty),
            ("failed", self.loans_failed),
        ]
    }

    /// Tokens by their fate, under the names that metrics have for them.
    #[must_use]
    pub fn tokens(&self) -> [(&'static str, u64); 3] {
        [
            ("spent", self.tokens_spent),
            ("expired", self.tokens_expired),
            ("dropped", self.tokens_dropped),
        ]
    }

    /// Adds those of another shard.
    pub(crate) fn add(&mut self, fates: &Fates, keys: usize) {
        self.loans_full += fates.loans_full;
        self.loans_partial += fates.loans_partial;
        self.loans_empty += fates.loans_empty;
        self.loans_failed += fates.loans_failed;
        self.tokens_spent += fates.tokens_spent;
        self.tokens_expired += fates.tokens_expired;
        self.tokens_dropped += fates.tokens_dropped;
        self.loaned_keys += keys as u64;
    }
}
