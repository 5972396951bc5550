//! What two sets have in common: not rules that say the same, but the very same rules.

use std::sync::Arc;

use super::{RuleSet, order};
use crate::Override;

impl RuleSet {
    /// For each rule, its place in `before` if it is the very same one. Both sets are in one order, so
    /// one walk along both finds all, and looks into none that is the same.
    pub(crate) fn places_in(&self, before: &Self) -> Vec<Option<u32>> {
        let mut rest = before.rules.iter().zip(0..).peekable();
        let mut place_of = |rule| {
            while let Some((old, at)) = rest.peek().copied() {
                if Arc::ptr_eq(old, rule) {
                    rest.next();
                    return Some(at);
                }
                if order(old, rule).is_ge() {
                    break;
                }
                rest.next();
            }
            None
        };
        self.rules.iter().map(&mut place_of).collect()
    }

    pub(crate) fn overrides_shared(&self) -> Arc<[Override]> {
        Arc::clone(&self.overrides)
    }

    /// True where nobody is banned or boosted otherwise than in `before`, as can be seen at once.
    pub(crate) fn shares_overrides_with(&self, before: &Self) -> bool {
        Arc::ptr_eq(&self.overrides, &before.overrides)
    }
}
