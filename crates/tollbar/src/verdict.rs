//! A request's answer under several policies.

use crate::store::{Entry, Role};
use crate::{Decision, Outcome};

/// What several decisions come to: passed if every enforced one allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The entry that binds, and its decision; `None` where nothing was enforced.
    binding: Option<(usize, Decision)>,
    degraded: bool,
}

impl Verdict {
    /// The verdict over entries that a store has decided. Shadows do not count.
    ///
    /// Denied: the longest retry binds, and one that can never pass before any other. Allowed: the
    /// one with the least of its limit remaining. Ties: the first.
    #[must_use]
    pub fn of(entries: &[Entry<'_>]) -> Self {
        let mut verdict = Self { binding: None, degraded: false };
        let enforced = entries.iter().enumerate().filter(|(_, entry)| entry.role == Role::Enforce);
        for (at, decision) in enforced.filter_map(|(at, entry)| Some((at, entry.decision?))) {
            verdict.degraded |= decision.degraded().is_some();
            if verdict.binding.is_none_or(|(_, binding)| decision.binds_before(&binding)) {
                verdict.binding = Some((at, decision));
            }
        }
        verdict
    }

    /// True where the request may pass. With nothing enforced, it may.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.binding.is_none_or(|(_, decision)| decision.is_allowed())
    }

    /// Which entry binds.
    #[must_use]
    pub fn binding(&self) -> Option<usize> {
        self.binding.map(|(at, _)| at)
    }

    /// The decision that binds.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        self.binding.map(|(_, decision)| decision)
    }

    /// Allow, deny or never.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.binding.map_or(Outcome::Allow, |(_, decision)| decision.outcome())
    }

    /// True where any of the decisions was given without the store.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.degraded
    }
}
