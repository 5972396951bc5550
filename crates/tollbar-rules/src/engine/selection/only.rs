//! One rule alone, whatever it matches.

use super::{Fate, Observer, Selecting, Selection};
use crate::engine::AsyncEngine;
use crate::matcher::ItemId;
use crate::snapshot::Snapshot;
use crate::verdict::Why;
use crate::{Request, engine::selection::Nobody};

impl AsyncEngine {
    pub(crate) fn select_only(
        &self,
        snapshot: &Snapshot,
        rule: ItemId,
        request: &Request<'_>,
        selection: &mut Selection,
    ) {
        let now = || self.clock.now();
        Selecting { snapshot, request, now, observer: &mut Nobody }.select_only(rule, selection);
    }
}

impl<O: Observer, N: Fn() -> tollbar::Timestamp> Selecting<'_, O, N> {
    fn select_only(&mut self, at: ItemId, selection: &mut Selection) {
        if let Some(overrides) = &self.snapshot.overrides
            && self.is_banned(overrides, selection)
        {
            return;
        }
        if self.is_open(at, &[]) && self.apply(at, selection) == Fate::Unlimited {
            selection.leave = Some(Why::Unlimited(at));
        }
        selection.finish();
    }
}
